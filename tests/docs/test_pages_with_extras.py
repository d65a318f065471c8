"""Every snippet of the pages about plugins that need somebody else's library runs, and those of their READMEs too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.extras

ROOT = Path(__file__).parents[2]
# without Transformer Engine's: each line of it needs an NVIDIA GPU
READMES = [
    f"plugins-contrib/{name}/README.md" for name in ("bitsandbytes", "mlflow", "ray", "safetensors", "torchao", "wandb")
]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", ["docs/deepspeed.md", "docs/contrib.md", *READMES])
def test_every_snippet_of(page, tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "tests/docs/test_pages.py", ROOT / page],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=380,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert done.stdout.endswith("all blocks did what the page says\n")
