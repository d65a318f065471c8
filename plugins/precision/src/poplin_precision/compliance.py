"""The compliance suite of the precision that is no coarser than what it is compared with."""

from __future__ import annotations

from poplin.testing import PrecisionCompliance


class Float64Compliance(PrecisionCompliance):
    """A training in float64 ends where one in float32 does, to the digits of float32."""

    name = "64-true"
    tolerance = 1e-5
