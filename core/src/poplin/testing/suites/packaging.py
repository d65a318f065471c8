"""The suite for packages that bring plugins.

How to use it::

    from poplin.testing import PackagingCompliance

    class TestPackage(PackagingCompliance):
        distribution = "acme-poplin"

What is installed is looked at, in a fresh process: metadata, plugin modules, and what loading them does to a process.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from poplin import registry
from poplin.errors import ArgumentValueError, PoplinError, UnknownNameError
from poplin.registry.catalogue import CONFLICT
from poplin.registry.compatibility import requires_of
from poplin.registry.kinds import CALLBACKS, KINDS
from poplin.registry.names import fold, is_registrable, parse_reference
from poplin.registry.records import CORE, Row
from poplin.testing.case import Case
from poplin.testing.checks import requirement
from poplin.testing.compliance import Compliance
from poplin.testing.shipped import metadata_of, shipped

#: The modules of the core that a plugin may import.
PUBLIC_FACES = frozenset(
    "poplin poplin.accelerators poplin.checkpoint poplin.environments poplin.errors poplin.launchers poplin.loggers "
    "poplin.plugins poplin.precision poplin.registry poplin.strategies poplin.testing poplin.utilities "
    "poplin.wrappers".split()
)


class PackagingCompliance(Compliance):
    """What every package must do: declare what it offers, load in no time, and change nothing by being loaded."""

    kind = "packages"
    #: The name of the distribution, as pip knows it.
    distribution: str = ""

    @requirement("entry points", processes=0)
    def test_its_plugin_modules_can_be_imported(self, case: Case) -> None:
        """What the entry points name can be imported."""
        failed = self._probe()["import_failed"]
        case.expect(not failed, "plugin modules that can be imported", "\n".join(failed))

    @requirement("entry points", processes=0)
    def test_the_names_of_its_hooks_are_those_of_its_metadata(self, case: Case) -> None:
        """Each hook returns the names that the entry points declare for it, roles aside, and no other."""
        told = self._probe()["mismatch"]
        case.expect(not told, "the same names in the metadata and from the hooks", "\n".join(told))

    @requirement("hooks", processes=0)
    def test_its_hooks_are_as_specified(self, case: Case) -> None:
        """Its hook implementations have names and arguments of hooks that exist, and return offers."""
        told = self._probe()["hooks_failed"]
        case.expect(not told, "hooks as docs/plugin-api.md has them", "\n".join(told))

    @requirement("plugin module", processes=0)
    def test_its_plugin_modules_are_light(self, case: Case) -> None:
        """Loading its plugins imports neither torch nor any other package: ``lazy("module:Class")`` puts that off."""
        heavy = self._probe()["heavy"]
        case.expect(not heavy, "nothing imported but poplin, the standard library and itself", ", ".join(heavy))

    @requirement("plugin module", processes=0)
    def test_loading_it_changes_nothing_of_the_process(self, case: Case) -> None:
        """Environment variables, paths, signal handlers, warning filters, threads and the like are as before."""
        if self._probe()["heavy"]:
            case.not_claimed("it imports other packages at load, and what they change can't be told from what it does")
        changed = self._probe()["changed"]
        case.expect(not changed, "a process as it was", "\n".join(changed))

    @requirement("entry points", processes=0)
    def test_its_names_can_be_written_everywhere(self, case: Case) -> None:
        """Names have lower-case letters, digits, and ".", "_", "-" between them."""
        bad = [row.name for row in self._offers() if not is_registrable(row.name)]
        case.expect(not bad, "names of lower-case letters and digits", bad)

    @requirement("entry points", processes=0)
    def test_its_names_are_free(self, case: Case) -> None:
        """None of its names is a built-in's or another package's; case and "-_." do not tell names apart."""
        taken = [f"{row.kind}/{row.name}: {row.reason}" for row in self._offers() if row.status == CONFLICT]
        case.expect(not taken, "names that nobody else has", "\n".join(taken))

    @requirement("Requires-Dist", processes=0)
    def test_it_says_which_cores_it_is_written_for(self, case: Case) -> None:
        """It requires poplin-core from one version up to another, and the one here is among them."""
        from packaging.requirements import Requirement

        found = requires_of(CORE, metadata_of(self._rows()[0]).requires or ())
        case.expect(found, "a requirement of poplin-core, such as poplin-core>=0.1,<0.2", "none")
        operators = {one.operator for text in found for one in Requirement(text).specifier}
        lower, upper = operators & {">=", ">", "==", "~="}, operators & {"<", "<=", "==", "~="}
        case.expect(lower and upper, "a lower and an upper bound of poplin-core", ", ".join(found))
        refused = [row.reason for row in self._offers() if row.status == "incompatible"]
        case.expect(not refused, "a range that the poplin-core here is in", refused)

    @requirement("offers")
    def test_each_of_its_names_makes_an_object(self, case: Case) -> None:
        """Each offer is imported and constructed without arguments, and is of its kind."""
        failed = []
        for row in self._offers():
            try:
                found = registry.find(row.kind, f"{row.distribution}:{row.name}")
            except PoplinError:
                continue  # its plugin does not load, which is another check's matter
            try:
                found.create()
            except PoplinError as error:
                cause = f" ({type(error.__cause__).__name__}: {error.__cause__})" if error.__cause__ else ""
                failed.append(f"{row.kind}/{row.name}: {error}{cause}")
        case.expect(not failed, "an object of each name", "\n".join(failed))

    @requirement("offers", alone=True)
    def test_its_classes_leave_torch_as_it_is(self, case: Case) -> None:
        """Importing and constructing what it offers replaces nothing of torch's and changes none of its settings."""
        before = _of_torch()
        for row in self._offers():
            try:
                registry.find(row.kind, f"{row.distribution}:{row.name}").create()
            except PoplinError:
                pass  # another check's matter
        after = _of_torch()
        changed = [name for name, value in before.items() if after.get(name) != value]
        case.expect(not changed, "torch as it was", f"other: {', '.join(changed)}")

    @requirement("poplin.compliance", processes=0)
    def test_the_suites_that_it_brings_are_for_what_it_offers(self, case: Case) -> None:
        """Each entry point for a suite is a class derived from one, of a kind and a name that the package offers."""
        kinds = {row.kind for row in self._offers()} | {self.kind}
        names = {(row.kind, fold(row.name)) for row in self._offers()}
        brought = shipped(self._rows()[0])
        failed = [f"{entry}: {why}" for entry, why in brought.broken.items()]
        for suite in brought.suites:
            kind = getattr(suite, "kind", "no kind")
            if kind not in kinds:
                failed.append(f"{suite.__name__} is for {kind}, and it offers none")
            elif suite.name is not None and (kind, fold(parse_reference(suite.name)[2])) not in names:
                failed.append(f"{suite.__name__} names {suite.name!r}, which is none of its {kind}")
        case.expect(not failed, "suites that can be had, for names of the package", "\n".join(failed))

    @requirement("callbacks_factory", processes=0)
    def test_its_callbacks_factories_make_callbacks(self, case: Case) -> None:
        """Each callbacks factory can be imported, and called without arguments."""
        if not any(row.kind == CALLBACKS for row in self._rows()):
            case.not_claimed("it declares no callbacks factory")
        failed = self._probe()["factories_failed"]
        case.expect(not failed, "factories that can be called", "\n".join(failed))

    @requirement("imports", processes=0)
    def test_it_uses_public_modules_of_poplin_only(self, case: Case) -> None:
        """Its code imports Poplin's public modules, and none behind them, which may change with any version."""
        found = [
            f"{path.name}:{line}: {module}"
            for path in self._sources()
            for line, module in _imports(path)
            if module.partition(".")[0] == "poplin" and module not in PUBLIC_FACES
        ]
        case.expect(not found, f"imports of {', '.join(sorted(PUBLIC_FACES))} only", "\n".join(found))

    # --- what is looked at

    def _offers(self) -> list[Row]:
        return [row for row in self._rows() if row.kind in KINDS and row.status != "role"]

    def _rows(self) -> list[Row]:
        if not self.distribution:
            raise ArgumentValueError(f"{type(self).__name__} names no package: give `distribution`.")
        rows = [row for row in registry.rows(load=False) if fold(row.distribution) == fold(self.distribution)]
        if not rows:
            raise UnknownNameError(f"No installed distribution {self.distribution!r} offers anything to Poplin.")
        return rows

    def _probe(self) -> dict[str, Any]:
        return _probed(self._rows()[0].distribution, tuple(sys.path), tuple(sorted(self.env.items())))

    def _sources(self) -> Iterator[Path]:
        for name in dict.fromkeys(row.target.partition(":")[0].partition(".")[0] for row in self._rows()):
            spec = importlib.util.find_spec(name)
            places = list(spec.submodule_search_locations or ()) if spec is not None else []
            for place in places:
                yield from sorted(Path(place).rglob("*.py"))
            if spec is not None and not places and spec.origin:
                yield Path(spec.origin)


@functools.cache
def _probed(distribution: str, path: tuple[str, ...], env: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "poplin.testing.suites.packaging_probe", distribution],
        env={**os.environ, **dict(env), "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode or not done.stdout:  # a module may end the process with 0, too
        failure = f"the process ended with {done.returncode} while it imported them:\n{done.stderr}"
        nothing = ("mismatch", "hooks_failed", "heavy", "changed", "factories_failed")
        return {"import_failed": [failure], **{key: [] for key in nothing}}
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def _of_torch() -> dict[str, Any]:
    """What of torch a package could replace, by identity, and settings, by value."""
    import torch

    places = (torch, torch.Tensor, torch.nn.Module, torch.optim.Optimizer, torch.autograd, torch.distributed, torch.amp)
    found: dict[str, Any] = {}
    for place in places:
        label = getattr(place, "__qualname__", place.__name__)
        for name, value in vars(place).items():
            if callable(value) and not name.startswith("__"):
                found[f"{label}.{name}"] = id(value)
    settings = {
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "threads": torch.get_num_threads(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "gradient mode": torch.is_grad_enabled(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "seed": torch.initial_seed(),
        "PrivateUse1": torch._C._get_privateuse1_backend_name(),
    }
    return found | settings


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    only_types = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test).endswith("TYPE_CHECKING")
        for node in ast.walk(branch)
    }
    for node in ast.walk(tree):
        if id(node) in only_types:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, node.module or ""
