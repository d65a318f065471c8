"""``poplin migrate``: files, modes, errors; and moved scripts that run."""

import os
import re
import runpy
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from poplin.cli.migration import command
from poplin.errors import ArgumentValueError

LINES = "import lightning as L\nfabric = L.Fabric()\n"
MOVED = LINES.replace("lightning", "poplin")
API = runpy.run_path(str(Path(__file__).parents[1] / "test_faces.py"))["PATHS"]


def test_folders_are_searched_for_sources_and_nothing_else(tmp_path, capsys):
    for name in ("a.py", "deep/b.pyi", "script", "c.txt", ".venv/d.py", "env/e.py", "build/f.py", "x.egg-info/g.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(LINES)
    (tmp_path / "env" / "pyvenv.cfg").touch()
    (tmp_path / "deep" / "again").symlink_to(tmp_path, target_is_directory=True)
    assert command.migrate([str(tmp_path), str(tmp_path / "a.py")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 file(s), 2 changed, 0 remark(s)"
    moved = sorted(
        str(file.relative_to(tmp_path))
        for file in tmp_path.rglob("*")
        if file.is_file() and "poplin" in file.read_text()
    )
    assert moved == ["a.py", "deep/b.pyi"]
    assert command.migrate([str(tmp_path)]) == 0
    assert "0 changed" in capsys.readouterr().out


def test_a_program_without_suffix_is_python_by_its_first_line(tmp_path):
    program = tmp_path / "train"
    program.write_text("#!/usr/bin/env python3\n" + LINES)
    program.chmod(0o755)
    assert command.migrate([str(program)]) == 0
    assert program.read_text() == "#!/usr/bin/env python3\n" + MOVED
    assert stat.S_IMODE(program.stat().st_mode) == 0o755


def test_a_link_stays_a_link_and_the_file_behind_it_is_moved(tmp_path):
    (tmp_path / "real").mkdir()
    real, link = tmp_path / "real" / "a.py", tmp_path / "link.py"
    real.write_text(LINES)
    link.symlink_to(real)
    assert command.migrate([str(link)]) == 0
    assert link.is_symlink()
    assert real.read_text() == MOVED


def test_diff_and_check_write_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text(LINES + "fabric._connector")  # no line end
    assert command.migrate(["a.py"], show_diff=True) == 0
    told = capsys.readouterr()
    assert told.out.startswith("--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n-import lightning as L\n+import poplin as L\n")
    assert "_connector is private" in told.err
    assert command.migrate(["a.py"], check=True) == 1
    assert "a.py: would be changed" in capsys.readouterr().out
    assert Path("a.py").read_text() == LINES + "fabric._connector"
    patch = subprocess.run(["git", "apply", "--unsafe-paths", "-"], input=told.out, text=True, capture_output=True)
    assert patch.returncode == 0, patch.stderr
    assert command.migrate(["a.py"], check=True) == 0


def test_a_file_that_fails_is_left_and_the_others_are_moved(tmp_path, capsys):
    (tmp_path / "bad.py").write_text("import lightning as (")
    (tmp_path / "good.py").write_text(LINES)
    (tmp_path / "book.ipynb").write_text('{"cells": ["import lightning as L"]}')
    assert command.migrate([str(tmp_path)]) == 1
    told = capsys.readouterr()
    assert "bad.py: left as it is: line 1" in told.err
    assert "book.ipynb: left as it is: it is a notebook" in told.err
    assert (tmp_path / "good.py").read_text() == MOVED
    assert told.out.endswith("3 file(s), 1 changed, 0 remark(s), 2 left as they are because of an error\n")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch, capsys):
    file = tmp_path / "a.py"
    file.write_text(LINES)

    def full_disk(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(command.os, "fsync", full_disk)
    assert command.migrate([str(file)]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert file.read_text() == LINES
    assert os.listdir(tmp_path) == ["a.py"]


@pytest.mark.parametrize("path", ["absent", "notes.txt"])
def test_what_can_not_be_migrated_is_an_error(path, tmp_path):
    (tmp_path / "notes.txt").write_text("lightning")
    with pytest.raises(ArgumentValueError, match=path):
        command.migrate([str(tmp_path / path)])


def test_metadata_of_packages(tmp_path, capsys):
    project = '[project]\nname = "lightning-thing"\ndependencies = [ "lightning>=2",\n  "torch" ]  # both\n\n'
    group = '[project.entry-points."lightning.fabric.callbacks_factory"]\nmine = "thing:callbacks"\n'
    (tmp_path / "pyproject.toml").write_text(project + group)
    (tmp_path / "setup.cfg").write_text(
        "[options]\ninstall_requires =\n    lightning-fabric\n[options.entry_points]\n"
        "lightning_fabric.callbacks_factory =\n    mine = thing:callbacks\n"
    )
    (tmp_path / "requirements.txt").write_text("torch\nlightning[extra]==2.5  # the trainer\nlightning-utilities\n")
    assert command.migrate([str(tmp_path)]) == 0
    assert (tmp_path / "pyproject.toml").read_text() == project + group.replace("lightning.fabric", "poplin")
    assert "\npoplin.callbacks_factory =\n" in (tmp_path / "setup.cfg").read_text()
    told = [
        line.partition(f"{tmp_path}/")[2] for line in capsys.readouterr().out.splitlines() if "requirement " in line
    ]
    assert [line.rpartition(": the")[0] for line in told] == ["pyproject.toml:3", "requirements.txt:2", "setup.cfg:3"]


def test_two_spellings_of_one_group_are_left(tmp_path, capsys):
    text = "".join(
        f'[project.entry-points."{name}.callbacks_factory"]\na = "b:c"\n' for name in ("lightning.fabric", "poplin")
    )
    (tmp_path / "pyproject.toml").write_text(text)
    assert command.migrate([str(tmp_path)]) == 1
    assert (tmp_path / "pyproject.toml").read_text() == text
    assert "both spellings of a group" in capsys.readouterr().err


def test_without_libcst_it_says_what_to_install(tmp_path, monkeypatch, capsys):
    from poplin.cli import app

    for name in [name for name in sys.modules if name.startswith(("libcst", "poplin.cli.migration"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "libcst", None)
    assert app.main(["migrate", str(tmp_path)]) == 1
    assert 'pip install "poplin-core[migrate]"' in capsys.readouterr().err


# --- moved scripts run

TRAINING = """
import logging
import sys

import lightning_fabric as L
import torch
from lightning_fabric import Fabric, seed_everything
from lightning_fabric.loggers import CSVLogger
from lightning_fabric.strategies import STRATEGY_REGISTRY, SingleDeviceStrategy
from lightning_fabric.utilities.types import _PATH


class Mine(SingleDeviceStrategy):
    pass


STRATEGY_REGISTRY.register("mine", Mine, "a strategy of the script")


def main(path: _PATH) -> "L.fabric.Fabric":
    seed_everything(7, verbose=False)
    fabric = Fabric(accelerator="cpu", devices=1, strategy="mine", loggers=CSVLogger(path))
    assert isinstance(fabric.strategy, L.strategies.SingleDeviceStrategy)
    model = torch.nn.Linear(4, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
    loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(data, batch_size=8))
    for step, (inputs, targets) in enumerate(loader):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
        fabric.log("loss", loss, step=step)
    fabric.save(f"{path}/last.ckpt", {"model": model})
    fabric.print(f"{loss.item():.6f}")
    return fabric


main(sys.argv[1])
"""


def ran(script, *words):
    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow  # one of the two runs imports all of Lightning Fabric
def test_a_moved_script_trains_as_it_did(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    before = ran(script, str(tmp_path / "before"))
    assert command.migrate([str(script)]) == 0
    text = script.read_text()
    assert "lightning_fabric" not in text
    assert 'poplin.register("strategies", "mine", Mine, description="a strategy of the script")' in text
    assert ran(script, str(tmp_path / "after")) == before


def test_every_import_path_of_the_api_runs_when_it_was_moved(tmp_path):
    """Each name, from each path: as an object, and read of the module; the deeper names are those of other packages."""
    from poplin.registry import known

    paths = {face.replace("poplin", "lightning.fabric", 1): " ".join(known.classes(face)) for face in known.faces()}
    for face, names in API.items():
        theirs = face.replace("poplin", "lightning.fabric", 1)
        ours_alone = {"hookimpl", "lazy", "register", "LocalEnvironment", "FabricModule", "FabricOptimizer"}
        kept = [name for name in names.split() if name not in ours_alone]
        paths[theirs] = " ".join([*kept, *paths.get(theirs, "").split()])
    lines = ["import sys", "absent = []"]
    for number, (path, names) in enumerate(paths.items()):
        for name in names.split():
            for read in (
                f"from {path} import {name} as found",
                f"import {path} as m{number}; found = m{number}.{name}",
            ):
                lines += ["try:", f"    {read}", "except ImportError as error:"]
                lines += ["    assert 'pip install' in str(error), error", f"    absent.append({name!r})"]
    lines += ["print(len(absent), [name for name in sys.modules if name.startswith('lightning')])"]
    script = tmp_path / "imports.py"
    script.write_text("\n".join(lines) + "\n")
    assert command.migrate([str(script)]) == 0
    assert re.search(r"(import|from) lightning", script.read_text()) is None
    absent, loaded = ran(script).split(maxsplit=1)
    assert "lightning_fabric" not in loaded
    assert int(absent) < len(lines)
