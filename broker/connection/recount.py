"""How much waits in the session log for each session, counted anew at a start: records of sessions do not say.

One walk over the log serves all sessions; what depends on a topic alone is worked out once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from broker.core.stream import StreamRecord
from broker.core.topic import TopicFilter
from broker.routing.router import Router
from broker.session.registry import SessionRegistry
from broker.session.session import Session
from broker.storage.store import LogShard, Store

_AT_ONCE: Final = 1024
_MOST_TOPICS: Final = 65_536


class _Waiting(NamedTuple):
    """A session that waits for a topic's messages from an offset on; its own ones only where ``takes_own``."""

    session: Session
    since: int
    takes_own: bool


class Recount:
    """See the module."""

    def __init__(self, sessions: SessionRegistry, router: Router[Session], store: Store, shard: LogShard) -> None:
        self._sessions, self._router, self._store, self._shard = sessions, router, store, shard
        self._by_topic: dict[str, list[_Waiting]] = {}

    def run(self) -> Iterator[None]:
        """Count, some hundred records in each step."""
        offset = min((session.next_offset for session in self._sessions if session.is_behind), default=None)
        while offset is not None:
            found = self._store.read(self._shard, offset, _AT_ONCE)
            for at, record in found:
                self._count(at, record)
            offset = found[-1][0] + 1 if len(found) == _AT_ONCE else None
            yield

    def _count(self, offset: int, record: StreamRecord) -> None:
        size_bytes = len(record.payload) + len(record.topic.encode())
        if record.rule is not None:
            session = self._sessions.get(record.rule)
            if session is not None:
                session.count_logged(offset, size_bytes)
            return
        for waiting in self._waiting(record.topic):
            if waiting.since <= offset and (waiting.takes_own or record.client_id != waiting.session.client_id):
                waiting.session.count_logged(offset, size_bytes)

    def _waiting(self, topic: str) -> list[_Waiting]:
        found = self._by_topic.get(topic)
        if found is None:
            if len(self._by_topic) >= _MOST_TOPICS:
                self._by_topic.clear()
            entries = self._router.routes(topic).entries
            found = self._by_topic[topic] = [
                _Waiting(entry.subscriber, _since(entry.subscriber, topic), not entry.no_local)
                for entry in entries
                if entry.qos and entry.subscriber.is_durable
            ]
        return found


def _since(session: Session, topic: str) -> int:
    """From where on one of its subscriptions asks for a topic's messages."""
    return min(item.since_offset for item in session.subscriptions.values() if _asks(item.filter, topic) and item.qos)


def _asks(topic_filter: TopicFilter, topic: str) -> bool:
    return topic_filter.share_group is None and topic_filter.matches(topic)
