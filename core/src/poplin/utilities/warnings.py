"""Warnings of Poplin's own category, and how to silence them."""

from __future__ import annotations

import warnings

from poplin.errors import PossibleUserWarning

__all__ = ["PossibleUserWarning", "disable_possible_user_warnings"]


def disable_possible_user_warnings(module: str = "") -> None:
    """Silence warnings about what is probably, but not certainly, a mistake.

    Args:
        module: a regular expression for the module that the warning is attributed to; all by default.
    """
    warnings.filterwarnings("ignore", category=PossibleUserWarning, module=module)
