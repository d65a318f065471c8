# Written by core/generate_stubs.py from the tables of the lazy faces and registry/known.toml; change those.
from poplin.checkpoint.checkpoint_io import CheckpointIO as CheckpointIO
from poplin.checkpoint.checkpoint_io import PreparedSave as PreparedSave
from poplin.checkpoint.checkpoint_io import StoragePath as StoragePath
from poplin.checkpoint.consolidation import consolidate as consolidate
from poplin.checkpoint.dcp_reader import SafeStorageReader as SafeStorageReader
from poplin.checkpoint.safetensors_file import safetensors_metadata as safetensors_metadata
from poplin.checkpoint.safetensors_file import write_safetensors as write_safetensors
from poplin.checkpoint.sharded_io import ShardedCheckpointIO as ShardedCheckpointIO
from poplin.checkpoint.storage import Location as Location
from poplin.checkpoint.storage import locate as locate
from poplin.checkpoint.stored import Request as Request
from poplin.checkpoint.stored import StoredState as StoredState
from poplin.checkpoint.torch_io import TorchCheckpointIO as TorchCheckpointIO
