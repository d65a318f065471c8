"""``poplin migrate``: find the files, rewrite each whole or not at all, and say what is left to do."""

from __future__ import annotations

import difflib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from poplin.cli.migration.findings import SourceError
from poplin.cli.migration.packaging import METADATA_FILES, REQUIREMENTS, migrate_metadata
from poplin.cli.migration.source import Migrated, migrate_source
from poplin.errors import ArgumentValueError

#: Folders of tools and of environments; nobody's sources.
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "build", "dist"}


def migrate(paths: Sequence[str], *, show_diff: bool = False, check: bool = False) -> int:
    """Rewrite files and folders.

    Args:
        paths: files, and folders that are searched.
        show_diff: print the changes and write nothing.
        check: write nothing, and fail if there is something to change.

    Returns:
        1 if a file could not be read or written, or with ``check`` if one would be changed; else 0.

    Raises:
        ArgumentValueError: a path does not exist, or is no file of a kind that is known.
    """
    changed, failed, remarks, seen = 0, 0, 0, 0
    for path in _files(paths):
        seen += 1
        try:
            source = path.read_bytes()
            result = _migrated(path, source)
            is_changed = result.source != source
            if is_changed and not (show_diff or check):
                _write(path, result.source)
        except (SourceError, OSError) as error:
            failed += 1
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            print(f"poplin: {path}: left as it is: {reason}", file=sys.stderr)
            continue
        changed += is_changed
        remarks += len(result.remarks)
        if is_changed and show_diff:
            _print_diff(path, source, result.source)
        elif is_changed:
            print(f"{path}: {'would be changed' if check else 'changed'}")
        for remark in result.remarks:
            print(f"{path}:{remark.line}: {remark.text}", file=sys.stderr if show_diff else sys.stdout)
    _print_summary(seen, changed, failed, remarks, show_diff, check)
    return 1 if failed or (check and changed) else 0


def _migrated(path: Path, source: bytes) -> Migrated:
    if path.suffix == ".ipynb":
        if b"lightning" in source:
            raise SourceError("it is a notebook; save it as a script, or change its imports by hand")
        return Migrated(source, [])
    if path.suffix in (".py", ".pyi", ".pyw") or _is_python(path, source):
        return migrate_source(source)
    return migrate_metadata(source, path.name)


def _is_python(path: Path, source: bytes) -> bool:
    return not path.suffix and source.startswith(b"#!") and b"python" in source.partition(b"\n")[0]


def _files(paths: Sequence[str]) -> Iterator[Path]:
    """Every file once, in a fixed order."""
    found: set[Path] = set()
    for text in paths:
        path = Path(text)
        if not path.exists():
            raise ArgumentValueError(f"{text}: there is no such file or folder.")
        if path.is_file() and not _is_known(path) and not _is_python(path, path.read_bytes()):
            raise ArgumentValueError(f"{text}: it is no Python source, pyproject.toml, setup.cfg or requirements file.")
        for file in [path] if path.is_file() else _below(path):
            if file.resolve() not in found:
                found.add(file.resolve())
                yield file


def _below(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.iterdir()):
        if entry.is_dir():
            hidden = entry.name.startswith(".") or entry.name in _SKIPPED or entry.name.endswith(".egg-info")
            if not hidden and not entry.is_symlink() and not (entry / "pyvenv.cfg").exists():
                yield from _below(entry)
        elif entry.is_file() and _is_known(entry):
            yield entry


def _is_known(path: Path) -> bool:
    return (
        path.suffix in (".py", ".pyi", ".pyw", ".ipynb")
        or path.name in METADATA_FILES
        or REQUIREMENTS.fullmatch(path.name) is not None
    )


def _write(path: Path, source: bytes) -> None:
    """Replace a file at one stroke; what it is otherwise (its mode, a link to it) stays."""
    real = path.resolve()
    if not os.access(real, os.W_OK):
        raise PermissionError(13, "it can't be written", str(path))  # a replacement would go past its mode
    handle, partial = tempfile.mkstemp(prefix=f".{real.name}.", suffix=".partial", dir=real.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(source)
            file.flush()
            os.fsync(file.fileno())
        shutil.copymode(real, partial)
        os.replace(partial, real)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


def _print_diff(path: Path, before: bytes, after: bytes) -> None:
    old, new = (text.decode("utf-8", errors="replace").splitlines(keepends=True) for text in (before, after))
    name = path.as_posix().lstrip("/")
    for line in difflib.unified_diff(old, new, fromfile=f"a/{name}", tofile=f"b/{name}"):
        print(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n", end="")


def _print_summary(seen: int, changed: int, failed: int, remarks: int, show_diff: bool, check: bool) -> None:
    done = "to change" if show_diff or check else "changed"
    text = f"{seen} file(s), {changed} {done}, {remarks} remark(s)"
    if failed:
        text += f", {failed} left as they are because of an error"
    print(text, file=sys.stderr if show_diff else sys.stdout)
