"""Streams, and the tables that follow them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field, RootModel

from bridges.spark.broker_side.views import (
    HeldColumn,
    JobError,
    MemberTable,
    ReplayProgress,
    TableColumn,
    TablePart,
    TableState,
)
from broker.admin.stream_records import RecordPage
from ui.api.models.shapes import Body


class ShardPosition(BaseModel):
    """First and next offset of a shard; offsets are strings, since JavaScript loses precision above 2^53.

    A shard in another cell has a `log` and `ticket` of its own, on another machine a `ranges_url` too. It is `stale`
    while its cell does not answer: its offsets are then those that were known last.
    """

    shard: int
    first_offset: str
    next_offset: str
    at_offset: str | None = None
    log: int | None = None
    ticket: str | None = None
    ranges_url: str | None = None
    stale: bool | None = None


class StreamPositions(BaseModel):
    """First and next offsets of a stream, and the address to read its records from.

    That is ``{ranges_url}/streams/{log}/{shard}?from=&to=``, with ``ticket`` as bearer; a shard may have
    another ``log``, ``ticket`` and ``ranges_url``. ``epoch`` changes when a stream is deleted and created again.
    """

    stream: str
    kind: Literal["topics", "rows"]
    shards: list[ShardPosition]
    ranges_url: str
    ticket: str
    expires_at: str
    epoch: str
    log: int
    now_us: str | None = Field(
        None, description="The broker's time of the answer, in microseconds since 1970."
    )


class StreamRecordPage(RootModel[RecordPage]):
    """A page of a shard, which holds offsets from `first_offset` up to, not including, `next_offset`."""


class TableReport(Body):
    """Progress report of the job of a table."""

    state: TableState = Field(examples=["running"])
    job: str | None = None
    at: str | None = None
    last_batch: int | None = None
    last_commit_at: str | None = None
    last_commit_rows: int | None = None
    offsets: dict[str, str] | None = None
    rows: int | None = None
    dead_letters: int | None = None
    rows_per_s: float | None = None
    files: int | None = None
    bytes: int | None = None
    partitions: int | None = None
    commit_s: float | None = None
    table_version: int | None = None
    last_error: JobError | None = None
    columns: list[TableColumn] | None = None
    tables: list[MemberTable] | None = None
    over_max_tables: int | None = None
    held: list[HeldColumn] | None = None
    parts: dict[str, TablePart] | None = None
    begins: dict[str, str] | None = None
    is_lost: bool | None = None
    replay: ReplayProgress | None = None
