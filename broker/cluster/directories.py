"""The data of cells in a data directory: cell 0 has it as it is, cell n has ``cells/n`` in it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

from broker.core.cells import Place
from broker.core.errors import ConfigError

# The store of a cell, as ``broker.storage.rocksdb`` calls it.
_STORE: Final = "rocksdb"
# Folder of what all cells share, and of the data of those other than the first.
CELLS: Final = "cells"
# Folder of the copies of other machines' cells.
COPIES: Final = "copies"
_COUNT: Final = "count"
_ORIGIN: Final = "origin"
# File with the cluster and the machine that the data is of.
_MACHINE: Final = "machine"
# Exists while the number of cells changes.
CHANGE_FILE: Final = Path(CELLS, "change")
# Free bytes of the disk for each cell that is new: its log and what RocksDB begins with.
_ROOM_BYTES: Final = 64 * 1024 * 1024


def cell_directory(data_dir: Path, cell: int) -> Path:
    """Directory of the data of one cell."""
    return data_dir if cell == 0 else data_dir / CELLS / str(cell)


def copy_directory(data_dir: Path, cell: int) -> Path:
    """Directory of the copy of a cell of another machine."""
    return data_dir / COPIES / str(cell)


def copied(data_dir: Path) -> Sequence[int]:
    """Numbers of the cells of other machines that have a copy here."""
    with suppress(FileNotFoundError):
        return [int(place.name) for place in (data_dir / COPIES).iterdir() if place.name.isdigit()]
    return []


def directory_of(data_dir: Path, place: Place) -> Path:
    """Directory of the data of the cell of a process."""
    if place.is_guest:
        return copy_directory(data_dir, place.number)
    return cell_directory(data_dir, place.index)


def cells_directory(data_dir: Path) -> Path:
    """Directory of what all cells share."""
    return data_dir / CELLS


def kept_count(data_dir: Path) -> int | None:
    """Number of cells whose data is there; None for a directory without data.

    Raises:
        ConfigError: the number cannot be read.
    """
    file = data_dir / CELLS / _COUNT
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


def change_under_way(data_dir: Path) -> tuple[int, int] | None:
    """Number of cells before and after a change that was cut off.

    Raises:
        ConfigError: its file cannot be read.
    """
    file = data_dir / CHANGE_FILE
    try:
        change = json.loads(file.read_bytes())
        return int(change["before"]), int(change["after"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        text = f"{file}: expected a change of the number of cells, got none that can be read. Try: restore a backup"
        raise ConfigError([text]) from error


def check_count(data_dir: Path, count: int, *, may_grow: bool = False) -> None:
    """Refuse a data directory of another number of cells, or one that lacks the directory of a cell. ``may_grow``:
    the data of one process may be shared out before the cells start.

    Raises:
        ConfigError: the numbers differ, or a directory is missing.
    """
    kept = kept_count(data_dir)
    if (change := change_under_way(data_dir)) is not None:
        if may_grow and change[1] == count:
            return
        text = (
            f"{data_dir}: expected the data of {count} cells, got a change from {change[0]} to {change[1]} cells that "
            f"was cut off. Try: sluice cells resize {change[1]} --data-dir {data_dir}"
        )
        raise ConfigError([text])
    if kept is None or (may_grow and kept == 1):
        return
    if kept != count:
        text = (
            f"--workers: expected {kept}, the number of cells whose data is in {data_dir}, got {count}. "
            f"Try: --workers {kept}, or sluice cells resize {count} --data-dir {data_dir}"
        )
        raise ConfigError([text])
    for cell in range(count):
        if not cell_directory(data_dir, cell).is_dir():
            text = (
                f"{cell_directory(data_dir, cell)}: expected the data of a cell, got no directory. "
                "Try: put it back, or restore a backup"
            )
            raise ConfigError([text])


def check_room(data_dir: Path, count: int, more_bytes: int = 0) -> None:
    """Refuse a disk without room for the stores of cells that are new, and for so many bytes.

    Raises:
        ConfigError: says how much is missing.
    """
    new = sum(not _has_store(data_dir, cell) for cell in range(count))
    free = shutil.disk_usage(data_dir).free
    needed = new * _ROOM_BYTES + more_bytes
    if free < needed:
        text = (
            f"--data-dir: expected {needed // 2**20} MiB free for the stores of {new} new cells, got "
            f"{free // 2**20} MiB. Try: a directory on a larger disk"
        )
        raise ConfigError([text])


def make_directories(data_dir: Path, count: int) -> None:
    """Make what is missing, the origin among it, and keep the number of cells once all are there."""
    for cell in range(count):
        cell_directory(data_dir, cell).mkdir(parents=True, exist_ok=True, mode=0o700)
    keep_count(data_dir, count)
    if not origin_file(data_dir).exists():
        _replace(origin_file(data_dir), uuid4().hex[:12])


def keep_count(data_dir: Path, count: int) -> None:
    """Write the number of cells whose data is there."""
    file = data_dir / CELLS / _COUNT
    file.parent.mkdir(exist_ok=True, mode=0o700)
    text = f"{count}\n"
    if not file.exists() or file.read_text() != text:
        _replace(file, text)


def origin_file(data_dir: Path) -> Path:
    """File with what the cells of this broker, and no other, have in their origin (``broker.core.origin``)."""
    return data_dir / CELLS / _ORIGIN


def _replace(file: Path, text: str) -> None:
    from broker.config.sections import replace_file  # 4 MB of the supervisor, where it is needed

    replace_file(file, text.encode())


def forget_count(data_dir: Path) -> None:
    """Make a directory of cells one of a single process, whose other cells are gone."""
    (data_dir / CELLS / _COUNT).unlink(missing_ok=True)
    with suppress(OSError):
        (data_dir / CELLS).rmdir()


def _kept_cluster(data_dir: Path) -> list[str]:
    """Cluster and machine; empty also for a file that a power failure cut off, in a release that did not sync it."""
    with suppress(FileNotFoundError, NotADirectoryError):
        kept = (data_dir / CELLS / _MACHINE).read_text().split()
        return kept if len(kept) == 2 else []
    return []


def kept_machine(data_dir: Path) -> str | None:
    """Name of the machine of a cluster whose data it is; None for a broker on one machine."""
    kept = _kept_cluster(data_dir)
    return kept[1] if kept else None


def count_of_machine(data_dir: Path) -> int:
    """Number of cells of the machine of a cluster whose data it is; 0 where the configuration has to be asked."""
    with suppress(ConfigError):
        if _kept_cluster(data_dir):
            return kept_count(data_dir) or 0
    return 0


def check_machine(data_dir: Path, cluster: str, machine: str) -> None:
    """Refuse data of another cluster or machine, or of a broker that is in none.

    Args:
        cluster: digest of the cluster (``broker.cluster.settings.ClusterSettings``); empty for none.
        machine: name of the machine in it.

    Raises:
        ConfigError: the data is of another one.
    """
    kept = _kept_cluster(data_dir)
    if not kept and not cluster:
        return
    if kept and not cluster:
        text = (
            f"{data_dir}: expected the data of a broker without a cluster, got that of machine {kept[1]!r} of one. "
            "Try: its section `cluster` in the configuration"
        )
        raise ConfigError([text])
    if not kept and kept_count(data_dir) is not None:
        text = (
            f"{data_dir}: expected an empty directory for machine {machine!r} of a cluster, got the data of a broker "
            "without one. Try: another directory; a new cluster begins with such data with "
            "'sluice cluster init --data-from', at its first machine"
        )
        raise ConfigError([text])
    if kept and kept[1] != machine:
        text = (
            f"{data_dir}: expected the data of machine {machine!r}, got that of machine {kept[1]!r}"
        )
        raise ConfigError([text])
    if kept and kept[0] != cluster:
        text = (
            f"{data_dir}: expected the data of a cluster with these machines and cells, got that of another name, or "
            "with other machines or cells. Try: the section `cluster` as it was; a machine is added with "
            "0 cells"
        )
        raise ConfigError([text])


def keep_machine(data_dir: Path, cluster: str, machine: str) -> None:
    """Keep whose the data is from now on, in a cluster."""
    file = data_dir / CELLS / _MACHINE
    if cluster and not _kept_cluster(data_dir):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _replace(file, f"{cluster} {machine}\n")
