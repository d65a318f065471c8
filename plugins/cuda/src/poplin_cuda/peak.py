"""Peak rates of dense matrix products, by the name that the device reports.

The numbers are those of the makers' data sheets, without structured sparsity (where a sheet tells only the rate with
sparsity, half of it), in TFLOP/s:

- NVIDIA: data sheets of V100, T4, A100, A30, A40, A10, L4, L40, L40S, H100, H200 and HGX B200; A10G by AWS's
  description of G5 instances; GeForce and RTX cards by the whitepapers of the architectures Ampere GA102, Ada and
  Blackwell (float16 and bfloat16 with float32 accumulation, as torch multiplies by default).
- AMD: data sheets of MI210, MI250X (for one of its two devices), MI300X and MI325X.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import torch


class Peak(NamedTuple):
    """Rates of one device in TFLOP/s; None where it has no unit for that, or none is told."""

    float64: float | None
    float32: float | None
    tf32: float | None
    half: float | None
    #: Whether bfloat16 is as fast as float16; older devices have no unit for it.
    has_bfloat16: bool = True


#: The first pattern that is found in a device's name counts. A slice (MIG) or a laptop's version is another device.
PEAKS = [
    (r"MIG |Laptop|Max-Q|\bD\b", None),
    (r"\bB200\b", Peak(37, 75, 1125, 2250)),
    (r"\bH200 NVL|\bH100 NVL", Peak(60, 60, 417.5, 835.5)),
    (r"\bH200\b|\bH100.*HBM3", Peak(67, 67, 494.5, 989.5)),
    (r"\bH100 PCIe", Peak(51, 51, 378, 756.5)),
    (r"\bA100\b", Peak(19.5, 19.5, 156, 312)),
    (r"\bA30\b", Peak(10.3, 10.3, 82, 165)),
    (r"\bA40\b", Peak(None, 37.4, 74.8, 149.7)),
    (r"\bA10G\b", Peak(None, 35, 35, 70)),
    (r"\bA10\b", Peak(None, 31.2, 62.5, 125)),
    (r"\bL40S\b", Peak(None, 91.6, 183, 362.05)),
    (r"\bL40\b", Peak(None, 90.5, 90.5, 181.05)),
    (r"\bL4\b", Peak(None, 30.3, 60, 121)),
    (r"\bV100S\b", Peak(8.2, 16.4, None, 130, False)),
    (r"\bV100.*SXM", Peak(7.8, 15.7, None, 125, False)),
    (r"\bV100.*PCIE", Peak(7.0, 14.0, None, 112, False)),
    (r"\bT4\b", Peak(None, 8.1, None, 65, False)),
    (r"RTX 5090\b", Peak(None, 104.8, 104.8, 209.5)),
    (r"RTX 4090\b", Peak(None, 82.6, 82.6, 165.2)),
    (r"RTX 3090 Ti\b", Peak(None, 40, 40, 80)),
    (r"RTX 3090\b", Peak(None, 35.6, 35.6, 71)),
    (r"\bMI325X\b|\bMI300X\b", Peak(163.4, 163.4, 653.7, 1307.4)),
    (r"\bMI250X\b", Peak(47.9, 47.9, None, 191.5)),
    (r"\bMI210\b", Peak(45.3, 45.3, None, 181)),
]


def uses_tf32() -> bool:
    """Whether float32 matrix products may round their inputs to TF32; it is off unless somebody turned it on."""
    return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


def peak_flops(device_name: str, dtype: torch.dtype) -> float | None:
    """The peak in FLOP/s, or None where it isn't known.

    Args:
        device_name: as ``torch.cuda.get_device_name()`` tells it.
        dtype: of the inputs of a product. float32 counts as TF32 where :func:`uses_tf32`.
    """
    peak = next((peak for pattern, peak in PEAKS if re.search(pattern, device_name, re.IGNORECASE)), None)
    if peak is None:
        return None
    rate: float | None = None
    if dtype is torch.float64:
        rate = peak.float64
    elif dtype is torch.float32:
        rate = peak.tf32 if uses_tf32() and peak.tf32 is not None else peak.float32
    elif dtype is torch.float16 or (dtype is torch.bfloat16 and peak.has_bfloat16):
        rate = peak.half
    return None if rate is None else rate * 1e12
