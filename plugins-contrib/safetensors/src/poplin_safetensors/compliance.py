"""The compliance suite of the checkpoint IO."""

from __future__ import annotations

from poplin.testing import CheckpointIOCompliance


class SafetensorsCompliance(CheckpointIOCompliance):
    """Files are called as others expect it of safetensors."""

    name = "safetensors"
    suffix = ".safetensors"
