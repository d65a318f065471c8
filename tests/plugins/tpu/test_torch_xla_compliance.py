"""The accelerator and the strategy for one device against the public compliance suites, on the real torch_xla."""

import pytest

from poplin.testing import AcceleratorCompliance, StrategyCompliance

pytestmark = [pytest.mark.xla, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True, scope="module")
def on_the_cpu():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PJRT_DEVICE", "CPU")
        yield


class TestXLA(AcceleratorCompliance):
    name = "xla"
    limit = 200


class TestSingle(StrategyCompliance):
    name = "single_xla"
    accelerator = "xla"
    world_size = 1
    limit = 200
