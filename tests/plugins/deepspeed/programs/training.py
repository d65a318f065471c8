"""Every stage and precision against DDP; a resume; a consolidation; DeepSpeedCPUAdam; other strategies."""

import contextlib
import io
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import torch
from common import Cases, adamw, batches, ddp, distance, groups_of, model_of, same, states, train, weights, zero

from poplin.testing.ranks import report
from poplin_deepspeed.checkpoint import DeepSpeedCheckpointIO

FOLDER = Path(sys.argv[1])
DATA = batches(5)
cases = Cases()


def trained_by_ddp(precision, micro_batches, clip):
    fabric = ddp(precision)
    model = model_of()
    optimizer = adamw(model)
    model, optimizer = fabric.setup(model, optimizer)
    train(fabric, model, optimizer, DATA, micro_batches, clip)
    result = weights(fabric, model)
    fabric.close()
    return result


def consolidated(path):
    """What zero_to_fp32 makes of the folder."""
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return dict(get_fp32_state_dict_from_zero_checkpoint(str(path)).items())


def one(stage, precision, offload=False, make=adamw):
    found, start = {}, time.monotonic()
    name = f"{stage}-{precision}-{offload}-{make.__name__}"
    fabric = zero(
        stage, precision, offload_optimizer=offload or None, offload_parameters=(offload and stage == 3) or None
    )

    def fresh(seed):
        model = model_of(seed)
        return fabric.setup(model, make(model))

    for micro_batches, clip in ((1, None), (2, 0.5), (4, None)):
        model, optimizer = fresh(0)
        train(fabric, model, optimizer, DATA, micro_batches, clip)
        key = f"{micro_batches} micro batches, clip {clip}"
        found[key] = distance(weights(fabric, model), REFERENCES[precision][key])
    model, optimizer = fresh(0)
    train(fabric, model, optimizer, DATA[:3], 2, 0.5)
    path = FOLDER / name
    state = {"model": model, "optimizer": optimizer, "step": 3, "more": {"list": [1, torch.ones(2)]}}
    fabric.save(path, state)
    middle = states(fabric, model, optimizer)
    train(fabric, model, optimizer, DATA[3:], 2, 0.5)
    end = states(fabric, model, optimizer)

    other, other_optimizer = fresh(1)
    again = {"model": other, "optimizer": other_optimizer, "step": 0, "more": {"list": [0, torch.zeros(2)]}}
    fabric.load(path, again)
    found["loaded"] = same(states(fabric, other, other_optimizer), middle)
    found["values"] = [again["step"], again["more"]["list"][0], again["more"]["list"][1].tolist()]
    train(fabric, other, other_optimizer, DATA[3:], 2, 0.5)
    found["resumed"] = same(states(fabric, other, other_optimizer), end)
    fabric.load(path, {"model": model, "optimizer": optimizer})  # into what has trained on
    found["loaded again"] = same(states(fabric, model, optimizer), middle)
    saved = weights(fabric, model)
    found["zero_to_fp32"] = same(consolidated(path), {k: v.float() for k, v in saved.items()})
    read = DeepSpeedCheckpointIO().load_checkpoint(path)
    found["read"] = same({k: v.float() for k, v in read["model"].items()}, {k: v.float() for k, v in saved.items()})
    found["dtype"] = str(next(model.parameters()).dtype)
    fabric.close()
    found["seconds"] = time.monotonic() - start
    return found


def cpu_adam(model):
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    return DeepSpeedCPUAdam(groups_of(model), lr=0.02, weight_decay=0.1, adamw_mode=True)


REFERENCES = {
    precision: {
        f"{micro_batches} micro batches, clip {clip}": trained_by_ddp(precision, micro_batches, clip)
        for micro_batches, clip in ((1, None), (2, 0.5), (4, None))
    }
    for precision in ("32-true", "bf16-mixed", "bf16-true")
}
for precision in REFERENCES:
    for stage in (1, 2, 3):
        cases.run(f"stage {stage} {precision}", one, stage, precision)
for stage in (2, 3):
    cases.run(f"stage {stage} offload AdamW", one, stage, "32-true", True)
    cases.run(f"stage {stage} offload DeepSpeedCPUAdam", one, stage, "32-true", True, cpu_adam)
cases.run("stage 1 DeepSpeedCPUAdam", one, 1, "bf16-mixed", False, cpu_adam)
report(cases)
