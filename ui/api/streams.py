"""Where streams begin and end, and the way to the process that serves their records.

Records never pass through here: a reader gets an address and a ticket, so that a cluster reading history does not
compete with the broker's event loop.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from starlette.responses import RedirectResponse

from broker.core.objects import Spec
from ui.api.context import Streams
from ui.api.models.streams import StreamPositions
from ui.api.operation import Operations
from ui.api.parameters import NamePath, microseconds, offset


def add_streams(router: APIRouter, streams: Streams) -> None:
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
        "Read a range of a stream",
        status=307,
        problems=(404, 422),
        outcome="Location has the range, with a ticket",
    )
    def records(
        name: NamePath,
        from_: Annotated[str, Query(alias="from", description="First offset.")],
        to: Annotated[str, Query(description="The offset after the last.")],
        shard: Annotated[int, Query(ge=0)] = 0,
    ) -> RedirectResponse:
        """Redirects to the range server, which serves the records as Arrow IPC."""
        first, end = offset(from_, "from"), offset(to, "to")
        where = streams.stream_ranges(name)
        query = urlencode({"from": first, "to": end, "ticket": where["ticket"]})
        return RedirectResponse(f"{where['ranges_url'].rstrip('/')}/streams/{where['log']}/{shard}?{query}", 307)


def _exact(positions: Spec) -> Spec:
    """Positions with offsets as texts: JavaScript loses precision above 2^53."""
    shards = [
        {key: str(value) if key.endswith("_offset") else value for key, value in shard.items()}
        for shard in positions["shards"]
    ]
    return {**positions, "shards": shards}
