"""What a newcomer sees first: ``make demo``."""

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def test_the_demo_trains_on_two_processes_by_a_plugin_found_in_metadata(tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLES / "demo.py"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("accuracy on the test pictures") == 1  # on rank 0 only
    assert float(re.search(r"test pictures: ([\d.]+)%", done.stdout)[1]) > 90
    assert re.search(r"^strategy +ddp +poplin-ddp \d", done.stdout, flags=re.MULTILINE)
    assert list(tmp_path.iterdir()) == []
