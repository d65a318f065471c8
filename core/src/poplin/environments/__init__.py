"""Cluster environments: the interface, and the built-in ones."""

from poplin.faces import lazy_face

__all__ = ["ClusterEnvironment", "LocalEnvironment", "TorchrunEnvironment"]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "ClusterEnvironment": "poplin.environments.environment:ClusterEnvironment",
        "LocalEnvironment": "poplin.environments.local:LocalEnvironment",
        "TorchrunEnvironment": "poplin.environments.torchrun:TorchrunEnvironment",
        # the names that Lightning's users know
        "LightningEnvironment": "poplin.environments.local:LocalEnvironment",
        "TorchElasticEnvironment": "poplin.environments.torchrun:TorchrunEnvironment",
    },
)
