"""One table's query: its batches started, watched, started again after a failure; and its report."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from bridges.spark.columns.place import Place
from bridges.spark.columns.store import place_of
from bridges.spark.driver.api import LakeApi, Spec
from bridges.spark.driver.batch import (
    Figures,
    Gap,
    Outcome,
    TableSpec,
    TableWriter,
    figures_of,
    gaps_of,
    starts_of,
    stream_tasks,
)
from bridges.spark.driver.batches import Batches, Pace
from bridges.spark.driver.executors import Executors
from bridges.spark.driver.ledger import Ledger
from bridges.spark.driver.member_places import member_folders, member_of, part_place
from bridges.spark.driver.retype import EarlyTypes
from bridges.spark.driver.spark_errors import NOT_CONNECTED, sentence_of
from bridges.spark.driver.upkeep import Retention, tidy
from bridges.spark.driver.upserts import open_writer
from bridges.spark.tables.contract import Part, TableLost, TableRefused
from bridges.spark.tables.formats import exists, of_part, open_expected
from broker.config.places import parse_place
from broker.core.errors import SluiceError
from broker.core.times import rfc3339, rfc3339_of
from pyspark_sluice.client import Positions
from pyspark_sluice.errors import SourceError, Unreachable
from pyspark_sluice.ranges import Range

log = logging.getLogger("sluice.lake")
_FIRST_BACK_OFF_S = 1.0
# A table is filled again soon after the obstacle is gone.
_LONGEST_BACK_OFF_S = 10.0
# The shortest pause in seconds after a Python process did not connect: starting it again adds to the load.
_BUSY_BACK_OFF_S = 30.0


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """Settings of queries. ``max_rows`` is the maximum of a micro-batch; ``executors`` are those on other hosts."""

    max_rows: int
    job: str
    executors: Executors | None = None


@dataclass(slots=True)
class Progress:
    """Progress of a table's query since its start; written by its batches, read by its reports."""

    rows: int = 0
    dead_letters: int = 0
    over: int = 0
    """Rows since the start that are dead letters since there would be too many member tables."""
    files: int = 0
    bytes: int = 0
    partitions: int = 1
    commit_s: float | None = None
    version: int = 0
    batch: int | None = None
    rows_per_s: float = 0.0
    ends: dict[int, int] = field(default_factory=dict)
    begins: dict[int, int] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)
    batch_ended: float = 0.0
    committed_at: str | None = None
    committed_rows: int | None = None

    def count(self, writer: TableWriter) -> None:
        """Take the figures of the table as it is."""
        self.version = writer.table.version()
        self.begins, self.parts = writer.begins(), writer.parts()
        self.dead_letters = writer.dead_letters.rows() if writer.dead_letters else 0
        self.take(writer.figures())

    def take(self, figures: Figures) -> None:
        """Take the figures of rows and files."""
        self.rows = figures.rows
        self.files = figures.files
        self.bytes = figures.bytes
        self.partitions = figures.partitions


class TableQuery:
    """The query of one table. ``step`` is called about once a second by the job's one thread."""

    def __init__(
        self,
        session: Any,
        api: LakeApi,
        spec: Spec,
        settings: QuerySettings,
        clock: Callable[[], float],
    ) -> None:
        self.spec = spec
        self.expected: Spec = spec.get("expected") or {}
        """The tables that the broker knows to be written, as they were: these are not created (``TableSpec``)."""
        self.begins: Spec | None = spec.get("begins")
        """Offsets at which a table that was lost begins again, by shard."""
        self._is_gone = False
        """True if the watch has found that one of the tables is missing."""
        self._is_lost = False
        """True if one of the tables was lost when the query was to start, or since."""
        self._session = session
        self._api = api
        self._settings = settings
        self._clock = clock
        self._batches: Batches | None = None
        self._writer: TableWriter | None = None
        self._early_types: EarlyTypes | None = None
        self._ledger: Ledger | None = None
        self._progress = Progress()
        self._retention = Retention(spec.get("retention"))
        self._state = "starting"
        self._error: dict[str, str] | None = None
        self._start_at = 0.0
        self._back_off_s = _FIRST_BACK_OFF_S
        self._watch = Watch(self._missing, clock)
        self._catalog: Any = None
        """That the watch asks; None where it has not asked yet, or got no answer."""
        self._turn = threading.Lock()
        """Held while a batch is written or the table tidied, which would otherwise overtake each other."""
        self._looking = threading.Lock()
        """Held while the query is read, or taken away."""

    def step(self) -> None:
        """Start the query when it is due."""
        if self._batches is None:
            problem = self._watch.problem()
            if self._is_gone:
                self._progress = Progress()
            if self._clock() < self._start_at or not self._watch.has_looked:
                return
            if problem is not None:
                self._failed(problem)
            else:
                self._attempt()
            return
        self._look()
        if self._is_gone and (problem := self._watch.problem()) is not None:
            self.stop()
            self._failed(problem)

    def tend(self) -> None:
        """Tidy the table when it is due, which may take long; on another thread than ``step``."""
        if (
            self._batches is not None
            and self._ledger is not None
            and self._ledger.due(self._clock())
        ):
            self._tidy()

    def stop(self) -> None:
        """End the query; a running batch is abandoned and comes again at the next start."""
        with self._looking:
            batches = self._batches
            self._batches = None
        if batches is not None:
            batches.stop()
        self._write_ledger()
        self._state = "stopped"

    def _look(self) -> None:
        """Notice that the query has failed, or that a batch has succeeded."""
        with self._looking:
            if self._batches is None:
                return
            if not self._batches.is_active:
                failure = self._batches.failure
                self._batches = None
                self._failed(self._sentence(failure), is_busy=NOT_CONNECTED in str(failure))
            elif self._state != "running" and self._progress.batch is not None:
                self._state = "running"
                self._error = None
                self._back_off_s = _FIRST_BACK_OFF_S

    def report(self) -> dict[str, Any]:
        """State of the table, as the API shows it; the job's other tables may be starting at the same time."""
        self._look()
        progress = self._progress
        writer = self._writer
        state = self._state
        error = self._error
        if state in ("starting", "running") and (problem := self._watch.problem()):
            state = "failed"
            error = {"message": problem, "at": rfc3339(time.time_ns())}
        return {
            "state": state,
            "job": self._settings.job,
            "at": rfc3339(time.time_ns()),
            "last_batch": progress.batch,
            "last_commit_at": progress.committed_at,
            "last_commit_rows": progress.committed_rows,
            "offsets": {str(shard): str(end) for shard, end in sorted(progress.ends.items())},
            "rows": progress.rows,
            "dead_letters": progress.dead_letters,
            "rows_per_s": round(progress.rows_per_s, 1),
            "files": progress.files,
            "bytes": progress.bytes,
            "partitions": progress.partitions,
            "commit_s": None if progress.commit_s is None else round(progress.commit_s, 3),
            "table_version": progress.version,
            "last_error": error,
            "columns": [{"name": c.name, "type": c.type} for c in writer.table.columns()]
            if writer
            else [],
            "tables": writer.member_figures() if writer else [],
            "over_max_tables": progress.over,
            "held": [entry.as_dict(self.spec["name"]) for entry in writer.held] if writer else [],
            "parts": {name: asdict(part) for name, part in progress.parts.items()},
            "begins": {str(shard): str(first) for shard, first in progress.begins.items()},
            "is_lost": state == "failed" and (self._is_gone or self._is_lost),
        }

    def _missing(self, asks: Callable[[str], None]) -> str | None:
        """The table's unmet needs, in a sentence: an answer of its store and its catalog, executors, the
        records after its end. On the thread of the watch."""
        try:
            place = place_of(self.spec)
            asks(f"the store of {place}")
            place.check_answers()
            self._check_expected(place)
            if place.entry is not None:
                asks(f"catalog {place.entry.catalog!r} at {place.entry.uri}")
                self._ask_catalog(place)
            if self._batches is not None:  # else the start asks
                if self._settings.executors is not None:
                    self._settings.executors.check_any()
                with suppress(Unreachable):  # the broker gets no report then
                    asks(f"the broker at {self._api.url}")
                    self._check_gaps(
                        self._api.stream(self.spec["stream"], deadline_s=5.0).positions()
                    )
        except Exception as error:  # noqa: BLE001 - of many libraries
            self._catalog = None
            return self._sentence(error)
        return None

    def _check_expected(self, place: Place) -> None:
        """Raise ``TableLost`` where a table that was written is not there, as far as that is known without opening."""
        folders = member_folders(place) if any(member_of(part) for part in self.expected) else set()
        for part in self.expected:
            name = member_of(part)
            where = part_place(place, part)
            self._is_gone = not (
                name in folders if name is not None else exists(self.spec["format"], where)
            )
            if self._is_gone:
                with of_part(self.spec["name"], part):
                    raise TableLost.gone(where)
        self._is_gone = False

    def _ask_catalog(self, place: Place) -> None:
        from bridges.spark.tables.catalogs import answered, catalog_of

        with answered(place):
            assert place.entry is not None
            self._catalog = self._catalog or catalog_of(place)
            self._catalog.table_exists(place.entry.identifier)

    def _check_gaps(self, where: Positions) -> None:
        """Raises ``Gap`` where retention removed records that the table does not have."""
        if gaps := gaps_of(self._progress.ends, where):
            ranges = ", ".join(f"[{gap.start}, {gap.end}) of shard {gap.shard}" for gap in gaps)
            raise Gap(
                f"retention removed the records {ranges} of stream {where.stream!r} before the table had them. "
                f"Try: sluice lake tables accept-gap {self.spec['name']}."
            )

    def _sentence(self, error: BaseException) -> str:
        if isinstance(error, SluiceError | SourceError):
            return str(error)
        return sentence_of("".join(traceback.format_exception(error)), self.spec["path"])

    def _attempt(self) -> None:
        try:
            self._start()
        except Exception as error:
            self._is_lost = isinstance(error, TableLost)
            if not isinstance(error, SluiceError | SourceError):
                log.exception("lake.start_failed table=%s", self.spec["name"])
            self._failed(self._sentence(error), is_busy=NOT_CONNECTED in str(error))

    def _start(self) -> None:
        stream = self._api.stream(self.spec["stream"], deadline_s=5.0)
        where = stream.positions()
        spec = TableSpec.of_api({**self.spec, "expected": self.expected}, where)
        writer = open_writer(spec, self._settings.job, self._session)
        self._is_lost = False
        if self._settings.executors is not None:
            self._settings.executors.check(spec)
        place = self.spec.get("start")
        if self.begins is not None:
            writer.begin_again(
                {int(shard): int(first) for shard, first in self.begins.items()}, where
            )
        elif place is not None and not writer.ends(writer.table):
            writer.begin(
                starts_of(
                    lambda at: stream.positions(None if at is None else rfc3339_of(at)),
                    parse_place(place),
                )
            )
        ends = writer.ends(writer.table)
        self._progress = Progress(ends=ends, batch_ended=self._clock())
        self._check_gaps(where)
        start = {**where.first(), **ends}
        writer.positions = self._api.stream(self.spec["stream"], deadline_s=5.0).positions
        self._writer, self._early_types = writer, EarlyTypes(writer)
        self._ledger = Ledger(spec.place, spec.name)
        self._ledger.go_back(writer.table)
        self._progress.count(writer)
        if start == where.next():  # no batch will come that could show that a failure is over
            self._state = "starting"
            self._error = None
        elif self._state == "stopped":
            self._state = "starting"
        self._batches = Batches(
            self._session.sparkContext,
            stream,
            where.epoch,
            start,
            Pace(self.spec["commit_interval"], self.spec["commit_rows"], self._settings.max_rows),
            self._write_batch,
            name=f"lake {spec.name}",
        )
        log.info("lake.started table=%s from=%s", spec.name, start)

    def _write_batch(self, where: Positions, ranges: Sequence[Range]) -> dict[int, int]:
        """Commit ranges of the stream, on the thread of the batches; the ends of the table."""
        assert self._writer is not None
        assert self._early_types is not None
        writer = self._writer
        with self._turn:
            outcome = writer.write(
                stream_tasks(
                    self._session, self._api, writer.spec, where, [[part] for part in ranges]
                )
            )
            retyped = self._early_types.follow(outcome)
        self._note(outcome, retyped=retyped)
        return writer.ends(writer.table)

    def _note(self, outcome: Outcome, *, retyped: bool) -> None:
        """Take the figures of a batch, its ends last: a report that has them has all."""
        progress = self._progress
        now = self._clock()
        progress.rows += outcome.written
        progress.dead_letters += outcome.dead
        progress.over += outcome.over
        progress.files += outcome.files
        progress.bytes += outcome.file_bytes
        progress.version = outcome.version
        if (writer := self._writer) is not None:
            self._correct(writer, outcome, retyped)
            progress.parts = writer.parts()
            if any(part.shard not in progress.begins for part in outcome.ranges):
                progress.begins = writer.begins()
        read = outcome.written + outcome.dead
        progress.rows_per_s = read / max(now - progress.batch_ended, 0.001)
        progress.batch_ended = now
        progress.batch = 0 if progress.batch is None else progress.batch + 1
        if outcome.ranges:
            progress.committed_at = rfc3339(time.time_ns())
            progress.committed_rows = outcome.written
            progress.commit_s = outcome.commit_s
        progress.ends |= {part.shard: part.end for part in outcome.ranges}
        if writer is not None and outcome.read and not outcome.ranges:
            progress.ends |= writer.ends(writer.table)

    def _correct(self, writer: TableWriter, outcome: Outcome, retyped: bool) -> None:
        """Take the figures of the table where a batch does not just add to them: another driver has committed its
        records, or a driver that was killed some of them, or it replaced rows or the type of a column."""
        is_first = self._progress.batch is None
        is_more_than_added = is_first or not outcome.ranges or writer.spec.upsert is not None
        if retyped or (outcome.read and is_more_than_added):
            self._progress.count(writer)
        elif writer.spec.members is not None:
            self._progress.take(writer.figures())

    def _failed(self, reason: str, *, is_busy: bool = False) -> None:
        pause_s = max(self._back_off_s, _BUSY_BACK_OFF_S) if is_busy else self._back_off_s
        log.error(
            "lake.failed table=%s retry_in_s=%s reason=%s", self.spec["name"], pause_s, reason
        )
        self._state, self._error = "failed", {"message": reason, "at": rfc3339(time.time_ns())}
        self._start_at = self._clock() + pause_s
        self._back_off_s = min(self._back_off_s * 2, _LONGEST_BACK_OFF_S)

    def _tidy(self) -> None:
        assert self._ledger is not None
        assert self._writer is not None
        ledger = self._ledger
        writer = self._writer
        try:
            self._check_readable(writer.spec)
        except TableRefused as error:
            self.stop()
            self._is_lost = isinstance(error, TableLost)
            self._failed(str(error))
            return
        except Exception as error:  # noqa: BLE001 - a store that does not answer is noticed by the watch
            log.warning("lake.not_read table=%s reason=%s", self.spec["name"], error)
            return
        try:
            table = tidy(writer.spec, ledger, self._clock(), self._session, self._turn)
            writer.tidy(self._session)
            removed = self._retention.apply(
                writer.spec, self._settings.job, self._clock(), self._session, self._turn
            )
            with self._turn:
                if removed:
                    writer.refresh_all()
                    self._progress.count(writer)
                elif table is not None:
                    table.refresh()
                    self._progress.take(
                        figures_of(table) if writer.spec.members is None else writer.figures()
                    )
                writer.forget_replaced()
        except Exception as error:  # noqa: BLE001 - a table that cannot be tidied now is tidied later
            log.warning("lake.tidy_failed table=%s reason=%s", self.spec["name"], error)

    def _check_readable(self, spec: TableSpec) -> None:
        """Open the tables from their files, as readers do: those of the writer know only what came since."""
        for part, was in self._progress.parts.items():
            if member_of(part) is None:
                with of_part(spec.name, part):
                    open_expected(spec.format, part_place(spec.place, part), spec.binding, was)

    def _write_ledger(self) -> None:
        if self._ledger is None or self._writer is None:
            return
        try:
            self._ledger.sync(self._writer.spec, self._clock())
        except Exception as error:  # noqa: BLE001 - the ledger is made of the commits and catches up later
            log.warning("lake.ledger_failed table=%s reason=%s", self.spec["name"], error)


def monotonic() -> float:
    """The clock of the job."""
    return time.monotonic()


# Between two looks.
EVERY_S: Final = 3.0
# A look that takes longer has found that something does not answer.
LONGEST_S: Final = 9.0
# With the look before, and the next reports of the job, what is promised.
KNOWN_AFTER_S: Final = 15.0


class Watch:
    """Calls ``look`` on a thread of its own, one at a time. It gets a function that it tells what it asks now, and
    returns a sentence for a missing or bad answer."""

    def __init__(
        self, look: Callable[[Callable[[str], None]], str | None], clock: Callable[[], float]
    ) -> None:
        self._look = look
        self._clock = clock
        self._began: float | None = None
        self._next_at = clock()
        self._asks = ""
        self._problem: str | None = None
        self.has_looked = False
        self._starting = threading.Lock()

    def problem(self) -> str | None:
        """The result of the last look; begins the next one when it is time."""
        with self._starting:
            now = self._clock()
            if self._began is None and now >= self._next_at:
                self._began = now
                threading.Thread(target=self._run, name="watch", daemon=True).start()
            elif self._began is not None and now - self._began > LONGEST_S:
                self._problem = f"{self._asks}: no answer within {LONGEST_S:g} s"
                self.has_looked = True
            return self._problem

    def _run(self) -> None:
        problem = self._look(self._ask)
        with self._starting:
            self._problem = problem
            self.has_looked = True
            self._began = None
            self._next_at = self._clock() + EVERY_S

    def _ask(self, question: str) -> None:
        self._asks = question
