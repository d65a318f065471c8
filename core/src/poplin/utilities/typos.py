"""Whether a name is a slip of the pen for another one."""

from __future__ import annotations

#: Words that stand in the names of hooks. Whoever writes one of these means it: `start` is no slip for `end`.
_HOOK_WORDS = frozenset(
    "on after before start end begin stop step train training validation val eval test predict fit sanity check "
    "epoch batch model optimizer backward forward grad gradients zero save load setup teardown exception close "
    "preempt configure checkpoint state dict log metrics init launch run loss callback fabric module data iteration "
    "accumulation sync clip scheduler lr".split()
)


def edit_distance(one: str, other: str) -> int:
    """Letters wrong, missing, surplus or swapped with their neighbour (optimal string alignment distance)."""
    rows = [list(range(len(other) + 1))]
    for i, letter in enumerate(one, 1):
        row = [i]
        for j, other_letter in enumerate(other, 1):
            cost = letter != other_letter
            best = min(rows[i - 1][j] + 1, row[j - 1] + 1, rows[i - 1][j - 1] + cost)
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == other_letter:
                best = min(best, rows[i - 2][j - 2] + 1)
            row.append(best)
        rows.append(row)
    return rows[-1][-1]


def is_typo_of_hook(name: str, known: str) -> bool:
    """Whether ``name`` is ``known`` with one or two letters wrong, missing or swapped, and never a whole other word."""
    if name == known or abs(len(name) - len(known)) > 2:
        return False
    words, known_words = name.split("_"), known.split("_")
    if len(words) != len(known_words):
        return name.replace("_", "") == known.replace("_", "")  # an underscore too few or too many
    mistakes = 0
    for word, meant in zip(words, known_words, strict=True):
        if word == meant:
            continue
        if word in _HOOK_WORDS:
            return False
        distance = edit_distance(word, meant)
        swapped = sorted(word) == sorted(meant)
        if not swapped and distance > len(meant) // 3:
            return False  # so much of a short word is different that it is another word
        mistakes += distance
    return 1 <= mistakes <= 2
