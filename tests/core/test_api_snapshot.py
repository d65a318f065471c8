"""Every name, signature and default of the interfaces, pinned. Whatever changes here is a change of the API.

After a change that is meant: ``python tests/core/test_api_snapshot.py`` writes the snapshot anew; say what changed in
the CHANGELOG.
"""

import importlib
import inspect
from pathlib import Path

import pytest

from poplin.registry.kinds import KINDS
from poplin.testing import reference

SNAPSHOT = Path(__file__).with_name("api_snapshot.txt")


def interfaces():
    from poplin.extension import Extension
    from poplin.strategies import ParallelStrategy

    yield Extension
    for kind in KINDS.values():
        module, _, name = kind.interface.partition(":")
        yield getattr(importlib.import_module(module), name)
        if kind.name == "strategies":
            yield ParallelStrategy


def the_kit():
    """The names of ``poplin.testing``, with their signatures, and each suite's checks."""
    from poplin import testing
    from poplin.testing.checks import requirements

    for name in testing.__all__:
        value = getattr(testing, name)
        arguments = "" if isinstance(value, type) or not callable(value) else str(inspect.signature(value))
        yield f"testing {name}{arguments}".replace("'", "")
        if isinstance(value, type) and issubclass(value, testing.Compliance):
            yield from (f"testing {name}: {one.method} [{one.member}]" for one in requirements(value))


def pinned():
    from poplin import fabric
    from poplin.registry import hookspecs

    lines = [line for cls in [*interfaces(), fabric.Fabric] for line in reference.pin(cls)]
    for name, function in vars(hookspecs).items():
        if name.startswith("poplin_"):
            lines.append(f"hook {name}{str(inspect.signature(function)).replace(chr(39), '')}")
    lines += the_kit()
    lines += [f"kind {kind.name}: {kind.group} {kind.hook} {kind.roles}" for kind in KINDS.values()]
    return lines


def test_the_interfaces_are_as_they_were():
    assert pinned() == SNAPSHOT.read_text().splitlines(), "the API changed: see the docstring of this file"


@pytest.mark.parametrize("cls", [*interfaces()], ids=lambda cls: cls.__name__)
def test_every_member_is_documented(cls):
    assert [member.name for member in reference.members(cls) if not member.doc and member.name != "__init__"] == []


@pytest.mark.parametrize("cls", [*interfaces()], ids=lambda cls: cls.__name__)
def test_every_member_says_who_calls_it_and_when(cls):
    """A method's docstring names its caller; properties and attributes are read, which needs no saying."""
    silent = [
        member.name
        for member in reference.members(cls)
        if member.form.endswith("method") and member.name != "__init__" and "alled " not in member.doc
    ]
    assert silent == []


if __name__ == "__main__":
    SNAPSHOT.write_text("\n".join(pinned()) + "\n")
