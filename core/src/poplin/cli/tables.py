"""Plain text in columns."""

from __future__ import annotations

from collections.abc import Sequence


def table(lines: Sequence[Sequence[str]], indent: str = "") -> str:
    """Align ``lines`` of cells in columns two spaces apart; further lines of the last cell hang under it."""
    if not lines:
        return ""
    columns = max(map(len, lines))
    widths = [
        max((len(line[column]) for line in lines if column < len(line)), default=0) for column in range(columns - 1)
    ]
    margin = indent + "".join(" " * (width + 2) for width in widths)
    text: list[str] = []
    for line in lines:
        head = "".join(cell.ljust(width + 2) for cell, width in zip(line, widths, strict=False))
        last = line[columns - 1].splitlines() if len(line) == columns else []
        text.append((indent + head + (last[0] if last else "")).rstrip())
        text.extend((margin + more).rstrip() for more in last[1:])
    return "\n".join(text)
