"""`poplin plugins check` on our own packages: it runs what the tests of each package run."""

import importlib.util
import tomllib
from pathlib import Path

import pytest

from poplin.testing import Compliance, check, suite_for
from poplin.testing.shipped import Shipped, chosen, load

ROOT = Path(__file__).parents[2]
FOLDERS = sorted(path.parent for path in ROOT.glob("plugins*/*/pyproject.toml"))
#: Test classes beside the suite of their name: devices that are made up.
STAND_INS = {"TestCUDAWithFourMadeUp"}
#: What a test class may say of its own: which of the names of its suite it is for.
OF_A_CLASS = {"name", "pytestmark", "_results", "_cases"}


def suites_of(folder):
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    declared = project["entry-points"].get("poplin.compliance", {})
    return Shipped(tuple(load(value) for value in declared.values()), {})


def test_classes(folder):
    for path in sorted((ROOT / "tests" / folder.parent.name.removeprefix("plugins-") / folder.name).glob("test_*.py")):
        if "Compliance" not in path.read_text():
            continue
        spec = importlib.util.spec_from_file_location(f"{folder.name}_{path.stem}".replace("-", "_"), path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield from (
            value
            for name, value in vars(module).items()
            if name.startswith("Test") and isinstance(value, type) and issubclass(value, Compliance)
        )


test_classes.__test__ = False


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_suite_of_a_name_is_the_one_that_the_tests_run(folder):
    brought, run = suites_of(folder), set()
    for tested in test_classes(folder):
        run.update(tested.__mro__)
        if tested.name is None or tested.__name__ in STAND_INS:
            continue
        wanted = chosen(brought, tested.kind, tested.name.rpartition(":")[2]) or suite_for(tested.kind)
        assert wanted in tested.__mro__, f"{tested.__name__} is not the suite of {tested.name}"
        own = {name for part in tested.__mro__[: tested.__mro__.index(wanted)] for name in vars(part)}
        own = {name for name in own - OF_A_CLASS if not name.startswith("__")}
        assert not own, f"{tested.__name__} knows what a user's check does not: {own}"
    assert {suite.__name__ for suite in brought.suites if suite not in run} == set(), "suites that no test runs"


@pytest.mark.parametrize(
    "distribution",
    [
        "poplin-clusters",
        "poplin-tensorboard",
        pytest.param("poplin-tpu", marks=pytest.mark.slow),
        pytest.param("poplin-fsdp", marks=pytest.mark.slow),
        # Ray's is the same suite as that of its tests, and takes minutes
        *(
            pytest.param(f"poplin-{name}", marks=pytest.mark.extras)
            for name in ("bitsandbytes", "deepspeed", "mlflow", "safetensors", "torchao", "wandb")
        ),
    ],
)
@pytest.mark.timeout(600)
def test_a_users_check_needs_nothing_of_our_tests(distribution):
    outcomes = list(check(distribution))
    assert [f"{one.subject}: {one.message}" for one in outcomes if one.status == "failed"] == []
    assert [one for one in outcomes if one.message.startswith("the suite has no ")] == []
    assert len(outcomes) > 20
