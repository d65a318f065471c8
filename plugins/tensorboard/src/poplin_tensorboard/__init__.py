"""Logs the metrics, hyperparameters and graphs of Poplin runs to TensorBoard."""

__version__ = "0.1.0"
