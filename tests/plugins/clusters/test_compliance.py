"""The environments and their package against the public compliance suites, by the variables of each scheduler."""

from poplin.testing import PackagingCompliance
from poplin_clusters.compliance import KubeflowCompliance, LSFCompliance, MPICompliance, SLURMCompliance


class TestSLURM(SLURMCompliance):
    pass


class TestMPI(MPICompliance):
    """On several nodes: see test_real_clusters."""


class TestLSF(LSFCompliance):
    pass


class TestKubeflow(KubeflowCompliance):
    pass


class TestPackage(PackagingCompliance):
    distribution = "poplin-clusters"
