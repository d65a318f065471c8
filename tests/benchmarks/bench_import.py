"""What it costs to import Fabric, and to list the plugins among a thousand distributions.

    python tests/benchmarks/bench_import.py

Imports are measured in fresh processes, in interleaved pairs; a ratio is the median over the pairs, with the middle
half of them in brackets.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PAIRS = 9
DISTRIBUTIONS = 1000
OFFERING = 50
CACHE = tempfile.TemporaryDirectory(prefix="poplin-bench-pycache-")


def seconds(code, **environment):
    """Wall-clock seconds of a fresh process that runs ``code``, with compiled modules kept, as on any machine."""
    variables = os.environ | environment | {"PYTHONPYCACHEPREFIX": CACHE.name}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=variables, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def compare(title, code, base, bar=None):
    """Print the ratio of two imports."""
    seconds(code)
    seconds(base)  # the files are in the page cache from here on
    pairs = [(seconds(code), seconds(base)) for _ in range(PAIRS)]
    ratios = sorted(a / b for a, b in pairs)
    quarters = statistics.quantiles(ratios, n=4)
    told = f"(bar: at most {bar:.2f})" if bar else ""
    print(
        f"{title}: {statistics.median(ratios):.2f} × `{base}` [{quarters[0]:.2f}, {quarters[2]:.2f}], "
        f"{statistics.median(a for a, _ in pairs):.2f} s against {statistics.median(b for _, b in pairs):.2f} s {told}"
    )


def make_distributions(folder):
    """A site folder with many distributions, some of which offer something."""
    for number in range(DISTRIBUTIONS):
        info = folder / f"filler_{number}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: filler-{number}\nVersion: 1.0\n\n" + "text\n" * 99
        )
        if number < OFFERING:
            (info / "entry_points.txt").write_text(f"[poplin.strategies]\nfiller_{number} = filler_{number}\n")


def list_plugins():
    """Print how long ``poplin plugins`` takes, from the start of the process to its end."""
    check = (
        "import sys; from poplin.cli import main; main(['plugins']); "
        "assert 'torch' not in sys.modules; assert not [m for m in sys.modules if m.startswith('filler_')]"
    )
    with tempfile.TemporaryDirectory() as folder:
        make_distributions(Path(folder))
        times = [seconds(check, PYTHONPATH=folder) for _ in range(PAIRS + 1)][1:]
        nothing = [seconds("pass") for _ in range(PAIRS + 1)][1:]
    print(
        f"poplin plugins, {DISTRIBUTIONS} distributions, {OFFERING} of them plugins: {statistics.median(times):.2f} s "
        f"[{min(times):.2f}, {max(times):.2f}]; an empty Python process: {statistics.median(nothing):.2f} s "
        "(bar: at most 0.40 s)"
    )


def main():
    """Run all."""
    check = "import poplin, sys; assert 'torch' not in sys.modules"
    seconds(check)
    print(f"import poplin, without torch: {seconds(check):.2f} s")
    list_plugins()
    compare("from poplin import Fabric", "from poplin import Fabric", "import torch", bar=1.10)
    compare("from lightning_fabric import Fabric", "from lightning_fabric import Fabric", "import torch")


if __name__ == "__main__":
    main()
