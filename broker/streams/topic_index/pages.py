"""Pages of a stream by topic for the broker: asked of the range server, which alone has the topic index open."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from broker.core.errors import Unavailable
from broker.core.lazy_module import LazyModule
from broker.core.stream import StreamRecord
from broker.core.topic import TopicFilter
from broker.storage.store import LogShard
from broker.streams.range_client import RangeClient
from broker.streams.topic_index.report import IndexReport

if TYPE_CHECKING:
    import pyarrow as pa

    from broker.storage import records
else:
    pa = LazyModule("pyarrow")
    records = LazyModule("broker.storage.records")


class RecordPage(NamedTuple):
    """Records with their offsets, and the offset to resume from."""

    found: list[tuple[int, StreamRecord]]
    next_offset: int


class IndexPages:
    """Reads pages by the index. ``report`` returns its state."""

    def __init__(self, client: RangeClient, report: Callable[[], IndexReport]) -> None:
        self._client = client
        self.report = report

    def read(
        self, shard: LogShard, start: int, end: int, topic_filter: TopicFilter, limit: int
    ) -> RecordPage | None:
        """A page of the records in ``[start, end)`` with a filter's topics, at least ``limit`` if there are enough.

        None where the index has none of them, or the range server does not answer. Blocks for as long as it takes.
        """
        if not any(
            (shard_index.log, shard_index.shard) == shard and start < shard_index.next_offset
            for shard_index in self.report().shards
        ):
            return None
        try:
            return self.ask(shard, start, end, topic_filter, limit)
        except Unavailable:
            return None

    def ask(
        self, shard: LogShard, start: int, end: int, topic_filter: TopicFilter, limit: int
    ) -> RecordPage:
        """The same with or without the index.

        Raises:
            Unavailable: the range server does not answer, or cannot read it; says why.
        """
        query: dict[str, str | int] = {
            "from": start,
            "to": end,
            "filter": topic_filter.text,
            "limit": limit,
        }
        with self._client.ask(shard, query) as answer:
            batches = pa.ipc.open_stream(answer.read())
            page_records = [entry for batch in batches for entry in records.decode(batch)]
            return RecordPage(page_records, int(answer.headers["next-offset"]))
