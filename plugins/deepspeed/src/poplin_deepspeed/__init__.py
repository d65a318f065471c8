"""DeepSpeed's ZeRO for Poplin."""

__version__ = "0.1.0"
