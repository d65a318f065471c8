"""How many GPUs are here, and if none, why: found out without CUDA being initialised in this process.

A process in which CUDA has been initialised can't be forked any more. ``torch.cuda.is_available()`` does that, and so
does ``torch.cuda.device_count()`` wherever NVML, the driver's management library, can't tell it the number: for
lists of MIG instances, on boards without NVML, under ROCm. So NVML is tried first, and where it has no answer, a small
process made for that asks the driver.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

#: NVIDIA's management library and its driver library, both installed with the driver, and ROCm's runtime.
NVML = "libnvidia-ml.so.1"
CUDA = "libcuda.so.1"
HIP = "libamdhip64.so"
#: How long a driver may take to answer, in seconds. A wedged one never does.
TIME_LIMIT = 60.0
#: What decides which devices a process sees.
VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


@dataclass(frozen=True)
class Devices:
    """What is here.

    Attributes:
        count: how many devices torch will see.
        reason: why so many, or why none.
    """

    count: int
    reason: str


@dataclass(frozen=True)
class _Nvml:
    #: Devices in the machine, whatever the environment hides; -1 if NVML couldn't tell.
    count: int
    #: The newest CUDA that the driver can run, as 1000 times the major version plus 10 times the minor one; 0: unknown.
    cuda_version: int
    #: Whether the library is there at all.
    installed: bool
    error: str = ""


def devices() -> Devices:
    """Count the devices that torch will see in this process."""
    if not torch.backends.cuda.is_built():
        return Devices(
            0, f"this torch ({torch.__version__}) is built without CUDA or ROCm; install a build that has it"
        )
    if _initialized() or not _can_ask_elsewhere():
        return _told(torch.cuda.device_count(), "torch")
    return _hip_devices() if torch.version.hip is not None else _cuda_devices()


def usable_devices() -> list[int] | None:
    """Indices of the devices on which a process gets a context now; None where only this process could try it."""
    if _initialized() or not _can_ask_elsewhere():
        return None
    answer = _ask_driver("usable", "hip" if torch.version.hip is not None else "cuda")
    return list(answer["usable"])


def _cuda_devices() -> Devices:
    nvml = _ask_nvml()
    if nvml.count < 0 or _lists_mig():
        if not nvml.installed and not _counted("cuda", _settings())["driver"]:
            return Devices(0, f"no NVIDIA driver is installed here (neither {NVML} nor {CUDA} is found)")
        return _by_probe("cuda", nvml.error)
    if nvml.cuda_version and torch.version.cuda is not None:
        needed = int(torch.version.cuda.partition(".")[0])
        if nvml.cuda_version // 1000 < needed:
            has = f"{nvml.cuda_version // 1000}.{nvml.cuda_version % 1000 // 10}"
            return Devices(
                0,
                f"the NVIDIA driver runs CUDA up to {has}, and this torch ({torch.__version__}) is built for CUDA "
                f"{torch.version.cuda}; renew the driver, or install a torch for CUDA {has}",
            )
    return _told(torch.cuda.device_count(), "NVML", nvml.count)


def _hip_devices() -> Devices:
    answer = _counted("hip", _settings())
    if not answer["driver"]:
        return Devices(0, f"ROCm's runtime ({HIP}) can't be loaded")
    return _by_probe("hip", "")


def _by_probe(kind: str, hint: str) -> Devices:
    answer = _counted(kind, _settings())
    error = answer["error"] or hint
    if answer["count"] == 0 and error:
        return Devices(0, f"the driver says: {error}{_visible()}")
    return _told(answer["count"], "the driver")


def _told(count: int, who: str, in_machine: int | None = None) -> Devices:
    if count:
        return Devices(count, f"{who} counts {count} device(s){_visible()}")
    if in_machine:
        return Devices(0, f"this machine has {in_machine} device(s), and the environment hides all of them{_visible()}")
    return Devices(0, f"{who} finds no device{_visible()}")


def _visible() -> str:
    told = ", ".join(f"{name}={os.environ[name]!r}" for name in VARIABLES if name in os.environ)
    return f" ({told})" if told else ""


def _lists_mig() -> bool:
    """Whether the environment lists MIG instances, of which NVML counts none."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").strip().startswith("MIG-")


def _initialized() -> bool:
    """Whether CUDA is in use in this process already, so that asking can do no harm."""
    return bool(torch.cuda.is_initialized())


# --- NVML


@functools.lru_cache(maxsize=1)
def _ask_nvml() -> _Nvml:
    """NVML's answer, from a thread that is left alone if it takes too long. What it tells doesn't change."""
    answers: list[_Nvml] = []
    thread = threading.Thread(target=lambda: answers.append(_read_nvml()), daemon=True, name="nvml")
    thread.start()
    thread.join(TIME_LIMIT)
    return answers[0] if answers else _Nvml(-1, 0, True, f"NVML gave no answer within {TIME_LIMIT:g} s")


def _read_nvml() -> _Nvml:
    try:
        library = ctypes.CDLL(NVML)
    except OSError:
        return _Nvml(-1, 0, False)
    count, version = ctypes.c_uint(), ctypes.c_int()
    try:
        if code := library.nvmlInit_v2():
            return _Nvml(-1, 0, True, f"NVML: {_nvml_text(library, code)}")
        try:
            code = library.nvmlDeviceGetCount_v2(ctypes.byref(count))
            library.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(version))
        finally:
            library.nvmlShutdown()
    except AttributeError as error:  # a library that is too old, or isn't NVML
        return _Nvml(-1, 0, True, f"NVML: {error}")
    return _Nvml(count.value, version.value, True) if not code else _Nvml(-1, 0, True, _nvml_text(library, code))


def _nvml_text(library: Any, code: int) -> str:
    library.nvmlErrorString.restype = ctypes.c_char_p
    text: bytes | None = library.nvmlErrorString(code)
    return (text or f"error {code}".encode()).decode(errors="replace")


# --- a process made for that


def _can_ask_elsewhere() -> bool:
    """Whether a small Python process can be started: not from a frozen app; and where nothing forks, none is needed."""
    return sys.platform != "win32" and bool(sys.executable) and not getattr(sys, "frozen", False)


def _settings() -> tuple[str | None, ...]:
    """What an answer depends on."""
    return tuple(os.environ.get(name) for name in VARIABLES)


@functools.lru_cache(maxsize=8)
def _counted(kind: str, settings: tuple[str | None, ...]) -> dict[str, Any]:
    """The number of devices, which is asked once for each setting of the environment."""
    return _ask_driver("count", kind)


def _ask_driver(question: str, kind: str) -> dict[str, Any]:
    """What the driver says to a process of its own; see :mod:`poplin_cuda.probe`."""
    libraries = [str(Path(torch.__file__).parent / "lib" / HIP), HIP] if kind == "hip" else [CUDA]
    command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("probe.py")), question, kind, *libraries]
    nothing = {"count": 0, "usable": [], "driver": True}
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
    try:
        output, errors = process.communicate(timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # what a driver holds on to may never end
            process.communicate(timeout=1)
        return {**nothing, "error": f"no answer within {TIME_LIMIT:g} s"}
    try:
        answer: dict[str, Any] = json.loads(output)
    except ValueError:
        last = errors.strip().rpartition("\n")[2]
        return {**nothing, "error": f"the process that asked it ended with code {process.returncode} ({last})"}
    return answer
