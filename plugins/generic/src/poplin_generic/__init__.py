"""Every device that torch itself knows, for Poplin."""

__version__ = "0.1.0"
