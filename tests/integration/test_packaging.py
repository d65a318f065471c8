"""The distributions: they build, install with plain pip, fit together, and go again."""

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from poplin.registry.kinds import KINDS

ROOT = Path(__file__).parents[2]
FOLDERS = [ROOT, ROOT / "core", *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]
#: Bridges to the libraries of others; an extra of `poplin` each, and none of them in `poplin[all]`.
CONTRIB = sorted(path.parent for path in ROOT.glob("plugins-contrib/*/pyproject.toml"))
#: Plugins that bring a library of their own; the distribution `poplin` offers them as extras.
EXTRAS = {"poplin-deepspeed", "poplin-tensorboard", "poplin-tpu"}


def run(*words, code=0, timeout=600, **settings):
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, timeout=timeout, env=environment, **settings
    )
    assert done.returncode == code, f"{words}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def project(folder):
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def names_of(requirements):
    return {requirement.partition(">")[0].partition("=")[0].strip() for requirement in requirements}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """A wheel of every distribution, by its name."""
    folder = tmp_path_factory.mktemp("wheels")
    build = "-m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir"
    run(sys.executable, *build.split(), folder, *FOLDERS, *CONTRIB)
    return {path.name.partition("-")[0].replace("_", "-"): path for path in folder.glob("*.whl")}


def test_poplin_brings_every_plugin_that_exists_and_no_other():
    root = project(ROOT)
    plugins = {project(folder)["name"] for folder in FOLDERS[2:]}
    assert names_of(root["dependencies"]) == {"poplin-core"} | (plugins - EXTRAS)
    extras = root["optional-dependencies"]
    assert names_of(extras["all"]) == EXTRAS & plugins
    for name in EXTRAS & plugins:
        assert names_of(extras[name.removeprefix("poplin-")]) == {name}
    for folder in CONTRIB:
        assert names_of(extras[folder.name]) == {project(folder)["name"]} == {f"poplin-{folder.name}"}


def test_a_wheel_of_each_distribution_holds_what_it_should(wheels):
    assert set(wheels) == {project(folder)["name"] for folder in [*FOLDERS, *CONTRIB]}
    for name, path in wheels.items():
        names = zipfile.ZipFile(path).namelist()
        code = {entry.partition("/")[0] for entry in names if ".dist-info/" not in entry}
        expected = {"poplin": set(), "poplin-core": {"poplin"}}.get(name, {name.replace("-", "_")})
        assert code == expected, name
        assert name == "poplin" or f"{next(iter(expected))}/py.typed" in names
        assert not [
            entry for entry in names if "__pycache__" in entry or ("test_" in entry and not entry.endswith(".template"))
        ]
    assert "poplin/registry/known.toml" in zipfile.ZipFile(wheels["poplin-core"]).namelist()


def test_each_distribution_carries_the_license(wheels):
    text = (ROOT / "LICENSE").read_bytes()
    for path in wheels.values():
        wheel = zipfile.ZipFile(path)
        assert [wheel.read(name) for name in wheel.namelist() if name.endswith("/licenses/LICENSE")] == [text]


def make_environment(folder, *, site_of_this_one):
    """A virtual environment with pip in it; torch and the rest are seen in the running one's site folder, if asked."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    site = next(folder.glob("lib/python*/site-packages"))
    if site_of_this_one:
        import torch

        others = folder / "others"  # what is installed here, less our own packages
        others.mkdir()
        for path in Path(torch.__file__).parents[1].iterdir():
            if not path.name.lower().startswith(("poplin", "_poplin", "__editable__")) and path.suffix != ".pth":
                (others / path.name).symlink_to(path)
        (site / "others.pth").write_text(f"{others}\n")
    return python


def listed(python):
    done = run(python, "-m", "poplin", "plugins", "--json", cwd="/")
    return {(row["kind"], row["name"]): row for row in json.loads(done.stdout)}


def test_uninstalling_a_plugin_takes_its_names_along(wheels, tmp_path):
    python = make_environment(tmp_path / "venv", site_of_this_one=True)
    pip = [sys.executable, "-m", "pip", "--python", python]
    install = "install --quiet --no-index --no-deps --ignore-installed".split()
    run(*pip, *install, *wheels.values())
    before = listed(python)
    assert before["strategies", "ddp"]["distribution"] == "poplin-ddp"
    assert str(tmp_path) in before["strategies", "ddp"]["location"]

    run(*pip, "uninstall", "--quiet", "--yes", "poplin-ddp")
    after = listed(python)
    gone = {key for key in before if key not in after}
    assert {key[1] for key in gone} >= {"ddp", "ddp_spawn", "ddp_fork", "ddp_notebook"}
    assert {before[key]["distribution"] for key in gone} == {"poplin-ddp"}
    done = run(python, "-c", "from poplin import Fabric; Fabric(strategy='ddp')", code=1, cwd="/")
    assert "pip install poplin-ddp" in done.stderr
    assert "NotInstalledError" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_plain_pip_install_into_an_empty_environment(wheels, tmp_path):
    python = make_environment(tmp_path / "venv", site_of_this_one=False)
    pip = [sys.executable, "-m", "pip", "--python", python]
    folder = next(iter(wheels.values())).parent
    run(*pip, "install", "--quiet", "-c", ROOT / "constraints.txt", "--find-links", folder, "poplin[all]")
    run(*pip, "check")
    declared = {
        (group.removeprefix("poplin."), name)
        for folder in FOLDERS
        for group, points in project(folder).get("entry-points", {}).items()
        for name in points
        if group in {kind.group for kind in KINDS.values()}
    }
    assert declared >= {("strategies", "ddp"), ("loggers", "tensorboard")}
    assert listed(python).keys() >= declared
    for program in ("poplin", "fabric"):
        run(python.parent / program, "--version")
    example = "from poplin import Fabric; f = Fabric(accelerator='cpu', devices=1); print(f.explain()); f.close()"
    assert "single_device" in run(python, "-c", example, cwd="/").stdout
