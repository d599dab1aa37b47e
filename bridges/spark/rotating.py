"""A log file of bounded size."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO


class RotatingFile:
    """Appends bytes; at ``max_bytes`` the file is set aside as ``<name>.1`` and begun anew."""

    def __init__(self, path: Path, max_bytes: int = 10 * 1024 * 1024) -> None:
        self._path, self._max_bytes = path, max_bytes
        self._file: BinaryIO | None = None

    def write(self, data: bytes) -> None:
        """Append; a disk that refuses loses log lines, never the program."""
        try:
            file = self._file or self._open()
            if file.tell() + len(data) > self._max_bytes:
                file.close()
                os.replace(self._path, f"{self._path}.1")
                file = self._open()
            file.write(data)
            file.flush()
        except OSError:
            self._file = None

    def last_line(self) -> str:
        """The last line that was written, empty when there is none."""
        try:
            with self._path.open("rb") as file:
                file.seek(max(0, os.path.getsize(self._path) - 4096))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1].strip() if lines else ""

    def _open(self) -> BinaryIO:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("ab")
        return self._file
