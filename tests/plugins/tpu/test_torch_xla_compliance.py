"""The accelerator against the public compliance suite, on the real torch_xla's CPU device."""

import pytest

from poplin.testing import AcceleratorCompliance

pytestmark = [pytest.mark.xla, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True, scope="module")
def on_the_cpu():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PJRT_DEVICE", "CPU")
        yield


class TestXLA(AcceleratorCompliance):
    name = "xla"
    limit = 200
