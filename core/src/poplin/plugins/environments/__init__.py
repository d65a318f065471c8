"""A lazy face: cluster environments under the import path that users of Lightning know."""

from poplin.faces import lazy_face

__all__ = ["ClusterEnvironment", "LightningEnvironment", "TorchElasticEnvironment"]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "ClusterEnvironment": "poplin.environments.environment:ClusterEnvironment",
        "LightningEnvironment": "poplin.environments.local:LocalEnvironment",
        "LocalEnvironment": "poplin.environments.local:LocalEnvironment",
        "TorchElasticEnvironment": "poplin.environments.torchrun:TorchrunEnvironment",
    },
)
