"""The data of cells in a data directory: cell 0 has it as it is, cell n has ``cells/n`` in it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from broker.core.errors import ConfigError

# The store of a cell, as ``broker.storage.rocksdb`` calls it.
_STORE: Final = "rocksdb"
_CELLS: Final = "cells"
_COUNT: Final = "count"
# Free bytes of the disk for each cell that is new: its log and what RocksDB begins with.
_ROOM_BYTES: Final = 64 * 1024 * 1024


def cell_directory(data_dir: Path, cell: int) -> Path:
    """Directory of the data of one cell."""
    return data_dir if cell == 0 else data_dir / _CELLS / str(cell)


def kept_count(data_dir: Path) -> int | None:
    """Number of cells whose data is there; None for a directory without data.

    Raises:
        ConfigError: the number cannot be read.
    """
    file = data_dir / _CELLS / _COUNT
    try:
        count = int(file.read_text())
    except (FileNotFoundError, NotADirectoryError):
        count = 1
    except (OSError, ValueError) as error:
        text = f"{file}: expected the number of cells, got none that can be read. Try: restore a backup"
        raise ConfigError([text]) from error
    return count if any(_has_store(data_dir, cell) for cell in range(count)) else None


def _has_store(data_dir: Path, cell: int) -> bool:
    return (cell_directory(data_dir, cell) / _STORE).exists()


def check_count(data_dir: Path, count: int) -> None:
    """Refuse a data directory of another number of cells, or one that lacks the directory of a cell.

    Raises:
        ConfigError: the numbers differ, or a directory is missing.
    """
    kept = kept_count(data_dir)
    if kept is None:
        return
    if kept != count:
        text = (
            f"--workers: expected {kept}, the number of cells whose data is in {data_dir}, got {count}. "
            f"Try: --workers {kept}, or another directory with --data-dir"
        )
        raise ConfigError([text])
    for cell in range(count):
        if not cell_directory(data_dir, cell).is_dir():
            text = (
                f"{cell_directory(data_dir, cell)}: expected the data of a cell, got no directory. "
                "Try: put it back, or restore a backup"
            )
            raise ConfigError([text])


def check_room(data_dir: Path, count: int) -> None:
    """Refuse a disk without room for the stores of cells that are new.

    Raises:
        ConfigError: says how much is missing.
    """
    new = sum(not _has_store(data_dir, cell) for cell in range(count))
    free = shutil.disk_usage(data_dir).free
    if free < new * _ROOM_BYTES:
        text = (
            f"--data-dir: expected {new * _ROOM_BYTES // 2**20} MiB free for the stores of {new} cells, got "
            f"{free // 2**20} MiB. Try: a directory on a larger disk"
        )
        raise ConfigError([text])


def make_directories(data_dir: Path, count: int) -> None:
    """Make what is missing, and keep the number of cells once all are there."""
    for cell in range(count):
        cell_directory(data_dir, cell).mkdir(parents=True, exist_ok=True, mode=0o700)
    file = data_dir / _CELLS / _COUNT
    text = f"{count}\n"
    if file.exists() and file.read_text() == text:
        return
    temporary = file.with_suffix(".new")
    with temporary.open("w") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())
    temporary.replace(file)
