"""Detection of changed files."""

from __future__ import annotations

from pathlib import Path


def stamp_of(file: Path) -> object:
    """Another whenever the file was written or replaced: inode, size and time of change, or the number of the error
    that keeps them from being known. Asks the file system."""
    try:
        status = file.stat()
    except OSError as error:
        return error.errno
    return status.st_ino, status.st_size, status.st_mtime_ns
