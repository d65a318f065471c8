"""A CSV file that is appended to, and that may get new columns."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping
from typing import Any

from poplin.errors import LoggerError
from poplin.utilities.atomic_files import atomic_file

#: Names and values of any kind: a name that is no valid Unicode is written with escapes.
_ENCODING: dict[str, Any] = {"encoding": "utf-8", "errors": "backslashreplace", "newline": ""}


class Table:
    """Rows of numbers under named columns, the first of which is ``step``.

    What stands in the file already is kept. A last row that was cut off in the middle is dropped: nobody can say what
    its numbers were.

    Args:
        path: of the file; missing folders are made.
        sync_every: after how many rows they are forced onto the disk.

    Raises:
        LoggerError: the file can't be opened.
    """

    def __init__(self, path: str, sync_every: int) -> None:
        self.path = path
        self.columns: list[str] = []
        self._sync_every = sync_every
        self._unsynced = 0
        self._next_step = 0
        self._file: io.FileIO | None = None
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if os.path.exists(path):
                self._continue()
        except (OSError, csv.Error) as error:
            raise LoggerError(f"{path} can't be continued: {error}") from error

    def append(self, values: Mapping[str, float], step: Any = None) -> None:
        """Add a row.

        Args:
            values: column → number; new columns are added.
            step: None takes ``values["step"]``, or else the last one and one more.

        Raises:
            LoggerError: it can't be written; the file is as it was before.
        """
        if step is None:
            step = values.get("step", self._next_step)
        row = {**values, "step": _plain_step(step)}
        self._next_step = int(row["step"]) + 1 if _is_whole(row["step"]) else self._next_step + 1
        new = [name for name in row if name not in self.columns]
        try:
            if new:
                self._add_columns(new)
            self._write(_line([row.get(name, "") for name in self.columns]))
        except OSError as error:
            raise LoggerError(f"{self.path} can't be written: {error.strerror or error}") from error
        self._unsynced += 1
        if self._unsynced >= self._sync_every:
            self.sync()

    def sync(self) -> None:
        """Force the rows onto the disk."""
        if self._file is not None and self._unsynced:
            os.fsync(self._file.fileno())
            self._unsynced = 0

    def close(self) -> None:
        """Force the rows onto the disk and close the file."""
        self.sync()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, line: bytes) -> None:
        """One write call for one row: a process that is killed leaves whole rows."""
        if self._file is None:
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - it stays open
        size = os.fstat(self._file.fileno()).st_size
        written = 0
        try:
            while written < len(line):
                written += self._file.write(line[written:])
        except OSError:
            if written:  # a full disk takes the beginning of a row
                os.ftruncate(self._file.fileno(), size)
            raise

    def _add_columns(self, new: Iterable[str]) -> None:
        """Write the whole file again with more columns; until that is done the old one stands."""
        columns = [*self.columns, *new]
        if "step" in columns:
            columns.remove("step")
            columns.insert(0, "step")
        rows = self._rows() if self.columns else []
        with atomic_file(self.path) as file:
            file.write(_line(columns))
            for row in rows:
                file.write(_line([row.get(name, "") for name in columns]))
        if self._file is not None:
            self._file.close()
            self._file = None
        self.columns = columns

    def _rows(self) -> list[dict[str, str]]:
        with open(self.path, **_ENCODING) as file:
            return list(csv.DictReader(file))

    def _continue(self) -> None:
        """Take up a file that exists."""
        self._drop_torn_row()
        with open(self.path, **_ENCODING) as file:
            reader = csv.reader(file)
            self.columns = next(reader, [])
            if "step" not in self.columns:
                return
            at = self.columns.index("step")
            for row in reader:
                if at < len(row) and _is_whole(step := _parsed(row[at])):
                    self._next_step = int(step) + 1

    def _drop_torn_row(self) -> None:
        with open(self.path, "r+b") as file:
            content = file.read()
            if content and not content.endswith(b"\n"):
                file.truncate(content.rfind(b"\n") + 1)


def _line(values: Iterable[Any]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue().encode("utf-8", "backslashreplace")


def _plain_step(step: Any) -> Any:
    value = step.item() if hasattr(step, "item") else step
    return int(value) if isinstance(value, (bool, float)) and float(value).is_integer() else value


def _parsed(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return None


def _is_whole(step: Any) -> bool:
    return isinstance(step, (int, float)) and float(step).is_integer()
