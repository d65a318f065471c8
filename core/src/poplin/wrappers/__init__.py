"""What ``Fabric.setup`` returns: thin wrappers that behave as what they wrap."""

from poplin.faces import lazy_face

__all__ = ["FabricDataLoader", "FabricModule", "FabricOptimizer", "MethodDispatch", "is_wrapped", "unwrap"]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "FabricDataLoader": "poplin.wrappers.dataloader:FabricDataLoader",
        "FabricModule": "poplin.wrappers.module:FabricModule",
        "FabricOptimizer": "poplin.wrappers.optimizer:FabricOptimizer",
        "MethodDispatch": "poplin.wrappers.dispatch:MethodDispatch",
        "is_wrapped": "poplin.wrappers.unwrapping:is_wrapped",
        "unwrap": "poplin.wrappers.unwrapping:unwrap",
        # the names that Lightning's users know
        "_FabricDataLoader": "poplin.wrappers.dataloader:FabricDataLoader",
        "_FabricModule": "poplin.wrappers.module:FabricModule",
        "_FabricOptimizer": "poplin.wrappers.optimizer:FabricOptimizer",
    },
)
