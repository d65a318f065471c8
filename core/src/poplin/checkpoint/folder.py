"""A folder of files, on this machine or behind fsspec: what a sharded checkpoint stands in.

No file is ever renamed, moved or copied: object stores know none of these. What must appear whole (the manifest) is
put in one piece, which a store does atomically, and which on this machine goes through a temporary name.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import IO, Any

from poplin.checkpoint.storage import LocalFile, Location, RemoteFile, StoragePath, locate
from poplin.utilities.atomic_files import atomic_file


def folder_at(path: StoragePath, storage_options: Any | None = None) -> Folder:
    """The folder behind ``path``; whether it is there or not.

    Raises:
        ArgumentValueError, ArgumentTypeError: as :func:`poplin.checkpoint.storage.locate`.
    """
    location = locate(path, storage_options)
    if isinstance(location, LocalFile):
        return LocalFolder(location)
    assert isinstance(location, RemoteFile)
    return RemoteFolder(location)


class Folder(ABC):
    """Files under plain names."""

    def __init__(self, location: Location) -> None:
        self.location = location
        #: As the user would write it; for messages.
        self.text = location.text

    def is_file(self) -> bool:
        """Whether a file stands where the folder would."""
        return self.location.is_file()

    def is_folder(self) -> bool:
        """Whether it is there. On an object store: whether anything is in it."""
        return self.location.is_folder()

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Name → bytes of each file in it; empty where there is no folder."""

    @abstractmethod
    def make(self) -> list[str]:
        """Make it, with its parents. Returns what was not there before, outermost first."""

    @abstractmethod
    def unmake(self, made: list[str]) -> None:
        """Remove what :meth:`make` made, as far as it is empty."""

    @abstractmethod
    def create(self, name: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """A new file to write through; it is on the disk, or in the store, when the block ends."""

    @abstractmethod
    def put(self, name: str, content: bytes, durable: bool = True) -> None:
        """Give ``name`` this content, whole or not at all; what stood there is replaced.

        Args:
            name: of the file.
            content: all of it.
            durable: whether a power cut right afterwards must not undo it.
        """

    @abstractmethod
    def get(self, name: str) -> bytes:
        """The content of a file.

        Raises:
            FileNotFoundError: there is none.
        """

    @abstractmethod
    def open(self, name: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """A file, to read from any place of it."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Delete a file; that none is there is fine."""

    def remove_empty(self) -> None:  # noqa: B027
        """Delete the folder itself, if nothing is left in it. A store has no empty folders."""


class LocalFolder(Folder):
    """A folder of this machine."""

    def __init__(self, location: LocalFile) -> None:
        super().__init__(location)
        self.path = location.path

    def _at(self, name: str) -> str:
        return os.path.join(self.path, name)

    def sizes(self) -> dict[str, int]:
        try:
            with os.scandir(self.path) as entries:
                return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
        except (FileNotFoundError, NotADirectoryError):
            return {}

    def make(self) -> list[str]:
        missing: list[str] = []
        path = self.path
        while path and not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        made: list[str] = []
        try:
            for path in reversed(missing):
                with contextlib.suppress(FileExistsError):  # another process was faster, or a file is in the way
                    os.mkdir(path)
                    made.append(path)
        except BaseException:
            self.unmake(made)
            raise
        return made

    def unmake(self, made: list[str]) -> None:
        for path in reversed(made):
            with contextlib.suppress(OSError):  # somebody else may be using it by now
                os.rmdir(path)

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        with open(self._at(name), "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())

    def put(self, name: str, content: bytes, durable: bool = True) -> None:
        if not durable:
            with open(self._at(name), "wb") as file:
                file.write(content)
            return
        with atomic_file(self._at(name)) as file:
            file.write(content)

    def get(self, name: str) -> bytes:
        with open(self._at(name), "rb") as file:
            return file.read()

    def open(self, name: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        return open(self._at(name), "rb", buffering=0)

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._at(name))

    def remove_empty(self) -> None:
        with contextlib.suppress(OSError):  # other things stand in it
            os.rmdir(self.path)


class RemoteFolder(Folder):
    """A folder behind an fsspec file system; on object stores a prefix of names."""

    def __init__(self, location: RemoteFile) -> None:
        super().__init__(location)
        self.file_system, self.path = location.file_system, location.path.rstrip("/")

    def _at(self, name: str) -> str:
        return f"{self.path}/{name}"

    def sizes(self) -> dict[str, int]:
        self.file_system.invalidate_cache(self.path)  # other ranks have been writing
        try:
            entries = self.file_system.ls(self.path, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return {
            entry["name"].rstrip("/").rpartition("/")[2]: int(entry["size"] or 0)
            for entry in entries
            if entry["type"] == "file" and entry["name"].rstrip("/") != self.path
        }

    def make(self) -> list[str]:
        self.file_system.makedirs(self.path, exist_ok=True)
        return []

    def unmake(self, made: list[str]) -> None:
        """Nothing was noted: a store has no empty folders."""

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        file = self.file_system.open(self._at(name), "wb")
        try:
            yield file
        except BaseException:
            # closing would put what there is of it under its name
            with contextlib.suppress(Exception):  # the first error counts
                file.discard()
            with contextlib.suppress(Exception):
                file.closed = True
            raise
        file.close()

    def put(self, name: str, content: bytes, durable: bool = True) -> None:
        self.file_system.pipe_file(self._at(name), content)

    def get(self, name: str) -> bytes:
        return bytes(self.file_system.cat_file(self._at(name)))

    def open(self, name: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        opened: contextlib.AbstractContextManager[IO[bytes]] = self.file_system.open(self._at(name), "rb")
        return opened

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.file_system.rm_file(self._at(name))
