"""Sharded training for Poplin, by torch's fully_shard, DeviceMesh and DTensor."""

__version__ = "0.1.0"
