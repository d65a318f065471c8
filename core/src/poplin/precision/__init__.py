"""Precisions: the interface, whose default behaviour is ``32-true``."""

from poplin.faces import lazy_face

__all__ = ["Precision"]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "DefaultDtype": "poplin.precision.dtypes:DefaultDtype",
        "Precision": "poplin.precision.precision:Precision",
        "cast_floats": "poplin.precision.dtypes:cast_floats",
    },
)
