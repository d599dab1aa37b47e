"""Spans to an OpenTelemetry collector, by the exporters of OpenTelemetry, on a thread of their own.

The loop puts spans into a bounded queue and never waits. While the collector is away, spans wait there, an alarm is
active, and those beyond the bound are dropped and counted by reason.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from broker.config.secret_text import SecretUnreadable
from broker.config.ssrf import AddressGuard
from broker.core.tracing import Span
from broker.observe.alarms import Alarms
from broker.observe.collector import Collector, check_installed
from broker.observe.metric_export import MetricExport, MetricExports
from broker.observe.metrics import Metrics
from broker.observe.otlp import SpanEncoder
from broker.observe.settings import TelemetrySettings

ALARM: Final = "telemetry_collector"
# Spans of one request.
_BATCH: Final = 512
# Attempts to send a batch: some seconds in which a collector restarts, not more than its answer may take.
_ATTEMPTS: Final = 3
# Longest wait for the thread when the broker stops, in seconds.
_STOP_S: Final = 3.0
_REASONS: Final = ("queue_full", "collector_unavailable", "stopped")


class Send(NamedTuple):
    """An exporter of OpenTelemetry: ``send`` returns whether the collector took a request."""

    send: Callable[[bytes], bool]
    shutdown: Callable[[], None]


class Exporter:
    """Exports spans by OTLP; a ``broker.core.tracing.SpanProvider``."""

    def __init__(
        self,
        settings: TelemetrySettings,
        guard: AddressGuard,
        resource: Mapping[str, str],
        loop: asyncio.AbstractEventLoop,
        alarms: Alarms,
        counts: ExportCounts,
    ) -> None:
        """Raise ``ConfigError`` where the extra is missing, or a file of the settings cannot be read."""
        check_installed()
        self._settings = settings
        self._collector = Collector(settings, settings.endpoint, guard)
        self._resource = dict(resource)
        self._loop = loop
        self._alarms = alarms
        self._counts = counts
        self._waiting: deque[Span] = deque()
        self._has_spans = threading.Event()
        self._ends = threading.Event()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="telemetry exporter", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Number of spans that wait for the collector."""
        return len(self._waiting)

    def export(self, spans: Sequence[Span]) -> None:
        """See ``broker.core.tracing.SpanProvider``."""
        waiting = self._waiting
        if len(waiting) + len(spans) > self._settings.max_queue:
            self._counts.dropped["queue_full"].value += len(spans)
            return
        waiting.extend(spans)
        if len(waiting) >= _BATCH:
            self._has_spans.set()

    def stop(self, wait_s: float) -> None:
        """Send what waits, if the collector takes it; the loop waits at most ``wait_s`` for that."""
        self._is_over = True
        self._ends.set()
        self._has_spans.set()
        self._thread.join(timeout=wait_s)

    # On the thread

    def _run(self) -> None:
        exporter: Send | None = None
        encoder = SpanEncoder(self._resource, "sluice")
        attempts = 0
        while not self._ends.is_set() or self._waiting:
            if not self._waiting or (len(self._waiting) < _BATCH and not self._ends.is_set()):
                self._has_spans.wait(self._settings.interval)
                self._has_spans.clear()
            batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
            if not batch:
                continue
            problem = self._collector.why_denied()
            if not problem:
                try:
                    exporter = exporter or _exporter(self._settings.protocol, self._collector)
                    problem = self._sent(exporter, encoder, batch)
                except SecretUnreadable as error:
                    problem = str(error)
            self._report(problem)
            if not problem:
                attempts = 0
                continue
            attempts += 1
            if exporter is not None:  # headers are read again, and names resolved
                exporter.shutdown()
                exporter = None
            if attempts >= _ATTEMPTS or self._ends.is_set():
                attempts = 0
                self._count("collector_unavailable", len(batch))
            else:
                self._waiting.extendleft(reversed(batch))
            if self._ends.is_set():
                break
            self._ends.wait(self._settings.interval)
        self._count("stopped", len(self._waiting))
        self._waiting.clear()
        if exporter is not None:
            exporter.shutdown()

    def _sent(self, exporter: Send, encoder: SpanEncoder, batch: Sequence[Span]) -> str:
        """Send spans; the problem, empty if they were taken."""
        try:
            is_taken = exporter.send(encoder.request(batch))
        except Exception as error:  # noqa: BLE001  whatever a library raises, the thread continues
            return f"{type(error).__name__}: {error}"
        if not is_taken:
            return "no answer within the time, or one that refuses the spans"
        self._count("", len(batch))
        return ""

    def _count(self, reason: str, spans: int) -> None:
        counter = self._counts.dropped[reason] if reason else self._counts.exported

        def count() -> None:
            counter.value += spans

        self._on_loop(count)

    def _report(self, problem: str) -> None:
        text = f"the telemetry collector {self._settings.endpoint} takes no spans: {problem}"

        def report() -> None:
            if not self._is_over:  # else the alarm is about another exporter
                self._alarms.set(ALARM, bool(problem), text, waiting=len(self._waiting))

        self._on_loop(report)

    def _on_loop(self, call: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call)


class ExportCounts:
    """Counters of spans, the same for every exporter of a node."""

    def __init__(self, metrics: Metrics, waiting: Callable[[], int]) -> None:
        self.exported = metrics.counter(
            "telemetry_spans_exported", "spans that the telemetry collector has taken"
        )
        self.dropped = {
            reason: metrics.counter(
                "telemetry_spans_dropped", "spans that were not exported, by reason", reason=reason
            )
            for reason in _REASONS
        }
        metrics.gauge(
            "telemetry_spans_waiting", waiting, "spans that wait for the telemetry collector"
        )


class Telemetry:
    """The exporters of a node, of spans and of metrics, as its settings say."""

    def __init__(
        self,
        guard: AddressGuard,
        resource: Mapping[str, str],
        loop: asyncio.AbstractEventLoop,
        alarms: Alarms,
        metrics: Metrics,
    ) -> None:
        self._guard = guard
        self._resource = resource
        self._loop = loop
        self._alarms = alarms
        self._counts = ExportCounts(
            metrics, lambda: 0 if self.exporter is None else self.exporter.waiting
        )
        self._metric_exports = MetricExports(metrics, alarms)
        self._metric_export: MetricExport | None = None
        self.exporter: Exporter | None = None

    def use(self, settings: TelemetrySettings) -> Exporter | None:
        """Export by these settings from now on; the exporter of spans, where messages are traced.

        Raises:
            broker.core.errors.ConfigError: they cannot be used; nothing has changed.
        """
        resource = {**self._resource, "service.name": settings.service_name}
        exporter = metric_export = None
        if settings.metrics.enable:
            check_installed("telemetry.metrics.enable")
            collector = Collector(settings, settings.metrics_endpoint, self._guard)
            metric_export = MetricExport(settings, collector, resource, self._metric_exports)
        if settings.enable:
            exporter = Exporter(
                settings, self._guard, resource, self._loop, self._alarms, self._counts
            )
        self.stop(wait_s=0)
        self.exporter = exporter
        self._metric_export = metric_export
        if metric_export is not None:
            metric_export.start(self._loop)
        return exporter

    def stop(self, wait_s: float = _STOP_S) -> None:
        """Export no more. What waits is sent, if the collector takes it; the loop waits at most ``wait_s`` for each."""
        exporter, metric_export = self.exporter, self._metric_export
        self.exporter = self._metric_export = None
        if metric_export is not None:
            metric_export.stop(wait_s)
        if exporter is not None:
            exporter.stop(wait_s)
        self._alarms.deactivate(ALARM)


def _exporter(protocol: str, collector: Collector) -> Send:
    """The exporter of OpenTelemetry for the protocol. Raises ``SecretUnreadable``."""
    return _over_http(collector) if protocol == "http" else _over_grpc(collector)


def _over_http(collector: Collector) -> Send:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    exporter = OTLPSpanExporter(**collector.options())

    def send(request: bytes) -> bool:
        return exporter._client.export(request).success

    return Send(send, exporter.shutdown)


def _over_grpc(collector: Collector) -> Send:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.sdk.trace.export import SpanExportResult

    class Exporter(OTLPSpanExporter):
        def _translate_data(self, data: Any) -> Any:
            return data

        def _count_data(self, data: Any) -> int:
            return sum(
                len(scope.spans) for group in data.resource_spans for scope in group.scope_spans
            )

    exporter = Exporter(**collector.options())

    def send(request: bytes) -> bool:
        data: Any = ExportTraceServiceRequest.FromString(request)
        return exporter.export(data) is SpanExportResult.SUCCESS

    return Send(send, exporter.shutdown)


def resource_of(node: str, version: str, instance: str) -> Mapping[str, str]:
    """The attributes of the broker as the source of spans, except the name of the service."""
    attributes: dict[str, Any] = {
        "service.version": version,
        "service.instance.id": instance,
        "host.name": socket.gethostname(),
        "sluice.node": node,
    }
    return attributes
