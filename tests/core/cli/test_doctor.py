"""``poplin doctor`` with all sorts of things broken at once. Each run imports torch once or twice: few and full."""

import os
import textwrap

from poplin.testing.distributions import make_distribution

BROKEN_PLUGIN = "raise RuntimeError('the moon is full')"
GOOD_PLUGIN = """
from poplin import hookimpl, lazy

@hookimpl
def poplin_strategies():
    return {"acme_good": lazy("poplin.strategies:SingleDeviceStrategy")}
"""
ABSENT_ACCELERATOR = """
from poplin import hookimpl, lazy
from poplin.accelerators import CPUAccelerator

class Absent(CPUAccelerator):
    roles = ()
    @staticmethod
    def availability():
        return False, "no such card on this bus"

@hookimpl
def poplin_accelerators():
    return {"acme_card": Absent}
"""


def test_everything_that_is_broken_is_named(poplin, site):
    def offer(distribution, name, source, kind="strategies"):
        module = f"{distribution.replace('-', '_')}_plugin"
        make_distribution(
            site, distribution, "1.0", entry_points={f"poplin.{kind}": {name: module}}, modules={f"{module}.py": source}
        )

    offer("acme-good", "acme_good", GOOD_PLUGIN)
    offer("acme-broken", "acme_bad", BROKEN_PLUGIN)
    offer("acme-card", "acme_card", ABSENT_ACCELERATOR, "accelerators")
    (site / "acme_old-0.9.dist-info").mkdir()
    (site / "acme_good-0.9.dist-info").mkdir()
    make_distribution(
        site,
        "good-backend",
        "2.0",
        entry_points={"torch.backends": {"good_device": "good_backend:load"}},
        modules={"good_backend.py": "def load(): pass"},
    )
    make_distribution(
        site,
        "broken-backend",
        "2.5",
        entry_points={"torch.backends": {"broken_device": "broken_backend:load"}},
        modules={"broken_backend.py": "def load(): raise OSError('the driver is gone')"},
    )

    text = poplin("doctor", code=1, MASTER_PORT="not-a-port", RANK="3").stdout

    failed = [part for part in text.split("\n  ") if part.startswith("FAIL")]
    assert any("'broken_device' = broken_backend:load of broken-backend 2.5" in part for part in failed)
    assert "OSError: the driver is gone" in text
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in text
    assert "good-backend 2.0" in text
    assert not any("good-backend" in part for part in failed)
    assert any("acme-broken 1.0" in part for part in failed)
    assert "the moon is full" in text
    assert "strategies: acme_good" in text
    assert "acme_old-0.9.dist-info: METADATA: No such file" in text
    assert "acme_good-0.9.dist-info: METADATA: No such file" in text
    assert "no such card on this bus" in text
    assert "`Fabric()` would use cpu" in text
    assert any("MASTER_PORT" in part for part in failed)
    assert "RANK set" in text

    # Everything else goes on as if nothing had happened.
    assert "acme_good" in poplin("plugins").stdout
    assert "acme_bad" in poplin("plugins", "info", "acme_bad").stdout


def test_a_torch_that_cannot_be_imported_is_one_finding_among_others(poplin, site):
    (site / "torch.py").write_text("raise ImportError('libtorch_cpu.so: cannot open shared object file')")
    text = poplin("doctor", code=1).stdout
    assert "`import torch` fails: ImportError: libtorch_cpu.so" in text
    assert "poplin-core" in text
    assert "free port" in text
    assert "packages" in poplin("env").stdout
    for words in (["explain"], ["run", "script.py"]):
        error = poplin(*words, code=1).stderr
        assert "Traceback" not in error


def test_a_torch_that_kills_the_process_is_reported(poplin, site):
    (site / "torch.py").write_text(
        textwrap.dedent(
            """
            import os, signal, sys
            print("about to die", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
            """
        )
    )
    text = poplin("doctor", code=1).stdout
    assert "exit code -11" in text
    assert "about to die" in text


def test_entry_points_that_python_cannot_read_are_named_with_the_line(poplin, site):
    for name, content in {"bad-line": b"no equals sign", "bad-byte": b"y = caf\xe9:x"}.items():
        folder = make_distribution(site, name, "1.2", entry_points={"console_scripts": {"x": "y:z"}})
        (folder / "entry_points.txt").write_bytes(b"# its commands\n[console_scripts]\nx = y:z\n" + content)
    # of another version of something: Python does not look at this one
    older = make_distribution(site / "older", "bad-line", "1.1")
    (older / "entry_points.txt").write_text("[console_scripts]\nold line\n")
    path = os.pathsep.join([str(site), str(site / "older")])

    text = poplin("doctor", code=1, PYTHONPATH=path).stdout
    failed = [line.strip() for line in text.splitlines() if line.strip().startswith("FAIL")]
    assert any("`import torch` fails" in line for line in failed)
    assert any("bad_line-1.2.dist-info/entry_points.txt, line 4: 'no equals sign'" in line for line in failed)
    assert any("bad_byte-1.2.dist-info/entry_points.txt, line 4: it is not UTF-8" in line for line in failed)
    assert "That is of bad-line 1.2" in text
    assert "pip install --force-reinstall bad-byte" in text
    assert "set TORCH_DEVICE_BACKEND_AUTOLOAD=0" in text
    assert "old line" not in text
    assert "`Fabric()` would use cpu" in text  # by a torch that looks for no backends

    text = poplin("doctor", PYTHONPATH=path, TORCH_DEVICE_BACKEND_AUTOLOAD="0").stdout
    assert "note  " in next(line for line in text.splitlines() if "bad_line-1.2" in line)
    assert "FAIL" not in text


def test_a_torch_that_broke_off_is_not_imported_again(poplin, site):
    source = "import os, sys\nif 'half_done' in sys.modules: os.abort()\nimport half_done\nraise OSError('no driver')"
    (site / "torch.py").write_text(source)
    (site / "half_done.py").write_text("")
    text = poplin("doctor", code=1).stdout
    assert "`import torch` fails: OSError: no driver" in text
    assert "single_device is failed: torch can't be imported: OSError: no driver" in text
    assert "died" not in text


def test_metadata_that_is_used_is_not_called_ignored_and_what_is_dropped_is_told(poplin, site):
    folder = make_distribution(
        site,
        "nameless",
        entry_points={
            "poplin.strategies": {"acme_good": "nameless_p"},
            "poplin.strategy": {"a": "b"},
            "poplin.logger": {"a": "b"},
        },
        modules={"nameless_p.py": GOOD_PLUGIN},
    )
    (folder / "METADATA").write_text("Metadata-Version: 2.1\n")
    unused = make_distribution(site, "unused")
    (unused / "METADATA").write_text("Metadata-Version: 2.1\n")
    make_distribution(site, "runtime", entry_points={"poplin.strategies": {"mine": "mine"}})

    text = poplin("doctor").stdout
    assert "nameless 1.0" in text
    assert f"{folder}:" not in text
    assert f"{unused}: METADATA names no distribution, so it is ignored" in text
    (groups,) = [line for line in text.splitlines() if f"{folder / 'entry_points.txt'}:" in line]
    assert "did you mean 'poplin.strategies'?" in groups
    assert "did you mean 'poplin.loggers'?" in groups
    assert "runtime-1.0.dist-info: the name 'runtime' is Poplin's own" in text


def test_a_healthy_machine(poplin):
    text = poplin("doctor").stdout
    assert "Nothing is broken." in text
    assert "FAIL" not in text
    assert "torch 2." in text
