"""Lazy faces: modules whose public names are imported when they are first read.

``import poplin`` must import no torch, and a class of a separately installed package must be importable from the
path that users know. A face is a module whose ``__getattr__`` (PEP 562) does both: its own names stand in a table,
those of known packages in ``registry/known.toml``. The deeper paths of that file are modules without a file
(``DeepFaces``). Type checkers read the ``.pyi`` beside each face, which ``core/generate_stubs.py`` makes of the same
tables.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from poplin.errors import MissingPackageError

#: face → its own names, as far as the faces have been imported: public name → ``module:attr``.
OWN_NAMES: dict[str, Mapping[str, str]] = {}

#: Faces without a file of their own, for import paths that users of Lightning know.
_OWN_DEEP: dict[str, dict[str, str]] = {
    "poplin.utilities.distributed": {
        "DistributedSamplerWrapper": "poplin.utilities.data:DistributedSamplerWrapper",
        "is_shared_filesystem": "poplin.utilities.filesystem:is_shared_filesystem",
    },
    "poplin.loggers.csv_logs": {"CSVLogger": "poplin.loggers.csv:CSVLogger"},
    "poplin.plugins.environments.lightning": {"LightningEnvironment": "poplin.environments.local:LocalEnvironment"},
    "poplin.plugins.environments.torchelastic": {
        "TorchElasticEnvironment": "poplin.environments.torchrun:TorchrunEnvironment"
    },
    "poplin.plugins.environments.cluster_environment": {
        "ClusterEnvironment": "poplin.environments.environment:ClusterEnvironment"
    },
    "poplin.plugins.io.checkpoint_io": {"CheckpointIO": "poplin.checkpoint.checkpoint_io:CheckpointIO"},
    "poplin.plugins.io.torch_io": {"TorchCheckpointIO": "poplin.checkpoint.torch_io:TorchCheckpointIO"},
    "poplin.plugins.precision.precision": {"Precision": "poplin.precision.precision:Precision"},
}


def lazy_face(face: str, own: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` for the module called ``face``.

    Args:
        face: the module's name.
        own: public name → ``module:attr``, or ``module`` for a module itself.

    Returns:
        The two functions, to be assigned at the end of the module.
    """
    OWN_NAMES[face] = own

    def __getattr__(name: str) -> Any:
        if name in own:
            module, _, attribute = own[name].partition(":")
            value: Any = importlib.import_module(module)
            value = getattr(value, attribute) if attribute else value
            setattr(sys.modules[face], name, value)  # the next read is a plain one
            return value
        home = None if name.startswith("_") else _known_classes(face).get(name)
        if home is None:
            raise AttributeError(f"module {face!r} has no attribute {name!r}")
        return _from_package(face, name, home.distribution, home.target)

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[face]), *own, *_known_classes(face)})

    return __getattr__, __dir__


class DeepFaces(MetaPathFinder, Loader):
    """Finds the faces that have no file. Asked last: whatever has a file is found before."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("poplin.") or not (fullname in _OWN_DEEP or _known_classes(fullname)):
            return None
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name, "A lazy face: the import path that users know.")
        own = own_names(spec.name)
        getter, lister = lazy_face(spec.name, own)
        vars(module).update(__getattr__=getter, __dir__=lister, __all__=sorted({*own, *_known_classes(spec.name)}))
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run: its names are read when they are asked for."""


def install_deep_faces() -> None:
    """Let ``import`` find the faces without a file; once."""
    if not any(isinstance(finder, DeepFaces) for finder in sys.meta_path):
        sys.meta_path.append(DeepFaces())


def own_names(face: str) -> Mapping[str, str]:
    """Public name → ``module:attr`` of what the core itself puts into a face that has been imported, or has no file."""
    return OWN_NAMES.get(face) or _OWN_DEEP.get(face, {})


def deep_faces() -> list[str]:
    """The names of all faces without a file."""
    from poplin.registry import known

    return sorted({*_OWN_DEEP, *known.faces()})


def _known_classes(face: str) -> Mapping[str, Any]:
    from poplin.registry import known

    return known.classes(face)


def _from_package(face: str, name: str, distribution: str, target: str) -> Any:
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or module.partition(".")[0] != error.name.partition(".")[0]:
            raise  # the package is here, and something that it needs is not
        raise MissingPackageError(
            f"{face}.{name} is offered by the package {distribution!r}, which is not installed. "
            f"Install it: pip install {distribution}",
            name=name,
            path=face,
        ) from None
