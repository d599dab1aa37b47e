"""The data of a broker without a cluster as what one begins with: a store for each of the cluster's cells, marked as
older than its commit log. One machine comes with all of them, and the others get theirs from it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from broker.cluster.directories import (
    COPIES,
    cell_directory,
    copied,
    copy_directory,
    keep_count,
    kept_count,
    kept_machine,
)
from broker.cluster.settings import ClusterSettings
from broker.cluster.supervisor import no_supervisor
from broker.core.errors import ConfigError
from broker.storage.commit_log import BASE
from broker.storage.rocksdb.database import Database
from broker.storage.rocksdb.options import Memory
from broker.storage.rocksdb.store import DATABASE_FOLDER

MEMORY: Final = Memory(write_buffer=4 * 1024 * 1024, block_cache=4 * 1024 * 1024)


def adopts(data_dir: Path, cluster: ClusterSettings) -> bool:
    """Return whether the cluster is to begin with the data of a directory.

    Raises:
        ConfigError: it is to begin with that, and there is none.
    """
    if cluster.data_from != cluster.machine or kept_machine(data_dir) is not None:
        return False
    if kept_count(data_dir) is None:
        text = f"{data_dir}: expected the data of a broker, with which the cluster {cluster.name} begins, got none"
        raise ConfigError([text])
    return True


def adopt(data_dir: Path, cluster: ClusterSettings, resize: Callable[[int], object]) -> None:
    """Share the data out over all cells of the cluster, and put those of other machines where copies of them are. What
    was cut off is continued. ``resize`` gives the directory a number of cells.

    Raises:
        ConfigError: a broker uses the data, or it cannot be shared out.
    """
    cells = sum(machine.size for machine in cluster.layout)
    own = cluster.layout[cluster.place].size
    places = {
        cell: (cell_directory(data_dir, cell), copy_directory(data_dir, cell))
        for cell in range(cells)
    }
    with no_supervisor(data_dir):
        # moving them is the last step: all are marked by then
        is_moving = bool(copied(data_dir)) and all(
            _is_marked(copy if copy.exists() else store) for store, copy in places.values()
        )
    if not is_moving:
        if copied(data_dir):
            text = f"{data_dir / COPIES}: expected no copies in the data of a broker, got some. Try: remove it"
            raise ConfigError([text])
        resize(cells)
    with no_supervisor(data_dir):
        for cell in () if is_moving else places:
            _mark(cell_directory(data_dir, cell))
        for cell in range(own, cells):
            store, copy = places[cell]
            if not copy.exists():
                copy.parent.mkdir(exist_ok=True, mode=0o700)
                store.rename(copy)
        keep_count(data_dir, own)


def _is_marked(directory: Path) -> bool:
    if not (directory / DATABASE_FOLDER).exists():
        return False
    with closing(Database(directory / DATABASE_FOLDER, MEMORY, must_exist=True)) as database:
        return database.applied == BASE


def _mark(directory: Path) -> None:
    with closing(Database(directory / DATABASE_FOLDER, MEMORY)) as database:
        database.apply(BASE, ())
        database.sync()
