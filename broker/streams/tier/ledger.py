"""Content of tiers, as the broker knows it: recorded in its store when the range server has reported it.

A record of a segment and what the tier then has of its shard are one commit. Only what is recorded may be trimmed.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from itertools import takewhile
from typing import Final, Literal

import msgspec
from typing_extensions import TypedDict

from broker.core.clock import Clock
from broker.core.kinds import counted
from broker.core.stream import ShardRange
from broker.core.times import MICROSECONDS, rfc3339_or_none
from broker.observe.alarms import Alarms
from broker.observe.log import get_logger
from broker.observe.metrics import Metrics
from broker.storage.store import Batch, LogShard
from broker.storage.writer import Writer
from broker.streams.catalogue import Catalogue, Stream
from broker.streams.settings import UNREAD_ALARM
from broker.streams.tier import report
from broker.streams.tier.report import Expired, Held, Removed, TierReport, TierState, Uploaded

_log = get_logger(__name__)

# A tier that has not succeeded for so long is not running.
_SILENT_S: Final = 120


class TieredShard(TypedDict):
    """The offsets of a shard that are in the tier; text, since JavaScript loses precision above 2^53."""

    shard: int
    first_offset: str
    next_offset: str


class TierView(TypedDict):
    """The tier of a stream: `running` while the store has just done what was asked of it, `failing` with the reason in
    `problem`. `bytes` are those of all objects. `records_waiting` are not in the store yet."""

    state: Literal["starting", "running", "failing"]
    problem: str | None
    last_success: str | None
    positions: list[TieredShard]
    records_waiting: int
    segments: int
    bytes: int
    oldest: str | None


class TierLedger:
    """Records what the range server tells. ``note`` is for the loop; reads may come from any thread."""

    def __init__(
        self,
        catalogue: Catalogue,
        writer: Writer,
        clock: Clock,
        metrics: Metrics,
        alarms: Alarms | None = None,
    ) -> None:
        self._catalogue = catalogue
        self._writer = writer
        self._clock = clock
        self._alarms = alarms
        self._store = writer.store
        self._held: dict[LogShard, Held] = {}
        self._states: dict[int, TierState] = {}
        self._uploaded = metrics.counter(
            "stream_tier_segments_uploaded", "segments of streams that were uploaded"
        )
        self._bytes = metrics.counter(
            "stream_tier_bytes_uploaded", "bytes of segments that were uploaded"
        )
        self._expired = metrics.counter(
            "stream_tier_segments_expired", "segments that were deleted for their age"
        )
        text = "uploaded segments that the store did not record"
        self._failures = metrics.counter("stream_tier_segments_unrecorded", text)
        text = "records of streams with a tier that were deleted on this machine before they were uploaded"
        self._lost = metrics.counter("stream_records_not_tiered", text, reason="retention_bytes")
        metrics.gauge(
            "stream_tier_records_waiting",
            self._all_waiting,
            "records that are not in their tier yet",
        )
        metrics.gauge(
            "stream_tier_failing", self._all_failing, "tiers whose store does not do what it should"
        )

    def held(self, shard: LogShard) -> Held:
        """Content of the tier for a shard."""
        tiered = self._held.get(shard)
        if tiered is None:
            tiered = self._held.setdefault(
                shard, report.unpack_held(self._store.get(report.held_key(shard)))
            )
        return tiered

    def readable(self, shard: LogShard) -> ShardRange:
        """The offsets of a shard that can be read, in the tier or in the store."""
        local = self._store.range_of(shard)
        tiered = self.held(shard)
        first = tiered.first_offset if tiered.reaches(local.first_offset) else local.first_offset
        return ShardRange(shard.shard, first, local.next_offset)

    def has_segments(self, stream: Stream) -> bool:
        """True if objects of a stream are in its tier."""
        return any(self.held(shard).segments for shard in stream.shards)

    def note(self, told: TierReport | None) -> None:
        """Take a report of the range server; None when it ended, and nothing is known of tiers from then on."""
        if told is None:
            self._states.clear()
        elif isinstance(told, TierState):
            self._states[told.log] = told
            for stream in self._catalogue:
                if stream.log == told.log:
                    self._alert(stream)
        else:
            self._writer.call(functools.partial(self._record, told), self._recorded)

    def look(self, stream: Stream, records: int) -> None:
        """Raise and end the alarms of a stream; ``records`` that are not uploaded were just trimmed."""
        self._alert(stream)
        self._lost.value += records
        if self._alarms is not None:
            deleted = f"stream {stream.name!r} deleted {counted(records, 'record')}"
            text = f"{deleted} outside its tier: retention.bytes is full"
            self._alarms.set(
                f"tier_losing:{stream.name}", records > 0, text, stream=stream.name, lost=records
            )

    def note_unread(self, stream: Stream, unread: Mapping[int, int]) -> float:
        """Keep segments that tables have not read: ``unread`` is the first such offset by shard. The part of their
        share that expired ones take, of the fullest shard. On the writer thread."""
        tier = stream.spec.tier
        key = report.unread_key(stream.log)
        value = msgspec.json.encode(dict(unread))
        if self._store.get(key) != value:
            self._store.commit(Batch(puts={key: value}))
        if tier is None or tier.retention == float("inf"):
            return 0.0
        oldest_us = self._clock.now_ns() / 1000 - tier.retention * 1_000_000
        share = tier.unread_bytes // len(stream.shards)
        most = 0
        for shard in stream.shards:
            if shard.shard in unread:
                scan = self._store.scan(report.segments_prefix(shard))
                expired = takewhile(
                    lambda segment: segment.running_max_us < oldest_us,
                    (report.unpack_segment(value) for _, value in scan),
                )
                most = max(
                    most,
                    sum(
                        segment.size_bytes
                        for segment in expired
                        if segment.next_offset > unread[shard.shard]
                    ),
                )
        return most / share

    def alert_unread(self, stream: Stream, part: float) -> None:
        """Raise or end the alarm of expired segments that tables have not read, which take a part of their share."""
        if self._alarms is not None:
            text = (
                f"the tier of stream {stream.name!r}: older segments that its tables or replays have not read take "
                f"{100 * part:.0f} % of tier.unread_bytes; beyond it the oldest are deleted. Try: sluice lake tables "
                f"ls, or more tier.unread_bytes."
            )
            self._alarms.set(
                f"tier_unread:{stream.name}", part > UNREAD_ALARM, text, stream=stream.name
            )

    def forget(self, stream: Stream) -> None:
        """A stream was removed, or no longer has a tier."""
        self._states.pop(stream.log, None)
        if self._alarms is not None:
            self._alarms.deactivate(f"tier_failing:{stream.name}")
            self._alarms.deactivate(f"tier_losing:{stream.name}")
            self._alarms.deactivate(f"tier_unread:{stream.name}")

    def view(self, stream: Stream) -> TierView | None:
        """The tier of a stream, None where it has none."""
        if stream.spec.tier is None:
            return None
        told = self._states.get(stream.log)
        tiered = [self.held(shard) for shard in stream.shards]
        problem = self._problem(told)
        return {
            "state": "failing" if problem else "starting" if told is None else "running",
            "problem": problem,
            "last_success": rfc3339_or_none(
                (told.succeeded_us if told else 0) or None, MICROSECONDS
            ),
            "positions": [
                {
                    "shard": shard.shard,
                    "first_offset": str(part.first_offset),
                    "next_offset": str(part.next_offset),
                }
                for shard, part in zip(stream.shards, tiered, strict=True)
            ],
            "records_waiting": self._waiting(stream),
            "segments": sum(part.segments for part in tiered),
            "bytes": sum(part.size_bytes for part in tiered),
            "oldest": rfc3339_or_none(
                min(
                    (part.oldest_us for part in tiered if part.first_offset < part.next_offset),
                    default=None,
                ),
                MICROSECONDS,
            ),
        }

    def _problem(self, told: TierState | None) -> str | None:
        if told is None:
            return None
        if told.problem is not None:
            return told.problem
        silent_s = (self._clock.now_ns() // 1000 - told.succeeded_us) / 1_000_000
        return (
            f"nothing was heard of the store for {silent_s:.0f} s" if silent_s > _SILENT_S else None
        )

    def _waiting(self, stream: Stream) -> int:
        if stream.spec.tier is None:
            return 0
        local = [self._store.range_of(shard) for shard in stream.shards]
        return sum(
            shard_range.next_offset
            - min(
                shard_range.next_offset, max(shard_range.first_offset, self.held(shard).next_offset)
            )
            for shard, shard_range in zip(stream.shards, local, strict=True)
        )

    def _all_waiting(self) -> int:
        return sum(map(self._waiting, self._catalogue))

    def _all_failing(self) -> int:
        return sum(self._problem(told) is not None for told in self._states.values())

    def _alert(self, stream: Stream) -> None:
        if self._alarms is not None:
            problem = self._problem(self._states.get(stream.log))
            text = f"the tier of stream {stream.name!r} fails: {problem}"
            self._alarms.set(
                f"tier_failing:{stream.name}", problem is not None, text, stream=stream.name
            )

    def _recorded(self, error: BaseException | None) -> None:
        if error is not None:  # told again after a while
            self._failures.value += 1
            _log.warning("stream.tier_not_recorded", reason=str(error))

    # Methods below run on the writer thread.

    def _record(self, told: Uploaded | Expired | Removed) -> None:
        stored = self._store.get(report.wanted_key(told.log))
        if stored is None:
            return
        if isinstance(told, Removed):
            self._forget(told.log)
        elif report.unpack_wanted(stored).is_removed:
            return
        elif isinstance(told, Uploaded):
            self._add(told)
        else:
            self._take(told)

    def _add(self, told: Uploaded) -> None:
        shard = LogShard(told.log, told.shard)
        segment = told.segment
        tiered = self.held(shard)
        if segment.first_offset < tiered.next_offset:
            return  # told twice
        after = tiered.with_segment(segment)
        self._write(
            shard,
            after,
            {report.segment_key(shard, segment.first_offset): msgspec.json.encode(segment)},
        )
        self._uploaded.value += 1
        self._bytes.value += segment.size_bytes

    def _take(self, told: Expired) -> None:
        shard = LogShard(told.log, told.shard)
        segment = told.segment
        key = report.segment_key(shard, segment.first_offset)
        if self._store.get(key) is None:
            return  # told twice
        left = (
            report.unpack_segment(value)
            for _, value in self._store.scan(report.segments_prefix(shard))
        )
        following = next(
            (later for later in left if later.first_offset > segment.first_offset), None
        )
        self._write(shard, self.held(shard).without(segment, following), {key: None})
        self._expired.value += 1

    def _write(self, shard: LogShard, held: Held, puts: dict[bytes, bytes | None]) -> None:
        self._store.commit(Batch(puts={**puts, report.held_key(shard): msgspec.json.encode(held)}))
        self._held[shard] = held

    def _forget(self, log: int) -> None:
        """A removed stream's objects are gone, so what was recorded of them goes too."""
        gone = [key for key, _ in self._store.scan(report.segments_of(log))]
        shards = [shard for shard in self._held if shard.log == log]
        stored = report.unpack_wanted(self._store.get(report.wanted_key(log)) or b"")
        gone += [report.held_key(LogShard(log, shard)) for shard in stored.numbers]
        gone += [report.wanted_key(log), report.unread_key(log)]
        self._store.commit(Batch(puts=dict.fromkeys(gone)))
        for shard in shards:
            del self._held[shard]
        self._states.pop(log, None)
