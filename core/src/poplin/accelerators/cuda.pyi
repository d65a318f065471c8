# Written by core/generate_stubs.py from the tables of the lazy faces and registry/known.toml; change those.
from poplin_cuda.accelerator import CUDAAccelerator as CUDAAccelerator
from poplin_cuda.accelerator import find_usable_cuda_devices as find_usable_cuda_devices
