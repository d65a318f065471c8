"""The command line: ``poplin``, which is also ``python -m poplin``, and ``fabric`` from the distribution ``poplin``."""

from poplin.cli.app import main

__all__ = ["main"]
