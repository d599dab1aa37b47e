"""Rebuilds commit logs that NATS has lost, from the stores of a machine whose broker is stopped.

A log that ends before a store that has applied it has lost entries that it had confirmed. The rebuilt log begins after
the chosen store, at a position that no store has reached: all other stores are behind it, and copy the chosen one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from broker.cluster.adopting import MEMORY
from broker.cluster.directories import cell_directory, copied, copy_directory
from broker.cluster.keeping import State
from broker.cluster.nats.board import Board
from broker.cluster.nats.log import NatsLog, StreamSettings
from broker.cluster.settings import ClusterSettings
from broker.cluster.supervisor import no_supervisor
from broker.core.errors import Conflict, NotFound
from broker.storage.commit_log import LogLost, Mark
from broker.storage.rocksdb.database import Database
from broker.storage.rocksdb.store import DATABASE_FOLDER

_STATE: Final = msgspec.json.Decoder(State)
# Entries between the chosen store and its rebuilt log: more than any other store can be ahead of that one.
_GAP: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class LocalStore:
    """The store of a cell on this machine, or a copy of another machine's."""

    cell: int
    is_copy: bool
    position: int
    log_end: int
    """Position of the last entry of the log in NATS; 0 without a log."""

    @property
    def is_ahead(self) -> bool:
        """True if the log has lost entries that this store has."""
        return self.log_end < self.position


def local_stores(data_dir: Path, cluster: ClusterSettings) -> Sequence[LocalStore]:
    """The stores on this machine by cell, with the ends of their logs.

    Raises:
        ConfigError: a broker uses the directory, or a store is damaged.
        Unavailable: too few NATS servers answer.
    """
    with no_supervisor(data_dir):
        stores = []
        for cell, directory in sorted(_directories(data_dir, cluster).items()):
            with closing(_database(directory)) as database, closing(_log(cluster, cell)) as log:
                is_copy = cell not in cluster.layout[cluster.place].cells
                position = database.applied.position
                stores.append(LocalStore(cell, is_copy, position, _end_of(log)))
        return stores


def repair(data_dir: Path, cluster: ClusterSettings, cell: int, *, force: bool = False) -> Mark:
    """Rebuild the log of a cell from its store or copy on this machine; the mark where it begins. ``force`` discards
    entries that only another machine has.

    Raises:
        NotFound: this machine has no store of the cell.
        Conflict: the log is complete, or another machine has reported a newer copy.
        ConfigError: a broker uses the directory, or the store is damaged.
        Unavailable: too few NATS servers answer; run it again.
    """
    directories = _directories(data_dir, cluster)
    if cell not in directories:
        known = ", ".join(map(str, sorted(directories))) or "no cell"
        raise NotFound("store of cell", str(cell), f"this machine has those of {known}")
    with (
        no_supervisor(data_dir),
        closing(_database(directories[cell])) as database,
        closing(_log(cluster, cell)) as log,
    ):
        before, end = database.applied, _end_of(log)
        if end >= before.position:
            raise Conflict(
                f"cell {cell}: nothing to repair: its log in NATS ends at {end}, its store here at {before.position}"
            )
        for machine, position in {} if force else _copies(cluster, cell).items():
            if position > before.position:
                raise Conflict(
                    f"cell {cell}: machine {machine} has a copy up to {position}, and the store here ends at "
                    f"{before.position}. Try: repair it there"
                )
        log.make(StreamSettings(cluster.nats.replicas, cluster.nats.max_log_bytes, cluster.digest))
        mark = Mark(before.position + _GAP, before.epoch + 1, 0)
        # The store first: if this is interrupted, it is ahead of the log, which is refused, and not behind it.
        database.apply(mark, ())
        database.sync()
        log.trim(mark.position + 1)
        if (end := _end_of(log)) != mark.position:
            raise Conflict(f"cell {cell}: another process writes its log, which ends at {end}")
        return mark


def _directories(data_dir: Path, cluster: ClusterSettings) -> Mapping[int, Path]:
    own = cluster.layout[cluster.place].cells
    directories = {cell: cell_directory(data_dir, cell - own.start) for cell in own}
    directories |= {cell: copy_directory(data_dir, cell) for cell in copied(data_dir)}
    return {
        cell: directory
        for cell, directory in directories.items()
        if (directory / DATABASE_FOLDER).exists()
    }


def _database(directory: Path) -> Database:
    return Database(directory / DATABASE_FOLDER, MEMORY, must_exist=True)


def _log(cluster: ClusterSettings, cell: int) -> NatsLog:
    return NatsLog(cluster.nats_places, cluster.name, cell, "repair")


def _end_of(log: NatsLog) -> int:
    try:
        return int(log.state()["state"]["last_seq"])
    except LogLost:
        return 0


def _copies(cluster: ClusterSettings, cell: int) -> Mapping[str, int]:
    """The last positions that other machines have reported of their copies.

    Raises:
        Conflict: a machine of another release has reported in another format.
        Unavailable: too few NATS servers answer.
    """
    with closing(
        Board(cluster.nats_places, cluster.name, cluster.machine, cluster.nats.replicas)
    ) as board:
        messages = board.read()
    try:
        return {
            machine: _STATE.decode(messages[machine]).copies.get(cell, 0)
            for machine in cluster.machines.keys() & messages.keys() - {cluster.machine}
        }
    except msgspec.MsgspecError as error:
        raise Conflict(
            f"cell {cell}: a machine runs another release, whose reports cannot be read"
        ) from error
