"""Loggers: the interface, the built-in CSV file, and (lazily) those of known packages."""

from poplin.faces import lazy_face

__all__ = ["CSVLogger", "FolderLogger", "Logger"]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "CSVLogger": "poplin.loggers.csv:CSVLogger",
        "FolderLogger": "poplin.loggers.folder:FolderLogger",
        "Logger": "poplin.loggers.logger:Logger",
        "as_dictionary": "poplin.loggers.folder:as_dictionary",
        "plain_values": "poplin.loggers.hyperparameters:plain_values",
        "to_numbers": "poplin.loggers.metrics:to_numbers",
        "rank_zero_experiment": "poplin.loggers.logger:rank_zero_experiment",
    },
)
