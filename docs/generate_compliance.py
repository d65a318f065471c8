"""Write docs/compliance.md from the suites: ``python docs/generate_compliance.py``.

A test compares the page with what this would write, so every check is on it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from pathlib import Path

from poplin import testing
from poplin.testing import checking, reference
from poplin.testing.checks import SEVERAL, requirements
from poplin.testing.compliance import Compliance

PAGE = Path(__file__).with_name("compliance.md")

INTRODUCTION = """\
# The compliance suites

*The lists of settings and checks are written from the code by `docs/generate_compliance.py`; change that.*

`poplin.testing` holds each kind of extension, and each package, to what its interface says. Poplin's own plugins pass
the same suites. There are two ways to run one:

- from the command line, on what is installed: `poplin plugins check NAME` or `poplin plugins check DISTRIBUTION`;
- from a test file, where pytest runs each check as a test (a package of `poplin plugins new` has it by
  `pip install -e '.[test]'`; by itself it comes with `pip install "poplin-core[testing]"`):

```python
from poplin.testing import PackagingCompliance, StrategyCompliance


class TestAcme(StrategyCompliance):
    name = "acme"


class TestPackage(PackagingCompliance):
    distribution = "poplin-acme"
```

Where a name is not enough, override `create`; the object must be made without help of the test's process, because most
checks run in processes of their own. The same from a program: `for outcome in poplin.testing.check("acme"): ...`.

## A suite that comes with the package

What a suite must know (how a logger's file is read back, to how many digits a precision computes, which model a
strategy has a plan for) its author says once, in a subclass in the package itself, and names it in the metadata:

```toml
[project.entry-points."poplin.compliance"]
acme = "poplin_acme.compliance:AcmeCompliance"
```

`poplin plugins check` then runs this one, for everybody who has the package; the tests subclass it. The name of the
entry point is yours to choose. The suite says itself what it is for: a `name` of the package's, or none for all of
its kind; one for the name stands before one for all, and a name that no suite of the package is for gets that of
its kind. The module is imported for a check only, and may import `poplin.testing`, which needs no pytest.

`poplin plugins check NAME --suite MODULE:CLASS` runs another one, from an importable module (the current folder counts)
or a file: `--suite tests/test_acme.py:TestAcme`. It takes the place of the suite of its kind; with the name of a
distribution packaging and other kinds are checked as ever.

## What comes of a check

Each check passes, fails, or is **not claimed**: the extension itself says that it does not do this, by
`picklable = False`, one device only, or no hardware here; or the suite was not told enough (no `read`, no `variables`).
pytest shows the last as skipped, with the reason. A failure says what was expected, what was found, and which member of
the interface it is about. To say of one check that it can't hold, and why:
`exempt = {"test_the_check": "the reason"}`, by the name of its method, which a failure shows: `test_` and the title of
the check with `_` for blanks. A name that is no check of the suite is an error.

## How the checks run

Checks that need ranks run in real processes; those that need the same number of them share one launch, so a suite costs
seconds. The processes are forked from one that has imported torch and nothing else (`preload = False` forks from one
without torch, for libraries that must be imported first). Each check starts in an empty working directory, with a time
limit of `limit` seconds; one that hangs, crashes or kills its process fails by itself, and the others go on.

A check of your own is a method like theirs:

```python
from poplin.testing import SEVERAL, StrategyCompliance, requirement


class TestAcme(StrategyCompliance):
    name = "acme"

    @requirement("AcmeStrategy.ring", processes=SEVERAL)
    def test_the_ring_goes_through_every_rank(self, case):
        strategy = self.launched(case)
        case.expect_equal(strategy.ring(), list(range(case.world_size)), "the ranks in the ring")
```

## Beside the suites

- `call_in_ranks(function, *args, world_size=2)` calls a function in real ranks; `run_ranks(script)` runs a script in
  fresh processes. Both return what each rank made of it.
- `fake_accelerator(...)` makes the class of an accelerator whose devices don't exist; `SimulatedStrategy` and
  `run_simulated` are ranks in threads; `make_distribution(folder, ...)` writes real package metadata.
- `pytest_plugins = ["poplin.testing.fixtures"]` in `conftest.py` brings the fixture `fake_distribution`, which installs
  a distribution for the length of a test. No pytest plugin of Poplin's loads by itself: it would take part in every
  test run of every environment that has Poplin.
- `Program` runs a program, signals it, and finds what it leaves; `start_strategy(...)` brings up a strategy without a
  Fabric.
"""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION, *_settings("Every suite", [Compliance])]
    for target in (*checking.SUITES.values(), checking.PACKAGING):
        suite = _load(target)
        own = [cls for cls in suite.__mro__ if issubclass(cls, Compliance) and cls is not Compliance]
        parts += [f"## {suite.__name__}\n", inspect.cleandoc(suite.__doc__ or "") + "\n"]
        parts += _settings("", own)
        parts += ["| check | about | processes | what is required |", "|---|---|---|---|"]
        for about in requirements(suite):
            processes = {SEVERAL: "several", 0: "the test's"}.get(about.processes, str(about.processes))
            parts.append(f"| {about.title} | `{about.member}` | {processes} | {_cell(about.doc)} |")
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def _settings(title: str, classes: Sequence[type]) -> list[str]:
    lines = [f"## {title}\n"] if title else []
    found: dict[str, str] = {}
    for cls in classes:
        for member in reference.members(cls):
            if member.name.startswith(("test_", "run_", "settle", "outcome")) or member.name in found:
                continue
            if member.form == "attribute" or cls is Compliance or member.name in _HELPERS:
                found[member.name] = f"- `{member.signature}`: {_cell(member.doc.partition(chr(10) + chr(10))[0])}"
    return [*lines, *(found.values()), ""] if found else lines


#: Methods of the suites that authors override.
_HELPERS = ("model", "fabric", "read", "variables", "state")


def _cell(text: str) -> str:
    return " ".join(text.replace("``", "`").replace("|", "\\|").split())


def _load(target: str) -> type[Compliance]:
    module, _, name = target.partition(":")
    assert getattr(testing, name) is getattr(importlib.import_module(module), name)
    suite: type[Compliance] = getattr(testing, name)
    return suite


if __name__ == "__main__":
    PAGE.write_text(page())
