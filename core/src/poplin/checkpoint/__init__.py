"""Checkpoints: the interface of a checkpoint IO, and the built-in ones."""

from poplin.faces import lazy_face

__all__ = [
    "CheckpointIO",
    "Location",
    "PreparedSave",
    "Request",
    "SafeStorageReader",
    "ShardedCheckpointIO",
    "StoragePath",
    "StoredState",
    "TorchCheckpointIO",
    "consolidate",
    "locate",
    "safetensors_metadata",
    "write_safetensors",
]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "CheckpointIO": "poplin.checkpoint.checkpoint_io:CheckpointIO",
        "Location": "poplin.checkpoint.storage:Location",
        "PreparedSave": "poplin.checkpoint.checkpoint_io:PreparedSave",
        "Request": "poplin.checkpoint.stored:Request",
        "SafeStorageReader": "poplin.checkpoint.dcp_reader:SafeStorageReader",
        "ShardedCheckpointIO": "poplin.checkpoint.sharded_io:ShardedCheckpointIO",
        "StoragePath": "poplin.checkpoint.checkpoint_io:StoragePath",
        "StoredState": "poplin.checkpoint.stored:StoredState",
        "TorchCheckpointIO": "poplin.checkpoint.torch_io:TorchCheckpointIO",
        "consolidate": "poplin.checkpoint.consolidation:consolidate",
        "locate": "poplin.checkpoint.storage:locate",
        "safetensors_metadata": "poplin.checkpoint.safetensors_file:safetensors_metadata",
        "write_safetensors": "poplin.checkpoint.safetensors_file:write_safetensors",
    },
)
