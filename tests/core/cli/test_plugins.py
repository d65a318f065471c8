"""``poplin plugins``: it lists everything, imports nothing, and works whatever is broken."""

import json
import re

import pytest

from poplin.testing.distributions import make_distribution

COLUMNS = ["kind", "name", "distribution", "version", "target", "location", "status", "reason"]
BUILT_IN = {
    ("accelerators", "cpu"),
    ("strategies", "single_device"),
    ("precisions", "32-true"),
    *(("launchers", name) for name in ("subprocess", "spawn", "fork", "forkserver")),
    *(("environments", name) for name in ("local", "torchrun")),
    ("loggers", "csv"),
    ("checkpoint_ios", "torch"),
}
GOOD = """
from poplin import hookimpl, lazy

@hookimpl
def poplin_strategies():
    return {NAMES}
"""


def offer(site, name, version="1.0", names=("good",), body=None, **more):
    """A distribution that offers strategies, whose module leaves a mark when it is imported."""
    module = f"{name.replace('-', '_')}_plugin"
    offers = ", ".join(f'"{each}": lazy("poplin.strategies:SingleDeviceStrategy")' for each in names)
    mark = "import pathlib; pathlib.Path(__file__).with_suffix('.imported').touch()\n"
    make_distribution(
        site,
        name,
        version,
        entry_points={"poplin.strategies": dict.fromkeys(names, module)},
        modules={f"{module}.py": mark + (GOOD.replace("{NAMES}", f"{{{offers}}}") if body is None else body)},
        **more,
    )


def rows(done):
    """The listing, by kind and name."""
    found = json.loads(done.stdout)
    assert all(list(row) == COLUMNS for row in found)
    return {(row["kind"], row["name"]): row for row in found}


def imported(site):
    return sorted(path.stem for path in site.glob("*.imported"))


@pytest.fixture
def without_torch(site):
    """A torch that can't be imported stands first on the path."""
    (site / "torch.py").write_text("raise ImportError('libtorch_global_deps.so: cannot open shared object file')")


@pytest.mark.usefixtures("without_torch")
def test_the_built_ins_are_listed_without_torch(poplin):
    found = rows(poplin("plugins", "--json"))
    assert found.keys() >= BUILT_IN
    assert all(found[key]["status"] == "available" for key in BUILT_IN)
    assert {found[key]["distribution"] for key in BUILT_IN} == {"poplin-core"}


def test_the_listing_imports_no_plugin_and_load_imports_all(poplin, site):
    offer(site, "acme-one", names=["one", "one_fast"])
    offer(site, "acme-two", names=["two"])
    text = poplin("plugins").stdout
    assert re.search(r"one_fast +available +acme-one 1\.0", text)
    assert imported(site) == []

    found = rows(poplin("plugins", "--json", "--load"))
    assert {found["strategies", name]["status"] for name in ("one", "one_fast", "two")} == {"loaded"}
    assert imported(site) == ["acme_one_plugin", "acme_two_plugin"]


BROKEN = {
    "raises": ("raise RuntimeError('the moon is full')", "RuntimeError: the moon is full"),
    "exits": ("import sys; sys.exit(3)", "SystemExit: 3"),
    "needs_more": ("import a_library_that_is_not_here", "No module named 'a_library_that_is_not_here'"),
    "generator": ("from poplin import hookimpl\n@hookimpl\ndef poplin_strategies(): yield {}", "generator"),
    "hook_typo": ("from poplin import hookimpl\n@hookimpl\ndef poplin_strategys(): return {}", "poplin_strategys"),
    "syntax": ("def", "SyntaxError"),
}


def test_broken_plugins_are_listed_with_the_cause_and_hurt_nobody(poplin, site):
    for name, (body, _) in BROKEN.items():
        offer(site, f"acme-{name}", names=[name], body=body)
    offer(site, "acme-good")
    found = rows(poplin("plugins", "--json"))
    assert {found["strategies", name]["status"] for name in [*BROKEN, "good"]} == {"available"}
    assert imported(site) == []

    found = rows(poplin("plugins", "list", "--json", "--load"))
    assert found["strategies", "good"]["status"] == "loaded"
    for name, (_, cause) in BROKEN.items():
        assert found["strategies", name]["status"] == "failed"
        assert cause in found["strategies", name]["reason"]

    assert re.search(r"raises +failed +acme-raises 1\.0 +import: RuntimeError", poplin("plugins", "--load").stdout)
    (info,) = json.loads(poplin("plugins", "info", "raises", "--load", "--json").stdout)
    assert info["status"] == "failed"
    assert "the moon is full" in info["reason"]


def test_what_a_plugin_prints_at_import_does_not_spoil_the_json(poplin, site):
    loud = "import os\nprint('hello from acme')\nos.write(1, b'and from its library in C')\nos.system('echo child')\n"
    offer(site, "acme-loud", names=["loud"], body=loud + GOOD.replace("{NAMES}", "{}"))
    done = poplin("plugins", "--json", "--load")
    assert ("strategies", "loud") in rows(done)
    assert "hello from acme" in done.stderr


def test_names_can_be_blocked_on_the_command_line_and_by_the_environment(poplin, site):
    offer(site, "acme-one", names=["one"])
    offer(site, "acme-two", names=["two"])
    for done in (
        poplin("-p", "no:one", "plugins", "--json"),
        poplin("plugins", "--json", "-p", "no:acme-one"),
        poplin("plugins", "list", "-p", "no:strategies/ONE", "--json"),
        poplin("plugins", "--json", POPLIN_DISABLE_PLUGINS="one"),
        poplin("plugins", "--json", "-p", "no:one", POPLIN_PLUGINS="one,acme-two"),
    ):
        found = rows(done)
        assert found["strategies", "one"]["status"] == "blocked"
        assert found["strategies", "one"]["reason"]
        assert found["strategies", "two"]["status"] == "available"
    found = rows(poplin("-p", "no:one", "plugins", "--json", "--load"))
    assert found["strategies", "one"]["status"] == "blocked"
    assert imported(site) == ["acme_two_plugin"]


def test_a_block_that_matches_nothing_is_warned_about(poplin):
    assert "no_such_plugin" in poplin("plugins", "-p", "no:no_such_plugin").stderr


def test_a_conflict_and_an_incompatible_plugin_are_listed_with_the_reason(poplin, site):
    offer(site, "acme-one", names=["same"])
    offer(site, "zebra-two", names=["same"])
    offer(site, "acme-later", names=["later"], requires=["poplin-core>=99"])
    found = json.loads(poplin("plugins", "--json").stdout)
    same = [row for row in found if row["name"] == "same"]
    assert [row["distribution"] for row in same] == ["acme-one", "zebra-two"]
    assert {row["status"] for row in same} == {"conflict"}
    assert all("acme-one" in row["reason"] and "zebra-two" in row["reason"] for row in same)
    (later,) = [row for row in found if row["name"] == "later"]
    assert later["status"] == "incompatible"
    assert ">=99" in later["reason"]
    poplin("plugins", "--load")
    assert "acme_later_plugin" not in imported(site)


def test_a_stale_metadata_folder_hides_nothing(poplin, site, tmp_path):
    (site / "acme_one-0.9.dist-info").mkdir()
    offer(site, "acme-one", "1.0", names=["one"])
    assert rows(poplin("plugins", "--json"))["strategies", "one"]["version"] == "1.0"


def test_a_module_named_by_p_registers(poplin, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import poplin\nfrom poplin import lazy\n"
        "poplin.register('strategies', 'mine', lazy('poplin.strategies:SingleDeviceStrategy'))\n"
    )
    assert rows(poplin("plugins", "--json", "-p", "mine"))["strategies", "mine"]["status"] in ("available", "loaded")
    assert "-p not_there" in poplin("plugins", "-p", "not_there", code=1).stderr


def test_info_takes_every_form_of_a_name(poplin, site):
    offer(site, "acme-one", names=["one", "one_fast"])
    for reference in ("one", "ONE", "strategies/one", "acme-one:one", "strategies/acme_one:one"):
        (found,) = json.loads(poplin("plugins", "info", reference, "--json").stdout)
        assert (found["kind"], found["name"], found["distribution"]) == ("strategies", "one", "acme-one")
    found = json.loads(poplin("plugins", "info", "acme-one", "--json").stdout)
    assert [row["name"] for row in found] == ["one", "one_fast"]
    assert imported(site) == []

    text = poplin("plugins", "info", "one", "--load").stdout
    assert "poplin.strategies.single_device.SingleDeviceStrategy" in text


@pytest.mark.usefixtures("without_torch")
def test_info_on_an_unknown_name_says_what_may_be_meant(poplin):
    done = poplin("plugins", "info", "single_devise", code=1)
    assert "single_device" in done.stderr
    assert "Traceback" not in done.stderr
    assert "pip install poplin-deepspeed" in poplin("plugins", "info", "deepspeed", code=1).stderr


def test_a_thousand_distributions_are_listed(poplin, site):
    for number in range(950):
        folder = site / f"filler_{number}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: filler-{number}\nVersion: 1.0\n")
    for number in range(50):
        offer(site, f"acme-{number}", names=[f"acme_{number}"])
    found = rows(poplin("plugins", "--json"))
    assert len([name for _, name in found if name.startswith("acme_")]) == 50
    assert imported(site) == []


def test_a_backend_of_torch_that_fails_ends_no_listing_and_no_plugin_is_blamed(poplin, site):
    make_distribution(
        site,
        "acme-backend",
        entry_points={"torch.backends": {"acme": "acme_backend:load"}},
        modules={"acme_backend.py": "def load(): raise RuntimeError('driver missing')"},
    )
    offer(site, "acme-one", names=["one", "two", "three"])
    light = "from poplin import hookimpl\n\nclass Light:\n    log_metrics = print\n\n"
    light += "@hookimpl\ndef poplin_loggers():\n    return {'light': Light}\n"
    make_distribution(
        site, "light", entry_points={"poplin.loggers": {"light": "light_p"}}, modules={"light_p.py": light}
    )
    found = rows(poplin("plugins", "--load", "--json"))  # a second `import torch` would be the end of the process
    reason = "torch can't be imported: RuntimeError: Failed to load the backend extension: acme"
    for name in [("strategies", "one"), ("strategies", "single_device"), ("accelerators", "cpu")]:
        assert found[name]["status"] == "failed"
        assert found[name]["reason"].startswith(reason)
    assert found["loggers", "light"]["status"] == found["launchers", "spawn"]["status"] == "loaded"

    text = poplin("plugins", "info", "acme-one", "--load").stdout
    assert text.count("needs torch, and torch can't be imported. RuntimeError: Failed to load the backend") == 3
    assert "pip install -U acme-one" not in text


def test_a_summary_in_whatever_encoding_is_shown(poplin, site):
    offer(site, "acme-one", names=["one"])
    metadata = site / "acme_one-1.0.dist-info" / "METADATA"
    metadata.write_bytes("Name: acme-one\nAuthor: Müller\nSummary: All in one\n".encode("latin-1"))
    assert "All in one" in poplin("plugins", "info", "one").stdout
