"""A lazy face: collectives as objects, under the import path that users of Lightning know."""

from poplin.faces import lazy_face

__all__ = ["Collective", "SingleDeviceCollective", "TorchCollective"]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "Collective": "poplin.strategies.handles:Collective",
        "SingleDeviceCollective": "poplin.strategies.handles:SingleDeviceCollective",
        "TorchCollective": "poplin.strategies.handles:TorchCollective",
    },
)
