"""Environment variables of schedulers, read with care."""

from __future__ import annotations

import os

from poplin.errors import SelectionError


def number(name: str, hint: str = "") -> int:
    """The number in a variable.

    Args:
        name: of the variable.
        hint: what to do if it isn't set.

    Raises:
        SelectionError: it isn't set, or is no number.
    """
    value = optional_number(name)
    if value is None:
        raise SelectionError(f"The environment variable {name} is not set. {hint}".rstrip())
    return value


def optional_number(name: str) -> int | None:
    """The number in a variable, or None if it isn't set.

    Raises:
        SelectionError: it is no number.
    """
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise SelectionError(
            f"The environment variable {name}={text} is no number; the scheduler should set it."
        ) from None


def port_of_job(job: str, base: int) -> int:
    """A port that every rank of a job comes to by itself: ``MASTER_PORT``, or one made of the job's number.

    Args:
        job: the job's id; its last four digits count.
        base: the lowest port.
    """
    explicit = optional_number("MASTER_PORT")
    if explicit is not None:
        return explicit
    digits = "".join(character for character in job if character.isdigit())
    return base + (int(digits[-4:]) if digits else 0)
