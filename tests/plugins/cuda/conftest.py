"""GPUs that aren't here: torch's answers are replaced, and the driver's libraries are made of a few lines of C."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from poplin_cuda import driver

#: What the libraries say is set by environment variables.
DRIVER = r"""
#include <stdlib.h>
#include <unistd.h>
static int number(const char *name, int otherwise) { return getenv(name) ? atoi(getenv(name)) : otherwise; }

int cuInit(unsigned flags) { sleep(number("FAKE_SLEEP", 0)); return number("FAKE_ERROR", 0); }
int cuDeviceGetCount(int *count) { *count = number("FAKE_DEVICES", 0); return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return device == number("FAKE_BUSY", -1) ? 46 : 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
int cuGetErrorString(int code, const char **text) { *text = "no fake device"; return 0; }
int hipInit(unsigned flags) { return number("FAKE_ERROR", 0); }
int hipGetDeviceCount(int *count) { *count = number("FAKE_DEVICES", 0); return 0; }
int hipSetDevice(int device) { return device == number("FAKE_BUSY", -1); }
int hipFree(void *pointer) { return 0; }
const char *hipGetErrorString(int code) { return "no fake HIP device"; }
int nvmlInit_v2(void) { sleep(number("FAKE_SLEEP", 0)); return number("FAKE_NVML_ERROR", 0); }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = number("FAKE_GPUS", 0); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = number("FAKE_CUDA_VERSION", 13000); return 0; }
const char *nvmlErrorString(int code) { return "Driver Not Loaded"; }
"""
UUIDS = ["GPU-aaaa0000", "GPU-aaaa1111", "GPU-bbbb2222", "GPU-cccc3333"]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A library with the functions of NVML, CUDA's driver and HIP."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("a C compiler is needed to build a driver without devices")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(DRIVER)
    built = folder / "libdriver.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", built, folder / "driver.c"], check=True, timeout=60)
    return str(built)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """``environment(NAME="value", ...)`` sets variables for the length of a test; those that count are unset before."""
    for name in (*driver.VARIABLES, "WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    driver._counted.cache_clear()
    driver._ask_nvml.cache_clear()

    def set_them(**variables: Any) -> None:
        driver._counted.cache_clear()
        driver._ask_nvml.cache_clear()
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))

    yield set_them
    driver._counted.cache_clear()
    driver._ask_nvml.cache_clear()


def _refuse() -> int:
    raise AssertionError("CUDA's runtime was asked, and this process can't be forked any more")


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, library: str, environment: Callable[..., None]) -> Callable[..., None]:
    """Four GPUs, as a CUDA build of torch would see them; torch's own reading of the environment is at work."""
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "_is_compiled", lambda: True)
    monkeypatch.setattr(torch.cuda, "_raw_device_count_nvml", lambda: 4)
    monkeypatch.setattr(torch.cuda, "_raw_device_uuid_nvml", lambda: UUIDS)
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", _refuse, raising=False)
    monkeypatch.setattr(driver, "NVML", library)
    monkeypatch.setattr(driver, "CUDA", library)
    environment(FAKE_GPUS=4, FAKE_DEVICES=4)
    return environment


@pytest.fixture
def without_driver(monkeypatch: pytest.MonkeyPatch, gpus: Any) -> None:
    """A CUDA build of torch on a machine without a driver."""
    monkeypatch.setattr(driver, "NVML", "libno-such-nvml.so")
    monkeypatch.setattr(driver, "CUDA", "libno-such-cuda.so")
