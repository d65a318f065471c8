"""Ask the driver about its devices, in a process made for that. Run as a program; it imports neither torch nor Poplin.

    python -I -S probe.py {count|usable} {cuda|hip} LIBRARY...

It prints JSON: ``count`` (how many devices are visible), ``usable`` (their indices; empty for ``count``), ``driver``
(whether one of the libraries could be loaded) and ``error`` (what the driver said, or "").
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any


class Driver:
    """The few functions of CUDA's driver library that are needed."""

    def __init__(self, library: Any) -> None:
        self.api = library

    def count(self) -> int:
        """How many devices are visible, MIG instances counted as the driver counts them."""
        self._check(self.api.cuInit(0))
        number = ctypes.c_int()
        self._check(self.api.cuDeviceGetCount(ctypes.byref(number)))
        return number.value

    def can_be_used(self, index: int) -> bool:
        """Whether this process gets a context on the device: another may have it for itself, or all of its memory."""
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if self.api.cuDeviceGet(ctypes.byref(device), index):
            return False
        if self.api.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
            return False
        self.api.cuDevicePrimaryCtxRelease_v2(device)
        return True

    def _check(self, code: int) -> None:
        if code:
            text = ctypes.c_char_p()
            self.api.cuGetErrorString(code, ctypes.byref(text))
            raise RuntimeError(f"error {code}, {(text.value or b'unknown').decode(errors='replace')}")


class HipDriver(Driver):
    """The same for ROCm's library."""

    def count(self) -> int:
        self._check(self.api.hipInit(0))
        number = ctypes.c_int()
        self._check(self.api.hipGetDeviceCount(ctypes.byref(number)))
        return number.value

    def can_be_used(self, index: int) -> bool:
        return not self.api.hipSetDevice(index) and not self.api.hipFree(None)

    def _check(self, code: int) -> None:
        if code:
            self.api.hipGetErrorString.restype = ctypes.c_char_p
            text: bytes = self.api.hipGetErrorString(code) or b"unknown"
            raise RuntimeError(f"error {code}, {text.decode(errors='replace')}")


def load(names: list[str]) -> Any | None:
    """The first of the libraries that can be loaded."""
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def main(question: str, kind: str, *libraries: str) -> dict[str, Any]:
    """Answer ``question``; see the top of this file."""
    answer: dict[str, Any] = {"count": 0, "usable": [], "driver": False, "error": ""}
    library = load(list(libraries))
    if library is None:
        return answer
    answer["driver"] = True
    driver = HipDriver(library) if kind == "hip" else Driver(library)
    try:
        answer["count"] = driver.count()
        if question == "usable":
            answer["usable"] = [index for index in range(answer["count"]) if driver.can_be_used(index)]
    except (RuntimeError, AttributeError) as error:
        answer["error"] = str(error)
    return answer


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
