"""Loggers: the interface, the built-in CSV file, and (lazily) those of known packages."""

from poplin.faces import lazy_face

__all__ = ["CSVLogger", "Logger"]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "CSVLogger": "poplin.loggers.csv:CSVLogger",
        "Logger": "poplin.loggers.logger:Logger",
        "rank_zero_experiment": "poplin.loggers.logger:rank_zero_experiment",
    },
)
