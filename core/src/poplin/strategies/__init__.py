"""Strategies: the interface, the built-in single device, and (lazily) those of known packages."""

from poplin.faces import lazy_face

__all__ = ["STRATEGY_REGISTRY", "ParallelStrategy", "SingleDeviceStrategy", "Strategy"]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "STRATEGY_REGISTRY": "poplin.registry.views:STRATEGY_REGISTRY",
        "ParallelStrategy": "poplin.strategies.parallel:ParallelStrategy",
        "SingleDeviceStrategy": "poplin.strategies.single_device:SingleDeviceStrategy",
        "Strategy": "poplin.strategies.strategy:Strategy",
        "Memory": "poplin.strategies.memory:Memory",
        "memory_of": "poplin.strategies.memory:memory_of",
        "load_optimizer_state_by_name": "poplin.strategies.optimizer_state:load_optimizer_state_by_name",
        "optimizer_state_by_name": "poplin.strategies.optimizer_state:optimizer_state_by_name",
        "parameter_names": "poplin.strategies.optimizer_state:parameter_names",
        "parse_reduce_op": "poplin.strategies.reductions:parse_reduce_op",
    },
)
