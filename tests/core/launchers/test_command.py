"""The command that runs this script again."""

import sys

import pytest

from poplin.errors import LaunchError
from poplin.launchers.command import script_command


@pytest.fixture
def started(monkeypatch, tmp_path):
    def start(*words, argv=None, main=None):
        monkeypatch.setattr(sys, "orig_argv", ["python", *words])
        if argv is not None:
            monkeypatch.setattr(sys, "argv", ["program", *argv])
        monkeypatch.setattr(sys.modules["__main__"], "__file__", main, raising=False)
        monkeypatch.delattr(sys, "ps1", raising=False)
        return script_command()[1:]

    return start


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["/a/train.py", "x"], ["/a/train.py", "x"]),
        (["-u", "-X", "dev", "-Wignore", "/a/train.py", "x"], ["-u", "-X", "dev", "-Wignore", "/a/train.py", "x"]),
        (["-m", "pkg.train", "x"], ["-m", "pkg.train", "x"]),
        (["-um", "pkg.train", "x"], ["-u", "-m", "pkg.train", "x"]),
        (["-mpkg.train", "x"], ["-m", "pkg.train", "x"]),
        (["-c", "print(1)", "x"], ["-c", "print(1)", "x"]),
        (
            ["-W", "error", "--check-hash-based-pycs", "always", "/a/t.py", "x"],
            ["-W", "error", "--check-hash-based-pycs", "always", "/a/t.py", "x"],
        ),
    ],
)
def test_the_command_is_read_as_the_interpreter_reads_it(started, words, expected):
    assert started(*words, argv=["x"]) == expected


def test_arguments_are_those_of_sys_argv_as_they_are_now(started):
    assert started("/a/train.py", "x", argv=["changed", "-v"]) == ["/a/train.py", "changed", "-v"]


def test_a_relative_script_is_found_from_anywhere(started):
    assert started("train.py", argv=[], main="/here/train.py") == ["/here/train.py"]


def test_a_prompt_and_standard_input_have_no_script(started, monkeypatch):
    with pytest.raises(LaunchError, match="standard input"):
        started("-")
    with pytest.raises(LaunchError, match="standard input"):
        started()
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    with pytest.raises(LaunchError, match="interactive"):
        script_command()
