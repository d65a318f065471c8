"""The reference of the plugin API says what the code says, and leaves nothing out that is public."""

import importlib
import re
import runpy
from pathlib import Path

import pytest

from poplin import errors, faces

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "plugin-api.md").read_text()
FACES = (
    "accelerators checkpoint environments launchers loggers precision registry strategies utilities wrappers".split()
)


@pytest.fixture(scope="module")
def generator():
    return runpy.run_path(str(DOCS / "generate_plugin_api.py"))


def test_the_page_is_what_the_docstrings_say(generator):
    assert generator["page"]() == PAGE, "run: python docs/generate_plugin_api.py"


@pytest.mark.parametrize("face", FACES)
def test_every_public_name_is_told(face, generator):
    """What the new logger imports, FolderLogger and to_numbers, was on no page."""
    module = importlib.import_module(f"poplin.{face}")
    names = {*module.__all__, *faces.own_names(f"poplin.{face}")}
    _, _, part = PAGE.partition(f"\n### poplin.{face}\n")
    told = set(re.findall(r"^#### `(\w+)", part.partition("\n### ")[0], flags=re.MULTILINE))
    told |= set(re.findall(r"^(?:## |### `@?)(\w+)", PAGE, flags=re.MULTILINE))  # interfaces, hooks and functions
    told |= set(re.findall(r"^\| `(\w+)` \|", PAGE.partition("\n### poplin.errors\n")[2], flags=re.MULTILINE))
    elsewhere = {name.rpartition(".")[2] for name in generator["ELSEWHERE"] if name.startswith(f"poplin.{face}.")}
    assert {name for name in names if not name.startswith("_")} - told - elsewhere - {"hookspecs"} == set()


def test_what_the_page_leaves_to_others_is_told_there(generator):
    for name, page in generator["ELSEWHERE"].items():
        face, _, word = name.rpartition(".")
        assert word in importlib.import_module(face).__all__
        assert re.search(rf"\b{word}\b", (DOCS / page).read_text()), f"{name} isn't in {page}"


def test_every_error_is_told():
    names = {
        name for name, value in vars(errors).items() if isinstance(value, type) and value.__module__ == "poplin.errors"
    }
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE.partition("\n### poplin.errors\n")[2], flags=re.MULTILINE)) == names


def test_a_member_that_a_class_adds_is_told():
    """``with_prefix`` is what a logger in a folder needs, and ``log_dir`` is told of its base."""
    _, _, part = PAGE.partition("\n#### `FolderLogger(")
    part = part.partition("\n#### ")[0]
    assert "- `with_prefix(" in part
    assert "log_dir" not in part
