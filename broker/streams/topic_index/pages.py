"""Pages of an indexed stream for the broker: asked of the range server, which alone has the index open."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlencode

from broker.core.lazy_module import LazyModule
from broker.core.stream import StreamRecord
from broker.core.topic import TopicFilter
from broker.storage.store import LogShard
from broker.streams.topic_index.report import IndexReport

if TYPE_CHECKING:
    import pyarrow as pa

    from broker.storage import records
else:
    pa, records = LazyModule("pyarrow"), LazyModule("broker.storage.records")

_TIMEOUT_S: Final = 10.0
_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class RangeAccess(NamedTuple):
    """How the range server of this broker is reached. ``certfile`` is the certificate that it shows, None for HTTP."""

    host: str
    port: int
    ticket: str
    certfile: str | None


class RecordPage(NamedTuple):
    """Records with their offsets, and the offset to go on from."""

    found: list[tuple[int, StreamRecord]]
    next_offset: int


class IndexPages:
    """Reads pages by the index. ``report`` returns its state."""

    def __init__(self, access: Callable[[int], RangeAccess], report: Callable[[], IndexReport]) -> None:
        self._access, self.report = access, report

    def read(self, shard: LogShard, start: int, end: int, topic_filter: TopicFilter, limit: int) -> RecordPage | None:
        """A page of the records in ``[start, end)`` with a filter's topics, at least ``limit`` where so many are found.

        None where the index has none of them, or the range server does not answer. Blocks for as long as it takes.
        """
        if not any((one.log, one.shard) == shard and start < one.next_offset for one in self.report().shards):
            return None
        try:
            return self._ask(shard, {"from": start, "to": end, "filter": topic_filter.text, "limit": limit})
        except (OSError, http.client.HTTPException):
            return None

    def _ask(self, shard: LogShard, query: dict[str, str | int]) -> RecordPage | None:
        access = self._access(shard.log)
        host = _ANY.get(access.host, access.host)
        if access.certfile is None:
            connection = http.client.HTTPConnection(host, access.port, timeout=_TIMEOUT_S)
        else:
            context = _trusting(access.certfile)
            connection = http.client.HTTPSConnection(host, access.port, timeout=_TIMEOUT_S, context=context)
        try:
            headers = {"authorization": f"Bearer {access.ticket}"}
            connection.request("GET", f"/streams/{shard.log}/{shard.shard}?{urlencode(query)}", headers=headers)
            answer = connection.getresponse()
            if answer.status != http.client.OK:
                return None
            batches = pa.ipc.open_stream(answer.read())
            found = [one for batch in batches for one in records.decode(batch)]
            return RecordPage(found, int(answer.headers["next-offset"]))
        finally:
            connection.close()


def _trusting(certfile: str) -> ssl.SSLContext:
    """Trust in this very certificate, by whatever name: it is the one of our own child."""
    context = ssl.create_default_context(cafile=certfile)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
