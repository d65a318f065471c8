"""Accelerators: the interface, the built-in CPU, and (lazily) those of known packages."""

from poplin.faces import lazy_face

__all__ = ["ACCELERATOR_REGISTRY", "Accelerator", "CPUAccelerator"]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "ACCELERATOR_REGISTRY": "poplin.registry.views:ACCELERATOR_REGISTRY",
        "Accelerator": "poplin.accelerators.accelerator:Accelerator",
        "CPUAccelerator": "poplin.accelerators.cpu:CPUAccelerator",
        "parse_device_indices": "poplin.accelerators.accelerator:parse_device_indices",
    },
)
