"""Write the ``.pyi`` of every lazy face from the tables that the face is made of: ``python core/generate_stubs.py``.

A type checker can't follow a lazy ``__getattr__``. A test compares the files with what this would write.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import poplin
from poplin import faces
from poplin.registry import known

SOURCE = Path(__file__).parent / "src"
HEADER = (
    "# Written by core/generate_stubs.py from the tables of the lazy faces and registry/known.toml; change those.\n"
)


def stubs() -> dict[Path, str]:
    """Path → text of every stub."""
    written = {}
    for face in _faces():
        lines = [HEADER]
        own = faces.own_names(face)
        targets = dict(own) | {name: home.target for name, home in known.classes(face).items()}
        for (module, attribute), name in sorted((_home(target), name) for name, target in targets.items()):
            lines.append(f"from {module} import {attribute} as {name}\n")
        if face == "poplin":
            lines.append("\n__version__: str\n")
        path = SOURCE / Path(*face.split("."))
        written[path / "__init__.pyi" if path.is_dir() else path.with_suffix(".pyi")] = "".join(lines)
    return written


def _home(target: str) -> tuple[str, str]:
    """Where ``module:attr``, or a module itself, is imported from, and under what name."""
    module, _, attribute = target.partition(":")
    if attribute:
        return module, attribute
    package, _, last = module.rpartition(".")
    return package, last


def _faces() -> list[str]:
    found = set(faces.deep_faces())
    for module in pkgutil.walk_packages(poplin.__path__, "poplin."):
        path = SOURCE / Path(*module.name.split("."))
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if source.exists() and "__getattr__, __dir__ = lazy_face(" in source.read_text():
            importlib.import_module(module.name)
            found.add(module.name)
    return sorted({"poplin", *found})


if __name__ == "__main__":
    for path, text in stubs().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
