"""Every snippet of the README runs, and what it says about packages and commands is true."""

import json
import os
import re
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language):
    """The fenced blocks of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def run(*words, cwd, path=()):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_change_to_a_raw_loop(tmp_path):
    (diff,) = blocks("diff")
    lines = diff.splitlines()
    before = [line[1:] for line in lines if not line.startswith("+")]
    after = [line[1:] for line in lines if not line.startswith("-")]
    assert len([line for line in lines if line.startswith("+") and line[1:].strip()]) <= 10
    (tmp_path / "raw.py").write_text("\n".join(before))
    (tmp_path / "train.py").write_text("\n".join(after))
    with ThreadPoolExecutor() as pool:
        _, told = pool.map(lambda script: run(script, cwd=tmp_path), ("raw.py", "train.py"))
    assert re.fullmatch(r"loss \d+\.\d+\n", told)
    command = re.search(r"`poplin (run .*? train.py)`", README)[1]
    two = run("-m", "poplin", *command.split(), cwd=tmp_path)
    assert re.search(r"^loss \d+\.\d+$", two, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def written_plugin(tmp_path_factory):
    """The package of the section "Write one", installed into a folder of its own."""
    folder = tmp_path_factory.mktemp("acme")
    for block in [*blocks("toml"), *blocks("python")]:
        first, _, _ = block.partition("\n")
        path = folder / first.removeprefix("# ")
        path.parent.mkdir(exist_ok=True)
        path.write_text(block)
    site = folder / "site"
    install = "-m pip install --quiet --no-deps --no-build-isolation --target"
    run(*install.split(), site, ".", cwd=folder)
    return folder, site


def test_the_plugin_that_it_teaches_works(written_plugin):
    folder, site = written_plugin
    run("train.py", cwd=folder, path=[site])
    assert json.loads((folder / "metrics.jsonl").read_text()) == {"step": 1, "loss": 0.5}
    text = run(*"-m poplin plugins info jsonl".split(), cwd=folder, path=[site])
    assert "poplin-acme" in text


def test_the_logger_that_it_teaches_writes_json_whatever_is_logged(written_plugin, tmp_path):
    """A NaN stood in the file as ``NaN``, which is not JSON."""
    _, site = written_plugin
    script = "from poplin import Fabric\nfabric = Fabric(accelerator='cpu', devices=1, loggers='jsonl')\n"
    script += "fabric.log_dict({'a': float('nan'), 'b': float('-inf'), 'c': 2})\nfabric.close()\n"
    (tmp_path / "train.py").write_text(script)
    run("train.py", cwd=tmp_path, path=[site])
    text = (tmp_path / "metrics.jsonl").read_text()
    row = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert row == {"step": None, "a": "nan", "b": "-inf", "c": 2}


def test_the_commands_that_it_shows_work(tmp_path):
    shown = re.findall(r"^    poplin (.*?)(?:  +#.*)?$", README, flags=re.MULTILINE)
    assert len(shown) == 5
    for words in shown:
        if words != "doctor":  # it has tests of its own
            run("-m", "poplin", *words.split(), cwd=tmp_path)


def known_names(package):
    """What a package of this repository declares in its metadata."""
    folder = ROOT / "plugins" / package.removeprefix("poplin-")
    groups = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"]
    return [name for names in groups.values() for name in names]


def test_the_table_of_packages_is_the_listing(tmp_path):
    found = json.loads(run("-m", "poplin", "plugins", "--json", cwd=tmp_path))
    told = re.findall(r"^\| `(poplin-[a-z]+)` \| (.*?) \|$", README, flags=re.MULTILINE)
    folders = {
        tomllib.loads(path.read_text())["project"]["name"]
        for path in [ROOT / "core/pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml")]
    }
    assert {package for package, _ in told} == folders
    for package, text in told:
        offers = {row["name"] for row in found if row["distribution"] == package and row["status"] != "role"}
        names = set(re.findall(r"`([^`]+)`", text)) - {"Fabric"}
        if package not in {row["distribution"] for row in found}:  # its library is large, and not installed here
            assert names & set(known_names(package))
            continue
        assert names <= offers
        untold = {name for name in offers - names if "_find_unused_parameters_" not in name}
        assert not untold


def test_the_install_line_has_every_package_that_poplin_needs():
    """It lacked one once, and pip then looked for it elsewhere."""
    (folders,) = re.findall(r"`pip install \./core \./plugins/\{([a-z,]+)\} \.`", README)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {requirement.partition(">")[0].removeprefix("poplin-") for requirement in project["dependencies"]}
    assert set(folders.split(",")) == needed - {"core"}
