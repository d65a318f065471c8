# Written by core/generate_stubs.py from the tables of the lazy faces and registry/known.toml; change those.
from poplin.environments.environment import ClusterEnvironment as ClusterEnvironment
from poplin.environments.local import LocalEnvironment as LightningEnvironment
from poplin.environments.local import LocalEnvironment as LocalEnvironment
from poplin.environments.torchrun import TorchrunEnvironment as TorchElasticEnvironment
from poplin.environments.torchrun import TorchrunEnvironment as TorchrunEnvironment
