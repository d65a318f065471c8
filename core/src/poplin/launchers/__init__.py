"""Launchers: the interface, and the built-in ones."""

from poplin.faces import lazy_face

__all__ = ["Launcher", "MultiProcessingLauncher", "SubprocessLauncher"]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "Launcher": "poplin.launchers.launcher:Launcher",
        "MultiProcessingLauncher": "poplin.launchers.multiprocessing:MultiProcessingLauncher",
        "SubprocessLauncher": "poplin.launchers.subprocess:SubprocessLauncher",
    },
)
