"""The replays of a node: planned, started, paused, resumed, cancelled; they continue when the broker starts again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from broker.admin.jobs import NOTHING_TO_DO, new_job_id
from broker.admin.replays.reading import read_piece
from broker.admin.replays.replay import Progress, Replay
from broker.admin.replays.request import (
    MQTT,
    STREAM_PREFIX,
    ReplaySample,
    StreamReplayPlan,
    StreamReplayReport,
    StreamReplayRequest,
)
from broker.admin.replays.targets import IntoAction, IntoStream, Target, Topics, check_target
from broker.config.places import Place, leaves_out
from broker.core.action import Sinks
from broker.core.clock import Clock
from broker.core.contributor import Contributor, Contributors, RowsOf, TopicStage
from broker.core.errors import Conflict, Invalid, NotFound, Problem, SluiceError, Unavailable
from broker.core.lazy_module import LazyModule
from broker.core.marks import marked
from broker.core.objects import Spec
from broker.core.stage import Publisher
from broker.core.stored import message_of
from broker.core.stream import StreamRecord
from broker.core.times import MICROSECONDS, rfc3339, rfc3339_or_none
from broker.core.topic import TopicFilter
from broker.observe.log import get_logger
from broker.storage.collection import RAW, TEXT, Collection
from broker.storage.writer import Writer
from broker.streams.catalogue import Catalogue, Stream
from broker.streams.tier.logs import Logs

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from broker.storage import records
else:
    pc = LazyModule("pyarrow.compute")
    records = LazyModule("broker.storage.records")

_log = get_logger(__name__)

MAX_RUNNING: Final = 5
# Replays that are over and still listed, also after a restart.
MAX_KEPT: Final = 20
_SAMPLES: Final = 5
# Records that a plan looks at, over all shards; what it says of more is an estimate.
_LOOKED_THROUGH: Final = 200_000

Range = tuple[int, int]
# Shard, offset and record.
_Found = tuple[int, int, StreamRecord]
# Records checked, those that matched, their bytes, the times of the oldest and newest, and the first of them.
_Look = tuple[int, int, int, int | None, int | None, list[_Found]]


class StreamReplays(Contributor):
    """Used on the event loop. A source of jobs (``broker.admin.jobs.JobSource``)."""

    def __init__(
        self,
        catalogue: Catalogue,
        writer: Writer,
        publisher: Publisher,
        sinks: Sinks,
        contributors: Contributors,
        acts_on: Callable[[str], Sequence[TopicStage]],
        clock: Clock,
        logs: Logs | None = None,
    ) -> None:
        """``acts_on`` gives the stages of a topic, ``logs`` reads streams."""
        self._catalogue = catalogue
        self._writer = writer
        self._publisher = publisher
        self._sinks = sinks
        self._contributors = contributors
        self._acts_on = acts_on
        self._clock = clock
        self._logs: Logs = writer.store if logs is None else logs
        self._kept = Collection(writer, b"replays/", TEXT, RAW)
        self._known: dict[str, Progress] = {}
        self._at_work: dict[str, tuple[Replay, asyncio.Task[None]]] = {}

    def unread_of(self, stream: str) -> Mapping[int, int]:
        """Numbers of records of a stream that running and paused replays have still to read, by shard."""
        unread: dict[int, int] = {}
        for progress in self._known.values():
            if progress.id in self._at_work and progress.stream == stream:
                for shard, (_, end) in progress.ranges.items():
                    if (cursor := progress.cursors[shard]) < end:
                        unread[shard] = min(cursor, unread.get(shard, cursor))
        return unread

    # Plans

    async def plan(self, name: str, request: StreamReplayRequest) -> StreamReplayPlan:
        """Plan a replay.

        Raises:
            NotFound: there is no such stream.
            Invalid: the records cannot go there.
        """
        source, rows_of = self._checked(name, request)
        ranges = await asyncio.to_thread(self._ranges, source, request)
        total = sum(end - start for start, end in ranges.values())
        wanted = None if request.filter is None else TopicFilter.parse(request.filter)
        looked, matched, size, oldest, newest, first = await asyncio.to_thread(
            self._look, source, ranges, wanted
        )
        is_estimate = looked < total
        if is_estimate and looked:
            matched = round(matched * total / looked)
            size = round(size * total / looked)
        samples = self._samples(source, request, first, rows_of)
        return {
            "stream": name,
            "to": request.to,
            "ranges": [
                {"shard": shard, "start": str(a), "end": str(b)} for shard, (a, b) in ranges.items()
            ],
            "records": total,
            "matched": matched,
            "bytes": size,
            "is_estimate": is_estimate,
            "oldest": rfc3339_or_none(oldest, MICROSECONDS),
            "newest": rfc3339_or_none(newest, MICROSECONDS),
            "rate": request.rate,
            "seconds": None if request.rate is None else round(matched / request.rate, 1),
            "samples": samples,
            "notes": self._notes(source, request, samples, oldest),
        }

    def _look(
        self, source: Stream, ranges: Mapping[int, Range], wanted: TopicFilter | None
    ) -> _Look:
        """Count, and read the first records. Blocks for as long as some hundred frames take to read."""
        logs = self._logs
        looked = matched = size = 0
        times: list[int] = []
        first: list[_Found] = []
        for shard, (start, end) in ranges.items():
            place = source.shard(shard)
            times += [logs.read(place, at, 1)[0][1].ts_us for at in (start, end - 1)]
            for batch in logs.read_arrow(
                place, start, min(end, start + _LOOKED_THROUGH // len(ranges))
            ):
                matching = batch if wanted is None else records.of_topics(batch, wanted)
                looked = looked + batch.num_rows
                matched = matched + matching.num_rows
                size += pc.sum(pc.binary_length(matching.column("payload"))).as_py() or 0
            piece = read_piece(logs, place, start, end, wanted)
            first += [(shard, offset, record) for offset, record in list(piece.found)[:_SAMPLES]]
        first.sort(key=lambda item: item[2].ts_us)
        return (
            looked,
            matched,
            size,
            min(times, default=None),
            max(times, default=None),
            first[:_SAMPLES],
        )

    def _checked(self, name: str, request: StreamReplayRequest) -> tuple[Stream, RowsOf | None]:
        """The stream, and what makes rows of its messages, where rows are sent."""
        source = self._catalogue.get(name)
        check_target(source, request, self._catalogue, self._sinks)
        has_rows = request.rule is not None or not (
            request.to == MQTT or request.to.startswith(STREAM_PREFIX)
        )
        return source, self._contributors.rows_of(request.rule) if has_rows else None

    def _ranges(self, source: Stream, request: StreamReplayRequest) -> dict[int, Range]:
        """The offsets of each shard that has records between the places."""
        ranges = {}
        for shard in source.shards:
            stored = self._logs.range_of(shard)
            if leaves_out(shard.shard, request.start, request.until):
                continue
            start = max(
                stored.first_offset,
                self._offset(source, shard.shard, request.start, stored.first_offset),
            )
            end = min(
                stored.next_offset,
                self._offset(source, shard.shard, request.until, stored.next_offset),
            )
            if start < end:
                ranges[shard.shard] = (start, end)
        return ranges

    def _offset(self, source: Stream, shard: int, place: Place | None, default: int) -> int:
        if place is None:
            return default
        if isinstance(place, Mapping):
            return place.get(shard, default)
        if isinstance(place, int):
            return place
        return self._logs.offset_at(source.shard(shard), round(place.timestamp() * 1_000_000))

    def _samples(
        self,
        source: Stream,
        request: StreamReplayRequest,
        candidates: Sequence[_Found],
        rows_of: RowsOf | None,
    ) -> list[ReplaySample]:
        target = self._target("", source, request)
        samples: list[ReplaySample] = []
        for shard, offset, record in candidates:
            message = message_of(record)
            row = None
            if rows_of is not None:
                with suppress(Exception):  # whatever a rule raises is an error of that record
                    row = next(iter(rows_of(message)), (None, b""))[0]
            topic = target.topic_of(message, row) if rows_of is None or row is not None else None
            samples.append(
                {
                    "shard": shard,
                    "offset": str(offset),
                    "at": rfc3339(message.received_ns),
                    "topic": topic,
                    "row": None if row is None else marked(row),
                }
            )
        return samples

    def _notes(
        self,
        source: Stream,
        request: StreamReplayRequest,
        samples: Sequence[ReplaySample],
        oldest_us: int | None,
    ) -> list[str]:
        """Other effects of the replay."""
        notes = []
        stages: dict[str, None] = {}
        for topic in dict.fromkeys(
            sample["topic"] for sample in samples if sample["topic"] is not None
        ):
            for stage in self._acts_on(topic):
                if (
                    stage.get("count") != 0
                    and stage["enabled"]
                    and (stage["stage"], stage["name"]) != ("stream", source.name)
                ):
                    about = (
                        stage["does"]
                        if stage["stage"] == "subscribers"
                        else f"{stage['stage']} {stage['name']!r}"
                    )
                    stages[about] = None
        if stages:
            notes.append(
                f"The messages go through all stages of their topics: {', '.join(stages)}."
            )
        if request.to.startswith(STREAM_PREFIX) and oldest_us is not None:
            target = self._catalogue.get(request.to.removeprefix(STREAM_PREFIX))
            if oldest_us < self._clock.now_ns() // 1000 - target.spec.retention.age * 1_000_000:
                notes.append(
                    f"Stream {target.name!r} keeps records for {target.spec.retention.age:g} s after they were "
                    "published: the oldest of these are removed again soon. Try: a longer retention.age."
                )
        return notes

    def _target(self, id: str, source: Stream, request: StreamReplayRequest) -> Target:
        if request.to == MQTT:
            return Topics(id, source.name, request, self._publisher, self._clock.now_ns)
        if request.to.startswith(STREAM_PREFIX):
            return IntoStream(
                self._catalogue.get(request.to.removeprefix(STREAM_PREFIX)),
                self._writer,
                request.rule,
            )
        return IntoAction(id, source.name, request.to, self._sinks)

    # Work

    async def start(self, name: str, request: StreamReplayRequest) -> Spec:
        """Begin a replay; the job.

        Raises:
            NotFound: there is no such stream.
            Invalid: the records cannot go there, or there are none.
            Unavailable: enough run already.
        """
        source, rows_of = self._checked(name, request)
        if len(self._at_work) >= MAX_RUNNING:
            text = f"{MAX_RUNNING} replays of streams run already; wait for one, or cancel it"
            raise Unavailable(text, retry_after_s=10)
        ranges = await asyncio.to_thread(self._ranges, source, request)
        if not ranges:
            raise Invalid(
                "the replay cannot be started",
                [Problem(f"stream {name!r} has no record there", "/from")],
                code=NOTHING_TO_DO,
            )
        progress = Progress(
            new_job_id(),
            name,
            source.log,
            request.model_dump(mode="json", by_alias=True),
            self._clock.now_ns(),
            ranges,
            {shard: start for shard, (start, _) in ranges.items()},
        )
        self._known[progress.id] = progress
        self._begin(progress, source, request, rows_of)
        return self._at_work[progress.id][0].view()

    def start_all(self) -> None:
        """After a start of the broker: continue what ran and keep paused what was."""
        stored = [Progress.of_stored(data) for _, data in self._kept.stored()]
        for progress in sorted(stored, key=lambda item: item.started_ns):
            self._known[progress.id] = progress
            if progress.state in ("running", "paused"):
                progress.resumed += 1
                self._continue(progress)

    async def stop(self) -> None:
        """Leave all to the next start. Before actions are stopped, since rows on their way are waited for."""
        tasks = [task for _, task in self._at_work.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _continue(self, progress: Progress) -> None:
        is_paused = progress.state == "paused"
        try:
            request = StreamReplayRequest.model_validate(progress.request)
            source, rows_of = self._checked(progress.stream, request)
            if source.log != progress.log:
                raise SluiceError(f"stream {progress.stream!r} was deleted and created again")
        except SluiceError as error:
            progress.state, progress.error, progress.ended_ns = (
                "failed",
                str(error),
                self._clock.now_ns(),
            )
            self._kept.put(progress.id, progress.stored())
            return
        progress.error = progress.ended_ns = None
        replay = self._begin(progress, source, request, rows_of)
        if is_paused:
            replay.pause()

    def _begin(
        self,
        progress: Progress,
        source: Stream,
        request: StreamReplayRequest,
        rows_of: RowsOf | None,
    ) -> Replay:
        target = self._target(progress.id, source, request)
        replay = Replay(progress, source, self._kept, self._logs, target, rows_of, self._clock)
        task = asyncio.create_task(replay.run(), name=f"replay of {progress.stream}")
        self._at_work[progress.id] = replay, task
        task.add_done_callback(lambda _: self._ended(progress.id))
        return replay

    def _ended(self, id: str) -> None:
        del self._at_work[id]
        over = [replay for replay in self._known.values() if replay.id not in self._at_work]
        for progress in over[: max(0, len(over) - MAX_KEPT)]:
            del self._known[progress.id]
            self._kept.put(progress.id, None)

    # Jobs

    def known(self) -> Sequence[Spec]:
        """See ``JobSource``."""
        return [
            self._at_work[id][0].view() if id in self._at_work else progress.view()
            for id, progress in self._known.items()
        ]

    def result(self, id: str) -> StreamReplayReport:
        """See ``JobSource``."""
        return self._known[id].report()

    def cancel(self, id: str) -> None:
        """See ``JobSource``."""
        if id in self._at_work:
            self._at_work[id][0].cancel()

    def pause(self, id: str) -> None:
        """See ``JobSource``."""
        if id not in self._at_work:
            raise Conflict(
                f"replay {id} is {self._known[id].state}; only one that runs can be paused"
            )
        self._at_work[id][0].pause()

    def resume(self, id: str) -> None:
        """See ``JobSource``; one that failed continues where it was."""
        if id in self._at_work:
            self._at_work[id][0].resume()
            return
        progress = self._known[id]
        if progress.state != "failed":
            raise Conflict(
                f"replay {id} is {progress.state}; only one that is paused or failed can be resumed"
            )
        if len(self._at_work) >= MAX_RUNNING:
            raise Unavailable(
                f"{MAX_RUNNING} replays of streams run already; wait for one", retry_after_s=10
            )
        progress.state = "running"
        self._continue(progress)

    async def over(self, id: str) -> StreamReplayReport:
        """The report once it is over. Raises what it failed with."""
        if id in self._at_work:
            await asyncio.wait([self._at_work[id][1]])
        progress = self._known.get(id)
        if progress is None:
            raise NotFound("job", id)
        if progress.state == "failed":
            raise SluiceError(progress.error or "the replay failed")
        return progress.report()
