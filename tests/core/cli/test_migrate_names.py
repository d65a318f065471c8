"""The table of names: what it says is so, on both sides, and nothing public of Lightning Fabric is left out."""

import importlib
import inspect
import pkgutil
import re
import runpy
import warnings
from pathlib import Path

import pytest

from poplin.cli.migration.names import Absent, Target, exists, public_names, resolve, table

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import lightning_fabric

PAGE = (Path(__file__).parents[3] / "docs" / "migrate.md").read_text()
API = runpy.run_path(str(Path(__file__).parents[1] / "test_faces.py"))["PATHS"]


def keys():
    return [key for section in ("moved", "absent") for key in table()[section]]


def really_there(target):
    """Whether the face has it; a name whose package is absent counts, if its error says what to install."""
    module = importlib.import_module(target.module)
    if not target.name:
        return True
    try:
        getattr(module, target.name)
    except ImportError as error:
        return "pip install poplin-" in str(error)
    return True


@pytest.mark.parametrize("key", keys())
def test_the_table_names_what_lightning_has(key):
    module, _, name = key.partition(":")
    found = importlib.import_module(f"lightning_fabric.{module}")
    assert not name or hasattr(found, name)


@pytest.mark.parametrize("key", table()["moved"])
def test_what_has_moved_is_where_the_table_says(key):
    found = resolve("lightning.fabric." + key.replace(":", "."))
    assert isinstance(found, Target)
    assert really_there(found)


@pytest.mark.parametrize("key", keys())
def test_the_table_has_no_line_for_what_poplin_has_in_the_same_place(key):
    module, _, name = key.partition(":")
    assert not name or name not in public_names(f"poplin.{module}")


def public_names_of_lightning():
    for found in pkgutil.walk_packages(lightning_fabric.__path__, "lightning_fabric."):
        if "._" in found.name or found.name.endswith(("__about__", "__setup__", "__version__")):
            continue
        module = importlib.import_module(found.name)
        yield found.name
        listed = getattr(module, "__all__", None)
        for name, value in vars(module).items():
            of_its_own = getattr(value, "__module__", None) == found.name
            if not name.startswith("_") and not inspect.ismodule(value) and (name in listed if listed else of_its_own):
                yield f"{found.name}.{name}"


#: Public by their spelling only.
INTERNAL = re.compile(
    r"fabric\.accelerators\.cuda\.(num_|is_)|_type$|\.(TModel|T|T_destination)$|pl_legacy|\.call_|graveyard"
)


def test_every_public_name_of_lightning_is_in_poplin_or_in_the_table():
    found = {name: resolve(name) for name in public_names_of_lightning() if not INTERNAL.search(name)}
    assert len(found) > 150
    unexplained = [name for name, one in found.items() if isinstance(one, Absent) and "no such name" in one.advice]
    assert unexplained == []
    missing = [name for name, one in found.items() if isinstance(one, Target) and not really_there(one)]
    assert missing == []


@pytest.mark.parametrize("module", API)
def test_every_import_path_of_the_api_comes_from_its_twin_in_lightning(module):
    for name in API[module].split():
        if exists(module) and name not in ("hookimpl", "lazy", "register"):
            found = resolve(f"{module.replace('poplin', 'lightning.fabric', 1)}.{name}")
            assert isinstance(found, Target), found
            assert found.dotted == f"{module}.{name}"


def test_private_attributes_that_are_told_have_public_ones():
    from poplin import Fabric

    for public in filter(None, table()["attributes"].values()):
        assert isinstance(getattr(Fabric, public), property)


def test_the_page_lists_the_table():
    for key, target in table()["moved"].items():
        outside = target.startswith("=")
        shown = target.removeprefix("=").replace(":", ".")
        assert f"| `{key.replace(':', '.')}` | `{'' if outside else 'poplin.'}{shown}` |\n" in PAGE
    for key, advice in table()["absent"].items():
        assert f"| `{key.replace(':', '.')}` | {advice} |\n" in PAGE


def test_close_names_are_suggested_and_other_names_are_left():
    assert "DDPStrategy" in resolve("lightning.fabric.strategies.DDPStratgy").advice
    assert resolve("lightning.pytorch.Trainer").advice == "it is no part of Fabric, and stays as it is"
    assert resolve("lightning.fabric.fabric._do_nothing").advice == "it is private to Lightning"
