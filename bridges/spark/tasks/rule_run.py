"""A compiled rule over stream records, a batch at a time: in Spark the very function runs that the broker runs.

Used inside tasks of the lake job (``bridges.spark.tasks.task``) and of ``rule_rows`` (``bridges.spark.rule_frame``).
Columns that the stream does not keep are missing: ``peerhost``, ``peername`` and ``client_attrs``. Values that depend
on the moment are bound to the record, so that running again gives the same rows: ``timestamp`` is the time at which
the broker received the message, ``id`` is made of that time, shard and offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from bridges.spark.columns.column import ITEM, Column
from bridges.spark.columns.types import ARROW_TYPES
from bridges.spark.tasks.convert import Converted, convert
from bridges.spark.tasks.rule_text import RuleText
from broker.core import jsontext
from broker.core.client import Client
from broker.core.errors import Invalid, Problem
from broker.core.message import Message
from broker.core.stored import properties_of
from broker.core.topic import levels_match
from rules.functions.plugin_loading import standard_with_plugins
from rules.functions.registry import Functions
from rules.jq.blocking import BlockingWorker, evaluate
from rules.sql.compiler.columns import all_columns
from rules.sql.compiler.compile import compile_for_messages
from rules.sql.compiler.program import Program, Result, RuleContext
from rules.sql.sources import sources
from rules.sql.syntax.parser import parse
from rules.sql.values import UNDEFINED, EvaluationError, json_bytes

# Functions by the start of their name, and why they cannot run elsewhere.
_BOUND_TO_THE_BROKER: Final[Mapping[str, str]] = {
    "kv_store": "keeps its values in the broker",
    "proc_dict": "keeps its values with the connection",
    "schema_": "reads the broker's schema registry",
    "avro_": "reads a schema registry",
    "spb_": "keeps names of metrics in the broker",
    "sparkplug_": "keeps names of metrics in the broker",
    "getenv": "reads the environment of the broker",
    "get_secret": "reads a secret of the broker, which no executor gets",
}
# Topics and clients remembered.
_KEPT = 10_000


@dataclass(slots=True)
class RuleRows:
    """Result of a batch.

    ``rows`` in the order of the records, ``places`` the index in the batch that each came from. ``errors`` says by
    index what failed and where in the SQL; a record in neither was filtered: its topic is not read, or WHERE does not
    hold, or FOREACH found nothing.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)


class RuleRun:
    """A rule compiled for batches. Made once a task.

    Raises:
        Invalid: the SQL does not compile here, reads no messages, or calls what only the broker can do.
    """

    def __init__(self, rule: RuleText, functions: Functions | None = None) -> None:
        self.rule = rule
        tree = parse(rule.sql)
        self.filters = [filter.levels for filter in sources(tree).filters]
        if problems := list(_elsewhere(tree, self.filters)):
            raise Invalid(f"rule {rule.name!r} cannot run in Spark", problems)
        self._message: Message | None = None
        context = RuleContext(rule.node, {"rule_id": rule.name}, self._now_ms)
        self._program = compile_for_messages(tree, functions or standard_with_plugins(), context)
        has_jq = "fn_jq(" in self._program.source
        self._needs = _Needs.of(self._program, everything=has_jq)
        self._run = self._with_jq if has_jq else self._program.run
        self._worker = BlockingWorker()
        self._matching: dict[str, bool] = {}
        self._clients: dict[Any, Client] = {}

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the source that the rule looks at."""
        return self._needs.columns

    def run(self, batch: pa.RecordBatch) -> RuleRows:
        """Run on each record of a batch of the source."""
        out = RuleRows()
        run = self._run
        rows = out.rows
        places = out.places
        topics = batch.column("topic").to_pylist()
        unread = {topic for topic in set(topics) if not self.reads(topic)}
        for at, message in enumerate(self._messages(batch, topics)):
            if unread and message.topic in unread:
                continue
            self._message = message
            try:
                result = run(message)
            except Exception as error:  # noqa: BLE001 (any failure of the rule is an error of that record)
                out.errors[at] = self._sentence(error)
                continue
            if type(result) is dict:
                rows.append(result)
                places.append(at)
            elif type(result) is list:
                rows += result
                places += [at] * len(result)
        return out

    def _with_jq(self, message: Message) -> Result:
        """The rule with its jq programs, those that may not end in a worker process with a deadline."""
        context = (self.rule.node, {"rule_id": self.rule.name}, self._now_ms)
        return evaluate(
            lambda: self._program.run(message),
            lambda: all_columns(message, *context),
            worker=self._worker,
        )

    def close(self) -> None:
        """End the worker of jq programs, if one was started."""
        self._worker.close()

    def _messages(self, batch: pa.RecordBatch, topics: list[str]) -> Iterator[Message]:
        """A message a record. Columns become Python objects at once, those not needed are constants: 0.4 µs less."""
        needs = self._needs

        def column(name: str, default: Any) -> Iterable[Any]:
            return batch.column(name).to_pylist() if name in needs.columns else repeat(default)

        times: Iterable[Any] = repeat(0)
        if "ts" in needs.columns:
            times = (1000 * us for us in batch.column("ts").cast(pa.int64()).to_pylist())
        properties: Iterable[Any] = repeat(None)
        if "properties" in needs.columns:
            properties = map(properties_of, batch.column("properties").to_pylist())
        clients = map(self._client, column("client_id", ""), column("username", None))
        published = (
            topics,
            batch.column("payload").to_pylist(),
            column("qos", 0),
            column("retain", False),
            clients,
        )
        if not needs.identity:
            return map(Message, *published, times, properties)
        identities = map(
            _identity, *(batch.column(name).to_pylist() for name in ("ts", "shard", "offset"))
        )
        return (
            Message(topic, payload, qos, retain, client, received_ns, own_properties, _id=identity)
            for topic, payload, qos, retain, client, received_ns, own_properties, identity in zip(
                *published, times, properties, identities, strict=False
            )
        )

    def reads(self, topic: str) -> bool:
        """True if the rule's FROM matches a topic."""
        is_matching = self._matching.get(topic)
        if is_matching is None:
            if len(self._matching) >= _KEPT:
                self._matching.clear()
            is_matching = self._matching[topic] = any(
                levels_match(levels, topic) for levels in self.filters
            )
        return is_matching

    def _client(self, client_id: str | None, username: str | None) -> Client:
        key = (client_id, username)
        client = self._clients.get(key)
        if client is None:
            if len(self._clients) >= _KEPT:
                self._clients.clear()
            client = self._clients[key] = Client(client_id or "", username)
        return client

    def _now_ms(self) -> int:
        """The column ``timestamp``: when the broker received the message that the rule runs on."""
        return 0 if self._message is None else self._message.received_ns // 1_000_000

    def _sentence(self, error: BaseException) -> str:
        place = self._program.place_of(error)
        where = f", line {place[0]}, column {place[1]}" if place else ""
        return f"rule {self.rule.name!r}{where}: {_plain(error)}"


@dataclass(frozen=True, slots=True)
class _Needs:
    """The columns of a record that a program reads."""

    columns: tuple[str, ...]
    identity: bool

    @classmethod
    def of(cls, program: Program, *, everything: bool) -> _Needs:
        source = program.source
        everything = everything or "_all_columns(" in source
        marks = {
            "client_id": "client.client_id",
            "username": "client.username",
            "qos": "message.qos",
            "retain": "_flags(",
            "properties": "_properties(",
        }
        columns = ["topic", "payload"]
        columns += [name for name, mark in marks.items() if everything or mark in source]
        identity = everything or "message.id" in source
        if identity or "message.received_ns" in source or "_now_ms(" in source:
            columns.append("ts")
        return cls((*columns, *(("shard", "offset") if identity else ())), identity)


def _elsewhere(tree: exp.Select, filters: Sequence[Any]) -> Iterator[Problem]:
    """The reason why a rule cannot run outside of the broker."""
    if not filters:
        yield Problem(
            "it reads events only, and a stream keeps messages",
            "/sql",
            1,
            1,
            "name topics in FROM, or use the rows",
        )
    for call in tree.find_all(exp.Anonymous):
        for start, reason in _BOUND_TO_THE_BROKER.items():
            if call.name.startswith(start):
                place = call.meta.get("line", 1), call.meta.get("column", 1)
                yield Problem(f"{call.name} {reason}, which Spark does not reach", "/sql", *place)


def _plain(error: BaseException) -> str:
    if isinstance(error, jsontext.JsonError):
        return f"the payload is not JSON: {error}"
    if isinstance(error, RecursionError):
        return "the value nests too deep"
    return str(error) or type(error).__name__


def _identity(moment: Any, shard: int, offset: int) -> str:
    microseconds = int(moment.timestamp() * 1_000_000)
    return f"{1000 * microseconds:016X}{shard:04X}{offset:012X}"


# Rows as columns

_ABSENT: Final = frozenset({type(None), type(UNDEFINED)})
# Types of values that become a column at once.
_FITTING: Final[Mapping[str, frozenset[type]]] = {
    "boolean": _ABSENT | {bool},
    "long": _ABSENT | {int},
    "double": _ABSENT | {int, float},
    "string": _ABSENT | {str},
    "enum": _ABSENT | {str},
    "binary": _ABSENT | {str, bytes},
}


@dataclass(slots=True)
class Typed:
    """The rows of a batch as columns: ``converted`` of the rows that fit, ``places`` the index of each in the batch,
    ``errors`` by index of all records that gave no rows because something failed."""

    converted: Converted
    places: list[int]
    errors: dict[int, str]


def typed(ran: RuleRows, columns: Sequence[Column], pending: Sequence[str] = ()) -> Typed:
    """Columns of rows. A record of which one row does not fit gives none: there is no partial result."""
    at_once = _columns_at_once(ran.rows, columns)
    if at_once is not None:
        return Typed(Converted(at_once), ran.places, ran.errors)
    return _typed_by_row(ran, columns, pending)


def _typed_by_row(ran: RuleRows, columns: Sequence[Column], pending: Sequence[str]) -> Typed:
    """The way of rows that lie in a stream, JSON text and back, which finds what does not fit and new columns."""
    errors = dict(ran.errors)
    rows = ran.rows
    places = ran.places
    texts = []
    for row, place in zip(rows, places, strict=True):
        if ITEM.key in row:
            errors.setdefault(
                place, f"column {ITEM.key!r} is reserved for the table's column {ITEM.name!r}"
            )
        try:
            texts.append(json_bytes(_defined(row)))
        except EvaluationError as error:
            errors.setdefault(place, str(error))
            texts.append(b"")
    while True:
        kept = [at for at, place in enumerate(places) if place not in errors]
        converted = convert(pa.array([texts[at] for at in kept], pa.binary()), columns, pending)
        if not converted.errors:
            return Typed(converted, [places[at] for at in kept], errors)
        for at, text in converted.errors.items():
            errors.setdefault(places[kept[at]], text)


def _columns_at_once(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]
) -> dict[str, pa.Array] | None:
    """Arrow columns made of lists, or None when a row may not fit or has members without a column."""
    keys = {column.key for column in columns}
    if not rows or not all(column.type in _FITTING for column in columns):
        return None
    if not set(rows[0]) <= keys or any(len(row) != len(rows[0]) for row in rows):
        return None
    arrays = {}
    try:
        for column in columns:
            arrays[column.key] = _array([row.get(column.key) for row in rows], column.type)
    except (pa.ArrowException, OverflowError, TypeError):
        return None
    return arrays


def _array(values: list[Any], kind: str) -> pa.Array:
    types = set(map(type, values))
    if not types <= _FITTING[kind]:  # Arrow takes True for 1.0 and cuts 2.5 to 2
        raise TypeError(f"not all values are of type {kind}")
    if type(UNDEFINED) in types:
        values = [None if value is UNDEFINED else value for value in values]
    return pa.array(values, ARROW_TYPES[kind])


def _defined(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not UNDEFINED}
