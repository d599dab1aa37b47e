"""The records of streams for display: pages of a shard, from an offset or a time on."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from typing_extensions import TypedDict

from broker.admin.session_rows import OldClientId
from broker.admin.tails import MessageTails, PublishedView, check_filter
from broker.core.objects import Spec
from broker.core.stored import message_of
from broker.core.times import rfc3339
from broker.pipeline.tails import MAX_PAYLOAD_BYTES
from broker.streams.other_cells import OtherCells
from broker.streams.service import StreamService

MAX_RECORDS: Final = 1000
# Maximum bytes of payloads and properties on a page, which has at least one record.
_MAX_BYTES: Final = 1024 * 1024


class RecordView(PublishedView):
    """A record. `rule` names the rule that wrote it as a row; payloads of rows are JSON."""

    shard: int
    offset: str
    at: str
    clientid: str
    client_id: OldClientId
    username: str | None
    rule: str | None


class RecordPage(TypedDict):
    """A page of a shard, which holds offsets from `first_offset` up to, not including, `next_offset`."""

    items: list[RecordView]
    next: str | None
    total: int
    total_is_estimate: bool
    first_offset: str
    next_offset: str


class RecordQuery(NamedTuple):
    """The records that are asked for: from an offset of a shard on, or from the first one published at or after a
    time in microseconds since 1970.

    With ``topic_filter`` the page may have fewer than ``limit``, and have a next page. ``decodes``: payloads are
    decoded by the schemas that validations bind to their topics. ``raw``: payloads are shown as base64, byte for byte.
    """

    shard: int
    offset: int
    at_us: int | None
    limit: int
    topic_filter: str | None = None
    decodes: bool = False
    raw: bool = False


class Ranges(Protocol):
    """The range server of this process (``broker.streams.ranges_process``)."""

    @property
    def url(self) -> str: ...

    def secret_of(self, machine: int) -> bytes: ...

    def use_secret(self, secret: bytes) -> None: ...


class StreamRecords:
    """Reads pages, and says where streams begin and end, and how ranges of them are read."""

    def __init__(self, streams: StreamService, tails: MessageTails, ranges: Ranges) -> None:
        self._streams = streams
        self.ranges = ranges
        self._reader = streams.reader
        self._tails = tails
        self.positions = streams.positions

    def shards(self, stream: str) -> int:
        """Number of shards of a stream in each cell. Raises ``NotFound``."""
        return self._streams.shards_of(stream)

    def show_others(
        self,
        cells: Sequence[int],
        ask_at: Callable[[int, str, int], Spec],
        machines: Mapping[int, int],
    ) -> OtherCells:
        """Show the shards of other cells too; their answers are noted in the result. ``ask_at`` asks a cell for a
        stream at a time in microseconds since 1970; it blocks. ``machines`` has the first cell of the machine of each
        cell that is on another one."""
        others = self._reader.others = OtherCells(cells, ask_at, machines)
        return others

    def unread(self) -> dict[str, dict[int, int]]:
        """By stream and shard, the first offset that some table of this process has not read."""
        return self._streams.unread()

    def note_unread(self, unread: Mapping[str, Mapping[str, int]]) -> None:
        """Keep what tables of the first cell have not read."""
        self._streams.note_unread(unread)

    def told(self, names: Sequence[str] | None, at_us: int | None) -> dict[str, Spec]:
        """Streams as the first cell hears of them; all if no names are given."""
        return self._streams.told(names, at_us)

    def page(self, stream: str, query: RecordQuery) -> RecordPage:
        """The records that a query asks for. Blocks for as long as a frame of the store takes to read: for a thread.

        Raises:
            NotFound: there is no such stream or shard.
            Invalid: the filter is none.
        """
        shard, offset, at_us, limit, topic_filter, decodes, raw = query
        wanted = None if topic_filter is None else check_filter(topic_filter)
        stored = self._reader.range_of(stream, shard)
        if at_us is not None:
            offset = self._reader.offset_at(stream, shard, at_us)
        items: list[RecordView] = []
        left = _MAX_BYTES
        following = None
        for number, record in self._reader.records(stream, shard, offset, wanted, limit + 1):
            if record is None:
                following = str(number)
                break
            payload = record.payload[:MAX_PAYLOAD_BYTES]
            left -= len(payload) + len(record.properties or "")
            if items and (len(items) == limit or left < 0):
                following = str(number)
                break
            message = message_of(record._replace(payload=payload))
            shown = self._tails.published(
                message, len(record.payload), decodes=decodes and record.rule is None
            )
            if raw:
                shown["payload"] |= {
                    "encoding": "base64",
                    "data": base64.b64encode(payload).decode(),
                }
            items.append(
                {
                    "shard": shard,
                    "offset": str(number),
                    "at": rfc3339(message.received_ns),
                    **shown,
                    "clientid": record.client_id,
                    "client_id": record.client_id,
                    "username": record.username,
                    "rule": record.rule,
                }
            )
        return {
            "items": items,
            "next": following,
            "total": stored.next_offset - stored.first_offset,
            "total_is_estimate": False,
            "first_offset": str(stored.first_offset),
            "next_offset": str(stored.next_offset),
        }
