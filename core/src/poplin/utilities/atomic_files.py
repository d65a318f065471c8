"""Files that take their place whole or not at all.

A file is written without a name (``O_TMPFILE``) where the system can, or else under a temporary one in the same
folder, reaches the disk (``fsync``), and only then takes the place of what stood there (``rename``, which is atomic).
So neither an error nor a SIGKILL nor a power cut leaves half a file, or none, under its name.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from typing import IO


@contextlib.contextmanager
def atomic_file(path: str) -> Iterator[IO[bytes]]:
    """A new binary file that can read and seek; it takes the place ``path`` when the block ends.

    Missing folders are made. If the block raises, nothing has changed, and what was made is gone again.

    Args:
        path: where it is to stand; a symbolic link there is replaced.
    """
    folder = os.path.dirname(path)
    made = _make_folders(folder)
    try:
        with _folder(folder) as folder_descriptor:
            with _nameless_or_temporary(folder) as (file, temporary):
                try:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                    if temporary is None:
                        temporary = _name(file, folder, folder_descriptor)
                    os.replace(temporary, path)
                except BaseException:
                    if temporary is not None:
                        with contextlib.suppress(OSError):
                            os.unlink(temporary)
                    raise
            if folder_descriptor is not None:
                with contextlib.suppress(OSError):  # some network file systems know no fsync of a folder
                    os.fsync(folder_descriptor)
    except BaseException:
        for new in reversed(made):
            with contextlib.suppress(OSError):  # somebody else may be using it by now
                os.rmdir(new)
        raise


def _make_folders(folder: str) -> list[str]:
    """Make ``folder`` and its parents; returns those that were not there, outermost first."""
    missing: list[str] = []
    path = folder
    while path and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    missing.reverse()
    made: list[str] = []
    try:
        for path in missing:
            with contextlib.suppress(FileExistsError):  # another process was faster, or a file is in the way
                os.mkdir(path)
                made.append(path)
    except BaseException:
        for path in reversed(made):
            os.rmdir(path)
        raise
    return made


@contextlib.contextmanager
def _folder(folder: str) -> Iterator[int | None]:
    """A descriptor of ``folder``, or None where folders can't be opened."""
    if not hasattr(os, "O_DIRECTORY"):
        yield None
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _nameless_or_temporary(folder: str) -> Iterator[tuple[IO[bytes], str | None]]:
    """A new file in ``folder``, and its name if it has one. Its mode is what the umask leaves, as for any file."""
    descriptor, temporary = _open_nameless(folder), None
    if descriptor is None:
        temporary = _temporary_name(folder)
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    with os.fdopen(descriptor, "w+b") as file:
        yield file, temporary


def _open_nameless(folder: str) -> int | None:
    flag = getattr(os, "O_TMPFILE", None)
    if flag is None:
        return None
    try:
        descriptor = os.open(folder, flag | os.O_RDWR, 0o666)
    except OSError:  # this file system can't; a real trouble shows again when the named file is opened
        return None
    if os.path.exists(f"/proc/self/fd/{descriptor}"):
        return descriptor
    os.close(descriptor)  # without /proc it could never get its name
    return None


def _name(file: IO[bytes], folder: str, folder_descriptor: int | None) -> str:
    """Give a file without a name a temporary one."""
    temporary = _temporary_name(folder)
    # The descriptor, unused beside an absolute path, makes Python call linkat with AT_SYMLINK_FOLLOW.
    os.link(f"/proc/self/fd/{file.fileno()}", temporary, src_dir_fd=folder_descriptor, follow_symlinks=True)
    return temporary


def _temporary_name(folder: str) -> str:
    return os.path.join(folder, f".poplin-{secrets.token_hex(8)}.tmp")
