"""Options of a user's ``.option(...)`` calls, checked."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_sluice.client import Positions, StreamClient, check_epoch
from pyspark_sluice.errors import SourceError
from pyspark_sluice.records import COLUMNS

# Rows of one micro-batch where ``maxRowsPerTrigger`` is not set.
DEFAULT_MAX_ROWS = 500_000
# Seconds for which fewer rows than ``minRowsPerTrigger`` wait if ``maxTriggerDelayMs`` is not set.
DEFAULT_MAX_DELAY_MS = 10_000


@dataclass(frozen=True, slots=True)
class Options:
    """Options of one read. ``partitions`` is how many ranges a batch is split into, each of ``min_partition_rows`` or
    more. Fewer than ``min_rows`` new rows wait until ``max_delay_s`` after the previous batch. ``is_bounded`` is
    for Spark 4.1, see ``SluiceStreamReader.latestOffset``."""

    url: str
    token: str
    stream: str
    columns: tuple[str, ...]
    starting_offsets: str | None
    ending_offsets: str | None
    starting_time: str | None
    ending_time: str | None
    topic_filter: str | None
    max_rows: int
    min_rows: int
    max_delay_s: float
    partitions: int
    min_partition_rows: int
    deadline_s: float
    is_bounded: bool

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Options:
        """Read Spark's options (names in any case).

        Raises:
            SourceError: one is missing or has no usable value.
        """
        values = {name.lower(): value for name, value in options.items()}
        for pair in (("startingoffsets", "startingtime"), ("endingoffsets", "endingtime")):
            if all(name in values for name in pair):
                raise SourceError(f"give either {pair[0]} or {pair[1]}, not both")
        return cls(
            url=_required(values, "url"),
            token=values.get("token") or os.environ.get("SLUICE_API_TOKEN", ""),
            stream=_required(values, "stream"),
            columns=_columns(values.get("columns")),
            starting_offsets=values.get("startingoffsets"),
            ending_offsets=values.get("endingoffsets"),
            starting_time=values.get("startingtime"),
            ending_time=values.get("endingtime"),
            topic_filter=values.get("filter"),
            max_rows=_positive(values, "maxRowsPerTrigger", DEFAULT_MAX_ROWS),
            min_rows=_positive(values, "minRowsPerTrigger", 1),
            max_delay_s=_positive(values, "maxTriggerDelayMs", DEFAULT_MAX_DELAY_MS) / 1000,
            partitions=_positive(values, "partitions", 1),
            min_partition_rows=_positive(values, "minPartitionRows", 1),
            deadline_s=float(_positive(values, "retrySeconds", 60)),
            is_bounded=values.get("boundbatches", "").lower() == "true",
        )

    def client(self) -> StreamClient:
        """A client for the stream that is read."""
        return StreamClient(self.url, self.token, self.stream, self.deadline_s)

    def start(self, client: StreamClient, default: str) -> tuple[Positions, dict[int, int]]:
        """Start of reading per shard, and the positions it was derived from."""
        return _resolve(
            client, self.starting_offsets, self.starting_time, default, "startingOffsets"
        )

    def end(self, client: StreamClient, default: str) -> tuple[Positions, dict[int, int]]:
        """End of a batch read, per shard."""
        return _resolve(client, self.ending_offsets, self.ending_time, default, "endingOffsets")


def _resolve(
    client: StreamClient, offsets: str | None, time: str | None, default: str, option: str
) -> tuple[Positions, dict[int, int]]:
    where = client.positions(at=time)
    if time is not None:
        return where, {
            shard.shard: shard.next if shard.at is None else shard.at for shard in where.shards
        }
    text = (offsets or default).strip()
    if text.lower() == "earliest":
        return where, where.first()
    if text.lower() == "latest":
        return where, where.next()
    return where, parse_offsets(text, where, option)


def parse_offsets(text: str, where: Positions, option: str) -> dict[int, int]:
    """Offsets per shard from ``123``, ``{"0": 123}`` or a whole offset of this source.

    Raises:
        SourceError: the text is none of these, names other shards or another epoch of the stream.
    """
    try:
        document: Any = json.loads(text)
        if isinstance(document, int) and not isinstance(document, bool):
            return {shard.shard: document for shard in where.shards}
        if "epoch" in document:
            check_epoch(where.stream, document["epoch"], where.epoch)
        entries = document.get("s", document)
        offsets = {int(shard): int(offset) for shard, offset in entries.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise SourceError(
            f"{option} {text!r} is not understood; write 'earliest', 'latest', a number, or JSON as {{\"0\": 123}}"
        ) from error
    unknown = set(offsets) - {shard.shard for shard in where.shards}
    if unknown:
        raise SourceError(
            f"{option} names shard {min(unknown)}, which stream {where.stream!r} does not have"
        )
    return {**where.first(), **offsets}


def _required(options: Mapping[str, str], name: str) -> str:
    value = options.get(name, "").strip()
    if not value:
        raise SourceError(f"option {name!r} is missing; set .option({name!r}, ...)")
    return value


def _positive(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name.lower())
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise SourceError(f"option {name!r} is {text!r}; give a whole number of 1 or more")
    return value


def _columns(text: str | None) -> tuple[str, ...]:
    if not text:
        return COLUMNS
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in COLUMNS:
            raise SourceError(f"option 'columns' names {name!r}; there are {', '.join(COLUMNS)}")
    return names
