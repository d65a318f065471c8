"""Errors of this package; each is one of Poplin's."""

from __future__ import annotations

from poplin.errors import LaunchError, MissingPackageError, SelectionError, UsageError


class DeepSpeedMissingError(SelectionError, MissingPackageError):
    """DeepSpeed is not installed, is too old, or can't be imported."""


class DeepSpeedConfigError(SelectionError):
    """The config asks for what can't be, or for what Poplin decides."""


class EngineLimitError(UsageError, NotImplementedError):
    """Something that DeepSpeed's engine can't do was asked of it."""


class EngineSetupError(UsageError):
    """DeepSpeed refused to make an engine; its own error is the cause."""


class BuildError(LaunchError):
    """One of DeepSpeed's extensions can't be compiled here, or a build that was cut off left its lock."""
