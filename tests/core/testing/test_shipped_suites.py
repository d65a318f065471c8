"""Suites that a package brings, and those that are given: which one runs, and what is said where it can't."""

import re

import pytest

from poplin.cli import app
from poplin.errors import ArgumentValueError
from poplin.testing import LoggerCompliance, StrategyCompliance, check, make_distribution

PLUGIN = """
from poplin import hookimpl, lazy


@hookimpl
def poplin_loggers():
    return {name: lazy("acme_logger:Lines") for name in ("lines", "lines-too", "lines-again")}
"""
LOGGER = """
from poplin.loggers import Logger


class Lines(Logger):
    def __init__(self):
        super().__init__()
        self.lines = []

    def log_metrics(self, metrics, step=None):
        self.lines.append(dict(metrics))
"""
SUITES = """
from poplin.testing import LoggerCompliance, PackagingCompliance


class ForAll(LoggerCompliance):
    exempt = {"test_it_can_be_closed_at_any_time": "said by the package, for every name"}

    def read(self, logger):
        return logger.lines


class ForOne(LoggerCompliance):
    name = "lines_too"
    exempt = {"test_it_can_be_closed_at_any_time": "said by the package, for one name"}


class Packaging(PackagingCompliance):
    exempt = {"test_it_says_which_cores_it_is_written_for": "said by the package"}
"""
CHECK = "it can be closed at any time"


@pytest.fixture
def acme(tmp_path, monkeypatch, request):
    """A package with three names of one class, and suites; what the tests import of it is forgotten afterwards."""
    import sys

    from poplin import registry

    make_distribution(
        tmp_path,
        "acme-poplin",
        entry_points={
            "poplin.loggers": dict.fromkeys(("lines", "lines-too", "lines-again"), "acme_plugin"),
            "poplin.compliance": {one: f"acme_suites:{one}" for one in ("ForAll", "ForOne", "Packaging")},
        },
        modules={"acme_plugin.py": PLUGIN, "acme_logger.py": LOGGER, "acme_suites.py": SUITES},
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    registry.refresh()
    yield tmp_path
    monkeypatch.undo()
    registry.refresh()
    for name in [name for name in sys.modules if name.startswith("acme_")]:
        del sys.modules[name]


def exempted(outcomes, check=CHECK):
    return {one.subject: one.message for one in outcomes if one.check == check}


def test_the_suite_of_its_name_runs_and_else_the_one_without_a_name(acme):
    assert exempted(check("lines-too")) == {"loggers/lines-too": "said by the package, for one name"}
    outcomes = [*check("lines")]
    assert exempted(outcomes) == {"loggers/lines": "said by the package, for every name"}
    assert {one.status for one in outcomes if one.check == "what was logged can be read back"} == {"passed"}


def test_a_package_is_checked_by_what_it_brings_each_suite_once_for_each_class(acme):
    outcomes = [*check("acme-poplin")]
    assert exempted(outcomes) == {
        "loggers/lines": "said by the package, for every name",
        "loggers/lines-too": "said by the package, for one name",
    }
    told = exempted(outcomes, "it says which cores it is written for")
    assert told == {"acme-poplin": "said by the package"}


def test_a_suite_that_is_given_stands_before_it_for_its_kind_and_the_rest_is_checked_too(acme):
    class Mine(LoggerCompliance):
        exempt = dict.fromkeys([one for one in dir(LoggerCompliance) if one.startswith("test_")], "mine")

    outcomes = [*check("acme-poplin", suite=Mine)]
    assert exempted(outcomes) == {"loggers/lines": "mine"}  # one class, one suite
    assert {one.subject for one in outcomes} == {"acme-poplin", "loggers/lines"}


def test_a_suite_of_another_kind_is_refused(acme):
    with pytest.raises(ArgumentValueError, match="StrategyCompliance is for strategies, and 'lines' means loggers"):
        list(check("lines", suite=StrategyCompliance))


def test_a_suite_is_found_in_the_folder_where_the_command_is_given(acme, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "work" / "tests"
    folder.mkdir(parents=True)
    every = "{one: 'mine' for one in dir(LoggerCompliance) if one.startswith('test_')}"
    (folder / "test_mine.py").write_text(
        f"from poplin.testing import LoggerCompliance\n\n\nclass TestMine(LoggerCompliance):\n    exempt = {every}\n"
    )
    (folder / "test_odd.py").write_text("import acme_is_not_here\n")
    for where, suite in ((folder, "test_mine:TestMine"), (folder.parent, "tests/test_mine.py:TestMine")):
        monkeypatch.chdir(where)
        app.main(["plugins", "check", "lines", "--suite", suite])
        told = capsys.readouterr().out
        assert "loggers/lines (TestMine)" in told
        assert f"  not claimed  {CHECK} (mine)" in told
    for suite, message in (
        ("test_mine:TestMine", "There is no module 'test_mine' for the suite"),
        ("tests/missing.py:TestMine", "There is no file 'tests/missing.py'"),
        ("tests/test_mine.py:Other", "'Other' in 'tests/test_mine.py' is missing"),
        ("tests/test_odd.py:TestMine", "can't be imported: ModuleNotFoundError: No module named 'acme_is_not_here'"),
        ("TestMine", "write 'module:Class', or 'file.py:Class'"),
    ):
        import sys

        monkeypatch.setattr(sys, "path", [one for one in sys.path if one != str(folder)])
        sys.modules.pop("test_mine", None)
        assert app.main(["plugins", "check", "lines", "--suite", suite]) == 1
        told = capsys.readouterr().err
        assert message in told
        assert "Traceback" not in told


BROKEN_SUITES = {
    "import sys\n\nsys.exit(0)\n": "can't be imported: SystemExit: 0",
    "class Panic(BaseException): ...\n\n\nraise Panic('native')\n": "can't be imported: Panic: native",
    "import acme_of_the_tests\n": "No module named 'acme_of_the_tests'",
    SUITES + "\n\nForAll.name = 5\n": "has name = 5; give the name that it is for",
    SUITES + "\n\nForAll.exempt = {'test_xyz': 'no check'}\n": "ForAll.exempt names 'test_xyz'",
}


@pytest.mark.parametrize("source", BROKEN_SUITES, ids=[*BROKEN_SUITES.values()])
def test_a_broken_suite_is_one_failed_check_and_the_others_run(acme, source):
    """The suite of the kind stands in, so that what can be checked is; a suite that is given needs no other."""
    (acme / "acme_suites.py").write_text(source)
    by_name, by_package = [*check("lines")], [*check("acme-poplin")]
    title = "the suites that it brings are for what it offers"
    for outcomes in (by_name, by_package):
        told = next(one for one in outcomes if one.check == title)
        assert (told.subject, told.status) == ("acme-poplin", "failed")
        assert f"ForAll: {'' if 'exempt' in source else 'The suite '}" in told.message
        assert BROKEN_SUITES[source] in told.message
        assert len([one for one in outcomes if one.subject == "loggers/lines"]) > 10

    class Mine(LoggerCompliance):
        exempt = dict.fromkeys([one for one in dir(LoggerCompliance) if one.startswith("test_")], "mine")

    assert {one.status for one in check("lines", suite=Mine)} == {"not claimed"}


def test_entry_points_that_can_not_be_read_are_one_failed_check(acme):
    points = next(acme.glob("acme_poplin-*.dist-info")) / "entry_points.txt"
    points.write_text(points.read_text() + "\n[console_scripts]\nno entry point\n")
    outcomes = [one for one in check("lines") if one.status == "failed"]
    assert [one.subject for one in outcomes] == ["acme-poplin"]
    assert "entry_points.txt: it can't be read" in outcomes[0].message


class Titled(LoggerCompliance):
    name = "csv"
    exempt = {"it can be closed at any time": "the title of a check is not its method"}


class Far(LoggerCompliance):
    name = "csv"
    exempt = {"test_xyz": "no such check"}


def test_what_is_exempt_must_be_a_check_of_the_suite():
    with pytest.raises(ArgumentValueError, match=re.escape("Is it 'test_it_can_be_closed_at_any_time'?")):
        Titled().test_only_rank_zero_writes()
    with pytest.raises(ArgumentValueError, match="Far.exempt names 'test_xyz'.* Its checks: .*test_only_rank_zero"):
        list(check("csv", suite=Far))
