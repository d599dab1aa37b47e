"""Amounts that wait in the session log for each session, counted again at a start: records of sessions do not say.

One walk over the log serves all sessions. Of its records only topics and sizes are read, not the messages. In a piece
of the log, what the same sessions wait for is counted once for all of them: a message costs 1 to 2 µs, however many
wait for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final, NamedTuple

from broker.core.cells import Slots
from broker.routing.router import Router
from broker.session import backlog
from broker.session.registry import SessionRegistry
from broker.session.session import Session
from broker.storage.store import LogShard, Store

# Records of one piece: some milliseconds.
_AT_ONCE: Final = 2048
# Frames of one piece: many commits hold a message or two.
_MOST_FRAMES: Final = 64
_MOST_TOPICS: Final = 65_536
_NEVER: Final = 1 << 62
# A topic, with the slots that its records are addressed to, if any.
_Key = str | tuple[str, Slots]


class _Waiter(NamedTuple):
    """A session that waits for a topic's messages from an offset on, and for its own ones from another on."""

    session: Session
    since: int
    own_since: int


class _Group:
    """Sessions that wait for the same topics from the same offsets on; ``rows`` are those of the current piece."""

    __slots__ = ("rows", "waiters")

    def __init__(self, waiters: tuple[_Waiter, ...]) -> None:
        self.waiters, self.rows = waiters, list[int]()


class _Tally:
    """Count for one session in a piece of the log."""

    __slots__ = ("first", "messages", "size_bytes")

    def __init__(self) -> None:
        self.first = _NEVER
        self.messages = 0
        self.size_bytes = 0

    def add(self, first: int, messages: int, size_bytes: int) -> None:
        self.first = min(self.first, first)
        self.messages += messages
        self.size_bytes += size_bytes


class _Piece:
    """Some records of the log that follow each other, of one Arrow batch or many small ones."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.frames = 0
        self.topics: list[str] = []
        self.sizes: list[int] = []
        """Bytes of topic and payload."""
        self.addressees: dict[int, str] = {}
        """By row, of records that are for one client alone."""
        self._client_ids: list[tuple[int, Any]] = []

    @property
    def end(self) -> int:
        return self.offset + len(self.topics)

    @property
    def is_full(self) -> bool:
        return len(self.topics) >= _AT_ONCE or self.frames >= _MOST_FRAMES

    def add(self, batch: Any) -> None:
        """Take the records of a batch, by the columns of ``broker.storage.records.SCHEMA``."""
        start = len(self.topics)
        rules = batch.column("rule")
        payloads = batch.column("payload")
        topics = batch.column("topic").to_pylist()
        ends = memoryview(payloads.buffers()[1]).cast("i")[
            payloads.offset : payloads.offset + len(topics) + 1
        ]
        self.frames += 1
        self.topics += topics
        self.sizes += [
            stop - begin + len(name.encode())
            for (begin, stop), name in zip(pairwise(ends), topics, strict=True)
        ]
        self._client_ids.append((start, batch.column("client_id")))
        if rules.null_count < len(topics):
            self.addressees |= {
                start + row: name for row, name in enumerate(rules.to_pylist()) if name is not None
            }

    def is_from(self, row: int, client_id: str) -> bool:
        """True if a client published it."""
        start, names = self._client_ids[bisect_right(self._client_ids, row, key=itemgetter(0)) - 1]
        return bool(names[row - start].as_py() == client_id)


class Recount:
    """Counts what waits in the session log for each session."""

    def __init__(
        self, sessions: SessionRegistry, router: Router[Session], store: Store, shard: LogShard
    ) -> None:
        self._sessions = sessions
        self._router = router
        self._store = store
        self._shard = shard
        self._by_topic: dict[_Key, _Group] = {}
        self._groups: dict[tuple[_Waiter, ...], _Group] = {}
        self._in_flight: dict[Session, frozenset[int]] = {}

    def run(self) -> Iterator[None]:
        """Count, a piece of the log in each step."""
        behind = [session for session in self._sessions if session.is_behind]
        if not behind:
            return
        for session in behind:
            if session.window.inflight:
                self._in_flight[session] = frozenset(
                    delivery.offset for delivery in session.window.inflight.values()
                )
        begin = min(session.next_offset for session in behind)
        for piece in self._pieces(begin):
            self._count(piece)
            yield

    def _pieces(self, begin: int) -> Iterator[_Piece]:
        piece: _Piece | None = None
        for batch in self._store.read_arrow(self._shard, begin, _NEVER):
            for start in range(0, batch.num_rows, _AT_ONCE):
                if piece is None:
                    piece = _Piece(batch.column("offset")[start].as_py())
                piece.add(batch if batch.num_rows <= _AT_ONCE else batch.slice(start, _AT_ONCE))
                if piece.is_full:
                    yield piece
                    piece = None
        if piece is not None:
            yield piece

    def _count(self, piece: _Piece) -> None:
        tallies: dict[Session, _Tally] = {}
        groups: list[_Group] = []
        for row, topic in enumerate(piece.topics):
            slots = None
            if row in piece.addressees:
                addressee = piece.addressees[row]
                slots = Slots.of_addressee(addressee)
                if slots is None:
                    if (session := self._sessions.get(addressee)) is not None:
                        self._count_singly(_Waiter(session, 0, 0), piece, [row], tallies)
                    continue
            key = topic if slots is None else (topic, slots)
            group = self._by_topic.get(key) or self._look_up(key, topic, slots)
            if not group.rows:
                groups.append(group)
            group.rows.append(row)
        for group in groups:
            self._count_group(group, piece, tallies)
            group.rows = []
        for session, tally in tallies.items():
            backlog.count(session, tally.first, tally.messages, tally.size_bytes)

    def _count_group(self, group: _Group, piece: _Piece, tallies: dict[Session, _Tally]) -> None:
        rows = group.rows
        first = piece.offset + rows[0]
        size_bytes = sum(map(piece.sizes.__getitem__, rows))
        for waiter in group.waiters:
            session, since, own_since = waiter
            if since >= piece.end or session.next_offset >= piece.end:
                continue
            if (
                max(since, own_since, session.next_offset) <= first
                and session not in self._in_flight
            ):
                tallies.setdefault(session, _Tally()).add(first, len(rows), size_bytes)
            else:
                self._count_singly(waiter, piece, rows, tallies)

    def _count_singly(
        self, waiter: _Waiter, piece: _Piece, rows: list[int], tallies: dict[Session, _Tally]
    ) -> None:
        """Same as a group's, where it depends on each message."""
        session, since, own_since = waiter
        in_flight = self._in_flight.get(session, ())
        begin = max(since, session.next_offset)
        for row in rows:
            offset = piece.offset + row
            if offset < begin or offset in in_flight:
                continue
            if own_since <= offset or not piece.is_from(row, session.client_id):
                tallies.setdefault(session, _Tally()).add(offset, 1, piece.sizes[row])

    def _look_up(self, key: _Key, topic: str, slots: Slots | None) -> _Group:
        """Sessions that wait for a topic's messages, of these slots where there are some; remembered."""
        if len(self._by_topic) >= _MOST_TOPICS:
            self._by_topic.clear()
            self._groups.clear()
        since: dict[Session, tuple[int, int]] = {}
        for session, subscription in self._router.matching(topic):
            if (
                subscription.qos
                and session.is_behind
                and (slots is None or slots.have(session.client_id))
            ):
                begin, own_begin = since.get(session, (_NEVER, _NEVER))
                at = subscription.since_offset
                since[session] = (
                    min(begin, at),
                    own_begin if subscription.no_local else min(own_begin, at),
                )
        waiters = tuple(_Waiter(session, *both) for session, both in since.items())
        group = self._by_topic[key] = self._groups.setdefault(waiters, _Group(waiters))
        return group
