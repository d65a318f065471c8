"""POPLIN_PLUGINS, POPLIN_DISABLE_PLUGINS, POPLIN_STRICT_PLUGINS, and what they reach."""

import pytest

from poplin.errors import ArgumentValueError
from poplin.registry.controls import block, read_controls
from poplin.testing.distributions import make_distribution, plugin_source


@pytest.fixture
def site(tmp_path):
    """Two distributions: one with two names, a role, an ambient plugin and a factory; one with a name."""
    make_distribution(
        tmp_path,
        "acme-poplin",
        "1.0",
        {
            "poplin.environments": {"auto": "acme.plugin", "acme": "acme.plugin", "acme_two": "acme.plugin"},
            "poplin.loggers": {"acme": "acme.logs"},
            "poplin.ambient": {"guard": "acme.guard"},
            "callbacks_factory": {"maker": "acme.factory:make"},
        },
        {
            "acme/__init__.py": "",
            "acme/plugin.py": plugin_source("environments", "acme", "acme_two"),
            "acme/logs.py": plugin_source("loggers", "acme"),
            "acme/guard.py": "from poplin import hookimpl\n@hookimpl\ndef poplin_fabric_created(): ...",
            "acme/factory.py": "def make(): return []",
        },
    )
    make_distribution(
        tmp_path,
        "other",
        "1.0",
        {"poplin.environments": {"else": "other_p"}},
        {"other_p.py": plugin_source("environments", "else")},
    )
    return tmp_path


SOURCE = """
    mine = ("acme-poplin", "other")
    result["status"] = {f"{row.kind}/{row.name}": row.status for row in rows() if row.distribution in mine}
    result["names"] = names("environments")
    registry.ambient()
    result["factories"] = [one.name for one in registry.callback_factories()]
    candidates = registry.role_candidates("environments", "auto")
    result["candidates"] = sorted(one.name for one in candidates if one.provider.distribution == "acme-poplin")
    result["imported"] = sorted(name for name in sys.modules if name.startswith(("acme.", "other")))
    result["error"] = attempt(find, "environments", "acme_two")
"""


def test_without_controls_all_may_take_part(run, site):
    result = run(SOURCE)
    assert set(result["status"].values()) == {"available", "role"}
    assert result["candidates"] == ["acme", "acme_two"]
    assert result["imported"] == ["acme.factory", "acme.guard", "acme.plugin"]
    assert result["warnings"] == []


def test_an_empty_allow_list_leaves_the_built_ins_alone(run, site):
    result = run(SOURCE, env={"POPLIN_PLUGINS": ""})
    assert set(result["status"].values()) == {"blocked"}
    assert {"local", "torchrun"} <= set(result["names"])
    assert "acme" not in result["names"]
    assert (result["imported"], result["factories"], result["candidates"]) == ([], [], [])
    assert result["error"][0] == "BlockedNameError"
    assert "POPLIN_PLUGINS" in result["error"][1]


def test_an_allow_list_of_one_name_brings_its_role_and_nothing_else(run, site):
    result = run(SOURCE, env={"POPLIN_PLUGINS": "environments/acme"})
    assert [name for name, status in result["status"].items() if status != "blocked"] == [
        "environments/acme",
        "environments/auto",
    ]
    assert result["candidates"] == ["acme"]
    assert result["imported"] == ["acme.plugin"]
    assert result["error"][0] == "BlockedNameError"


@pytest.mark.parametrize("variable", ["Acme_Poplin", "acme, ACME-TWO guard\tmaker"])
def test_a_distribution_and_the_names_it_offers_can_each_be_blocked(run, site, variable):
    result = run(SOURCE, env={"POPLIN_DISABLE_PLUGINS": variable})
    assert {name for name, status in result["status"].items() if status != "blocked"} == {"environments/else"}
    assert result["imported"] == []
    assert result["error"][0] == "BlockedNameError"
    assert (
        f"POPLIN_DISABLE_PLUGINS={'Acme_Poplin (the distribution' if len(variable) < 15 else 'ACME-TWO (this name'}"
        in (result["error"][1])
    )
    assert result["warnings"] == []


def test_every_listed_name_can_be_blocked(run, site):
    result = run("""
        import os
        listed = [row for row in rows() if row.status != "blocked"]
        result["listed"] = len(listed)
        result["not blocked"] = []
        for row in listed:
            long = f"{row.distribution}:{row.name}"
            for word in (row.name, long, f"{row.kind}/{long}", row.distribution):
                os.environ["POPLIN_DISABLE_PLUGINS"] = word
                same = [one for one in rows() if one[:3] == row[:3] and one.target == row.target]
                if [one.status for one in same] != ["blocked"]:
                    result["not blocked"].append([word, row, [one.status for one in same]])
    """)
    assert result["listed"] > 12
    assert result["not blocked"] == []
    assert result["warnings"] == []


def test_one_kind_alone_can_be_blocked(run, site):
    result = run(SOURCE, env={"POPLIN_DISABLE_PLUGINS": "loggers/acme-poplin:acme,environments/auto"})
    assert [name for name, status in result["status"].items() if status == "blocked"] == [
        "environments/auto",
        "loggers/acme",
    ]
    assert result["candidates"] == []


def test_a_control_that_matches_nothing_is_warned_about_once_and_the_others_hold(run, site):
    result = run(
        SOURCE + "\n    names('loggers'); rows(); find('environments', 'local')",
        env={"POPLIN_DISABLE_PLUGINS": "acmee,planets/x,else", "POPLIN_PLUGINS": "nobody,acme-poplin,else"},
    )
    assert result["status"]["environments/else"] == "blocked"
    assert sorted(result["warnings"]) == [
        "POPLIN_DISABLE_PLUGINS: 'acmee' matches no installed plugin and no name, so it has no effect. "
        "Did you mean 'acme' or 'acme_two'?",
        "POPLIN_DISABLE_PLUGINS: 'planets/x' can't be read and has no effect. The form is [kind/][dist:]name.",
        "POPLIN_PLUGINS: 'nobody' matches no installed plugin and no name, so it has no effect.",
    ]
    ranks = run("names('loggers')", env={"POPLIN_DISABLE_PLUGINS": "nobody", "RANK": "1"})
    assert ranks["warnings"] == []


def test_a_control_that_changes_while_the_process_runs_counts_at_once(run, site):
    result = run("""
        import os
        find("environments", "acme")
        registry.block("acme-poplin")
        result["blocked"] = [attempt(find, "environments", "acme")[0], os.environ["POPLIN_DISABLE_PLUGINS"]]
        from poplin.registry.service import REGISTRY
        result["pluggy"] = REGISTRY.host.manager.is_blocked("acme-poplin/acme.plugin")
        del os.environ["POPLIN_DISABLE_PLUGINS"]
        result["back"] = find("environments", "acme").name
        result["unblocked"] = REGISTRY.host.manager.is_blocked("acme-poplin/acme.plugin")
    """)
    assert result["blocked"] == ["BlockedNameError", "acme-poplin"]
    assert result["pluggy"] is True
    assert result["back"] == "acme"
    assert result["unblocked"] is False


def test_blocking_adds_to_the_environment_once():
    environ = {"POPLIN_DISABLE_PLUGINS": "one, two"}
    block("three", environ)
    block("two", environ)
    assert environ == {"POPLIN_DISABLE_PLUGINS": "one,two,three"}
    with pytest.raises(ArgumentValueError):
        block("a/b/c", environ)
    assert [word.text for word in read_controls(environ).block] == ["one", "two", "three"]


@pytest.mark.parametrize(("value", "strict"), [("1", True), ("true", True), ("0", False), ("", False), ("No", False)])
def test_strictness(value, strict):
    assert read_controls({"POPLIN_STRICT_PLUGINS": value}).strict is strict
    assert read_controls({}) == (None, (), False)
