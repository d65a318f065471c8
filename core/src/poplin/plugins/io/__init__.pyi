# Written by core/generate_stubs.py from the tables of the lazy faces and registry/known.toml; change those.
from poplin.checkpoint.checkpoint_io import CheckpointIO as CheckpointIO
from poplin.checkpoint.torch_io import TorchCheckpointIO as TorchCheckpointIO
from poplin_tpu.checkpoint import XLACheckpointIO as XLACheckpointIO
