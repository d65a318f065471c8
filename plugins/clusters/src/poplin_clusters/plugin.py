"""What this package offers. Light: it imports neither torch nor an environment before it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from poplin import hookimpl, lazy


@hookimpl
def poplin_environments() -> Mapping[str, Callable[..., Any]]:
    """The four environments; each says by ``detect`` whether it started this process."""
    return {
        "slurm": lazy("poplin_clusters.slurm:SLURMEnvironment"),
        "lsf": lazy("poplin_clusters.lsf:LSFEnvironment"),
        "mpi": lazy("poplin_clusters.mpi:MPIEnvironment"),
        "kubeflow": lazy("poplin_clusters.kubeflow:KubeflowEnvironment"),
    }
