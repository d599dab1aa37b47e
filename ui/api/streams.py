"""Where streams begin and end, their records in pages, and the way to the process that serves ranges.

Ranges never pass through here: a reader gets an address and a ticket, so that a cluster reading history does not
compete with the broker's event loop.
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from starlette.responses import RedirectResponse

from broker.admin.stream_records import RecordQuery
from broker.core.objects import Spec
from ui.api.context import Streams
from ui.api.deadline import BoundedCalls
from ui.api.models.streams import StreamPositions, StreamRecordPage
from ui.api.objects import Cursor, Limit
from ui.api.operation import Operations
from ui.api.parameters import NamePath, microseconds, offset


def add_streams(router: APIRouter, streams: Streams, calls: BoundedCalls) -> None:
    """Add ``GET /streams/{name}/positions`` and ``/records``."""
    ops = Operations(router, "Streams")

    @ops.get(
        "/streams/{name}/positions",
        "getStreamPositions",
        "Show where a stream begins and ends",
        answer=StreamPositions,
        problems=(404, 422),
    )
    def positions(
        name: NamePath,
        at: Annotated[str | None, Query(description="A time: RFC 3339 or milliseconds since 1970.")] = None,
    ) -> Spec:
        """Returns the first and next offset of each shard, and the address and ticket to read records with. With `at`
        also the first offset at or after that time.
        """
        at_us = None if at is None else microseconds(at, "at")
        found = streams.positions(name, at_us)
        return {"stream": name, **_exact(found), **streams.stream_ranges(name)}

    @ops.get(
        "/streams/{name}/records",
        "readStreamRecords",
        "Read the records of a stream",
        answer=StreamRecordPage,
        problems=(404, 422),
        redirect="With `to`: Location has the range as Arrow IPC, with a ticket",
    )
    async def records(
        name: NamePath,
        from_: Annotated[
            str,
            Query(alias="from", description="First offset, or a time in RFC 3339. The first record if absent."),
        ] = "0",
        to: Annotated[str | None, Query(description="The offset after the last, for a range as Arrow IPC.")] = None,
        shard: Annotated[int, Query(ge=0)] = 0,
        filter: Annotated[
            str | None, Query(description="Topic filter: only records with such topics.", examples=["plant/+/temp"])
        ] = None,
        limit: Limit = 100,
        cursor: Cursor = None,
        decode: Annotated[
            bool, Query(description="Whether payloads are decoded by the schemas that are bound to their topics.")
        ] = False,
        raw: Annotated[bool, Query(description="Whether payloads are shown as base64, byte for byte.")] = False,
    ) -> Any:
        """Returns records of one shard as JSON, at most 1 MiB of payloads; payloads are cut after 64 KiB. With `to`,
        redirects to the range server, which serves the whole range as Arrow IPC.

        With `filter`, a page may have fewer records than `limit`, or none, and go on at `next`.
        """
        if to is not None:
            first, end = offset(from_, "from"), offset(to, "to")
            where = streams.stream_ranges(name)
            asked = {"from": first, "to": end, "ticket": where["ticket"]} | ({"filter": filter} if filter else {})
            query = urlencode(asked)
            return RedirectResponse(f"{where['ranges_url'].rstrip('/')}/streams/{where['log']}/{shard}?{query}", 307)
        is_offset = cursor is not None or from_.isdigit()
        first = offset(cursor or from_, "cursor" if cursor else "from") if is_offset else 0
        at_us = None if is_offset else microseconds(from_, "from")
        wanted = RecordQuery(shard, first, at_us, limit, filter, decode, raw)
        return await calls.run("reading the records", lambda: streams.page(name, wanted))


def _exact(positions: Spec) -> Spec:
    """Positions with offsets as texts: JavaScript loses precision above 2^53."""
    shards = [
        {key: str(value) if key.endswith("_offset") else value for key, value in shard.items()}
        for shard in positions["shards"]
    ]
    return {**positions, "shards": shards}
