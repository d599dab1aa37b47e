"""Spans of tables: from the record of a traced message in a stream to the commit that has it in a table."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from bridges.spark.broker_side.table_spec import LakeTableSpec
from broker.core.clock import Clock
from broker.core.feature import MonitoringPort
from broker.core.objects import Spec
from broker.core.ordered import OrderedObjects
from broker.core.stream import ShardRange
from broker.core.tracing import Span, TraceContext, new_context

# Traces of a table that wait for its commit. While no job runs, the oldest are left out.
_MAX_WAITING: Final = 1000


class _Waiting(NamedTuple):
    """A trace, when its message was on disk, and by shard the offset that the table must have reached."""

    context: TraceContext
    start_ns: int
    ends: Mapping[str, int]


class TableTraces:
    """Traces that wait for the commit of a table. Used on the event loop."""

    def __init__(
        self, tables: OrderedObjects[LakeTableSpec], monitoring: MonitoringPort, clock: Clock
    ) -> None:
        self._tables = tables
        self._spans = monitoring.spans
        self._clock = clock
        self._waiting: dict[str, deque[_Waiting]] = {}
        self._left_out = monitoring.metrics.counter(
            "telemetry_spans_dropped",
            "spans that were not exported, by reason",
            reason="table_without_commits",
        )
        self._spans.on_stored.connect(self._stored)

    def forget(self, table: str) -> None:
        """Drop what waits for a table that is deleted."""
        self._waiting.pop(table, None)

    def report(self, table: str, report: Spec) -> None:
        """End the spans of traces that a table has by its job's report."""
        waiting = self._waiting.get(table)
        offsets = report.get("offsets")
        if not waiting or not offsets or report["state"] == "failed":
            return
        end_ns = _time_ns(report.get("last_commit_at")) or self._clock.now_ns()
        spans = []
        while waiting and _has(offsets, waiting[0].ends):
            spans.append(_span(table, waiting.popleft(), end_ns, report))
        self._spans.export_late(spans)

    def _stored(self, stream: str, context: TraceContext, ranges: Sequence[ShardRange]) -> None:
        ends = {str(shard.shard): shard.next_offset for shard in ranges}
        trace = _Waiting(context, self._clock.now_ns(), ends)
        for spec in self._tables:
            if spec.stream != stream:
                continue
            waiting = self._waiting.setdefault(spec.name, deque())
            if len(waiting) >= _MAX_WAITING:
                waiting.popleft()
                self._left_out.value += 1
            waiting.append(trace)


def _has(offsets: Mapping[str, str], ends: Mapping[str, int]) -> bool:
    return all(int(offsets.get(shard, 0)) >= end for shard, end in ends.items())


def _span(table: str, trace: _Waiting, end_ns: int, report: Spec) -> Span:
    attributes: dict[str, Any] = {"sluice.stage": "table", "sluice.name": table}
    if (version := report.get("table_version")) is not None:
        attributes["sluice.table_version"] = version
    context = new_context(trace.context)
    end_ns = max(trace.start_ns, end_ns)
    return Span(
        f"table {table}", context, trace.context, trace.start_ns, end_ns, "consumer", attributes
    )


def _time_ns(text: str | None) -> int | None:
    return None if text is None else int(datetime.fromisoformat(text).timestamp() * 1e9)
