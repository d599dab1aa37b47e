"""Streams, and the tables that follow them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field, RootModel

from broker.admin.stream_records import RecordPage
from ui.api.models.shapes import CheckedBody


class ShardPosition(BaseModel):
    """Where a shard begins and ends; offsets are texts, since JavaScript loses precision above 2^53."""

    shard: int
    first_offset: str
    next_offset: str
    at_offset: str | None = None


class StreamPositions(BaseModel, extra="allow"):
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


class StreamRecordPage(RootModel[RecordPage]):
    """A page of a shard, which holds offsets from `first_offset` up to, not including, `next_offset`."""


class Preview(BaseModel, extra="allow"):
    """The newest rows of a table, newest first."""

    columns: list[str]
    rows: list[dict[str, Any]]


class TableReport(CheckedBody):
    """How the job of a table is doing."""

    state: str = Field(examples=["running"])
    job: Any = None
    at: Any = None
    last_batch: Any = None
    last_commit_at: Any = None
    last_commit_rows: Any = None
    offsets: Any = None
    rows: Any = None
    dead_letters: Any = None
    rows_per_s: Any = None
    table_version: Any = None
    last_error: Any = None
    columns: Any = None
