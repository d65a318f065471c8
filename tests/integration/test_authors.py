"""An author of plugins, with nothing but what is published: the page is followed literally; every new package works.

All of it happens in one virtual environment, made by the page's own first commands. `pip` finds the core of this
checkout, built as a wheel, in a folder, and everything else where it always does.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from poplin.cli.scaffold.kinds import SUBJECTS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "writing-a-plugin.md"
FENCED = re.compile(r"^```(\w+)\n(.*?)^```\n(?:\n?```text\n(.*?)^```$)?", flags=re.MULTILINE | re.DOTALL)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


class Shell:
    """Commands as a person types them: the folder and the environment of one are those of the next."""

    def __init__(self, folder, variables):
        self.folder, self.state = folder, folder.parent / "state.sh"
        exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
        self.state.write_text(f"{exports}cd {shlex.quote(str(folder))}\n")

    def run(self, commands, timeout=900):
        keep = f'{{ export -p | grep -v "declare -x PWD="; printf "cd %q\\n" "$PWD"; }} > {self.state}'
        done = subprocess.run(
            ["bash", "-e", "-c", f". {self.state}\n{commands}\n{keep}"],
            env={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == 0, f"exit code {done.returncode} of\n{commands}\n{done.stdout[-6000:]}"
        return done.stdout

    @property
    def here(self):
        return Path(self.run("pwd").splitlines()[-1])


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """A person's shell in an empty folder; after the page has been followed, its environment is active."""
    folder = tmp_path_factory.mktemp("author")
    wheels, programs, work = (folder / name for name in ("wheels", "bin", "work"))
    for made in (wheels, programs, work):
        made.mkdir()
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        wheels,
        ROOT / "core",
    ]
    subprocess.run(build, check=True, timeout=120)
    # the Python of the tests, under its usual name; one without ensurepip gets its pip by the tests' own
    (programs / "python3").write_text(
        f'#!/bin/sh\nif [ "$1 $2" = "-m venv" ]; then\n  {sys.executable} -m venv --without-pip "$3" && '
        f'exec {sys.executable} -m pip --python "$3" install --quiet pip\nfi\nexec {sys.executable} "$@"\n'
    )
    (programs / "python3").chmod(0o755)
    return Shell(
        work,
        {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PIP_FIND_LINKS": str(wheels),
            "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "OMP_NUM_THREADS": "1",
        },
    )


def follow(page, shell):
    """Do what a page says, block by block."""
    text = page.read_text()
    for block in FENCED.finditer(text):
        language, source, expected = block.groups()
        line = text.count("\n", 0, block.start()) + 1
        if language == "python" and (name := re.match(r"# ([\w./-]+\.py)\n", source)):
            path = shell.here / name[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source.partition("\n")[2])
        elif language == "sh":
            told = " ".join(shell.run(source).split())
            wanted = " ".join((expected or "").split())
            assert wanted in told, f"{page.name}:{line}: the page says {wanted!r}, and what came is\n{told[-6000:]}"


@pytest.fixture(scope="module")
def followed(shell):
    follow(PAGE, shell)
    return shell


def test_the_page_leads_to_a_published_strategy(followed):
    folder = followed.here
    told = followed.run("python -m pytest --collect-only -q tests/test_more.py")
    assert "TestWithArguments::test_several_processes_train_as_one" in told
    assert {path.name for path in (folder / "dist").iterdir()} == {
        "poplin_thrifty-0.1.0-py3-none-any.whl",
        "poplin_thrifty-0.1.0.tar.gz",
    }
    followed.run(f"cd {folder.parent}; pip uninstall --yes poplin-thrifty; pip install poplin-thrifty/dist/*.whl")
    rows = json.loads(followed.run("poplin plugins --json"))
    assert {row["name"] for row in rows if row["distribution"] == "poplin-thrifty"} == {"thrifty", "thrifty_exact"}


def test_a_package_of_every_kind_installs_and_passes_its_tests(followed):
    """By real pip, all into one environment; then each runs its own tests, and the command checks all of them."""
    names = {kind: f"new-{kind.replace('_', '-')}" for kind in SUBJECTS}
    commands = [f"poplin plugins new {kind} {name}" for kind, name in names.items()]
    folders = " ".join(f"./poplin-{name}" for name in names.values())
    followed.run("\n".join(["mkdir kinds; cd kinds", *commands, f"pip install {folders}"]))
    rows = json.loads(followed.run("poplin plugins --json --load"))
    mine = {row["name"]: row for row in rows if row["distribution"] in {f"poplin-{name}" for name in names.values()}}
    assert mine.keys() >= set(names.values())
    assert {row["status"] for row in mine.values()} <= {"available", "loaded", "role"}, mine
    for name in names.values():
        told = followed.run(f"cd poplin-{name}; python -m pytest -q; cd ..")
        assert " passed" in told
        assert "failed" not in told
    told = json.loads(followed.run("poplin plugins check poplin-new-logger --json"))
    # The rest it knows from the package.
    unclaimed = {outcome["check"] for outcome in told if outcome["status"] != "passed"}
    assert unclaimed == {"its callbacks factories make callbacks"}, told
    assert {outcome["status"] for outcome in told} == {"passed", "not claimed"}
    assert {outcome["suite"] for outcome in told} == {"NewLoggerCompliance", "PackagingCompliance"}
