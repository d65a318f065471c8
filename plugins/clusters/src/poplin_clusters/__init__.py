"""Cluster environments for Poplin: SLURM, LSF, MPI and Kubeflow."""

__version__ = "0.1.0"
