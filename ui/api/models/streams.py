"""Streams, and the tables that follow them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from bridges.spark.service import JobError, TableColumn
from ui.api.models.shapes import CheckedBody


class ShardPosition(BaseModel):
    """Where a shard begins and ends; offsets are texts, since JavaScript loses precision above 2^53."""

    shard: int
    first_offset: str
    next_offset: str
    at_offset: str | None = None


class StreamPositions(BaseModel):
    """Where a stream begins and ends, and where its records are read.

    That is ``{ranges_url}/streams/{log}/{shard}?from=&to=``, with ``ticket`` as bearer. ``epoch`` changes when a stream
    is deleted and made again.
    """

    stream: str
    kind: Literal["topics", "rows"]
    shards: list[ShardPosition]
    ranges_url: str
    ticket: str
    expires_at: str
    epoch: str
    log: int


class TableReport(CheckedBody):
    """How the job of a table is doing."""

    state: str = Field(examples=["running"])
    job: str | None = None
    at: str | None = None
    last_batch: int | None = None
    last_commit_at: str | None = None
    last_commit_rows: int | None = None
    offsets: dict[str, str] | None = None
    rows: int | None = None
    dead_letters: int | None = None
    rows_per_s: float | None = None
    table_version: int | None = None
    last_error: JobError | None = None
    columns: list[TableColumn] | None = None
