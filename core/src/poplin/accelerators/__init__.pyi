# Written by core/generate_stubs.py from the tables of the lazy faces and registry/known.toml; change those.
from poplin.accelerators.accelerator import Accelerator as Accelerator
from poplin.accelerators.accelerator import parse_device_indices as parse_device_indices
from poplin.accelerators.cpu import CPUAccelerator as CPUAccelerator
from poplin.registry.views import ACCELERATOR_REGISTRY as ACCELERATOR_REGISTRY
from poplin_cuda.accelerator import CUDAAccelerator as CUDAAccelerator
from poplin_cuda.accelerator import find_usable_cuda_devices as find_usable_cuda_devices
from poplin_mps.accelerator import MPSAccelerator as MPSAccelerator
from poplin_tpu.accelerator import XLAAccelerator as XLAAccelerator
