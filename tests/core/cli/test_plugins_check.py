"""``poplin plugins check``: the suites run on what is installed, and the report can be read."""

import json

from poplin.cli import app
from poplin.cli import check as command
from poplin.testing import Outcome, make_distribution, plugin_source

LOGGER = """
from poplin.loggers import Logger

class Forgetful(Logger):
    def log_metrics(self, metrics, step=None):
        if step is None:
            raise KeyError("step")
"""


def test_a_fault_is_found_named_and_makes_the_command_fail(site, poplin):
    """The whole way, in a process of its own: a package with one fault."""
    make_distribution(
        site,
        "acme-poplin",
        entry_points={"poplin.loggers": {"forgetful": "acme_plugin"}},
        modules={
            "acme_plugin.py": plugin_source("loggers", "forgetful", target="acme_logger:Forgetful"),
            "acme_logger.py": LOGGER,
        },
        requires=["poplin-core>=0.1"],
    )
    done = poplin("plugins", "check", "forgetful", code=1)
    lines = done.stdout.splitlines()
    assert lines[0] == "loggers/forgetful (LoggerCompliance)"
    failed = [line for line in lines if line.startswith("  FAILED")]
    assert failed == ["  FAILED       metrics are taken by keyword with and without a step"]
    at = lines.index(failed[0])
    assert any("about:    Logger.log_metrics" in line for line in lines[at : at + 6])
    assert any("KeyError('step')" in line for line in lines[at : at + 8])
    assert any(line.startswith("  not claimed  what was logged can be read back (") for line in lines)
    assert lines[-1].startswith("forgetful: ")
    assert ", 1 failed, " in lines[-1].lower()


def outcomes(*statuses):
    return [
        Outcome(
            f"loggers/{index // 2}", "Suite", f"check {index}", "Logger", status, "" if status == "passed" else "why"
        )
        for index, status in enumerate(statuses)
    ]


def checked(monkeypatch, *words, found):
    asked = {}

    def run(reference, **settings):
        asked.update(settings, reference=reference)
        yield from found

    monkeypatch.setattr(command, "run_checks", run)
    return app.main(["plugins", "check", "acme", *words]), asked


def test_the_report_in_lines(monkeypatch, capsys):
    code, asked = checked(monkeypatch, found=outcomes("passed", "not claimed", "failed"))
    assert code == 1
    assert asked == {"reference": "acme", "suite": None}
    told = capsys.readouterr().out.splitlines()
    assert told[:6] == [
        "loggers/0 (Suite)",
        "  passed       check 0",
        "  not claimed  check 1 (why)",
        "",
        "loggers/1 (Suite)",
        "  FAILED       check 2",
    ]
    assert told[-1].startswith("acme: 1 passed, 1 failed, 1 not claimed (")


def test_a_long_reason_is_told_once_in_full(monkeypatch, capsys):
    reason = "the strategy refuses accelerator='cpu', devices=2: it runs on devices that are not here at all"
    found = [
        Outcome(subject, "Suite", f"check {index}", "Strategy", "not claimed", message)
        for subject in ("strategies/a", "strategies/b")
        for index, message in enumerate((reason, "short", reason, "short"))
    ]
    checked(monkeypatch, found=found)
    short = "as above: the strategy refuses accelerator='cpu', devices=2: it ..."
    told = [line for line in capsys.readouterr().out.splitlines() if "not claimed  " in line]
    wanted = (reason, "short", short, "short") * 2
    assert told == [f"  not claimed  check {index % 4} ({message})" for index, message in enumerate(wanted)]


def test_the_report_in_json(monkeypatch, capsys):
    found = outcomes("passed", "not claimed")
    code, asked = checked(monkeypatch, "--json", "--world-size=3", "--accelerator", "cpu", "--suite=a:B", found=found)
    assert code == 0
    assert asked == {"reference": "acme", "suite": "a:B", "world_size": 3, "accelerator": "cpu"}
    assert [Outcome(**one) for one in json.loads(capsys.readouterr().out)] == found


def test_nothing_to_check_is_no_success(monkeypatch, capsys):
    assert checked(monkeypatch, found=[])[0] == 1
    assert "nothing to check" in capsys.readouterr().out


def test_an_unknown_name_says_what_may_have_been_meant(capsys):
    assert app.main(["plugins", "check", "cvs"]) == 1
    assert "'csv'" in capsys.readouterr().err


def test_a_role_is_no_suggestion_for_itself(capsys):
    assert app.main(["plugins", "check", "auto"]) == 1
    assert "Did you mean 'auto'" not in capsys.readouterr().err


def test_what_a_plugin_prints_does_not_spoil_the_json(site, poplin):
    body = "import os\nprint('hello')\nos.write(1, b'from C')\n"
    make_distribution(
        site,
        "acme-poplin",
        entry_points={"callbacks_factory": {"acme": "acme_plugin:callbacks"}},
        modules={"acme_plugin.py": body + "def callbacks():\n    print('more')\n    return []\n"},
        requires=["poplin-core>=0.1,<9"],
    )
    told = json.loads(poplin("plugins", "check", "acme-poplin", "--json").stdout)
    assert {one["status"] for one in told} <= {"passed", "not claimed"}


def test_what_offers_no_name_is_checked_as_a_package(monkeypatch, site):
    make_distribution(site, "acme-poplin", entry_points={"poplin.callbacks_factory": {"acme": "acme_plugin:callbacks"}})
    monkeypatch.syspath_prepend(str(site))
    assert checked(monkeypatch, found=outcomes("passed"))[1]["reference"] == "acme-poplin"
