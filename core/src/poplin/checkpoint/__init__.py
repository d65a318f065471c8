"""Checkpoints: the interface of a checkpoint IO, and the built-in one."""

from poplin.faces import lazy_face

__all__ = ["CheckpointIO", "StoragePath", "TorchCheckpointIO"]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "CheckpointIO": "poplin.checkpoint.checkpoint_io:CheckpointIO",
        "StoragePath": "poplin.checkpoint.checkpoint_io:StoragePath",
        "TorchCheckpointIO": "poplin.checkpoint.torch_io:TorchCheckpointIO",
    },
)
