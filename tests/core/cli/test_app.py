"""The program as a whole."""

import importlib.metadata
import os
import subprocess
import sys

import pytest

import poplin as package
from poplin.cli import main


def test_the_two_names_of_the_program_are_one_function():
    scripts = {
        point.name: point.load()
        for point in importlib.metadata.entry_points(group="console_scripts")
        if point.dist is not None and point.dist.name in ("poplin", "poplin-core")
    }
    assert scripts == {"poplin": main, "fabric": main}


def test_the_version(poplin):
    assert poplin("--version").stdout == f"poplin {package.__version__}\n"


def test_every_command_is_in_the_help(poplin):
    text = poplin("--help").stdout
    for command in ("run", "plugins", "explain", "doctor", "env"):
        assert f"  {command} " in text
        assert "-p NAME" in poplin(command, "--help").stdout


def test_env_shows_versions_and_variables(poplin):
    lines = [line.split() for line in poplin("env", POPLIN_DEBUG="1").stdout.splitlines()]
    assert ["poplin-core", package.__version__] in lines
    assert ["torch", importlib.metadata.version("torch")] in lines
    assert ["POPLIN_DEBUG", "1"] in lines


def test_env_survives_metadata_in_whatever_state(poplin, site):
    numpy, torch = site / "numpy-99.0.dist-info", site / "torch.egg-info"
    numpy.mkdir()
    (numpy / "METADATA").write_bytes("Name: numpy\nAuthor: Müller\nVersion: 99.0\n".encode("latin-1"))
    (numpy / "entry_points.txt").write_bytes(b"[console_scripts]\nno equals sign\n\xff\n")
    torch.mkdir()  # as a broken-off installation leaves it
    lines = [line.split() for line in poplin("env").stdout.splitlines()]
    assert ["numpy", "99.0"] in lines
    assert ["torch", importlib.metadata.version("torch")] in lines


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_seen_enough_is_no_error(unbuffered):
    environ = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    reader, writer = os.pipe()
    os.close(reader)  # gone before the first line
    command = [sys.executable, "-m", "poplin", "env"]  # short enough to be in the buffer until the end
    done = subprocess.run(command, env=environ, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert done.returncode == 0
    assert done.stderr == ""
