"""Poplin: your own PyTorch training loop on any hardware, with any parallelism, at any precision, by plugins.

Importing this package imports no torch: its names are read lazily.
"""

from poplin.faces import install_deep_faces, lazy_face

__version__ = "0.1.0"
__all__ = [
    "Fabric",
    "__version__",
    "disable_possible_user_warnings",
    "hookimpl",
    "is_wrapped",
    "lazy",
    "register",
    "seed_everything",
]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "Fabric": "poplin.fabric:Fabric",
        "disable_possible_user_warnings": "poplin.utilities.warnings:disable_possible_user_warnings",
        "hookimpl": "poplin.registry:hookimpl",
        "is_wrapped": "poplin.wrappers:is_wrapped",
        "lazy": "poplin.registry:lazy",
        "register": "poplin.registry:register",
        "seed_everything": "poplin.seed:seed_everything_without_workers",
    },
)

install_deep_faces()
