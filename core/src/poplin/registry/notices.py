"""Warnings about plugins: once each, on the first rank, and attributed to the line outside Poplin that led here."""

from __future__ import annotations

import os
import sys
import warnings

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def warn(message: str) -> None:
    """Warn, but on other ranks than the first, which would only repeat it."""
    if os.environ.get("RANK", "0") == "0" and os.environ.get("LOCAL_RANK", "0") == "0":
        warnings.warn(message, stacklevel=_levels_to_the_caller())


def _levels_to_the_caller() -> int:
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
        level += 1
    return level
