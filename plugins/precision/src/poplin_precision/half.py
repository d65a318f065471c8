"""Half precision: ``16-true`` and ``bf16-true``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from poplin.errors import ArgumentValueError
from poplin.precision import cast_floats
from poplin_precision.true import Keep, TruePrecision


class HalfPrecision(TruePrecision):
    """``16-true`` or ``bf16-true``: half the memory; outputs come back in torch's default dtype, for the loss.

    An update that is small beside the weight is lost to rounding; for what must not lose it there is ``keep_fp32``.

    Args:
        precision: ``"16-true"`` or ``"bf16-true"``.
        keep_fp32: as in :class:`TruePrecision`.

    Raises:
        ArgumentValueError: another name.
    """

    def __init__(self, precision: str = "16-true", keep_fp32: Keep | Sequence[Keep] = ()) -> None:
        dtypes = {"16-true": torch.float16, "bf16-true": torch.bfloat16}
        if precision not in dtypes:
            raise ArgumentValueError(f"HalfPrecision is '16-true' or 'bf16-true', and {precision!r} was asked for.")
        super().__init__(precision, dtypes[precision], keep_fp32)

    def convert_output(self, data: Any) -> Any:
        return cast_floats(data, torch.get_default_dtype())
