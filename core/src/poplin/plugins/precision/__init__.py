"""A lazy face: precisions under the import path that users of Lightning know."""

from poplin.faces import lazy_face

__all__ = ["Precision"]

__getattr__, __dir__ = lazy_face(__name__, {"Precision": "poplin.precision.precision:Precision"})
