"""Commit logs that NATS has lost, made again from stores of a machine whose broker does not run.

A log that ends before a store that has applied it has lost what it had confirmed. From then on it begins behind that
store, at a position that no store has: so the stores of other machines are all behind it, and are brought from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from broker.cluster.directories import cell_directory, copied, copy_directory
from broker.cluster.keeping import State
from broker.cluster.nats.board import Board
from broker.cluster.nats.log import NatsLog, StreamSettings
from broker.cluster.settings import ClusterSettings
from broker.cluster.supervisor import no_supervisor
from broker.core.errors import Conflict, NotFound
from broker.storage.commit_log import LogLost, Mark
from broker.storage.rocksdb.database import Database
from broker.storage.rocksdb.options import Memory
from broker.storage.rocksdb.store import DATABASE_FOLDER

_MEMORY: Final = Memory(write_buffer=4 * 1024 * 1024, block_cache=4 * 1024 * 1024)
_FAR: Final = 1 << 32
"""Entries between a store and the log that is made from it: more than another store can be ahead of it."""


@dataclass(frozen=True, slots=True)
class LocalStore:
    """The store of a cell on this machine, or a copy of another machine's."""

    cell: int
    directory: Path
    is_copy: bool
    mark: Mark
    log_end: int
    """Position of the last entry of the log in NATS; 0 where there is no log."""

    @property
    def is_ahead(self) -> bool:
        """True if the log has lost what this store has."""
        return self.log_end < self.mark.position


def local_stores(data_dir: Path, cluster: ClusterSettings) -> Sequence[LocalStore]:
    """The stores of this machine, by their cells, and where the logs of these end.

    Raises:
        ConfigError: a broker uses the directory, or a store is damaged.
        Unavailable: too few servers of NATS answer.
    """
    own = cluster.layout[cluster.place].cells
    places = {cell: (cell_directory(data_dir, cell - own.start), False) for cell in own}
    places |= {cell: (copy_directory(data_dir, cell), True) for cell in copied(data_dir)}
    found = []
    with no_supervisor(data_dir):
        for cell, (directory, is_copy) in sorted(places.items()):
            if (directory / DATABASE_FOLDER).exists():
                with _opened(directory) as database, _log_of(cluster, cell) as log:
                    mark = database.applied
                    found.append(LocalStore(cell, directory, is_copy, mark, _end_of(log)))
    return found


def repair(data_dir: Path, cluster: ClusterSettings, cell: int, *, even_so: bool = False) -> Mark:
    """Make the log of a cell again, behind its store or copy on this machine; where it begins. ``even_so``: what only
    another machine has is given up.

    Raises:
        NotFound: there is no store of that cell.
        Conflict: the log has all that the store has, or another machine is known to have more.
        ConfigError: a broker uses the directory, or the store is damaged.
        Unavailable: too few servers of NATS answer. The same again continues it.
    """
    stores = {store.cell: store for store in local_stores(data_dir, cluster)}
    store = stores.get(cell)
    if store is None:
        known = ", ".join(map(str, stores)) or "no cell"
        raise NotFound("store of cell", str(cell), f"this machine has those of {known}")
    if not store.is_ahead:
        raise Conflict(
            f"cell {cell}: nothing to repair: its log in NATS ends at {store.log_end}, and its store here at "
            f"{store.mark.position}"
        )
    for machine, position in _copies(cluster, cell):
        if position > store.mark.position and not even_so:
            raise Conflict(
                f"cell {cell}: machine {machine} has a copy up to {position}, and the store here ends at "
                f"{store.mark.position}; repair it there"
            )
    mark = Mark(store.mark.position + _FAR, store.mark.epoch + 1, 0)
    with (
        no_supervisor(data_dir),
        _opened(store.directory) as database,
        _log_of(cluster, cell) as log,
    ):
        nats = cluster.nats
        log.make(StreamSettings(nats.replicas, nats.max_log_bytes, cluster.digest))
        # first, so that the store is ahead of the log, and not behind it, if this is cut off
        database.apply(mark, ())
        database.sync()
        log.trim(mark.position + 1)
        if (end := _end_of(log)) != mark.position:
            raise Conflict(f"cell {cell}: another process writes its log, which ends at {end}")
    return mark


@contextmanager
def _opened(directory: Path) -> Iterator[Database]:
    database = Database(directory / DATABASE_FOLDER, _MEMORY, must_exist=True)
    try:
        yield database
    finally:
        database.close()


@contextmanager
def _log_of(cluster: ClusterSettings, cell: int) -> Iterator[NatsLog]:
    log = NatsLog(cluster.nats_places, cluster.name, cell, "repair")
    try:
        yield log
    finally:
        log.close()


def _end_of(log: NatsLog) -> int:
    try:
        return int(log.state()["state"]["last_seq"])
    except LogLost:
        return 0


def _copies(cluster: ClusterSettings, cell: int) -> Iterator[tuple[str, int]]:
    """Positions of the copies that other machines have reported last."""
    board = Board(cluster.nats_places, cluster.name, cluster.machine, cluster.nats.replicas)
    try:
        messages = board.read()
    finally:
        board.close()
    for machine, data in messages.items():
        if machine in cluster.machines and machine != cluster.machine:
            yield machine, msgspec.json.decode(data, type=State).copies.get(cell, 0)
