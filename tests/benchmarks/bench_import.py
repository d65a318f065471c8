"""What it costs to import Fabric, and to list the plugins among a thousand distributions.

    python tests/benchmarks/bench_import.py

Imports are measured in fresh processes, in interleaved pairs; a ratio is the median over the pairs, with the middle
half of them in brackets.
"""

import os
import resource
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


def run(code, **environment):
    """Wall-clock and processor seconds of a fresh process that runs ``code``.

    Compiled modules are kept, as on any machine.
    """
    variables = os.environ | environment | {"PYTHONPYCACHEPREFIX": CACHE.name}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=variables, stdout=subprocess.DEVNULL)
    after, end = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    return end - start, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def seconds(code, **environment):
    """Wall-clock seconds of a fresh process that runs ``code``."""
    return run(code, **environment)[0]


def compare(title, code, base, bar=None):
    """Print the ratios of two imports. On a machine with other work, the processor time is the one to look at."""
    run(code)
    run(base)  # from here on, the files are in the page cache and compiled
    pairs = [(run(code), run(base)) for _ in range(PAIRS)]
    told = f" (bar: at most {bar:.2f})" if bar else ""
    for number, what in enumerate(("wall-clock", "processor")):
        ratios = [one[number] / other[number] for one, other in pairs]
        low, _, high = statistics.quantiles(ratios, n=4)
        typical = statistics.median(one[number] for one, _ in pairs), statistics.median(two[number] for _, two in pairs)
        print(
            f"{title}: {statistics.median(ratios):.2f} × `{base}` [{low:.2f}, {high:.2f}], "
            f"{typical[0]:.2f} s against {typical[1]:.2f} s {what} time{told}"
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
