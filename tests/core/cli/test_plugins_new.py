"""``poplin plugins new``: what it writes, and what it refuses. (That all work: tests/integration/test_authors.py.)"""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from poplin.cli import app
from poplin.cli.scaffold import command
from poplin.cli.scaffold.kinds import SUBJECTS, key_of
from poplin.errors import ArgumentValueError
from poplin.registry.kinds import CALLBACK_GROUPS, KINDS
from poplin.testing import make_distribution


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """One package of each kind."""
    folder = tmp_path_factory.mktemp("new")
    for kind in SUBJECTS:
        assert command.new(kind, "my.own-thing2", str(folder / kind)) == 0
    return folder


def test_there_is_one_for_every_kind():
    assert {subject.kind for subject in SUBJECTS.values()} - {""} == set(KINDS)
    assert {subject.group for subject in SUBJECTS.values()} >= {"poplin.ambient", CALLBACK_GROUPS[1]}


@pytest.mark.parametrize("kind", SUBJECTS)
def test_a_package_is_complete(kind, packages):
    subject, folder = SUBJECTS[kind], packages / kind
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    package = "src/poplin_my_own_thing2"
    assert files >= {
        *("pyproject.toml", "README.md", ".gitignore", ".github/workflows/tests.yml", "tests/test_packaging.py"),
        *(f"{package}/{name}" for name in ("__init__.py", "py.typed")),
    }
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == "poplin-my-own-thing2"
    assert project["dependencies"] == ["poplin-core>=0.1,<0.2"]
    points = project["entry-points"][subject.group]
    assert list(points) == ["my.own-thing2", *subject.roles]
    for value in points.values():
        assert f"src/{value.partition(':')[0].replace('.', '/')}.py" in files
    for path in folder.rglob("*"):
        if path.is_file():
            text = path.read_text()
            assert not re.search(r"__[A-Z_]+__", text), path
            assert text.endswith("\n") or not text
            if path.suffix == ".py":
                ast.parse(text)


def test_the_packages_are_as_tidy_as_ours(packages):
    """Lines fit, imports are sorted, and the formatter has nothing to do, whatever the name."""
    for arguments in (["check", "--output-format", "concise", "--select", "E,W,F,I,UP,B"], ["format", "--check"]):
        options = ["--isolated", "--line-length", "120", "--target-version", "py311"]
        options += ["--config", 'lint.isort.known-first-party=["poplin_my_own_thing2"]']
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *arguments, *options, packages], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_command_tells_what_it_wrote_and_what_to_do_next(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert app.main(["plugins", "new", "logger", "acme"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("Wrote poplin-acme: the logger 'acme', a complete package.\n")
    assert "  src/poplin_acme/logger.py\n" in told
    assert (
        "cd poplin-acme\n  pip install -e '.[test]'\n  python -m pytest\n  poplin plugins check poplin-acme\n" in told
    )
    assert "class AcmeLogger(FolderLogger):" in Path("poplin-acme/src/poplin_acme/logger.py").read_text()
    assert 'fabric = Fabric(loggers="acme")' in Path("poplin-acme/README.md").read_text()
    assert os.listdir() == ["poplin-acme"]


@pytest.mark.parametrize(
    ("kind", "name", "reason"),
    [
        ("logger", "My Logger", "Would 'my-logger' do?"),
        ("logger", "-x", "Would 'x' do?"),
        ("logger", "ü", "can't be registered"),
        ("logger", "CSV", "Would 'csv' do?"),
        ("logger", "csv", "poplin-core"),
        ("precision", "32_true", "poplin-core"),
        ("strategy", "auto", "is a role"),
        ("accelerator", "gpu", "is a role"),
        ("logger", "core", "poplin-core"),
        ("strategy", "ddp", "poplin-ddp"),
        ("logger", "ddp", "poplin-ddp"),  # the package would have the same name
    ],
)
def test_names_that_can_not_be_are_refused(kind, name, reason, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert app.main(["plugins", "new", kind, "--", name]) == 1
    assert reason in capsys.readouterr().err
    assert os.listdir() == []


def test_a_folder_that_exists_is_left_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("poplin-acme").mkdir()
    Path("link").symlink_to("nowhere")
    for options in ([], ["--folder", "link"]):
        assert app.main(["plugins", "new", "logger", "acme", *options]) == 1
        assert "exists already" in capsys.readouterr().err
    assert os.listdir("poplin-acme") == []


def test_a_package_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    written = []

    def full_disk(text, values):
        if len(written) > 3:
            raise OSError(28, "No space left on device")
        written.append(text)
        return text

    monkeypatch.setattr(command, "_filled", full_disk)
    (tmp_path / ".new.partial").mkdir()  # somebody's own
    for folder in ("new", "deep/er/new"):
        with pytest.raises(ArgumentValueError, match="can't be written .No space left on device., and nothing is left"):
            command.new("logger", "acme", str(tmp_path / folder))
        assert written
        assert os.listdir(tmp_path) == [".new.partial"]
        written.clear()


@pytest.mark.parametrize("folder", ["file/new", "file", "x" * 300, "deep/er/" + "x" * 300, "/proc/new"])
def test_a_folder_that_can_not_be_made_is_one_plain_error(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    assert app.main(["plugins", "new", "logger", "acme", "--folder", folder]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"poplin: ArgumentValueError: {folder} ")
    assert "Give another --folder." in told
    assert os.listdir() == ["file"]


def test_a_name_whose_distribution_is_installed_is_refused(tmp_path, monkeypatch, capsys):
    """Installing the new one would take the other away, whatever it offers."""
    site = tmp_path / "site"
    make_distribution(site, "poplin-taken", entry_points={"poplin.loggers": {"other": "taken_plugin"}})
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.chdir(tmp_path)
    assert app.main(["plugins", "new", "strategy", "taken"]) == 1
    assert "'taken' would get in the way of poplin-taken" in capsys.readouterr().err
    assert os.listdir() == ["site"]


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ("Strategy", "strategy"),
        ("strategies", "strategy"),
        ("checkpoint-io", "checkpoint_io"),
        ("CHECKPOINT_IO", "checkpoint_io"),
        ("Checkpoint IOs", "checkpoint_io"),
        ("callback", "callbacks"),
        ("callbacks-factory", "callbacks"),
        *((kind, kind) for kind in SUBJECTS),
        *((subject.kind, kind) for kind, subject in SUBJECTS.items() if subject.kind),
    ],
)
def test_a_kind_is_understood_as_it_is_written(written, kind):
    assert key_of(written) == kind


def test_the_command_takes_a_kind_in_the_plural(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert app.main(["plugins", "new", "Loggers", "acme"]) == 0
    assert "the logger 'acme'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("written", "near"), [("stratgy", "strategy"), ("checkpoints_io", "checkpoint_io"), ("xyz", None), ("", None)]
)
def test_a_wrong_kind_is_a_wrong_call(written, near, capsys):
    with pytest.raises(SystemExit) as ended:
        app.main(["plugins", "new", written, "acme"])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert f"{written!r} is no kind of plugin." in told
    assert ("Did you mean" in told) == (near is not None)
    assert near is None or f"Did you mean {near!r}?" in told
    assert ", ".join(SUBJECTS) in told
