"""A file that is appended to and rotated by size and time. Blocking; one thread at a time."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_PERIODS: Final = {"none": None, "hour": "%Y%m%dT%H", "day": "%Y%m%d"}
_TIME: Final = "%Y%m%dT%H%M%S%f"


class RotatingFile:
    """Appends whole batches: all of a batch is there, or none of it.

    Rotated files are named by when they were: ``meters.log.20261121T154500123456``. All calls raise ``OSError``.
    """

    def __init__(self, path: Path, *, max_bytes: int, max_files: int, rotation: str) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._format = _PERIODS[rotation]
        self._file: int | None = None
        self._size_bytes = 0
        self._period = ""

    def open(self) -> None:
        """Open it at its end; made when it is not there."""
        self.close()
        self._file = os.open(
            self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640
        )
        status = os.fstat(self._file)
        self._size_bytes = status.st_size
        self._period = self._period_of(status.st_mtime) if status.st_size else ""

    def close(self) -> None:
        """Close it."""
        file = self._file
        self._file = None
        if file is not None:
            os.close(file)

    def append(self, data: bytes, now_s: float, *, sync: bool) -> None:
        """Add a batch at the end; ``now_s`` is the wall clock. Rotates first where that is due."""
        if self._file is None or self._was_replaced():
            self.open()
        period = self._period_of(now_s)
        if self._size_bytes and (
            self._size_bytes + len(data) > self._max_bytes or self._period not in ("", period)
        ):
            self._rotate(now_s)
        self._period = period
        assert self._file is not None
        try:
            _write_all(self._file, data)
            if sync:
                os.fsync(self._file)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, self._size_bytes)
            raise
        self._size_bytes += len(data)

    def check(self) -> None:
        """Check that the file exists and may be written; raises ``OSError`` if not."""
        os.close(os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))

    def _rotate(self, now_s: float) -> None:
        stamp = datetime.fromtimestamp(now_s, UTC).strftime(_TIME)
        self.close()
        os.replace(self.path, f"{self.path}.{stamp}")
        self.open()
        prefix = f"{self.path.name}."
        rotated = [path for path in self.path.parent.iterdir() if _is_stamp(path.name, prefix)]
        for path in sorted(rotated, reverse=True)[self._max_files :]:
            with suppress(FileNotFoundError):
                path.unlink()

    def _was_replaced(self) -> bool:
        """True if the file was moved or removed, as logrotate does."""
        assert self._file is not None
        mine = os.fstat(self._file)
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return True
        return (mine.st_dev, mine.st_ino) != (there.st_dev, there.st_ino)

    def _period_of(self, time_s: float) -> str:
        return (
            ""
            if self._format is None
            else datetime.fromtimestamp(time_s, UTC).strftime(self._format)
        )


def _is_stamp(name: str, prefix: str) -> bool:
    if not name.startswith(prefix):
        return False
    try:
        datetime.strptime(name.removeprefix(prefix), _TIME)
    except ValueError:
        return False
    return True


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
