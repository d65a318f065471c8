"""Precisions: the interface, whose default behaviour is ``32-true``."""

from poplin.faces import lazy_face

__all__ = ["Precision"]

__getattr__, __dir__ = lazy_face(__name__, {"Precision": "poplin.precision.precision:Precision"})
