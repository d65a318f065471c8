"""``poplin doctor``: look for what is wrong. Whatever could fail to import is imported in another process."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from poplin.cli.environment import run_variables
from poplin.cli.metadata import AUTOLOAD_VARIABLE, complaints, is_installed, torch_backends, unreadable
from poplin.cli.tables import table

#: Seconds that the other process may take; importing torch from a slow disk takes a while.
PROBE_TIMEOUT = 300
#: A process with these takes itself for a rank of a run.
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")

GOOD, NOTE, BAD = "ok", "note", "FAIL"


class Finding(NamedTuple):
    """One line of the report (or several, in ``text``)."""

    level: str
    text: str


class Report(NamedTuple):
    """What the other process told: its lines by stage, and how it ended."""

    lines: list[dict[str, Any]]
    ended: str

    def last(self, stage: str) -> dict[str, Any] | None:
        """The last word on a stage, if it came that far."""
        found = [line for line in self.lines if line["stage"] == stage]
        return found[-1] if found else None


def doctor(modules: Sequence[str] = ()) -> int:
    """Print the report.

    Args:
        modules: what ``-p`` named; imported in the other process too.

    Returns:
        1 if something is broken, else 0.
    """
    report = probe("torch", modules)
    torch_failed = _failure(report, "torch") is not None
    backends = probe("backends", (), autoload=False) if torch_failed and (torch_backends() or unreadable()) else None
    if torch_failed and backends is not None and _failure(backends, "torch") is None:
        # torch itself is well: look at the rest without what other packages plug into it
        report = Report(report.lines + probe("torch", modules, autoload=False).lines[2:], report.ended)
    sections: dict[str, Iterable[Finding]] = {
        "python": _python(),
        "torch": _torch(report, backends),
        "devices": _devices(report),
        "plugins": _plugins(report),
        "installed metadata": _metadata(),
        "network": _network(),
        "environment": _environment(),
    }
    failed = False
    for title, findings in sections.items():
        lines = list(findings)
        failed = failed or any(finding.level == BAD for finding in lines)
        print(title)
        print(table(lines, indent="  "))
    print("\nSomething is broken; see the lines marked FAIL." if failed else "\nNothing is broken.")
    return 1 if failed else 0


def probe(what: str, modules: Sequence[str], *, autoload: bool = True) -> Report:
    """Run ``poplin.cli.probe`` in another process and read what it wrote, however it ended."""
    environment = dict(os.environ)
    if not autoload:
        environment[AUTOLOAD_VARIABLE] = "0"
    with tempfile.TemporaryDirectory(prefix="poplin-doctor-") as folder:
        path = Path(folder, "report")
        path.touch()
        try:
            done = subprocess.run(
                [sys.executable, "-m", "poplin.cli.probe", str(path), what, *modules],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                timeout=PROBE_TIMEOUT,
            )
            ended = "" if done.returncode == 0 else f"exit code {done.returncode}: {_tail(done.stderr)}"
        except subprocess.TimeoutExpired:
            ended = f"it did not end within {PROBE_TIMEOUT} s"
        return Report([json.loads(line) for line in path.read_text().splitlines()], ended)


def _failure(report: Report, stage: str) -> str | None:
    """Why a stage has no result; None if it has one."""
    last = report.last(stage)
    if last is None:
        return f"it was not reached ({report.ended or 'no reason known'})"
    if "error" in last:
        return str(last["error"])
    if "begun" in last:
        return f"the process that tried it died ({report.ended})"
    return None


def _tail(text: str, lines: int = 4) -> str:
    return "\n".join(text.strip().splitlines()[-lines:]) or "nothing was printed"


def _python() -> Iterator[Finding]:
    from poplin import __version__

    yield Finding(GOOD, f"Python {platform.python_version()} ({sys.executable}) on {platform.platform()}")
    yield Finding(GOOD, f"poplin-core {__version__} ({Path(__file__).parents[1]})")


def _torch(report: Report, backends: Report | None) -> Iterator[Finding]:
    why = next((line["error"] for line in report.lines if line["stage"] == "torch" and "error" in line), None)
    why = why or _failure(report, "torch")
    if why is None:
        facts = report.last("torch") or {}
        yield Finding(GOOD, f"torch {facts['version']}, imported in {facts['seconds']:.1f} s ({facts['file']})")
        if not facts["distributed"]:
            yield Finding(BAD, "torch was built without torch.distributed: there can be one process only")
    elif not is_installed("torch"):
        yield Finding(BAD, "torch is not installed: pip install torch")
    else:
        yield Finding(BAD, f"`import torch` fails: {why}")
    yield from _unreadable(BAD if why is not None else NOTE)
    yield from _torch_backends(backends)


def _unreadable(level: str) -> Iterator[Finding]:
    """What torch stumbles over when it looks for its backends: a file of any package that is installed."""
    for distribution, version, problem in unreadable():
        yield Finding(
            level,
            f"{problem}\n"
            f"That is of {distribution} {version}: Python can't read the file, and `import torch` looks for torch's "
            "backends in the files of all packages.\n"
            f"Mend it, or install the package anew (pip install --force-reinstall {distribution}), or set "
            f"{AUTOLOAD_VARIABLE}=0 (`poplin run --no-torch-autoload`): torch looks for none then.",
        )


def _torch_backends(tried: Report | None) -> Iterator[Finding]:
    """What torch loads at its own import: it is torch's, and no plugin of ours, but it can break everything."""
    for point in torch_backends():
        error = _backend_error(tried, point.name, point.distribution)
        if error is not None:
            yield Finding(
                BAD,
                f"{point.described()}, and this fails: {error}\n"
                f"Mend or uninstall {point.distribution}, or set {AUTOLOAD_VARIABLE}=0 "
                "(`poplin run --no-torch-autoload`).",
            )
        else:
            yield Finding(NOTE, point.described())


def _backend_error(tried: Report | None, name: str, distribution: str) -> str | None:
    if tried is None:
        return None
    lines = [
        line
        for line in tried.lines
        if line["stage"] == "backend" and line["name"] == name and line["distribution"] == distribution
    ]
    if lines and "begun" in lines[-1]:
        return f"the process died ({tried.ended})"
    return lines[-1].get("error") if lines else None


def _devices(report: Report) -> Iterator[Finding]:
    if (why := _failure(report, "devices")) is not None:
        yield Finding(BAD, f"the accelerators could not be asked: {why}")
        return
    for name, (available, reason) in (report.last("devices") or {})["devices"].items():
        yield Finding(
            GOOD if available else NOTE, f"{name}: {reason or ('available' if available else 'not available')}"
        )
    if (why := _failure(report, "selection")) is not None:
        yield Finding(BAD, f"`Fabric()` would fail: {why}")
    else:
        facts = report.last("selection") or {}
        yield Finding(GOOD, f"`Fabric()` would use {facts['accelerator']}: {', '.join(facts['devices'])}")


def _plugins(report: Report) -> Iterator[Finding]:
    if (why := _failure(report, "plugins")) is not None:
        yield Finding(BAD, f"the plugins could not be loaded: {why}")
        return
    found = (report.last("plugins") or {})["rows"]
    providers = sorted({(row["distribution"], row["version"]) for row in found})
    for distribution, version in providers:
        offers = [row for row in found if (row["distribution"], row["version"]) == (distribution, version)]
        wrong = [row for row in offers if row["status"] in ("failed", "conflict", "incompatible", "blocked")]
        if well := [row for row in offers if row not in wrong]:
            yield Finding(GOOD, "\n".join([f"{distribution} {version}", *_by_kind(well)]))
        for row in well:
            if row["status"] == "loaded" and row["reason"]:
                yield Finding(NOTE, f"{distribution} {version}: {row['kind']}/{row['name']}: {row['reason']}")
        for row in wrong:
            level = BAD if row["status"] == "failed" else NOTE
            yield Finding(
                level, f"{distribution} {version}: {row['kind']}/{row['name']} is {row['status']}: {row['reason']}"
            )


def _by_kind(rows: list[dict[str, Any]]) -> Iterator[str]:
    for kind, group in groupby(rows, key=lambda row: row["kind"]):
        names = (f"{row['name']} (role)" if row["status"] == "role" else row["name"] for row in group)
        yield f"  {kind}: {', '.join(names)}"


def _metadata() -> Iterator[Finding]:
    found = complaints(sys.path)
    for path, problem in found.items():
        yield Finding(NOTE, f"{path}: {problem}")
    if not found:
        yield Finding(GOOD, "every metadata folder on the path can be read")


def _network() -> Iterator[Finding]:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            free = server.getsockname()[1]
            socket.create_connection(("127.0.0.1", free), timeout=5).close()
        yield Finding(GOOD, "processes of this machine can reach each other (a free port was opened and reached)")
    except OSError as error:
        yield Finding(
            BAD, f"no port of 127.0.0.1 can be opened and reached: {error}. Several processes can't work together."
        )
    host = socket.gethostname()
    try:
        yield Finding(GOOD, f"this machine's name {host!r} is {socket.gethostbyname(host)}")
    except OSError as error:
        yield Finding(
            NOTE, f"this machine's name {host!r} has no address ({error}): set MASTER_ADDR for several machines"
        )
    yield from _main_port()


def _main_port() -> Iterator[Finding]:
    port = os.environ.get("MASTER_PORT")
    if port is None:
        return
    if not port.isdigit() or not 0 < int(port) < 65536:
        yield Finding(BAD, f"MASTER_PORT={port!r} is no port")
        return
    try:
        socket.create_server(("", int(port))).close()
    except OSError as error:
        yield Finding(NOTE, f"MASTER_PORT={port} can't be opened here: {error}. Another job may be using it.")


def _environment() -> Iterator[Finding]:
    variables = run_variables()
    present = [name for name in RANK_VARIABLES if name in os.environ]
    if present:
        yield Finding(NOTE, f"{' and '.join(present)} set: a Fabric made here takes itself for a rank of a run")
    for name, value in variables:
        yield Finding(GOOD, f"{name}={value}")
    if not variables:
        yield Finding(GOOD, "no variable that has a say in a run is set")
