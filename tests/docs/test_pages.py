"""Every snippet of the pages for users runs, and every message that a page quotes is the one that comes.

The blocks of a page run one after the other in one process, in an empty folder, with the names of those before them:

- ``python``: runs. If its first line is ``# NAME.py``, it is written to that file instead.
- ``text`` right after it: what it prints, warns and raises, as ``Class: message``; ``…`` stands for anything.
- ``sh``: its commands run; ``text`` after it is found in what they print.
- ``toml``: metadata of a package; the package is then as good as installed for the commands.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
import tomllib
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("methods", "callbacks", "workflows", "troubleshooting", "checkpoints", "sharding")
FENCED = re.compile(r"^```(\w+)\n(.*?)^```\n(?:\n?```text\n(.*?)^```$)?", flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """All pages, two at a time: what takes long are the imports of the commands, each in a process of its own."""

    def run(page):
        return subprocess.run(
            [sys.executable, __file__, str(DOCS / f"{page}.md")],
            cwd=tmp_path_factory.mktemp(page),
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
        )

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(PAGES, pool.map(run, PAGES), strict=True))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES)
def test_every_snippet_of(page, pages):
    done = pages[page]
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    assert done.stdout.endswith("all blocks did what the page says\n")


# --- in the page's process


def run_page(page: Path) -> None:
    text = page.read_text()
    namespace = {"__name__": "__main__"}
    failures = 0
    for block in FENCED.finditer(text):
        language, source, expected = block.groups()
        line = text.count("\n", 0, block.start(2))
        name = re.match(r"# (\w+\.py)\n", source)
        if language == "python" and name:
            Path(name[1]).write_text(source)
            continue
        if language == "toml":
            pretend_installed(tomllib.loads(source)["project"])
            continue
        told = run_python(source, namespace, page, line) if language == "python" else run_commands(source)
        if expected is None and "Error: " not in told and "Warning: " not in told:
            continue
        if expected is not None and re.search(pattern(expected), " ".join(told.split()), flags=re.DOTALL):
            continue
        failures += 1
        print(f"{page.name}:{line}: the page says\n{expected}\nand what came is\n{told}\n", flush=True)
    if failures:
        sys.exit(f"{failures} block(s) of {page.name} do something else")
    print("all blocks did what the page says")


def run_python(source: str, namespace: dict, page: Path, line: int) -> str:
    out = io.StringIO()
    error = ""
    with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stdout(out):
        warnings.simplefilter("always")
        try:
            exec(compile("\n" * line + source, str(page), "exec"), namespace)
        except Exception as failure:
            traceback.print_exc()
            error = f"{type(failure).__name__}: {failure}\n"
    told = "".join(
        f"{warning.category.__name__}: {warning.message}\n"
        for warning in warned
        # Python shows nobody what one library deprecates in another
        if not issubclass(warning.category, DeprecationWarning) or warning.filename == str(page)
    )
    return told + out.getvalue() + error


def run_commands(source: str) -> str:
    told = ""
    for command in source.splitlines():
        words = re.sub(r"^poplin ", "-m poplin ", re.sub(r"^python ", "", command)).split()
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120)
        told += done.stdout + done.stderr + (f"Error: exit code {done.returncode}\n" if done.returncode else "")
    return told


def pattern(expected: str) -> str:
    return ".*".join(re.escape(part) for part in " ".join(expected.split()).split("…"))


def pretend_installed(project: dict) -> None:
    folder = Path(f"{project['name'].replace('-', '_')}-{project['version']}.dist-info")
    folder.mkdir()
    requires = "".join(f"Requires-Dist: {requirement}\n" for requirement in project.get("dependencies", []))
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n{requires}"
    )
    groups = project["entry-points"].items()
    (folder / "entry_points.txt").write_text(
        "".join(f"[{group}]\n" + "".join(f"{n} = {v}\n" for n, v in names.items()) for group, names in groups)
    )


if __name__ == "__main__":
    run_page(Path(sys.argv[1]))
