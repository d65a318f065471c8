"""The accelerator, its strategy and their package against the public compliance suites.

Where there is no GPU, what can be asked without one is checked; and once more with four of them made up, as in
`conftest.py`.
"""

import os
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from poplin.testing import AcceleratorCompliance, PackagingCompliance
from poplin_cuda.compliance import DataParallelCompliance

NEED_A_DEVICE = (
    "test_devices_are_torch_devices_of_its_type",
    "test_tensors_work_on_the_device",
    "test_seeding_and_restoring_the_generator_repeat_its_numbers",
    "test_memory_and_peak_rates_are_numbers_or_unknown",
    "test_a_model_trains_as_on_the_cpu",
    "test_it_can_be_used_again_after_teardown",
)

pytestmark = pytest.mark.timeout(600)  # one test launches the ranks for all: on a busy machine it takes its time


class TestCUDA(AcceleratorCompliance):
    name = "cuda"


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, for a driver without devices")
class TestCUDAWithFourMadeUp(AcceleratorCompliance):
    name = "cuda"
    exempt = dict.fromkeys(NEED_A_DEVICE, "the devices are made up, and compute nothing")

    def prepare(self):
        """Stand in for a CUDA build of torch and for the driver, in this process of the checks."""
        from poplin_cuda import driver

        fakes = runpy.run_path(str(Path(__file__).with_name("conftest.py")))
        Path("driver.c").write_text(fakes["DRIVER"])
        subprocess.run(["cc", "-shared", "-fPIC", "-o", "libdriver.so", "driver.c"], check=True, timeout=60)
        driver.NVML = driver.CUDA = str(Path("libdriver.so").absolute())
        os.environ.update(FAKE_GPUS="4", FAKE_DEVICES="4")
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        torch.backends.cuda.is_built = lambda: True
        torch.version.cuda = "13.0"
        torch.cuda._is_compiled = lambda: True
        torch.cuda._raw_device_count_nvml = lambda: 4
        torch.cuda._raw_device_uuid_nvml = lambda: fakes["UUIDS"]
        torch._C._cuda_getDeviceCount = fakes["_refuse"]  # the runtime, which would spoil a fork


class TestDataParallel(DataParallelCompliance):
    pass


class TestPackage(PackagingCompliance):
    distribution = "poplin-cuda"
