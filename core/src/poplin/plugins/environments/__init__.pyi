# Written by core/generate_stubs.py from the tables of the lazy faces and registry/known.toml; change those.
from poplin.environments.environment import ClusterEnvironment as ClusterEnvironment
from poplin.environments.local import LocalEnvironment as LightningEnvironment
from poplin.environments.local import LocalEnvironment as LocalEnvironment
from poplin.environments.torchrun import TorchrunEnvironment as TorchElasticEnvironment
from poplin_clusters.kubeflow import KubeflowEnvironment as KubeflowEnvironment
from poplin_clusters.lsf import LSFEnvironment as LSFEnvironment
from poplin_clusters.mpi import MPIEnvironment as MPIEnvironment
from poplin_clusters.slurm import SLURMEnvironment as SLURMEnvironment
from poplin_tpu.environment import XLAEnvironment as XLAEnvironment
