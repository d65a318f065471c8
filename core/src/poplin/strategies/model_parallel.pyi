# Written by core/generate_stubs.py from the tables of the lazy faces and registry/known.toml; change those.
from poplin_fsdp.model_parallel import ModelParallelStrategy as ModelParallelStrategy
from poplin_fsdp.tensor_parallel import TensorParallelStrategy as TensorParallelStrategy
