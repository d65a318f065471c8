"""Host lists as SLURM writes them: ``node[01-03,5],other``."""

from __future__ import annotations

import re
from collections.abc import Iterator

_BRACKETS = re.compile(r"\[([^\[\]]*)\]")


def expand(text: str) -> list[str]:
    """The host names in a compressed list, in order.

    Args:
        text: parts divided by commas or blanks; each may hold ranges in brackets, with leading zeros, several of them.

    Raises:
        ValueError: brackets don't fit, or a range can't be read.
    """
    return [host for part in _parts(text) for host in _expand_part(part)]


def first(text: str) -> str:
    """The first host of a compressed list.

    Raises:
        ValueError: there is none.
    """
    for part in _parts(text):
        for host in _expand_part(part):
            return host
    raise ValueError(f"there is no host in {text!r}")


def _parts(text: str) -> Iterator[str]:
    """The parts between the commas (and blanks) that stand outside of brackets."""
    depth, part = 0, ""
    for character in text:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if depth not in (0, 1):
            raise ValueError(f"the brackets in {text!r} don't fit")
        if depth == 0 and (character == "," or character.isspace()):
            if part:
                yield part
            part = ""
        else:
            part += character
    if depth:
        raise ValueError(f"the brackets in {text!r} don't fit")
    if part:
        yield part


def _expand_part(part: str) -> Iterator[str]:
    found = _BRACKETS.search(part)
    if found is None:
        yield part
        return
    before, after = part[: found.start()], part[found.end() :]
    for item in found.group(1).split(","):
        for name in _expand_range(item.strip()):
            yield from _expand_part(before + name + after)


def _expand_range(item: str) -> Iterator[str]:
    low, dash, high = item.partition("-")
    if not low.isdigit() or (dash and not high.isdigit()) or (dash and int(high) < int(low)):
        raise ValueError(f"{item!r} is no number and no range of numbers")
    for value in range(int(low), int(high or low) + 1):
        yield str(value).zfill(len(low))
