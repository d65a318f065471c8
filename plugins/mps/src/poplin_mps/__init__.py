"""The GPU of Apple-silicon Macs for Poplin."""

__version__ = "0.1.0"
