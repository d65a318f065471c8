"""What Acme offers to Poplin."""

from poplin import hookimpl, lazy


@hookimpl
def poplin_accelerators():
    return {"acme": lazy("acme_poplin.accelerator:AcmeAccelerator")}


@hookimpl
def poplin_strategies():
    return {"acme_staged": lazy("acme_poplin.strategy:StagedStrategy")}


@hookimpl
def poplin_select_strategy(accelerator, num_devices, num_nodes, interactive):
    several = num_devices * num_nodes > 1
    return "acme_staged" if several and accelerator.name() == "acme" else None


@hookimpl
def poplin_precisions():
    return {"acme-mixed": lazy("acme_poplin.precision:AcmePrecision", dtype="bfloat16")}


@hookimpl
def poplin_loggers():
    return {"acme_lines": lazy("acme_poplin.logger:LinesLogger")}
