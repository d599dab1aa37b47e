"""Where streams begin and end, and the way to the process that serves their records.

Records never pass through here: a reader gets an address and a ticket, so that a cluster reading history does not
compete with the broker's event loop.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from starlette.responses import RedirectResponse, Response

from broker.core.objects import Spec
from ui.api.context import Streams
from ui.api.models.streams import StreamPositions
from ui.api.operation import described
from ui.api.parameters import NamePath, checked_name, microseconds, offset
from ui.api.wire import answer


def add_streams(router: APIRouter, streams: Streams) -> None:
    """Add ``GET /streams/{name}/positions`` and ``/records``."""

    @router.get(
        "/streams/{name}/positions",
        operation_id="getStreamPositions",
        tags=["Streams"],
        summary="Show where a stream begins and ends",
        **described(answer=StreamPositions, problems=(404, 422)),
    )
    async def positions(
        name: NamePath,
        at: Annotated[str | None, Query(description="A time: RFC 3339 or milliseconds since 1970.")] = None,
    ) -> Response:
        """Returns the first and next offset of each shard, and the address and ticket to read records with. With `at`
        also the first offset at or after that time.
        """
        at_us = None if at is None else microseconds(at, "at")
        found = streams.positions(checked_name(name), at_us)
        return answer({"stream": name, **_exact(found), **streams.stream_ranges(name)})

    @router.get(
        "/streams/{name}/records",
        operation_id="readStreamRecords",
        tags=["Streams"],
        summary="Read a range of a stream",
        **described(status=307, problems=(404, 422), description="Location has the range, with a ticket"),
    )
    async def records(
        name: NamePath,
        from_: Annotated[str, Query(alias="from", description="First offset.")],
        to: Annotated[str, Query(description="The offset after the last.")],
        shard: Annotated[int, Query(ge=0)] = 0,
    ) -> Response:
        """Redirects to the range server, which serves the records as Arrow IPC."""
        first, end = offset(from_, "from"), offset(to, "to")
        where = streams.stream_ranges(checked_name(name))
        query = urlencode({"from": first, "to": end, "ticket": where["ticket"]})
        return RedirectResponse(f"{where['ranges_url'].rstrip('/')}/streams/{where['log']}/{shard}?{query}", 307)


def _exact(positions: Spec) -> Spec:
    """Positions with offsets as texts: JavaScript loses precision above 2^53."""
    shards = [
        {key: str(value) if key.endswith("_offset") else value for key, value in shard.items()}
        for shard in positions["shards"]
    ]
    return {**positions, "shards": shards}
