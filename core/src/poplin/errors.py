"""Every error that Poplin raises.

Each class also derives from the built-in class that a user of Lightning Fabric would catch at that place, so
that ``except ValueError`` and the like keep working in scripts that moved. A message says what happened, why,
and what to do about it.
"""

from __future__ import annotations


class PoplinError(Exception):
    """Base of everything that Poplin raises on purpose."""


class MisconfigurationException(PoplinError):
    """The parts of a run do not fit together. (The name is Lightning's.)"""


class PossibleUserWarning(UserWarning):
    """Something that is probably, but not certainly, a mistake of the caller's."""


# --- arguments and the moment of a call


class ArgumentValueError(PoplinError, ValueError):
    """An argument has a value that can't be meant."""


class ArgumentTypeError(PoplinError, TypeError):
    """An argument is of a kind that can't be used here."""


class UsageError(PoplinError, RuntimeError):
    """A method was called at a moment, or on an object, for which it has no meaning."""


class NotLaunchedError(UsageError):
    """The processes that this call needs do not exist yet."""


class NotSetUpError(PoplinError, TypeError):
    """The object has not gone through ``Fabric.setup``."""


class AlreadySetUpError(PoplinError, ValueError):
    """The object has gone through ``Fabric.setup`` already."""


class UnknownMethodError(PoplinError, AttributeError):
    """The object has no method of this name."""


class MissingLoggerError(PoplinError, IndexError):
    """``Fabric.logger`` was read, and there is no logger."""


class MissingPackageError(PoplinError, ImportError):
    """A name was imported whose package is not installed; the message has the pip command."""


# --- selection


class SelectionError(MisconfigurationException, ValueError):
    """No run can be made of the given arguments."""


class ContradictionError(SelectionError):
    """Two explicit sources ask for different things; both are named."""


class LookupFailedError(SelectionError, KeyError):
    """A name could not be resolved. The subclass says in which of the six ways."""

    __str__ = Exception.__str__  # KeyError would show the repr of the message


class UnknownNameError(LookupFailedError):
    """Nothing installed offers this name, and Poplin knows no package that would."""


class NotInstalledError(LookupFailedError):
    """Poplin knows the package that offers this name, and it is not installed."""


class BrokenPluginError(LookupFailedError):
    """The plugin is installed, and failed; its own error is the cause (``__cause__``)."""


class IncompatiblePluginError(BrokenPluginError):
    """The plugin was written for another version of poplin-core; it was not imported."""


class HardwareAbsentError(LookupFailedError, RuntimeError):
    """The plugin is installed and works, and the device it serves is not here, or of a type that torch doesn't know."""


class DevicesBusyError(PoplinError, RuntimeError):
    """There are enough devices, and other processes have them for themselves."""


class BlockedNameError(LookupFailedError):
    """A control (allow-list, block-list, ``-p no:``) keeps this name out."""


class NameConflictError(LookupFailedError):
    """Several installed distributions offer this name; ``"dist:name"`` picks one."""


class PluginValidationError(PoplinError, TypeError):
    """A plugin breaks the contract of the hooks; plugin, hook and signature are named."""


# --- launching and collectives


class LaunchError(PoplinError, RuntimeError):
    """Processes could not be started."""


class WorkerError(PoplinError, RuntimeError):
    """A worker process failed without leaving an exception of its own (killed by a signal, for instance)."""


class CollectiveError(PoplinError, RuntimeError):
    """A collective could not be completed, or its inputs do not fit together across ranks."""


# --- checkpoints


class CheckpointError(PoplinError, RuntimeError):
    """A checkpoint could not be written, or could not be read."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """There is no checkpoint at this path."""


class DamagedCheckpointError(CheckpointError):
    """The checkpoint is cut off, corrupted or incomplete."""


class UnsafeCheckpointError(CheckpointError, ValueError):
    """The checkpoint holds what a safe load refuses, because reading it could execute code."""


class CheckpointMismatchError(CheckpointError, KeyError):
    """The checkpoint and the objects to be restored do not fit; nothing was restored."""

    __str__ = Exception.__str__


class PartlyLoadedError(CheckpointError):
    """An object was restored only in part, by a load that failed in the middle, and can't be used as it is."""


# --- training


class NonFiniteGradientsError(PoplinError, RuntimeError):
    """Gradients were to be clipped, and their total norm is infinite or no number."""


class TrainingSpikeException(PoplinError, RuntimeError):
    """A loss jumped. (The name is Lightning's.)

    Args:
        batch_idx: index of the batch at which it did.
    """

    def __init__(self, batch_idx: int, *args: object) -> None:
        super().__init__(*args or (f"The loss jumped at batch {batch_idx}. Resume before it and leave the batch out.",))
        self.batch_idx = batch_idx

    def __reduce__(self) -> tuple[type[TrainingSpikeException], tuple[object, ...]]:
        return type(self), (self.batch_idx, *self.args)


# --- loggers


class LoggerError(PoplinError, OSError):
    """A logger can't write its files."""
