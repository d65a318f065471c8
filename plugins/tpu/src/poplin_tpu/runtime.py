"""Which of the two runtimes for TPUs is here, found out without importing either.

TorchTPU (`torch_tpu`) brings the device type `tpu` to torch, by torch's own autoload, where it finds hardware.
torch_xla,
which came before it, has the device type `xla`, and serves other devices too (PJRT_DEVICE), the CPU for one.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from packaging.version import Version

#: torch's device types of the two.
TORCH_TPU, TORCH_XLA = "tpu", "xla"
#: Google's vendor id on the PCI bus; of its devices there, network cards (02) and disks (01) are no TPUs.
_VENDOR, _OTHER_CLASSES = "0x1ae0", ("0x01", "0x02")
_PCI = Path("/sys/bus/pci/devices")
#: The oldest torch that TorchTPU has wheels for.
_OLDEST_TORCH_FOR_TPU = Version("2.11")
#: What stands for the version of a package without metadata.
UNKNOWN = "of unknown version"
#: How long the runtime may take to say what it finds, in seconds.
PROBE_SECONDS = 60.0


class Answer(NamedTuple):
    """Whether a runtime can be used, and why (not)."""

    usable: bool
    reason: str


class Choice(NamedTuple):
    """The runtime for `accelerator="tpu"`."""

    device_type: str
    usable: bool
    reason: str


def choose() -> Choice:
    """The runtime that serves TPUs here: the one with a device, TorchTPU before torch_xla.

    Neither is imported; what torch's autoload has imported already is asked.
    """
    tpu = torch_tpu()
    if tpu.usable:
        return Choice(TORCH_TPU, True, tpu.reason)
    xla = torch_xla_on_tpu()
    if xla.usable:
        return Choice(TORCH_XLA, True, f"{xla.reason} (TorchTPU: {tpu.reason})")
    return Choice(TORCH_TPU, False, f"TorchTPU: {tpu.reason}; torch_xla: {xla.reason}")


def torch_tpu() -> Answer:
    """Whether torch has a `tpu` device."""
    try:
        module: Any = torch.get_device_module(TORCH_TPU)
    except (RuntimeError, AttributeError):
        return Answer(False, _why_no_tpu_device())
    count = int(module.device_count()) if module.is_available() else 0
    if not count:
        return Answer(False, "torch knows the device type 'tpu', and reports no device of it")
    version = installed("torch_tpu")
    return Answer(True, f"{f'torch_tpu {version}' if version else 'torch'} reports {count} TPU device(s)")


def _why_no_tpu_device() -> str:
    version = installed("torch_tpu")
    if version is None:
        return "the package torch_tpu is not installed"
    ours = Version(torch.__version__.partition("+")[0])
    if ours < _OLDEST_TORCH_FOR_TPU:
        return f"torch_tpu {version} needs torch {_OLDEST_TORCH_FOR_TPU} or newer, and this is {torch.__version__}"
    found, why = chips()
    if not found:
        return f"torch_tpu {version} is installed, and {why}"
    if "torch_tpu" not in sys.modules:
        return (
            f"torch_tpu {version} is installed and {why}, but torch has not loaded it (TORCH_DEVICE_BACKEND_AUTOLOAD="
            f"{os.environ.get('TORCH_DEVICE_BACKEND_AUTOLOAD', '')}): leave that variable unset"
        )
    return f"torch_tpu {version} is loaded and {why}, but it has registered no device"


def torch_xla() -> Answer:
    """Whether torch_xla is installed, for this torch. It is not imported."""
    version = installed("torch_xla")
    if version is None:
        return Answer(False, "the package torch_xla is not installed")
    if version == UNKNOWN:
        return Answer(True, f"torch_xla {version}")
    mine, its = (Version(text.partition("+")[0]).release[:2] for text in (torch.__version__, version))
    if mine != its:
        return Answer(
            False,
            f"torch_xla {version} is made for torch {its[0]}.{its[1]}, and this is {torch.__version__} "
            f"(pip install torch=={its[0]}.{its[1]}.*)",
        )
    return Answer(True, f"torch_xla {version}")


def torch_xla_on_tpu() -> Answer:
    """Whether torch_xla has a TPU.

    It is asked, in another process, only where there is one on the bus, or the user says so (PJRT_DEVICE=TPU).
    """
    package = torch_xla()
    if not package.usable:
        return package
    wanted = os.environ.get("PJRT_DEVICE", "").upper()
    if wanted and wanted != "TPU":
        return Answer(False, f"{package.reason} is told to use another device (PJRT_DEVICE={wanted})")
    found, why = chips()
    if not found and not wanted:
        return Answer(False, f"{package.reason} is installed, and {why}")
    return _probe(package.reason, os.getpid())


@functools.cache
def _probe(package: str, pid: int) -> Answer:
    """What torch_xla says of its devices; in a process of its own, for one that asks holds the chips."""
    program = "import torch_xla.runtime as r; print('FOUND', r.device_type(), r.global_runtime_device_count())"
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return Answer(False, f"{package} did not say within {PROBE_SECONDS:g} s what it finds")
    words = done.stdout.partition("FOUND ")[2].split()
    if done.returncode or len(words) != 2:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Answer(False, f"{package} fails: {last}")
    if words[0] != "TPU":
        return Answer(False, f"{package} finds {words[0]} and no TPU")
    return Answer(True, f"{package} finds {words[1]} TPU device(s)")


def chips() -> tuple[bool, str]:
    """Whether TPU chips are on this machine's PCI bus, and what to tell of it."""
    count = 0
    for device in sorted(_PCI.glob("*")) if _PCI.is_dir() else ():
        try:
            vendor, its_class = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
        except OSError:
            continue
        count += vendor == _VENDOR and not its_class.startswith(_OTHER_CLASSES)
    return bool(count), f"{count} TPU chip(s) are on the PCI bus" if count else "no TPU chip is on the PCI bus"


def installed(package: str) -> str | None:
    """The version of a package, if it can be imported."""
    if importlib.util.find_spec(package) is None:
        return None
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return UNKNOWN


def xla(name: str = "") -> ModuleType:
    """A module of torch_xla's, imported now."""
    return importlib.import_module(f"torch_xla.{name}" if name else "torch_xla")
