"""Metrics to an OpenTelemetry collector, by the exporter of OpenTelemetry, on a thread of their own.

The loop reads the metrics in small parts, once in an interval, and never waits for the thread. Values are cumulative
since the start, so a reading that the collector does not take costs the points of its time, and no counts.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from queue import SimpleQueue
from time import time_ns
from typing import Any, Final

from broker.config.secret_text import SecretUnreadable
from broker.observe.alarms import Alarms
from broker.observe.collector import Collector
from broker.observe.metrics import Metrics, known
from broker.observe.settings import TelemetrySettings

ALARM: Final = "telemetry_metrics_collector"
PREFIX: Final = "sluice_"
# Metrics that are read without a pause.
_READ_AT_ONCE: Final = 200
# Values of one request: some 200 KiB, where collectors take 4 MiB of gRPC.
_REQUEST: Final = 2000
# Units as the Unified Code for Units of Measure writes them, by the end of a name.
_UNITS: Final = {"_seconds": "s", "_bytes": "By", "_percent": "%"}


@dataclass(frozen=True, slots=True)
class Distribution:
    """Values of a histogram: how many are up to each bound and above the one before, and above the last."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


@dataclass(frozen=True, slots=True)
class Sample:
    """A metric and its value, when it was read."""

    name: str
    help: str
    grows: bool
    labels: Mapping[str, str]
    value: float | Distribution


Reading = list[Sample]


def samples(metrics: Metrics) -> Iterator[Sample | None]:
    """All metrics with their values; None where a value is not known. A histogram is one metric."""
    parts = set[str]()
    for name, (histogram, text) in list(metrics.histograms.items()):
        parts.update(f"{name}_{part}" for part in ("bucket", "sum", "count"))
        value = Distribution(histogram.bounds[:-1], tuple(histogram.counts), histogram.sum)
        yield Sample(name, text, True, {}, value)
    for metric in metrics:
        number = None if metric.name in parts else known(metric)
        if number is None:
            yield None
        else:
            yield Sample(metric.name, metric.help, metric.grows, metric.labels, number)


class MetricExports:
    """Counters and the alarm of exports, the same for all exporters of a node."""

    def __init__(self, metrics: Metrics, alarms: Alarms) -> None:
        self.metrics = metrics
        self.alarms = alarms
        self.start_ns = time_ns()
        self.exported = metrics.counter(
            "telemetry_metrics_exported", "readings of the metrics that the collector has taken"
        )
        self.failed = metrics.counter(
            "telemetry_metrics_failed", "readings of the metrics that the collector did not take"
        )


class MetricExport:
    """Sends the metrics of a node, from ``start`` on."""

    def __init__(
        self,
        settings: TelemetrySettings,
        collector: Collector,
        resource: Mapping[str, str],
        exports: MetricExports,
    ) -> None:
        self._settings = settings
        self._collector = collector
        self._resource = resource
        self._exports = exports
        self._readings = SimpleQueue[Reading | None]()
        self._is_failing = self._is_over = False
        self._thread = threading.Thread(target=self._run, name="telemetry metrics", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read and send once in each interval."""
        self._loop = loop
        self._thread.start()
        self._task = loop.create_task(self._read_regularly(), name="telemetry metrics")

    def stop(self, wait_s: float) -> None:
        """Read no more. With ``wait_s`` the values of now are sent; the loop waits for that at most so long."""
        self._is_over = True
        self._task.cancel()
        if wait_s and not self._is_failing and self._readings.empty():
            self._readings.put([sample for sample in samples(self._exports.metrics) if sample])
        self._readings.put(None)
        if not self._is_failing:
            self._thread.join(timeout=wait_s)
        self._exports.alarms.deactivate(ALARM)

    async def _read_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._settings.metrics.interval)
            if not self._readings.empty():
                continue  # the collector is slow; the next reading has the counts of this one
            reading: Reading = []
            for number, sample in enumerate(samples(self._exports.metrics)):
                if sample is not None:
                    reading.append(sample)
                if number % _READ_AT_ONCE == _READ_AT_ONCE - 1:
                    await asyncio.sleep(0)
            self._readings.put(reading)

    def _report(self, problem: str) -> None:
        """Count a reading; the problem is empty if it was taken."""
        exports = self._exports
        (exports.failed if problem else exports.exported).value += 1
        if not self._is_over:  # else the alarm is about another exporter
            text = f"the telemetry collector {self._collector.endpoint} takes no metrics: {problem}"
            exports.alarms.set(ALARM, bool(problem), text)

    # On the thread

    def _run(self) -> None:
        exporter: Any = None
        while (reading := self._readings.get()) is not None:
            problem = self._collector.why_denied()
            if not problem:
                try:
                    exporter = exporter or self._exporter()
                    problem = self._send(exporter, reading)
                except SecretUnreadable as error:
                    problem = str(error)
            if problem and exporter is not None:  # headers are read again, and names resolved
                exporter.shutdown()
                exporter = None
            self._is_failing = bool(problem)
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._report, problem)
        if exporter is not None:
            exporter.shutdown()

    def _exporter(self) -> Any:
        protocol = self._settings.protocol
        module = import_module(f"opentelemetry.exporter.otlp.proto.{protocol}.metric_exporter")
        return module.OTLPMetricExporter(**self._collector.options())

    def _send(self, exporter: Any, reading: Reading) -> str:
        """Send values; the problem, empty if all were taken."""
        from opentelemetry.sdk.metrics.export import MetricExportResult

        now_ns = time_ns()
        for first in range(0, len(reading), _REQUEST):
            part = reading[first : first + _REQUEST]
            try:
                data = metrics_data(part, self._resource, self._exports.start_ns, now_ns)
                is_taken = exporter.export(data) is MetricExportResult.SUCCESS
            except Exception as error:  # noqa: BLE001  whatever a library raises, the thread continues
                return f"{type(error).__name__}: {error}"
            if not is_taken:
                return "no answer within the time, or one that refuses the metrics"
        return ""


def metrics_data(reading: Reading, resource: Mapping[str, str], start_ns: int, now_ns: int) -> Any:
    """Values as the ``MetricsData`` of the SDK, with the names of ``/metrics`` without ``_total``, which collectors add
    for Prometheus."""
    from opentelemetry.sdk.metrics import export
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    families: dict[tuple[str, bool, type], list[Sample]] = {}
    for sample in reading:
        kind = Distribution if isinstance(sample.value, Distribution) else float
        families.setdefault((sample.name, sample.grows, kind), []).append(sample)
    metrics = []
    for (name, grows, _), members in families.items():
        points: list[Any] = [_point(export, sample, start_ns, now_ns) for sample in members]
        cumulative = partial(
            export.Sum, aggregation_temporality=export.AggregationTemporality.CUMULATIVE
        )
        data: Any
        if isinstance(members[0].value, Distribution):
            data = export.Histogram(points, export.AggregationTemporality.CUMULATIVE)
        elif grows:
            data = cumulative(data_points=points, is_monotonic=True)
        else:
            data = export.Gauge(points)
        shown = name.removesuffix("_total")
        unit = next((unit for end, unit in _UNITS.items() if shown.endswith(end)), "1")
        text = next((sample.help for sample in members if sample.help), "")
        metrics.append(export.Metric(PREFIX + shown, text, unit, data))
    scope = export.ScopeMetrics(InstrumentationScope("sluice"), metrics, "")
    return export.MetricsData([export.ResourceMetrics(Resource(dict(resource)), [scope], "")])


def _point(export: Any, sample: Sample, start_ns: int, now_ns: int) -> Any:
    value = sample.value
    unknown: Any = None
    if isinstance(value, Distribution):
        return export.HistogramDataPoint(
            attributes=dict(sample.labels),
            start_time_unix_nano=start_ns,
            time_unix_nano=now_ns,
            count=sum(value.counts),
            sum=value.sum,
            bucket_counts=value.counts,
            explicit_bounds=value.bounds,
            min=unknown,
            max=unknown,
        )
    return export.NumberDataPoint(
        attributes=dict(sample.labels),
        start_time_unix_nano=start_ns if sample.grows else unknown,
        time_unix_nano=now_ns,
        value=value,
    )
