"""Where a checkpoint stands: a local path or an fsspec URL; written whole or not at all.

Local files are written as :mod:`poplin.utilities.atomic_files` says. Object stores know no rename: there the file goes
up under a temporary name and is copied by the store, whose writes are atomic.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import IO, Any

from poplin.errors import ArgumentTypeError, ArgumentValueError
from poplin.utilities.atomic_files import atomic_file

#: A local path or an fsspec URL.
StoragePath = str | os.PathLike[str]


def checked_path(path: Any) -> str:
    """``path`` as a string, a relative local one made absolute: what it means must not change when it is used later.

    Raises:
        ArgumentTypeError: it is no path.
        ArgumentValueError: it is empty, or has a NUL in it.
    """
    if not isinstance(path, (str, os.PathLike)):
        hint = " (the order is save(path, state))" if isinstance(path, dict) else ""
        raise ArgumentTypeError(
            f"The path of a checkpoint is a string, a path object or a URL, and this is a {type(path).__name__}{hint}."
        )
    text = os.fspath(path)
    if not isinstance(text, str):
        raise ArgumentTypeError(f"The path of a checkpoint is text, and {text!r} is {type(text).__name__}.")
    if not text.strip():
        raise ArgumentValueError("The path of the checkpoint is empty. Give the name of a file, 'checkpoint.ckpt' say.")
    if "\0" in text:
        raise ArgumentValueError(f"The path {text!r} has a NUL character in it, which no file system accepts.")
    return text if is_url(text) else os.path.abspath(text)


def is_url(path: str) -> bool:
    """Whether ``path`` is an fsspec URL (``protocol://...``)."""
    return "://" in path


def locate(path: StoragePath, storage_options: Any | None = None) -> Location:
    """The location behind ``path``.

    Args:
        path: a local path or an fsspec URL.
        storage_options: a dictionary of arguments for the fsspec file system.

    Raises:
        ArgumentValueError: no file system serves this URL; ArgumentTypeError: the options are no dictionary.
    """
    text = checked_path(path)
    if storage_options is not None and not isinstance(storage_options, dict):
        raise ArgumentTypeError(
            "storage_options is a dictionary of arguments for the fsspec file system, and this is a "
            f"{type(storage_options).__name__}."
        )
    if not is_url(text):
        return LocalFile(text)
    from fsspec.core import url_to_fs  # type: ignore[import-untyped]
    from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

    try:
        file_system, inner = url_to_fs(text, **(storage_options or {}))
    except (ValueError, ImportError) as error:  # an unknown protocol, or one whose package is missing
        raise ArgumentValueError(f"No file system can be found for {text!r}: {error}") from error
    if isinstance(file_system, LocalFileSystem):
        return LocalFile(os.path.abspath(inner))
    return RemoteFile(text, file_system, inner)


class Location(ABC):
    """A place for one file."""

    #: As the user would write it; for messages.
    text: str

    @abstractmethod
    def is_file(self) -> bool:
        """Whether a file stands here."""

    @abstractmethod
    def is_folder(self) -> bool:
        """Whether a folder stands here."""

    @abstractmethod
    def is_free(self) -> bool:
        """Whether a file can be put here: a file, or nothing, stands here."""

    @abstractmethod
    def head(self, size: int) -> bytes:
        """The first ``size`` bytes of the file."""

    @abstractmethod
    def neighbours(self) -> list[str]:
        """Names of what stands beside it, as far as they can be had; for hints."""

    @abstractmethod
    def read(self) -> contextlib.AbstractContextManager[IO[bytes]]:
        """The file, opened for reading; it can seek, and has a descriptor."""

    @abstractmethod
    def write(self) -> contextlib.AbstractContextManager[IO[bytes]]:
        """A new file, which takes this place when the block ends, and leaves no trace if the block raises."""

    @abstractmethod
    def remove(self) -> None:
        """Delete the file."""


class LocalFile(Location):
    """A file of this machine. A symbolic link is followed, as ``open`` does: the link stays, its target is replaced."""

    def __init__(self, path: str) -> None:
        self.text = path
        self.path = os.path.realpath(path)

    def is_file(self) -> bool:
        return os.path.isfile(self.path)

    def is_folder(self) -> bool:
        return os.path.isdir(self.path)

    def is_free(self) -> bool:
        try:
            return stat.S_ISREG(os.stat(self.path).st_mode)  # no folder, no device, no pipe
        except FileNotFoundError:
            return True

    def head(self, size: int) -> bytes:
        with open(self.path, "rb") as file:
            return file.read(size)

    def neighbours(self) -> list[str]:
        try:
            return sorted(os.listdir(os.path.dirname(self.path)))[:1000]
        except OSError:
            return []

    def read(self) -> contextlib.AbstractContextManager[IO[bytes]]:
        return open(self.path, "rb")

    def write(self) -> contextlib.AbstractContextManager[IO[bytes]]:
        return atomic_file(self.path)

    def remove(self) -> None:
        os.unlink(self.text)  # a link is removed itself


class RemoteFile(Location):
    """A file behind an fsspec file system."""

    def __init__(self, text: str, file_system: Any, path: str) -> None:
        self.text, self.file_system, self.path = text, file_system, path

    def is_file(self) -> bool:
        return bool(self.file_system.isfile(self.path))

    def is_folder(self) -> bool:
        return bool(self.file_system.isdir(self.path))

    def is_free(self) -> bool:
        return not self.is_folder()

    def head(self, size: int) -> bytes:
        return bytes(self.file_system.read_block(self.path, 0, size))

    def neighbours(self) -> list[str]:
        try:
            names = self.file_system.ls(self.path.rpartition("/")[0], detail=False)
        except Exception:  # a hint only; every file system has errors of its own
            return []
        return sorted(name.rpartition("/")[2] for name in names)[:1000]

    @contextlib.contextmanager
    def read(self) -> Iterator[IO[bytes]]:
        with tempfile.TemporaryDirectory(prefix="poplin-") as folder:
            local = os.path.join(folder, "checkpoint")
            self.file_system.get_file(self.path, local)
            with open(local, "rb") as file:
                yield file

    @contextlib.contextmanager
    def write(self) -> Iterator[IO[bytes]]:
        with tempfile.NamedTemporaryFile(prefix="poplin-") as file:
            yield file
            file.flush()
            self._upload(file.name)

    def _upload(self, local: str) -> None:
        folder = self.path.rpartition("/")[0]
        if folder:
            self.file_system.makedirs(folder, exist_ok=True)
        temporary = f"{self.path}.{secrets.token_hex(4)}.tmp"
        try:
            self.file_system.put_file(local, temporary)
            expected, found = os.path.getsize(local), self.file_system.info(temporary)["size"]
            if found is not None and found != expected:
                raise OSError(f"{found} of {expected} bytes arrived")
            self.file_system.mv(temporary, self.path)
        except BaseException:
            with contextlib.suppress(Exception):  # the first error counts
                if self.file_system.exists(temporary):
                    self.file_system.rm_file(temporary)
            raise

    def remove(self) -> None:
        self.file_system.rm_file(self.path)
