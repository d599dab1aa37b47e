"""How much waits in the session log for each session, counted anew at a start: records of sessions do not say.

One walk over the log serves all sessions. Of its records only topics and sizes are read, not the messages. In a piece
of the log, what the same sessions wait for is counted once for all of them: a message costs 1 to 2 µs, however many
wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

from broker.routing.router import Router
from broker.session.registry import SessionRegistry
from broker.session.session import Session
from broker.storage.store import LogShard, Store

_AT_ONCE: Final = 2048
"""Records of one piece: some milliseconds."""
_MOST_TOPICS: Final = 65_536
_NEVER: Final = 1 << 62


class _Waiter(NamedTuple):
    """A session that waits for a topic's messages from an offset on, and for its own ones from another on."""

    session: Session
    since: int
    own_since: int


class _Group:
    """Those who wait for the same topics from the same offsets on; ``rows`` are those of the piece at hand."""

    __slots__ = ("rows", "waiters")

    def __init__(self, waiters: tuple[_Waiter, ...]) -> None:
        self.waiters, self.rows = waiters, list[int]()


class _Tally:
    """What was found for one session in a piece of the log."""

    __slots__ = ("first", "messages", "size_bytes")

    def __init__(self) -> None:
        self.first, self.messages, self.size_bytes = _NEVER, 0, 0

    def add(self, first: int, messages: int, size_bytes: int) -> None:
        self.first = min(self.first, first)
        self.messages += messages
        self.size_bytes += size_bytes


class _Piece:
    """Some records of the log, which is an Arrow batch."""

    def __init__(self, batch: Any) -> None:
        self.offset: int = batch.column("offset")[0].as_py()
        self.topics: list[str] = batch.column("topic").to_pylist()
        self.sizes = [sum(sizes) for sizes in zip(_sizes(batch, "topic"), _sizes(batch, "payload"), strict=True)]
        self.end = self.offset + len(self.topics)
        self._client_ids, rules = batch.column("client_id"), batch.column("rule")
        self.addressees: list[str | None] | None = None if rules.null_count == len(rules) else rules.to_pylist()
        """Of records that are for one client alone; None where there is none."""

    def is_from(self, row: int, client_id: str) -> bool:
        """Whether a client published it."""
        return bool(self._client_ids[row].as_py() == client_id)


class Recount:
    """See the module."""

    def __init__(self, sessions: SessionRegistry, router: Router[Session], store: Store, shard: LogShard) -> None:
        self._sessions, self._router, self._store, self._shard = sessions, router, store, shard
        self._by_topic: dict[str, _Group] = {}
        self._groups: dict[tuple[_Waiter, ...], _Group] = {}
        self._in_flight: dict[Session, frozenset[int]] = {}

    def run(self) -> Iterator[None]:
        """Count, a piece of the log in each step."""
        behind = [session for session in self._sessions if session.is_behind]
        if not behind:
            return
        for session in behind:
            if session.inflight:
                self._in_flight[session] = frozenset(delivery.offset for delivery in session.inflight.values())
        begin = min(session.next_offset for session in behind)
        for batch in self._store.read_arrow(self._shard, begin, _NEVER):
            for start in range(0, batch.num_rows, _AT_ONCE):
                self._count(_Piece(batch.slice(start, _AT_ONCE)))
                yield

    def _count(self, piece: _Piece) -> None:
        tallies: dict[Session, _Tally] = {}
        groups: list[_Group] = []
        for row, topic in enumerate(piece.topics):
            if piece.addressees is not None and (addressee := piece.addressees[row]) is not None:
                if (session := self._sessions.get(addressee)) is not None:
                    self._count_singly(_Waiter(session, 0, 0), piece, [row], tallies)
                continue
            group = self._by_topic.get(topic) or self._look_up(topic)
            if not group.rows:
                groups.append(group)
            group.rows.append(row)
        for group in groups:
            self._count_group(group, piece, tallies)
            group.rows = []
        for session, tally in tallies.items():
            session.count_logged(tally.first, tally.messages, tally.size_bytes)

    def _count_group(self, group: _Group, piece: _Piece, tallies: dict[Session, _Tally]) -> None:
        rows = group.rows
        first, size_bytes = piece.offset + rows[0], sum(map(piece.sizes.__getitem__, rows))
        for waiter in group.waiters:
            session, since, own_since = waiter
            if since >= piece.end or session.next_offset >= piece.end:
                continue
            if max(since, own_since, session.next_offset) <= first and session not in self._in_flight:
                tallies.setdefault(session, _Tally()).add(first, len(rows), size_bytes)
            else:
                self._count_singly(waiter, piece, rows, tallies)

    def _count_singly(self, waiter: _Waiter, piece: _Piece, rows: list[int], tallies: dict[Session, _Tally]) -> None:
        """As a group's, where it depends on each message."""
        session, since, own_since = waiter
        in_flight = self._in_flight.get(session, ())
        begin = max(since, session.next_offset)
        for row in rows:
            offset = piece.offset + row
            if offset < begin or offset in in_flight:
                continue
            if own_since <= offset or not piece.is_from(row, session.client_id):
                tallies.setdefault(session, _Tally()).add(offset, 1, piece.sizes[row])

    def _look_up(self, topic: str) -> _Group:
        """Who waits for a topic's messages; remembered."""
        if len(self._by_topic) >= _MOST_TOPICS:
            self._by_topic.clear()
            self._groups.clear()
        since: dict[Session, tuple[int, int]] = {}
        for session, subscription in self._router.matching(topic):
            if subscription.qos and session.is_behind:
                begin, own_begin = since.get(session, (_NEVER, _NEVER))
                at = subscription.since_offset
                since[session] = min(begin, at), own_begin if subscription.no_local else min(own_begin, at)
        waiters = tuple(_Waiter(session, *both) for session, both in since.items())
        group = self._by_topic[topic] = self._groups.setdefault(waiters, _Group(waiters))
        return group


def _sizes(batch: Any, column: str) -> list[int]:
    """How many bytes each value of a column of text or bytes has, without a look at the values."""
    values = batch.column(column)
    ends = memoryview(values.buffers()[1]).cast("i")[values.offset : values.offset + len(values) + 1]
    return [end - begin for begin, end in pairwise(ends)]
