"""A lazy face: checkpoint IOs under the import path that users of Lightning know."""

from poplin.faces import lazy_face

__all__ = ["CheckpointIO", "TorchCheckpointIO"]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "CheckpointIO": "poplin.checkpoint.checkpoint_io:CheckpointIO",
        "TorchCheckpointIO": "poplin.checkpoint.torch_io:TorchCheckpointIO",
    },
)
