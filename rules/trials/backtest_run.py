"""A back-test's work: two statements over the records of a range, and how their rows differ.

Runs in a process of its own (``broker.app.backtest``), reads Arrow from the range server, and keeps counts and a few
samples: memory does not grow with the range. The statements are those that run live, on what columns a stream keeps.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from broker.core import jsontext
from broker.core.client import Client
from broker.core.feature import Services
from broker.core.message import Message
from broker.core.stored import properties_of
from rules.builder import RuleBuilder
from rules.functions.registry import Functions
from rules.jq.blocking import BlockingWorker, evaluate
from rules.rule import Statement, error_text
from rules.settings import RulesSettings
from rules.spec import parse_spec
from rules.sql.compiler.columns import Event, properties
from rules.sql.compiler.program import Program, Result
from rules.sql.sources import PUBLISH
from rules.sql.values import UNDEFINED, json_bytes, string

# Columns of a message that a record of a stream does not keep.
NOT_KEPT: Final = ("id", "peerhost", "peername", "client_attrs")
_READ: Final = (
    "offset",
    "topic",
    "payload",
    "qos",
    "retain",
    "client_id",
    "username",
    "properties",
)
_SLICE_ROWS: Final = 2048
_PROGRESS_S: Final = 0.2
_MOST_KINDS: Final = 50
_MOST_TOPICS: Final = 100_000
_OTHERS: Final = "other errors"
_REQUEST_TIMEOUT_S: Final = 60.0
_NOBODY: Final = Client("")
_NO_PROPERTIES: Final = properties(Message("", b"", 0, False, _NOBODY, 0))


class Ended(Exception):
    """The back-test cannot continue; the text has the reason."""


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one shard, ``start`` up to, not including, ``end``."""

    shard: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Job:
    """Statements to compare, and the range of messages. ``read`` gives the Arrow batches of a range; ``ends_s`` is of
    the monotonic clock."""

    stream: str
    node: str
    rule: str
    before: Statement | None
    after: Statement
    ranges: Sequence[Range]
    read: Callable[[Range], Iterator[pa.RecordBatch]]
    samples: int
    ends_s: float


@dataclass(slots=True)
class _Side:
    """One of the two statements, with its counts so far."""

    statement: Statement
    matched: int = 0
    rows: int = 0
    no_result: int = 0
    errors: dict[str, dict[str, Any]] = field(default_factory=dict)
    reads: dict[str, bool] = field(default_factory=dict)
    has_jq: bool = False

    @classmethod
    def of(cls, statement: Statement) -> _Side:
        return cls(statement, has_jq="jq" in statement.on_event.source)

    def takes(self, topic: str) -> bool:
        """True if FROM takes messages on the topic."""
        is_read = self.reads.get(topic)
        if is_read is None:
            if len(self.reads) >= _MOST_TOPICS:
                self.reads.clear()
            is_read = self.reads[topic] = self.statement.sources.matches_topic(topic)
        return is_read

    def failed(self, text: str, place: Mapping[str, Any]) -> None:
        """Count an error by its text, with the first place it came up."""
        if text not in self.errors and len(self.errors) >= _MOST_KINDS:
            text = _OTHERS
        kind = self.errors.setdefault(text, {"message": text, "count": 0, "first": dict(place)})
        kind["count"] += 1


class Backtest:
    """Runs a job; ``result`` is good at any time."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._sides = [_Side.of(job.after)] + (
            [_Side.of(job.before)] if job.before is not None else []
        )
        self._worker = BlockingWorker()
        self.done = 0
        self.total = sum(part.end - part.start for part in job.ranges)
        self._counts = dict.fromkeys(("unchanged", "added", "lost", "changed"), 0)
        self._samples: dict[str, list[dict[str, Any]]] = {
            kind: [] for kind in ("added", "lost", "changed")
        }
        self._started_s = time.monotonic()

    def run(self, progress: Callable[[int, int], None]) -> None:
        """Read all ranges; reports progress a few times a second.

        Raises:
            Ended: its time is over, or records cannot be read.
        """
        reported_s = 0.0
        with self._worker:
            for piece in self._job.ranges:
                for batch in self._job.read(piece):
                    for start in range(0, batch.num_rows, _SLICE_ROWS):
                        self._slice(piece.shard, batch.slice(start, _SLICE_ROWS))
                        now_s = time.monotonic()
                        if now_s > self._job.ends_s:
                            raise Ended("its time is over")
                        if now_s - reported_s > _PROGRESS_S:
                            progress(self.done, self.total)
                            reported_s = now_s

    def result(self) -> dict[str, Any]:
        """Counts, samples, errors by kind, and the columns that had no value."""
        elapsed_s = max(time.monotonic() - self._started_s, 1e-9)
        after = self._sides[0]
        before = self._sides[1] if len(self._sides) > 1 else None
        both = {"before": before, "after": after}
        return {
            "messages": self.done,
            "matched": {name: side.matched if side else 0 for name, side in both.items()},
            "no_result": {name: side.no_result if side else 0 for name, side in both.items()},
            "rows": {
                **{name: side.rows if side else 0 for name, side in both.items()},
                **self._counts,
            },
            "errors": {name: _by_count(side) for name, side in both.items()},
            "samples": self._samples,
            "elapsed_s": round(elapsed_s, 3),
            "messages_per_s": round(self.done / elapsed_s),
        }

    def _slice(self, shard: int, batch: pa.RecordBatch) -> None:
        times = batch.column("ts").cast(pa.int64()).to_pylist()
        for ts_us, record in zip(times, batch.select(_READ).to_pylist(), strict=True):
            self._record(shard, ts_us // 1000, record)
        self.done += batch.num_rows

    def _record(self, shard: int, ts_ms: int, record: Mapping[str, Any]) -> None:
        topic = record["topic"]
        username = record["username"]
        stored_properties = record["properties"]
        takers = [side.takes(topic) for side in self._sides]
        if True not in takers:
            return
        columns = {
            "event": PUBLISH,
            "clientid": record["client_id"],
            "payload": string(record["payload"]),
            "topic": topic,
            "qos": record["qos"],
            "flags": {"retain": record["retain"]},
            "pub_props": _NO_PROPERTIES
            if not stored_properties
            else properties(
                Message("", b"", 0, False, _NOBODY, 0, properties_of(stored_properties))
            ),
            "publish_received_at": ts_ms,
            "timestamp": ts_ms,
            "node": self._job.node,
            "metadata": {"rule_id": self._job.rule},
        }
        if username is not None:
            columns["username"] = username
        event = Event(columns)
        place = {"shard": shard, "offset": str(record["offset"])}
        rows = [
            self._rows(side, event, place) if takes else []
            for side, takes in zip(self._sides, takers, strict=True)
        ]
        before = rows[1] if len(rows) > 1 else []
        if before == rows[0]:
            self._counts["unchanged"] += len(before)
            return
        self._compare(before, rows[0], {**place, "ts_ms": ts_ms, "topic": topic})

    def _rows(self, side: _Side, event: Event, place: Mapping[str, Any]) -> list[bytes]:
        """The rows as a stream would hold them; none where it fails, which is counted."""
        side.matched += 1
        program = side.statement.on_event
        try:
            result = program.run(event) if not side.has_jq else self._with_jq(program, event)
            result_rows = result if isinstance(result, list) else [] if result is None else [result]
            encoded = [_encoded(row) for row in result_rows]
        except Exception as error:  # noqa: BLE001 (any failure of the rule is an error of that record)
            side.failed(error_text(program, error), place)
            return []
        if not encoded:
            side.no_result += 1
        side.rows += len(encoded)
        return encoded

    def _with_jq(self, program: Program, event: Event) -> Result:
        left_s = self._job.ends_s - time.monotonic()
        return evaluate(
            lambda: program.run(event),
            lambda: event.columns,
            deadline_s=left_s,
            worker=self._worker,
        )

    def _compare(self, before: list[bytes], after: list[bytes], place: Mapping[str, Any]) -> None:
        """Rows that both gave are unchanged; of the others those in the same position are one row that changed."""
        lost, added = _without_common(before, after)
        changed = min(len(lost), len(added))
        self._counts["unchanged"] += len(before) - len(lost)
        for row, other in zip(lost, added, strict=False):
            self._note("changed", place, before=row, after=other)
        for row in lost[changed:]:
            self._note("lost", place, before=row)
        for row in added[changed:]:
            self._note("added", place, after=row)

    def _note(self, kind: str, place: Mapping[str, Any], **rows: bytes) -> None:
        self._counts[kind] += 1
        if len(self._samples[kind]) < self._job.samples:
            shown = {name: jsontext.decode(row) for name, row in rows.items()}
            self._samples[kind].append({"stream": self._job.stream, **place, **shown})


def run(
    document: Mapping[str, Any],
    services: Services,
    functions: Functions,
    settings: RulesSettings,
    ends_s: float,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Run the job that ``rules.trials.backtest`` wrote; its result, which is ``complete`` when all was read.

    Raises:
        Invalid: SQL that cannot be compiled here.
    """
    maker = RuleBuilder(services, functions, settings)
    before, after = (
        None if spec is None else maker.statement(parse_spec(spec))
        for spec in (document["before"], document["after"])
    )
    assert after is not None
    ranges = [Range(*bounds) for bounds in document["ranges"]]
    own = document["log"], document["ticket"]
    places = {int(shard): place for shard, place in document["places"].items()}
    read = ranges_reader(document["ranges_url"], lambda shard: places.get(shard, own))
    stream, node, rule, samples = (document[name] for name in ("stream", "node", "rule", "samples"))
    backtest = Backtest(Job(stream, node, rule, before, after, ranges, read, samples, ends_s))
    ended: dict[str, Any] = {"complete": True}
    try:
        backtest.run(progress)
    except Ended as error:
        ended = {"complete": False, "why": str(error)}
    used = [
        name
        for statement in (before, after)
        if statement is not None
        for name in undefined_columns(statement, functions)
    ]
    return {
        **backtest.result(),
        **ended,
        "undefined_columns": sorted(set(used)),
        "not_kept": list(NOT_KEPT),
    }


def ranges_reader(
    url: str, place_of: Callable[[int], tuple[int, str]]
) -> Callable[[Range], Iterator[pa.RecordBatch]]:
    """Reads ranges from a range server, which is on this machine or near it, so no proxy of the environment is asked.
    ``place_of`` gives log and ticket of a shard.

    Raises (when it reads):
        Ended: the records are gone, or the server is.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def read(piece: Range) -> Iterator[pa.RecordBatch]:
        log, ticket = place_of(piece.shard)
        address = f"{url.rstrip('/')}/streams/{log}/{piece.shard}?from={piece.start}&to={piece.end}"
        request = urllib.request.Request(address, headers={"Authorization": f"Bearer {ticket}"})
        try:
            with (
                opener.open(request, timeout=_REQUEST_TIMEOUT_S) as answer,
                pa.ipc.open_stream(answer) as batches,
            ):
                yield from batches
        except (OSError, pa.ArrowException) as error:
            raise Ended(
                f"the records of shard {piece.shard} cannot be read: {_reason(error)}"
            ) from error

    return read


def undefined_columns(statement: Statement, functions: Functions) -> list[str]:
    """The columns that a statement reads, itself or in a function, and a stream does not keep."""
    tree = statement.tree
    read = {column.name for column in tree.find_all(exp.Column)}
    for call in tree.find_all(exp.Anonymous):
        function = functions.get(call.name)
        if function is not None and function.column is not None:
            read.add(function.column)
    has_star = any(isinstance(item, exp.Star) for item in tree.find_all(exp.Star))
    return [name for name in NOT_KEPT if has_star or name in read]


def _without_common(before: list[bytes], after: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """The rows that the other does not have, in their order; the order of a row's columns does not matter."""
    left = [(_canonical(row), row) for row in before]
    remaining = [key for key, _ in left]
    lost = []
    added = []
    for row in after:
        if (key := _canonical(row)) in remaining:
            remaining.remove(key)
        else:
            added.append(row)
    for key, row in left:
        if key in remaining:
            remaining.remove(key)
            lost.append(row)
    return lost, added


def _canonical(row: bytes) -> bytes:
    return json.dumps(
        jsontext.decode(row), sort_keys=True, ensure_ascii=False, separators=(",", ":")
    ).encode()


def _encoded(row: dict[str, Any]) -> bytes:
    return json_bytes({name: value for name, value in row.items() if value is not UNDEFINED})


def _by_count(side: _Side | None) -> list[dict[str, Any]]:
    return sorted(side.errors.values(), key=lambda kind: -kind["count"]) if side else []


def _reason(error: BaseException) -> str:
    read = getattr(error, "read", None)
    if read is not None:
        try:
            return str(jsontext.decode(read()).get("detail"))
        except (OSError, ValueError, AttributeError):
            pass
    return str(getattr(error, "reason", None) or error or type(error).__name__)
