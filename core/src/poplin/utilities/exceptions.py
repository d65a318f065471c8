"""A lazy face: exceptions under the import path that users of Lightning know."""

from poplin.faces import lazy_face

__all__ = ["MisconfigurationException"]

__getattr__, __dir__ = lazy_face(__name__, {"MisconfigurationException": "poplin.errors:MisconfigurationException"})
