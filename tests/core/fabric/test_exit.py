"""A Fabric that nobody closes is closed when its script ends, and knows how that was."""

import pytest

from poplin.testing.processes import Program

SCRIPT = """
import sys
import torch
from poplin import Fabric


class Log:
    def log_metrics(self, metrics, step=None):
        pass

    def finalize(self, status):
        print("finalized:", status, flush=True)


class Last:
    def on_close(self):
        print("together:", fabric.all_reduce(torch.ones(()), reduce_op="sum").item(), flush=True)


what, devices = sys.argv[1], int(sys.argv[2])
fabric = Fabric(accelerator="cpu", devices=devices, strategy="ddp", loggers=Log(), callbacks=Last())
fabric.launch()
fabric.save_async("background.ckpt", {"weights": torch.ones(1000)})
if what == "raises":
    raise ValueError("boom")
try:
    raise ValueError("handled")
except ValueError:
    pass
"""


@pytest.mark.parametrize(("what", "devices", "status", "code"), [("raises", 1, "failed", 1), ("ends", 2, "success", 0)])
def test_all_is_finished_before_the_process_group_goes(tmp_path, what, devices, status, code):
    with Program(SCRIPT, [what, str(devices)], cwd=tmp_path) as program:
        assert program.end(timeout=90) == code, program.output
        output = program.output
    assert output.count(f"finalized: {status}") == devices
    assert output.count(f"together: {devices}.0") == devices
    assert "Warning: Closing" not in output, output
    assert [path.name for path in tmp_path.iterdir()] == ["background.ckpt"]
