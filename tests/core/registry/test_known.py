"""known.toml: what it says must be so."""

import re
import tomllib
from pathlib import Path

import pytest

from poplin.registry import known
from poplin.registry.kinds import KINDS
from poplin.registry.names import is_registrable

ROOT = Path(__file__).parents[3]
PROJECTS = {
    project["name"]: (path.parent, project)
    for path in ROOT.glob("plugins*/*/pyproject.toml")
    if (project := tomllib.loads(path.read_text())["project"])
}


def test_its_tables_are_well_formed():
    for distribution, package in known._table().items():
        assert set(package) <= {"device_types", "names", "classes", "roles"}, distribution
        for kind, names in package.get("names", {}).items():
            assert kind in KINDS
            assert all(is_registrable(name) for name in names)
            assert not set(names) & set(KINDS[kind].roles)
            assert len(set(names)) == len(names)
        for face, classes in package.get("classes", {}).items():
            assert face.startswith("poplin.")
            assert all(re.fullmatch(r"[a-z_]+(\.[a-z_]+)*:\w+", target) for target in classes.values())
            top = distribution.replace("-", "_")
            assert all(target.startswith((top + ".", top + ":")) for target in classes.values())


@pytest.mark.parametrize("distribution", sorted(PROJECTS))
def test_it_agrees_with_the_packages_that_are_here(distribution):
    _, project = PROJECTS[distribution]
    for kind in KINDS.values():
        declared = set(project.get("entry-points", {}).get(kind.group, {})) - set(kind.roles)
        assert declared == {
            name for name in known.names(kind.name) if distribution in known.packages_offering(kind.name, name)
        }


@pytest.mark.parametrize("distribution", sorted(PROJECTS))
def test_its_classes_are_where_it_says(distribution):
    folder, _ = PROJECTS[distribution]
    for face in known.faces():
        for name, home in known.classes(face).items():
            if home.distribution == distribution:
                module, _, attribute = home.target.partition(":")
                path = folder / "src" / Path(*module.split("."))
                file = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
                assert re.search(rf"^(class|def) {attribute}\b|\b{attribute}\b", file.read_text(), re.MULTILINE), name


def test_each_device_type_has_a_package():
    assert known.package_for_device("cuda") == "poplin-cuda"
    assert known.package_for_device("privateuse_thing") == "poplin-generic"


def test_names_are_found_in_any_spelling():
    assert known.packages_offering("strategies", "DeepSpeed-Stage.2") == ["poplin-deepspeed"]
    assert known.packages_offering("strategies", "nothing") == []
    assert "ddp" in known.names("strategies")


def test_the_lazy_faces_have_the_known_names():
    assert known.classes("poplin.strategies")["FSDPStrategy"].distribution == "poplin-fsdp"
    assert known.classes("poplin.nothing") == {}
    assert "poplin.plugins" in known.faces()
