"""Management of streams: created, changed, shown and deleted, and their positions."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any, Final, Literal, NotRequired

from pydantic import ValidationError
from typing_extensions import TypedDict

from broker.config.spec_problems import spec_problems
from broker.core.clock import Clock, SystemClock
from broker.core.contributor import Change, Contributor, TopicStage
from broker.core.errors import (
    AlreadyExists,
    ConfigError,
    InUse,
    Invalid,
    Problem,
    ReadOnly,
    SluiceError,
)
from broker.core.kinds import counted
from broker.core.objects import Listed, ObjectSection, Spec, saving, unusable
from broker.core.signals import Signal
from broker.core.stage import Plans
from broker.core.stream import ShardRange
from broker.core.times import MICROSECONDS, rfc3339_or_none
from broker.core.tracing import Spans
from broker.observe.alarms import Alarms
from broker.observe.counter_rates import STEP_S, CounterRate
from broker.observe.log import get_logger
from broker.observe.metrics import Metrics
from broker.storage.store import LogShard
from broker.storage.writer import Writer
from broker.streams.capture import CaptureTap, RowAppender, StreamTraces
from broker.streams.catalogue import Catalogue, Stream
from broker.streams.maintenance import Maintenance
from broker.streams.other_cells import CELL_LOGS, Heard, together
from broker.streams.range_client import RangeClient
from broker.streams.reader import Extent, StreamReader
from broker.streams.settings import Retention, StreamSettings, StreamSpec, TierSettings
from broker.streams.tier.ledger import TierLedger, TierView
from broker.streams.tier.logs import Logs, TieredLogs
from broker.streams.tier.places import TierPlaces
from broker.streams.topic_index.pages import IndexPages
from broker.streams.topic_index.report import READY_RECORDS, IndexReport

_log = get_logger(__name__)

# Members of a stream as it is shown that say what it holds; ignored when it is sent back.
_SHOWN_ONLY: Final = frozenset(
    {
        "kind",
        "epoch",
        "positions",
        "records",
        "bytes",
        "oldest",
        "newest",
        "records_per_s",
        "index_state",
        "tier_state",
    }
)


class ShardOffsets(TypedDict):
    """Start and end of a shard; offsets are strings, since JavaScript loses precision above 2^53. ``at_offset`` is
    the first offset at or after the time that was asked for.

    Shards of other cells have a ``log`` and ``ticket`` of their own; they are ``stale`` if their cell does not answer,
    and are then as it showed them last.
    """

    shard: int
    first_offset: str
    next_offset: str
    at_offset: NotRequired[str]
    log: NotRequired[int]
    ticket: NotRequired[str]
    ranges_url: NotRequired[str]
    stale: NotRequired[bool]


class StreamExtent(TypedDict):
    """Content of a stream in the data directory, and the times of its oldest and newest record, null where it has
    none."""

    positions: list[ShardOffsets]
    records: int
    bytes: int
    oldest: str | None
    newest: str | None


class IndexState(TypedDict):
    """The topic index of a stream: `ready` when only the newest records wait to be indexed, `failing` with the reason
    in `problem` while work on it fails. Reads are right in every state. `bytes` are before compression."""

    state: Literal["building", "ready", "failing"]
    records_waiting: int
    bytes: int
    problem: str | None


class StreamReadOnly(StreamExtent):
    """Content of a stream and its rate of growth. ``kind`` is what its records are, messages (``topics``) or rows;
    ``epoch`` changes when a stream is deleted and created again."""

    kind: Literal["topics", "rows"]
    epoch: str
    records_per_s: float
    index_state: IndexState | None
    tier_state: TierView | None


class StreamService(Contributor):
    """The verbs of streams; implements ``broker.core.objects.ObjectService``. Owns capture and background work.

    ``tap`` captures messages in the pipeline, ``appender`` takes the rows of rules, ``reader`` reads.
    """

    kind: Final = "stream"

    def __init__(
        self,
        writer: Writer,
        catalogue: Catalogue,
        section: ObjectSection,
        plans: Plans,
        *,
        settings: StreamSettings | None = None,
        users: Callable[[str], Sequence[object]] = lambda _name: (),
        unread_of: Callable[[str], Mapping[int, int]] = lambda _name: {},
        access: Callable[[int, float, int | None], Mapping[str, str]] = lambda *_: {},
        index: IndexPages | None = None,
        ranges: RangeClient | None = None,
        places: TierPlaces | None = None,
        alarms: Alarms | None = None,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
        spans: Spans | None = None,
        is_behind_first: bool = False,
    ) -> None:
        """Nothing is opened before ``start``.

        Args:
            writer: where appends go; streams lie in its store.
            catalogue: those streams.
            section: where specifications are kept.
            plans: forgotten when what is captured changes.
            settings: defaults of streams and the pace of background work.
            users: the objects that use a stream; asked before it is deleted.
            unread_of: by shard, the first offset of a stream that some object still has to read.
            access: members of ``positions`` with the address and ticket for ranges of a log
                (``RangesProcess.access``).
            index: reads by the topic index, which the range server keeps.
            ranges: asks the range server, which reads tiers.
            places: where tiers may be.
            alarms: for tiers that fail, and streams that are full of unread records.
            clock: for retention and rates.
            metrics: where counts go.
            spans: gets the traces whose messages streams have.
            is_behind_first: whether tables that read these streams are in another cell.
        """
        self._writer = writer
        self._section = section
        self._plans = plans
        self._settings = settings or StreamSettings()
        self._users = users
        self._access = access
        self._unread_of = unread_of
        self._is_behind_first = is_behind_first
        self._unread_elsewhere: Mapping[str, Mapping[int, int]] | None = None
        self._clock, self._metrics = clock or SystemClock(), metrics or Metrics()
        self._catalogue = catalogue
        traces = StreamTraces(spans or Spans(), writer, lambda name: self.reader.ranges(name))
        self.tap = CaptureTap(self._catalogue, writer, traces)
        self.appender = RowAppender(self._catalogue, writer, traces)
        self._index, self._places = index, places or TierPlaces()
        self.tiers = TierLedger(catalogue, writer, self._clock, self._metrics, alarms)
        self.logs: Logs = (
            writer.store if ranges is None else TieredLogs(writer.store, self.tiers, ranges)
        )
        self.reader = StreamReader(writer.store, catalogue, index, self.logs)
        self._maintenance = Maintenance(
            self._catalogue,
            writer,
            self._settings,
            self._clock,
            self._metrics,
            self.tiers,
            self._unread_here,
            alarms,
        )
        self._rates: defaultdict[str, CounterRate] = defaultdict(CounterRate)
        self._unread_times: dict[LogShard, tuple[int, int]] = {}
        """The first record of a shard that a table of the first cell has not read, and when it was published."""
        self.on_deleted = Signal[()]()
        """A stream was deleted."""
        self._tasks: list[asyncio.Task[None]] = []
        if index is not None:
            _measure(index, self._metrics, self._catalogue, self._waiting)

    def start(self) -> None:
        """Open the streams of the configuration and begin background work. On the loop.

        Raises:
            ConfigError: specifications that are wrong, all of them.
        """
        problems: list[str] = []
        for spec in self._section.load():
            try:
                self._catalogue.open(self._parse(spec))
            except SluiceError as error:
                problems.append(unusable(self._section, "stream", spec.get("name"), error))
        if problems:
            raise ConfigError(problems)
        self._catalogue.follow()
        self._catalogue.finish_removals()
        if undefined := self._catalogue.undefined():
            _log.warning(
                "stream.without_definition",
                streams=undefined,
                effect="no configuration file defines them: their records are kept, and nothing is captured into them",
            )
        self._plans.invalidate()
        self._tasks = [
            asyncio.create_task(self._maintenance.run(), name="stream maintenance"),
            asyncio.create_task(self._measure_rates(), name="stream rates"),
        ]

    def follow(self) -> None:
        """Do without the streams that the first cell has deleted while this one was away."""
        if self._catalogue.follow():
            self._plans.invalidate()

    def put_off_sealing(self, *, put_off: bool) -> None:
        """Pause or resume the merging of small frames; other background work continues."""
        self._maintenance.is_sealing_put_off = put_off

    async def stop(self) -> None:
        """End background work. Before the writer is closed."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        self._tasks = []

    def list(self) -> Listed:
        """All streams, in the order they were made."""
        return Listed([stream.name for stream in self._catalogue], self.get)

    def get(self, name: str) -> Spec:
        """One stream: its specification, and under ``shards``, ``records``, ``bytes`` and so on what it holds."""
        return self._show(self._catalogue.get(name))

    def create(self, spec: Spec) -> Spec:
        """Make a stream; it captures from the next message on."""
        parsed = self._parse(spec)
        if parsed.name in self._catalogue:
            raise AlreadyExists("stream", parsed.name)
        saving()
        stream = self._catalogue.open(parsed)
        try:
            self._section.save({parsed.name: _spec_of(stream)})
        except SluiceError:
            self._catalogue.remove(parsed.name)
            raise
        self._plans.invalidate()
        return self._show(stream)

    def replace(self, name: str, spec: Spec) -> Spec:
        """Change description, filters and retention; a stream keeps its kind, its shards and its records."""
        stream = self._catalogue.get(name)
        self._refuse_fixed(name)
        parsed = self._parse({"name": name, **spec})
        self._refuse_other_layout(stream, parsed)
        self._refuse_other_tier(stream, parsed)
        before = stream.spec
        saving(before != parsed)
        self._catalogue.describe(stream, parsed)
        try:
            self._section.save({name: _spec_of(stream)})
        except SluiceError:
            self._catalogue.describe(stream, before)
            raise
        if parsed.tier is None:
            self.tiers.forget(stream)
        self._plans.invalidate()
        return self._show(stream)

    def delete(self, name: str) -> None:
        """Delete a stream with its records, and the objects of its tier. Refused while rules or tables name it."""
        stream = self._catalogue.get(name)
        self._refuse_fixed(name)
        if users := self._users(name):
            raise InUse("stream", name, users)
        saving()
        self._section.save({name: None})
        self._catalogue.remove(name)
        self.tiers.forget(stream)
        self._rates.pop(name, None)
        self._plans.invalidate()
        self.on_deleted()

    def positions(
        self,
        name: str,
        at_us: int | None = None,
        until_s: float = inf,
        *,
        needs_all: bool = False,
    ) -> dict[str, Any]:
        """The positions of a stream, for readers; offsets are texts, since JSON numbers are not exact everywhere.

        Args:
            name: the stream.
            at_us: a time in microseconds since the epoch; then each shard has ``at_offset``, the first offset at or
                after it. Where it is in a tier, this blocks for as long as the object store takes.
            until_s: the Unix time at which the ticket expires at the latest.
            needs_all: whether the shards of a cell that has not shown them yet may not be missing.

        Raises:
            NotFound: there is no such stream.
            Unavailable: the object store does not answer, or another cell has not shown its shards.
        """
        stream = self._catalogue.get(name)
        shards = []
        for shard_range in self.reader.readable(name):
            shard = _shown_range(shard_range)
            if at_us is not None:
                shard["at_offset"] = str(self.reader.offset_at(name, shard_range.shard, at_us))
            shards.append(shard)
        now_us = self._clock.now_ns() // 1000
        if (others := self.reader.others) is not None:
            if at_us is not None:
                shown = others.at(name, at_us)
            else:
                shown = others.require(name) if needs_all else others.of(name)
            shards += self._elsewhere(shown, until_s)
            now_us = min([now_us, *(stream["now_us"] for stream in shown.values())])
        place = {
            "stream": name,
            "kind": stream.spec.kind,
            "epoch": stream.epoch,
            "log": stream.log,
            "now_us": str(now_us),
        }
        return {**place, "shards": shards, **self._access(stream.log, until_s, None)}

    def _elsewhere(self, shown: Mapping[int, Heard], until_s: float) -> Iterator[ShardOffsets]:
        """The shards of other cells, as readers get them."""
        others = self.reader.others
        assert others is not None
        for cell, stream in shown.items():
            machine = others.machines.get(cell)
            log = stream["log"] + (0 if cell == machine else cell * CELL_LOGS)
            ticket = self._access(log, until_s, machine).get("ticket", "")
            for position in stream["shards"]:
                shard: ShardOffsets = {
                    "shard": position["shard"],
                    "first_offset": position["first_offset"],
                    "next_offset": position["next_offset"],
                    "log": log,
                    "ticket": ticket,
                }
                if machine is not None:
                    shard["ranges_url"] = others.urls[machine]
                if "at_offset" in position:
                    shard["at_offset"] = position["at_offset"]
                if others.is_away(cell):
                    shard["stale"] = True
                yield shard

    def told(self, names: Sequence[str] | None, at_us: int | None = None) -> dict[str, Spec]:
        """Streams as the first cell hears of them: as they are shown, the readable range of each shard, the first
        record that a table there has not read, and with a time in microseconds since 1970 the offset at it."""
        told = {}
        for stream in self._catalogue:
            if names is not None and stream.name not in names:
                continue
            now_us = self._clock.now_ns() // 1000
            shards: list[Spec] = []
            for readable in self.reader.readable(stream.name):
                shard: Spec = {**_shown_range(readable), **self._unread_time(stream, readable)}
                if at_us is not None:
                    at = self.reader.offset_at(stream.name, readable.shard, at_us)
                    shard["at_offset"] = str(at)
                shards.append(shard)
            own = {"log": stream.log, "shards": shards, "now_us": now_us}
            told[stream.name] = {**self._show(stream), **own}
        return told

    def _unread_time(self, stream: Stream, readable: ShardRange) -> Spec:
        """The first record of a shard that a table of the first cell has not read, and when it was published."""
        unread = (self._unread_elsewhere or {}).get(stream.name, {}).get(readable.shard)
        if unread is None or not readable.first_offset <= unread < readable.next_offset:
            return {}
        place = stream.shard(readable.shard)
        first = self._unread_times.get(place)
        if first is None or first[0] != unread:
            time_us = self.reader.time_of(stream.name, readable.shard, unread)
            if time_us is None:
                return {}
            first = self._unread_times[place] = unread, time_us
        return {"unread": first[0], "unread_us": first[1]}

    def shards_of(self, name: str) -> int:
        """Number of shards of a stream in this cell. Raises ``NotFound``."""
        return len(self._catalogue.get(name).shards)

    def unread(self) -> dict[str, dict[int, int]]:
        """By stream and shard, the first offset that some object of this process has not read."""
        return {stream.name: dict(self._unread_of(stream.name)) for stream in self._catalogue}

    def note_unread(self, unread: Mapping[str, Mapping[str, int]]) -> None:
        """Keep what objects of the first cell have not read."""
        self._unread_elsewhere = {
            name: {int(shard): offset for shard, offset in by_shard.items()}
            for name, by_shard in unread.items()
        }

    def _unread_here(self, name: str) -> Mapping[int, int]:
        """By shard, the first offset of a stream that some object has still to read, in this cell or the first.

        Nothing is known to be read before the first cell has said so: of the stream, which may be new, and of the shard
        where something reads others.
        """
        unread = dict(self._unread_of(name))
        if self._is_behind_first:
            told = (self._unread_elsewhere or {}).get(name)
            if told is not None and not told:  # nothing reads it
                return unread
            starts = told or {}
            for stored in self.reader.ranges(name):
                start = starts.get(stored.shard, stored.first_offset)
                unread[stored.shard] = min(start, unread.get(stored.shard, start))
        return unread

    def on_topic(self, topic: str) -> Sequence[TopicStage]:
        """The streams that capture messages on a topic."""
        return [
            {
                "stage": "stream",
                "name": stream.name,
                "enabled": True,
                "topics": [
                    topic_filter.filter
                    for topic_filter in stream.filters
                    if topic_filter.matches(topic)
                ],
                "does": "captures the message",
            }
            for stream in self._catalogue
            if any(topic_filter.matches(topic) for topic_filter in stream.filters)
        ]

    def consequences(self, change: Change) -> Iterator[str]:
        """Number of records deleted with a stream."""
        kind, name = change.target
        if kind == self.kind and change.after is None and name in self._catalogue:
            extent = self.reader.extent(name)
            yield f"{counted(extent.records, 'record')} ({extent.size_bytes:,} bytes) of stream {name!r} are deleted."
            if self._catalogue.get(name).spec.tier is not None:
                yield "Its segments in the tier are deleted too."

    def log_of(self, name: str) -> int:
        """The number of a stream's log, which no other stream ever had. Raises ``NotFound``."""
        return self._catalogue.get(name).log

    async def _measure_rates(self) -> None:
        while True:
            now_s = self._clock.monotonic_s()
            for stream in self._catalogue:
                self._rates[stream.name].note(self.reader.extent(stream.name).appended, now_s)
            await asyncio.sleep(STEP_S)

    def _parse(self, spec: Spec) -> StreamSpec:
        defaults = self._settings.retention.model_dump()
        asked = spec.get("retention")
        retention = (
            defaults
            if asked is None
            else {**defaults, **asked}
            if isinstance(asked, Mapping)
            else asked
        )
        members = {name: value for name, value in spec.items() if name not in _SHOWN_ONLY}
        try:
            parsed = StreamSpec.model_validate({**members, "retention": retention})
        except ValidationError as error:
            raise Invalid("the stream cannot be saved", spec_problems(error, StreamSpec)) from None
        if parsed.tier is not None and (problem := self._places.problem(parsed.tier.url)):
            raise Invalid("the stream cannot be saved", [Problem(problem, "/tier/url")])
        return parsed

    def _refuse_fixed(self, name: str) -> None:
        if file := self._section.fixed_by(name):
            raise ReadOnly(f"stream {name!r} is fixed by {file}; change it there")

    def _refuse_other_layout(self, stream: Stream, parsed: StreamSpec) -> None:
        problems = []
        if parsed.name != stream.name:
            problems.append(Problem(f"a stream keeps its name, {stream.name!r}", "/name"))
        if parsed.kind != stream.spec.kind:
            problems.append(
                Problem(
                    f"a stream of {stream.spec.kind} cannot become one of {parsed.kind}", "/topics"
                )
            )
        if parsed.shards != len(stream.shards):
            problems.append(
                Problem(f"a stream keeps its number of shards, {len(stream.shards)}", "/shards")
            )
        if problems:
            raise Invalid("the stream cannot be changed so; make another one", problems)

    def _refuse_other_tier(self, stream: Stream, parsed: StreamSpec) -> None:
        before = stream.spec.tier
        after = parsed.tier
        if (
            before is not None
            and (after is None or after.url != before.url)
            and self.tiers.has_segments(stream)
        ):
            text = f"expected {before.url}, where segments of the stream are, got {after.url if after else 'none'}"
            hint = "a tier.retention of 1s has them deleted, as does deleting the stream"
            raise Invalid(
                "the stream cannot be changed so", [Problem(text, "/tier/url", suggestion=hint)]
            )

    def _show(self, stream: Stream) -> Spec:
        extent = self.reader.extent(stream.name)
        own: Spec = {
            **_spec_of(stream),
            "kind": stream.spec.kind,
            "epoch": stream.epoch,
            **_shown_extent(extent),
            "records_per_s": round(self._rates[stream.name].last, 1),
            "index_state": self._index_state(stream),
            "tier_state": self.tiers.view(stream),
        }
        if self.reader.others is None:
            return own
        return together(own, list(self.reader.others.of(stream.name).values()))

    def _index_state(self, stream: Stream) -> IndexState | None:
        if stream.spec.index == "none":
            return None
        report = IndexReport() if self._index is None else self._index.report()
        waiting = self._waiting(stream, report)
        is_ready = waiting <= READY_RECORDS * len(stream.shards)
        return {
            "state": "failing" if report.problem else "ready" if is_ready else "building",
            "records_waiting": waiting,
            "bytes": sum(shard.size_bytes for shard in report.shards if shard.log == stream.log),
            "problem": report.problem,
        }

    def _waiting(self, stream: Stream, report: IndexReport) -> int:
        """Number of records of a stream that are not in its index yet."""
        if stream.spec.index == "none":
            return 0
        starts = {
            shard.shard: shard.next_offset for shard in report.shards if shard.log == stream.log
        }
        return sum(
            shard_range.next_offset
            - min(
                shard_range.next_offset,
                max(shard_range.first_offset, starts.get(shard_range.shard, 0)),
            )
            for shard_range in self.reader.ranges(stream.name)
        )


def _measure(
    index: IndexPages,
    metrics: Metrics,
    streams: Iterable[Stream],
    waiting: Callable[[Stream, IndexReport], int],
) -> None:
    metrics.gauge(
        "stream_index_records_waiting",
        lambda: sum(waiting(stream, index.report()) for stream in streams),
        "records of streams with a topic index that are not in it yet",
    )
    metrics.gauge(
        "stream_index_bytes",
        lambda: sum(shard.size_bytes for shard in index.report().shards),
        "bytes of the topic index, before compression",
    )
    metrics.gauge(
        "stream_index_failing",
        lambda: float(index.report().problem is not None),
        "1 while work on the topic index fails, and is tried again",
    )


def _spec_of(stream: Stream) -> Spec:
    spec = stream.spec
    shown: Spec = {
        "name": spec.name,
        "retention": _shown_retention(spec.retention),
        "shards": len(stream.shards),
    }
    if spec.topics:
        shown["topics"] = list(spec.topics)
    if spec.description:
        shown["description"] = spec.description
    if spec.index != "none":
        shown["index"] = spec.index
    if spec.tier is not None:
        shown["tier"] = _shown_tier(spec.tier)
    return shown


def _shown_tier(tier: TierSettings) -> dict[str, Any]:
    return {
        "url": tier.url,
        "after": _shown_duration(tier.after),
        "retention": _shown_duration(tier.retention),
        "unread_bytes": tier.unread_bytes,
    }


def _shown_retention(retention: Retention) -> dict[str, Any]:
    return {"age": _shown_duration(retention.age), "bytes": retention.bytes}


def _shown_duration(seconds: float) -> str:
    if seconds == inf:
        return "infinity"
    return f"{seconds:.0f}s" if seconds.is_integer() else f"{seconds:g}s"


def _shown_range(held: ShardRange) -> ShardOffsets:
    return {
        "shard": held.shard,
        "first_offset": str(held.first_offset),
        "next_offset": str(held.next_offset),
    }


def _shown_extent(extent: Extent) -> StreamExtent:
    return {
        "positions": [_shown_range(shard_range) for shard_range in extent.ranges],
        "records": extent.records,
        "bytes": extent.size_bytes,
        "oldest": rfc3339_or_none(extent.oldest_us, MICROSECONDS),
        "newest": rfc3339_or_none(extent.newest_us, MICROSECONDS),
    }
