"""Positions of streams, their records in pages, and the address of the process that serves ranges.

Ranges never pass through here: a reader gets an address and a ticket, so that a cluster reading history does not
compete with the broker's event loop.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse

from broker.admin.jobs import Jobs
from broker.admin.replays.request import StreamReplayReport, StreamReplayRequest
from broker.admin.replays.service import StreamReplays
from broker.admin.stream_imports import ImportedPart, StreamImports
from broker.admin.stream_records import RecordQuery, StreamRecords
from broker.core.errors import Invalid, Problem
from broker.core.objects import Spec
from ui.api.cell_joins import Joining
from ui.api.deadline import BoundedCalls
from ui.api.jobs import PATH
from ui.api.json_bodies import answer, read_bytes
from ui.api.models.streams import StreamPositions, StreamRecordPage
from ui.api.objects import Cursor, Limit
from ui.api.operation import Operations
from ui.api.parameters import NamePath, microseconds, offset
from ui.api.security import reads_until_s


def add_replays(router: APIRouter, replays: StreamReplays, jobs: Jobs) -> None:
    """Add ``POST /streams/{name}:replay``."""
    ops = Operations(router, "Streams", "stream", "named")

    @ops.post(
        "/streams/{name}:replay",
        "replayStream",
        "Send records of a stream again",
        answer=StreamReplayReport,
        does="job",
        at="jobs",
        may_be_a_job=True,
        takes_key=True,
    )
    async def replay(name: NamePath, body: StreamReplayRequest, request: Request) -> Any:
        """Publishes the records on topics, appends them to another stream, or writes them to an action, at most at the
        rate, in the order of their times. It is a job that continues when the broker starts again, and can be paused:
        `Prefer: respond-async` does not wait for its end.

        Messages have the user properties `sluice-replay`, `sluice-replay-record` and `sluice-replay-time`, rows of
        actions the column `replay`. Records go into streams once, and so to durable sessions and buffers on disk. Where
        the broker is killed, other records may be sent twice, with the same marks.
        """
        job = await replays.start(name, body)
        if "respond-async" not in request.headers.get("prefer", ""):
            return await replays.over(job["id"])
        started = answer(jobs.get(job["id"]), 202)
        started.headers["Location"] = f"{PATH}/{job['id']}"
        return started


def add_imports(router: APIRouter, imports: StreamImports) -> None:
    """Add ``POST /streams/{name}:import``."""
    ops = Operations(router, "Streams", "stream", "named")

    @ops.post(
        "/streams/{name}:import",
        "importStreamRecords",
        "Append records of a file to a stream",
        answer=ImportedPart,
        does="job",
        at="parts",
        joining=Joining(("records",)),
        media_types=tuple(_IMPORTED),
        problems=(404, 409, 422),
    )
    async def import_records(
        name: NamePath,
        request: Request,
        import_id: Annotated[
            str | None,
            Query(
                alias="import",
                pattern="^[0-9A-Za-z-]{1,64}$",
                description="Identifier of an import in parts.",
            ),
        ] = None,
        part: Annotated[int, Query(ge=0, description="Number of the part, from 0.")] = 0,
    ) -> ImportedPart:
        """Appends records with their topic, time, payload, client and properties, at most 20,000 and 16 MiB. A record
        of NDJSON or Parquet needs `topic` and `payload`. No stage sees them, and no client gets them.

        With `import` and `part`, a part that is sent again within a day is appended once, also across `kill -9`.
        """
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type not in _IMPORTED:
            expected = Problem(
                f"expected {', '.join(_IMPORTED)}, got {media_type!r}", "/headers/Content-Type"
            )
            raise Invalid("the records cannot be imported", [expected])
        return await imports.append(
            name, _IMPORTED[media_type], await read_bytes(request), import_id, part
        )


_IMPORTED: Final = {
    "application/x-ndjson": "ndjson",
    "application/vnd.apache.parquet": "parquet",
    "application/vnd.apache.arrow.stream": "arrow",
}


def add_streams(router: APIRouter, streams: StreamRecords, calls: BoundedCalls) -> None:
    """Add ``GET /streams/{name}/positions`` and ``/records``."""
    ops = Operations(router, "Streams", "stream", "named")

    @ops.get(
        "/streams/{name}/positions",
        "getStreamPositions",
        "Show where a stream begins and ends",
        answer=StreamPositions,
        problems=(404, 409, 422),
        at="shards",
        topics="named",
    )
    async def positions(
        name: NamePath,
        request: Request,
        at: Annotated[
            str | None, Query(description="A time: RFC 3339 or milliseconds since 1970.")
        ] = None,
    ) -> Spec:
        """Returns the first and next offset of each shard, and the address and ticket to read records with. With `at`
        also the first offset at or after that time.
        """
        at_us = None if at is None else microseconds(at, "at")
        return await asyncio.to_thread(
            streams.positions, name, at_us, reads_until_s(request), needs_all=True
        )

    @ops.get(
        "/streams/{name}/records",
        "readStreamRecords",
        "Read the records of a stream",
        answer=StreamRecordPage,
        problems=(404, 409, 422),
        at="shards",
        topics="named",
        redirect="With `to`: Location has the range, with a ticket",
    )
    async def records(
        name: NamePath,
        request: Request,
        from_: Annotated[
            str,
            Query(
                alias="from",
                description="First offset, or a time in RFC 3339. The first record if absent.",
            ),
        ] = "0",
        to: Annotated[
            str | None, Query(description="The offset after the last, for a range as a file.")
        ] = None,
        shard: Annotated[int, Query(ge=0)] = 0,
        filter: Annotated[
            str | None,
            Query(
                description="Topic filter: only records with such topics.",
                examples=["plant/+/temp"],
            ),
        ] = None,
        limit: Limit = 100,
        cursor: Cursor = None,
        decode: Annotated[
            bool,
            Query(
                description="Whether payloads are decoded by the schemas that are bound to their topics."
            ),
        ] = False,
        raw: Annotated[
            bool, Query(description="Whether payloads are shown as base64, byte for byte.")
        ] = False,
        format: Annotated[
            Literal["arrow", "ndjson", "parquet"],
            Query(description="With `to`: the format of the range."),
        ] = "arrow",
    ) -> Any:
        """Returns records of one shard as JSON, at most 1 MiB of payloads; payloads are cut after 64 KiB. With `to`,
        redirects to the range server, which serves the whole range, byte for byte, as Arrow IPC, NDJSON or Parquet.

        With `filter`, a page may have fewer records than `limit`, or none, and continue at `next`.
        """
        if to is not None:
            first = offset(from_, "from")
            end = offset(to, "to")
            where = streams.positions(name, until_s=reads_until_s(request), needs_all=True)
            shards = [position for position in where["shards"] if position["shard"] == shard]
            place: Spec = {**where, **(shards[0] if shards else {})}
            asked = {"from": first, "to": end, "ticket": place["ticket"]} | (
                {"filter": filter} if filter else {}
            )
            query = urlencode(asked if format == "arrow" else {**asked, "format": format})
            return RedirectResponse(
                f"{place['ranges_url'].rstrip('/')}/streams/{place['log']}/{shard}?{query}", 307
            )
        is_offset = cursor is not None or from_.isdigit()
        first = offset(cursor or from_, "cursor" if cursor else "from") if is_offset else 0
        at_us = None if is_offset else microseconds(from_, "from")
        wanted = RecordQuery(shard, first, at_us, limit, filter, decode, raw)
        return await calls.run("reading the records", lambda: streams.page(name, wanted))
