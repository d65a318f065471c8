# Written by core/generate_stubs.py from the tables of the lazy faces and registry/known.toml; change those.
from poplin.utilities.data import DistributedSamplerWrapper as DistributedSamplerWrapper
from poplin.utilities.filesystem import is_shared_filesystem as is_shared_filesystem
