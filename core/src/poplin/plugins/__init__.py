"""The import paths that users of Lightning know, as lazy faces; there is no code here."""

from poplin.faces import lazy_face

__all__ = ["CheckpointIO", "ClusterEnvironment", "Precision", "TorchCheckpointIO"]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "CheckpointIO": "poplin.checkpoint.checkpoint_io:CheckpointIO",
        "ClusterEnvironment": "poplin.environments.environment:ClusterEnvironment",
        "Precision": "poplin.precision.precision:Precision",
        "TorchCheckpointIO": "poplin.checkpoint.torch_io:TorchCheckpointIO",
    },
)
