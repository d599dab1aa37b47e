"""Change of the number of cells of a data directory that no broker uses.

All is planned and checked first. Then every store gets what belongs to it from now on, and only when all have it is
it removed from the stores of before. A file in the data directory says that a change is under way: a broker refuses to
start, and the same command goes on with it, wherever it was cut off.

Sessions move with what waits for them. What is of one cell for other reasons stays there: shards of streams, rows that
actions have not sent, messages of share groups. So a cell that has some of these is not removed.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, NamedTuple
from uuid import uuid4

import msgspec

from broker.cluster import moving
from broker.cluster.directories import (
    CHANGE_FILE,
    cell_directory,
    check_room,
    forget_count,
    keep_count,
    kept_count,
    kept_machine,
)
from broker.cluster.log_sender import retained_stamp
from broker.cluster.moving import Form, Leaving
from broker.cluster.positions import StoredPositions
from broker.cluster.routes import joined_kind
from broker.cluster.supervisor import no_supervisor
from broker.connection.sessions.log import SESSION_LOG
from broker.connection.sharing import group
from broker.connection.sharing.group import FarMemberRecord
from broker.core.cells import Slots, cell_of
from broker.core.errors import ConfigError
from broker.core.kinds import counted
from broker.routing import retained_store
from broker.session.record import stored_filters, stored_memberships
from broker.session.subscriptions import matching_filters
from broker.storage.rocksdb.options import Memory
from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import Batch, LogShard, Store
from broker.streams import catalogue, queues

_MIB: Final = 1024 * 1024
# Of each store: up to 64 are open.
_MEMORY: Final = Memory(write_buffer=4 * _MIB, block_cache=4 * _MIB)
# Records read at a time.
_AT_ONCE: Final = 2000
_NAMED: Final = 3

Note = Callable[[str], None]


class _Change(msgspec.Struct):
    """A change that is under way, as its file has it."""

    id: str
    before: int
    after: int
    step: Literal["copy", "remove"] = "copy"


class Moved(NamedTuple):
    """What goes from one cell to another."""

    source: int
    target: int
    sessions: int
    messages: int
    size_bytes: int


@dataclass
class Plan:
    """What a change of the number of cells does."""

    before: int
    after: int
    moves: list[Moved] = field(default_factory=list)

    @property
    def sessions(self) -> int:
        """Number of sessions that move."""
        return sum(move.sessions for move in self.moves)

    @property
    def messages(self) -> int:
        """Number of messages that move: those that wait for several sessions are counted once for each cell."""
        return sum(move.messages for move in self.moves)

    @property
    def size_bytes(self) -> int:
        """Bytes that move."""
        return sum(move.size_bytes for move in self.moves)


class Resize:
    """Gives a data directory another number of cells. Open it as a context. ``homes`` are the connectors of sources, by
    the identifiers of these; ``note`` is told how far it is.

    Raises:
        ConfigError: a broker uses the data directory, or it has no data, or another change was cut off.
    """

    def __init__(
        self,
        data_dir: Path,
        after: int,
        homes: Mapping[str, str] = MappingProxyType({}),
        note: Note = lambda _text: None,
    ) -> None:
        self._data_dir = data_dir
        self._note = note
        self._file = data_dir / CHANGE_FILE
        self._opened = ExitStack()
        self._stores: dict[int, RocksStore] = {}
        change = _read(self._file)
        if change is not None and change.after != after:
            text = (
                f"{data_dir}: expected {change.after}, the number of cells of a change that was cut off, got {after}. "
                f"Try: sluice cells resize {change.after} --data-dir {data_dir}"
            )
            raise ConfigError([text])
        if change is None:
            kept = kept_count(data_dir)
            if kept is None:
                raise ConfigError([f"{data_dir}: expected the data of a broker, got none"])
            if (machine := kept_machine(data_dir)) is not None:
                text = f"{data_dir}: expected the data of a broker on one machine"
                raise ConfigError(
                    [f"{text}, got that of machine {machine!r} of a cluster: its cells are fixed"]
                )
            change = _Change(uuid4().hex, kept, after)
            for cell in range(kept):
                if not cell_directory(data_dir, cell).is_dir():
                    text = f"{cell_directory(data_dir, cell)}: expected the data of a cell, got no directory"
                    raise ConfigError([f"{text}. Try: put it back, or restore a backup"])
        self._change = change
        self._form = Form(change.id, change.before, change.after, homes)

    def __enter__(self) -> Resize:
        self._opened.enter_context(no_supervisor(self._data_dir))
        return self

    def __exit__(self, *_: object) -> None:
        for store in self._stores.values():
            store.close()
        self._stores.clear()
        self._opened.close()

    @property
    def is_needed(self) -> bool:
        """True if the number is another one, or a change was cut off."""
        return self._change.before != self._change.after or self._file.exists()

    def plan(self, max_log_bytes: int | None = None) -> Plan:
        """What is to be moved; nothing is changed. ``max_log_bytes`` is the maximum of a session log.

        Raises:
            ConfigError: something cannot be moved, or there is no room for it.
        """
        plan = Plan(self._change.before, self._change.after)
        if not self.is_needed or self._change.step == "remove":
            return plan
        problems: list[str] = []
        log_bytes = dict.fromkeys(range(self._change.after), 0)
        for number in range(self._change.before):
            store = self._store(number)
            if number in log_bytes:
                log_bytes[number] += store.size_of(SESSION_LOG)
            else:
                problems += _of_this_cell(number, store)
            leaving = Leaving(number, store, self._form)
            leaving.count()
            problems += _readers(number, list(leaving.busy_readers()))
            for cell, share in leaving.shares.items():
                log_bytes[cell] += share.message_bytes
                if share.values:
                    plan.moves.append(
                        Moved(number, cell, share.sessions, share.messages, share.size_bytes)
                    )
        if max_log_bytes is not None and max(log_bytes.values()) > max_log_bytes:
            problems.append(
                f"mqtt.max_session_log_bytes: expected at least {max(log_bytes.values()):,} for the messages that wait "
                f"for sessions of a cell, got {max_log_bytes:,}"
            )
        if problems:
            raise ConfigError(problems)
        check_room(self._data_dir, self._change.after, 2 * plan.size_bytes)
        return plan

    def run(self) -> None:
        """Make the change, or go on with the one that was cut off."""
        if not self.is_needed:
            return
        change = self._change
        if change.step == "copy":
            self._write(change)
            for cell in range(change.before, change.after):
                cell_directory(self._data_dir, cell).mkdir(parents=True, exist_ok=True, mode=0o700)
            self._copy()
            change.step = "remove"
            self._write(change)
        self._remove()
        keep_count(self._data_dir, change.after)
        self._note(f"{counted(change.after, 'cell')}")
        self._file.unlink()
        if change.after == 1:
            forget_count(self._data_dir)

    def _copy(self) -> None:
        before, after = self._change.before, self._change.after
        for number in range(before):
            for other in range(before):
                if other != number:
                    self._hand_over(number, other)
        for number in range(before, after):
            moving.share(self._store(0), self._store(number))
        for number in range(before):
            store = self._store(number)
            moving.fold(store)
            Leaving(number, store, self._form).copy(self._store, self._note)
        members = self._members()
        for number in range(after):
            moving.regroup(number, self._form, self._store, members)
        self._link()

    def _hand_over(self, source: int, target: int) -> None:
        """Give a cell what waits for it in the session log of another one, as their link would have: messages for its
        sessions, and retained messages."""
        store, other = self._store(source), self._store(target)
        positions, reached = StoredPositions(store), StoredPositions(other).at(source)
        if reached is None or reached[0] != positions.identity:
            start = positions.kept_by(target)
        else:
            start = reached[1]
        if start is None:
            return
        routes = {text: since for text, _, since in positions.routes_of(target)}
        matching = matching_filters(routes)
        slots = Slots.of_cell(target, self._change.before).addressee
        log_next = store.range_of(SESSION_LOG).next_offset
        while start < log_next:
            found = store.read(SESSION_LOG, start, _AT_ONCE)
            wanted = [
                record._replace(rule=slots)
                for offset, record in found
                if record.rule is None and any(since <= offset for since in matching(record.topic))
            ]
            start = found[-1][0] + 1 if found else log_next
            puts = StoredPositions.kept_at(source, positions.identity, start)
            retained = {  # the last of a topic is the newest one
                record.topic: (record.payload, stamp)
                for _, record in found
                if record.rule and (stamp := retained_stamp(record.rule, target))
            }
            for topic, (value, stamp) in retained.items():
                puts |= retained_store.handed_over(other, topic, value, stamp)
            other.commit(Batch({SESSION_LOG: wanted} if wanted else {}, puts))

    def _link(self) -> None:
        """Tell each cell which filters the durable sessions of the others have, and that they have its log."""
        after = range(self._change.after)
        positions = {cell: StoredPositions(self._store(cell)) for cell in after}
        for cell in after:
            positions[cell].keep_identity()
        for cell in after:
            filters = self._filters_of(cell)
            for other in after:
                if other != cell:
                    next_offset = self._store(other).range_of(SESSION_LOG).next_offset
                    positions[other].replace(cell, filters, next_offset)
                    self._store(cell).commit(
                        Batch(
                            puts=StoredPositions.kept_at(
                                other, positions[other].identity, next_offset
                            )
                        )
                    )

    def _filters_of(self, cell: int) -> dict[str, int]:
        """Filters of the sessions that a cell has from now on, with their kinds."""
        filters: dict[str, int] = {}
        for _, value in self._subscriptions_of(cell):
            for text, qos, retains in stored_filters(value):
                filters[text] = joined_kind(filters.get(text), qos, retains=retains)
        return filters

    def _members(self) -> Mapping[str, list[FarMemberRecord]]:
        """The durable members of each share group, with the cells that they have from now on."""
        members: dict[str, list[FarMemberRecord]] = defaultdict(list)
        for cell in range(self._change.after):
            for client_id, value in self._subscriptions_of(cell):
                for text, qos in stored_memberships(value):
                    members[text].append(FarMemberRecord(cell=cell, client_id=client_id, qos=qos))
        return members

    def _subscriptions_of(self, cell: int) -> Iterator[tuple[str, bytes]]:
        """Clients that a cell has from now on, with the records of their subscriptions."""
        for key, value in self._store(cell).scan(b"subscriptions/"):
            client_id = key.removeprefix(b"subscriptions/").decode()
            if cell_of(client_id, self._change.after) == cell:
                yield client_id, value

    def _remove(self) -> None:
        before, after = self._change.before, self._change.after
        for number in range(min(before, after)):
            Leaving(number, self._store(number), self._form).remove()
        for number in range(after):
            moving.finish(self._store(number))
        for number in range(after, before):
            directory = cell_directory(self._data_dir, number)
            if (store := self._stores.pop(number, None)) is not None:
                store.close()
            shutil.rmtree(directory, ignore_errors=True)

    def _store(self, cell: int) -> RocksStore:
        if cell not in self._stores:
            directory = cell_directory(self._data_dir, cell)
            self._stores[cell] = RocksStore(directory, memory=_MEMORY)
        return self._stores[cell]

    def _write(self, change: _Change) -> None:
        self._file.parent.mkdir(exist_ok=True, mode=0o700)
        temporary = self._file.with_suffix(".new")
        with temporary.open("wb") as opened:
            opened.write(msgspec.json.encode(change))
            opened.flush()
            os.fsync(opened.fileno())
        temporary.replace(self._file)


def _read(file: Path) -> _Change | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Change)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        text = (
            f"{file}: expected a change of the number of cells, got {error}. Try: restore a backup"
        )
        raise ConfigError([text]) from error


def _readers(number: int, clients: Sequence[str]) -> Iterator[str]:
    if clients:
        yield (
            f"cell {number}: expected subscriptions that have read their stream to the end, got "
            f"{counted(len(clients), 'client')} that began in the past and read on, as {clients[0]!r}. Try: connect "
            "them until they are up to date, or delete their sessions"
        )


def _of_this_cell(number: int, store: Store) -> Iterator[str]:
    """Sentences for what keeps a cell from being removed."""
    for what, names in (
        ("records in streams", _streams_with_records(store)),
        ("rows in buffers of actions", _queues_with_records(store)),
        ("messages for share groups", _groups_with_messages(store)),
    ):
        if names:
            yield (
                f"cell {number}: expected a cell without {what}, got {', '.join(map(repr, names[:_NAMED]))}. Try: keep "
                f"{number + 1} cells, or wait until it has none"
            )


def _streams_with_records(store: Store) -> list[str]:
    return [
        name
        for name, log, shards in catalogue.stored_streams(store)
        if any(_has_records(store, LogShard(log, shard), 0) for shard in range(shards))
    ]


def _queues_with_records(store: Store) -> list[str]:
    return [
        name
        for name, log, done in queues.stored_queues(store)
        if _has_records(store, LogShard(log), done)
    ]


def _has_records(store: Store, shard: LogShard, done: int) -> bool:
    offsets = store.range_of(shard)
    return max(offsets.first_offset, done) < offsets.next_offset


def _groups_with_messages(store: Store) -> list[str]:
    return [
        key.removeprefix(b"share-group/").decode()
        for key, value in store.scan(b"share-group/")
        if group.waiting_in(value)
    ]
