"""The accelerator and the strategies of one process against the public compliance suites, on the real torch_xla."""

import pytest

from poplin_tpu.compliance import TorchXLACompliance, TPUAcceleratorCompliance

pytestmark = [pytest.mark.xla, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True, scope="module")
def on_the_cpu():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PJRT_DEVICE", "CPU")
        yield


class TestXLA(TPUAcceleratorCompliance):
    name = "xla"


class TestSingle(TorchXLACompliance):
    name = "single_xla"


class TestSPMD(TorchXLACompliance):
    name = "xla_spmd"
