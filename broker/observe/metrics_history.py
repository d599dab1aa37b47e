"""The history of the broker's own metrics: read once a second, kept for seven days, written every ten seconds.

::

    metrics-history/1/series        the numbers of the series, as JSON
    metrics-history/1/markers       restarts and changes of objects, as JSON
    metrics-history/1/STEP/PLACE    a row (``broker.observe.metric_rows``)

A counter becomes a rate when it is read, by its increase since the last reading, so a restart only leaves a gap. What
is read gathers by the second and by ten seconds. The ten seconds are then added to the stored rows of all coarser
intervals, also to those that are not over yet, so a kill loses what was read since and no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from math import ceil
from typing import Any, Final

from broker.core import jsontext
from broker.core.clock import Clock
from broker.core.errors import Invalid, Problem, Unavailable, closest
from broker.core.objects import ACTOR
from broker.core.times import rfc3339
from broker.core.values import Values
from broker.observe.metric_rows import (
    COARSER,
    FIXED_BYTES,
    HIGHEST,
    RAN,
    RESOLUTIONS,
    SECONDS,
    SERIES_BYTES,
    Point,
    Points,
    Resolution,
    add,
    joined,
    pack,
    unpack,
)
from broker.observe.metrics import Labels, Metrics
from broker.observe.settings import MetricsHistorySettings

# Counters whose rates are kept. Those with labels are kept from their first count.
RATES: Final = (
    "messages_received", "messages_sent", "messages_internal", "messages_passed", "messages_dropped",
    "messages_resent_already_taken", "deliveries_dropped", "bytes_received", "bytes_sent",
    "connections_accepted", "connections_closed", "connections_refused",
    "store_records", "store_bytes", "cpu_seconds", "rules_matched", "actions_messages",
    "rule_matched", "rule_failed_exception", "schema_validation_matched", "schema_validation_failed",
    "message_transformation_matched", "message_transformation_failed",
    "action_matched", "action_success", "action_failed", "action_dropped", "source_received",
)  # fmt: skip
# Gauges whose mean, minimum and maximum are kept.
GAUGES: Final = (
    "connections", "sessions", "subscriptions", "retained_messages", "queued_messages", "queued_bytes",
    "inflight_messages", "store_backlog_bytes", "store_commit_average_seconds", "event_loop_lag_seconds",
    "memory_bytes", "disk_free_bytes", "data_directory_bytes", "alarms_active", "overloaded",
    "stage_p50_seconds", "stage_p99_seconds", "rule_evaluation_p99_seconds",
    "action_queuing", "action_queuing_bytes", "action_inflight", "action_lag_seconds", "source_lag_records",
    "queue_records", "queue_bytes", "table_lag_records", "table_lag_seconds",
)  # fmt: skip
NAMES: Final = (*GAUGES, *RATES)
# Maximum number of points in an answer, over all its series.
MAX_POINTS: Final = 20_000
MAX_SERIES_POINTS: Final = 1500

_PREFIX: Final = "metrics-history/1/"
_SERIES = f"{_PREFIX}series"
_MARKERS = f"{_PREFIX}markers"
_MOST_MARKERS: Final = 500
# Minimum time between two samples: the increase of a counter in a millisecond makes a useless rate.
_LEAST_S: Final = 0.5
_HALF_SECOND_NS: Final = 500_000_000
_NS: Final = 1_000_000_000
_WRITE_EVERY_S: Final = 10

Key = tuple[str, Labels]
# A row: its resolution, and when its interval begins.
Place = tuple[Resolution, int]


@dataclass(slots=True)
class _Series:
    """A series: its number in rows, its count when it was last read, and the sample that saw it last."""

    number: int
    count: float = 0.0
    seen: int = 0


class MetricsHistory:
    """Samples on the event loop; answers from a thread."""

    def __init__(
        self,
        metrics: Metrics,
        values: Values,
        clock: Clock,
        settings: MetricsHistorySettings,
        version: str = "",
    ) -> None:
        self._metrics = metrics
        self._values = values
        self._clock = clock
        self._settings = settings
        self._version = version
        self.most_series = (settings.max_bytes - FIXED_BYTES) // SERIES_BYTES
        self._series: dict[Key, _Series] = {}
        self._next_number = 1
        self._has_new = False
        self._gone: list[Key] | None = None
        self._seconds: dict[int, Points] = {}
        self._tens: dict[int, Points] = {}
        self._latest: Points = {}
        self._written: dict[Place, Points] = {}
        self._markers: list[dict[str, str]] = []
        self._samples = 0
        self._left_out = 0
        self._sampled_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        metrics.gauge(
            "metrics_history_series",
            lambda: len(self._series),
            "series that the metrics history has",
        )
        metrics.gauge(
            "metrics_history_left_out",
            lambda: self._left_out,
            "series that the metrics history does not have room for, by the setting that bounds it",
            reason="max_bytes",
        )

    def start(self) -> None:
        """Continue what is stored, and sample every second. Counters count from here."""
        if not self._settings.enable:
            return
        self._load()
        was_stopped = not self._markers or self._markers[-1]["what"] == "stopped"
        self._mark("broker", self._version, "started" if was_stopped else "started_after_crash")
        self._sampled_s = self._clock.monotonic_s()
        self._observed(1.0)
        self._schedule()

    def stop(self) -> None:
        """Put all that was read into the commit that is gathering, with a last sample."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.sample()
            self._write()
            self._mark("broker", self._version, "stopped")

    def mark(self, kind: str, name: str, what: str) -> None:
        """Keep a marker of a change, such as of ``rule``, its name and ``changed``, while the history is kept."""
        if self._timer is not None:
            self._mark(kind, name, what)

    def sample(self) -> None:
        """Read the metrics. What was observed belongs to the second that ends nearest to now."""
        now_s = self._clock.monotonic_s()
        passed_s = now_s - self._sampled_s
        if passed_s < _LEAST_S:
            return
        self._sampled_s = now_s
        second = (self._clock.now_ns() - _HALF_SECOND_NS) // _NS
        points = self._latest = self._observed(passed_s)
        add(self._seconds.setdefault(second, {}), points)
        add(self._tens.setdefault(second - second % _WRITE_EVERY_S, {}), points)
        if (second + 1) % _WRITE_EVERY_S == 0 or len(self._seconds) > 2 * _WRITE_EVERY_S:
            self._write()

    def _schedule(self) -> None:
        """Wait for the next full second, but not within half a second."""
        past_s = self._clock.now_ns() % _NS / _NS
        delay_s = 1 - past_s if past_s < _LEAST_S else 2 - past_s
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._schedule()
        self.sample()

    def _observed(self, passed_s: float) -> Points:
        """A point of each series for the time since the last sample."""
        self._samples += 1
        self._gone = None
        points: Points = {RAN: (passed_s, passed_s, 1.0, 1.0)}
        left_out = 0
        for name in NAMES:
            family = self._metrics.family(name)
            chosen = list(islice(family.items(), self.most_series))
            left_out += len(family) - len(chosen)
            for labels, metric in chosen:
                try:
                    value = metric.read()
                except Exception:  # noqa: BLE001  one broken gauge must not hide the other metrics
                    continue
                series = self._series.get((name, labels))
                if series is None:
                    if labels and metric.grows and not value:
                        continue
                    # Counts of a series that was left out until now are not of this second.
                    series = self._admit(
                        (name, labels), value if self._samples == 1 or self._left_out else 0
                    )
                    if series is None:
                        left_out += 1
                        continue
                series.seen = self._samples
                if metric.grows:
                    increase = value - series.count
                    series.count = value
                    value = (increase if increase >= 0 else value) / passed_s
                if -HIGHEST < value < HIGHEST:
                    points[series.number] = (passed_s, value * passed_s, value, value)
        self._left_out = left_out
        return points

    def _admit(self, key: Key, count: float) -> _Series | None:
        """Make a series. If there is no room, it replaces the one that disappeared first; None if all still exist."""
        if len(self._series) >= self.most_series and not self._forget_one():
            return None
        series = self._series[key] = _Series(self._next_number, count)
        self._next_number += 1
        self._has_new = True
        return series

    def _forget_one(self) -> bool:
        if self._gone is None:
            self._gone = [
                key for key, series in self._series.items() if series.seen < self._samples - 1
            ]
            self._gone.sort(key=lambda key: self._series[key].seen, reverse=True)
        if not self._gone:
            return False
        forgotten = self._series.pop(self._gone.pop())
        for points in (*self._seconds.values(), *self._tens.values()):
            points.pop(forgotten.number, None)
        return True

    # Rows and what else is stored.

    def _write(self) -> None:
        """Add what has gathered to the rows that it belongs to, and put these into the commit that is gathering."""
        if self._has_new:
            self._has_new = False
            series = [
                [entry.number, name, labels] for (name, labels), entry in self._series.items()
            ]
            self._values.put(
                _SERIES, jsontext.encode({"next": self._next_number, "series": series})
            )
            self._values.when_committed(self._series_committed)
        rows: dict[Place, Points] = {}
        for second, points in self._seconds.items():
            add(self._row(rows, SECONDS, second), points)
        for second, points in self._tens.items():
            for resolution in COARSER:
                add(self._row(rows, resolution, second), points)
        for (resolution, start_s), points in rows.items():
            self._values.put(_key(resolution, start_s), pack(start_s, points))
        self._written = rows
        self._seconds = {}
        self._tens = {}

    def _series_committed(self, error: BaseException | None) -> None:
        self._has_new = self._has_new or error is not None

    def _row(self, rows: dict[Place, Points], resolution: Resolution, second: int) -> Points:
        """Row of an interval for the next write: as it is by now, was written last, or is stored."""
        place = resolution, resolution.start_of(second)
        row = rows.get(place)
        if row is None:
            row = self._written.get(place) or unpack(self._stored(*place), place[1])
            if row:
                current_numbers = {RAN, *(series.number for series in self._series.values())}
                row = {number: row[number] for number in row.keys() & current_numbers}
            rows[place] = row
        return row

    def _stored(self, resolution: Resolution, start_s: int) -> bytes | None:
        try:
            return self._values.get(_key(resolution, start_s))
        except Unavailable:  # the store has failed, which is an alarm of its own
            return None

    def _mark(self, kind: str, name: str, what: str) -> None:
        marker = {"at": rfc3339(self._clock.now_ns()), "kind": kind, "name": name, "what": what}
        if actor := ACTOR.get():
            marker["by"] = actor
        self._markers = [*self._markers, marker][-_MOST_MARKERS:]
        self._values.put(_MARKERS, jsontext.encode(self._markers))

    def _load(self) -> None:
        encoded = self._values.get(_SERIES)
        if encoded is not None:
            stored = jsontext.decode(encoded)
            self._next_number = stored["next"]
            for number, name, labels in stored["series"][: self.most_series]:
                self._series[name, tuple((label, value) for label, value in labels)] = _Series(
                    number
                )
        self._markers = jsontext.decode(self._values.get(_MARKERS) or b"[]")

    # Reading.

    async def read(
        self,
        names: Sequence[str] | None,
        labels: Mapping[str, str] | None,
        from_us: int | None,
        to_us: int | None,
        step_s: int,
    ) -> dict[str, Any]:
        """Points of the series of these names, or of all, between two times, as ``ui.api.models.node`` describes it.

        Raises:
            Invalid: a name that there is not, or no time between the times.
            Unavailable: the settings have switched the history off.
        """
        self._check_enabled()
        now_s = self._clock.now_ns() / _NS
        end_s = now_s if to_us is None else min(to_us / 1e6, now_s)
        begin_s = end_s - 3600 if from_us is None else from_us / 1e6
        if begin_s >= end_s:
            problem = Problem("from: expected a time before `to` and before now", "/query/from")
            raise Invalid("the history cannot be read", [problem])
        chosen = self._chosen(names or (), labels or {})
        resolution, step_s = _resolution(begin_s, end_s, now_s, step_s, len(chosen))
        begin_s = max(begin_s, now_s - resolution.span_s)
        first_s = int(begin_s) - int(begin_s) % step_s
        count = ceil((end_s - first_s) / step_s)
        gathered = self._seconds if resolution == SECONDS else self._tens
        fresh = [(second, dict(points)) for second, points in gathered.items()]
        starts = range(first_s, first_s + count * step_s, resolution.step_s)
        rows = chain(self._rows(resolution, starts, self._written), fresh)
        points = await asyncio.to_thread(_by_series, rows, first_s, step_s, count, {RAN, *chosen})
        begin = rfc3339(first_s * _NS)
        end = rfc3339((first_s + count * step_s) * _NS)
        return {
            "from": begin,
            "to": end,
            "step_s": step_s,
            "series": [
                _shown(*key, points[number], points[RAN])
                for number, key in chosen.items()
                if number in points
            ],
            "markers": [marker for marker in self._markers if begin <= marker["at"] <= end],
        }

    def latest(self, names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        """Values of the series of these names, or of all, in the last second: ``labels`` and ``value`` by name.

        Raises:
            Invalid: a name that there is not.
            Unavailable: the settings have switched the history off.
        """
        self._check_enabled()
        values: dict[str, list[dict[str, Any]]] = {}
        for number, (name, labels) in self._chosen(names, {}).items():
            if (point := self._latest.get(number)) is not None:
                value = {"labels": dict(labels), "value": _rounded(point[1] / point[0])}
                values.setdefault(name, []).append(value)
        return values

    def _check_enabled(self) -> None:
        if not self._settings.enable:
            raise Unavailable(
                "metrics_history.enable: expected true, got false. Try: set it, and restart the broker"
            )

    def _chosen(self, names: Sequence[str], labels: Mapping[str, str]) -> dict[int, Key]:
        """The series of these names with these labels, in the order of the names."""
        wanted = dict.fromkeys(
            name.removeprefix("sluice_").removesuffix("_total") for name in names
        )
        for name in wanted:
            if name not in NAMES:
                near = closest(name, NAMES) or "sluice metrics ls"
                text = f"names: expected a metric of the history, got {name!r}. Try: {near}"
                raise Invalid("the history cannot be read", [Problem(text, "/query/names")])
        order = list(wanted or NAMES)
        keys = [
            key
            for key in self._series
            if key[0] in order and labels.items() <= dict(key[1]).items()
        ]
        keys.sort(key=lambda key: (order.index(key[0]), key[1]))
        return {self._series[key].number: key for key in keys}

    def _rows(
        self, resolution: Resolution, starts: range, written: Mapping[Place, Points]
    ) -> Iterator[tuple[int, Points]]:
        """The rows of these intervals that there are. On a thread."""
        for start_s in starts:
            yield (
                start_s,
                written.get((resolution, start_s))
                or unpack(self._stored(resolution, start_s), start_s),
            )


def _by_series(
    rows: Iterable[tuple[int, Points]], first_s: int, step_s: int, count: int, numbers: set[int]
) -> dict[int, list[Point | None]]:
    """The points of series by their numbers, one for each step; None where nothing was observed."""
    points_of: dict[int, list[Point | None]] = {}
    for start_s, row in rows:
        place = (start_s - first_s) // step_s
        if not 0 <= place < count:
            continue
        for number in row.keys() & numbers:
            points = points_of.setdefault(number, [None] * count)
            earlier = points[place]
            points[place] = row[number] if earlier is None else joined(earlier, row[number])
    return points_of


def _key(resolution: Resolution, start_s: int) -> str:
    return f"{_PREFIX}{resolution.step_s}/{resolution.place(start_s):04}"


def _resolution(
    begin_s: float, end_s: float, now_s: float, step_s: int, series: int
) -> tuple[Resolution, int]:
    """The finest resolution that reaches back far enough and the step with which the answer has no more than its most
    points; then the coarsest resolution that gives this step, which is read faster."""
    # two more when rounded to whole steps
    most = max(min(MAX_SERIES_POINTS, MAX_POINTS // max(series, 1)) - 2, 1)
    finest = next(
        (resolution for resolution in RESOLUTIONS if begin_s >= now_s - resolution.span_s),
        RESOLUTIONS[-1],
    )
    begin_s = max(begin_s, now_s - finest.span_s)
    step_s = finest.step_s * ceil(max(step_s, (end_s - begin_s) / most) / finest.step_s)
    return next(
        resolution for resolution in reversed(RESOLUTIONS) if step_s % resolution.step_s == 0
    ), step_s


def _shown(
    name: str, labels: Labels, points: Sequence[Point | None], ran: Sequence[Point | None]
) -> dict[str, Any]:
    if name in RATES:
        points = [_since_start(*pair) for pair in zip(points, ran, strict=True)]
    return {
        "name": name,
        "labels": dict(labels),
        "kind": "rate" if name in RATES else "gauge",
        "mean": [None if point is None else _rounded(point[1] / point[0]) for point in points],
        "min": [None if point is None else _rounded(point[2]) for point in points],
        "max": [None if point is None else _rounded(point[3]) for point in points],
    }


def _since_start(point: Point | None, ran: Point | None) -> Point | None:
    """The point of a counter for all the time that the broker ran: before its first count it did not grow."""
    if point is None or ran is None or point[0] >= ran[0]:
        return point
    return ran[0], point[1], min(point[2], 0.0), point[3]


def _rounded(value: float) -> float:
    """Round to the seven digits of points."""
    return float(f"{value:.7g}")
