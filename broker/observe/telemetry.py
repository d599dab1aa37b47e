"""Spans to an OpenTelemetry collector, by the exporters of OpenTelemetry, on a thread of their own.

The loop puts spans into a bounded queue and never waits. While the collector is away, spans wait there, an alarm is
active, and those beyond the bound are dropped and counted by reason.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from broker.config.secret_text import SecretUnreadable
from broker.config.ssrf import AddressDenied, AddressGuard
from broker.core.errors import ConfigError
from broker.core.tracing import Span
from broker.observe.alarms import Alarms
from broker.observe.log import get_logger
from broker.observe.metrics import Metrics
from broker.observe.otlp import SpanEncoder
from broker.observe.settings import TelemetrySettings

_log = get_logger(__name__)

ALARM: Final = "telemetry_collector"
# Spans of one request.
_BATCH: Final = 512
# Attempts to send a batch: some seconds in which a collector restarts, not more than its answer may take.
_ATTEMPTS: Final = 3
# Longest wait for the thread when the broker stops, in seconds.
_STOP_S: Final = 3.0
_NEEDED: Final = (
    "opentelemetry.sdk",
    "opentelemetry.exporter.otlp.proto.http",
    "opentelemetry.exporter.otlp.proto.grpc",
)
_MISSING: Final = (
    "telemetry.enable: expected the extra 'telemetry' to be installed, got a broker without the OpenTelemetry SDK. "
    "Try: pip install 'sluicemq[telemetry]'"
)
_REASONS: Final = ("queue_full", "collector_unavailable", "stopped")


def check_installed() -> None:
    """Raise ``ConfigError`` where the extra is not installed."""
    try:
        is_there = all(find_spec(name) is not None for name in _NEEDED)
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        raise ConfigError([_MISSING])


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
        self._guard = guard
        self._resource = dict(resource)
        self._loop = loop
        self._alarms = alarms
        self._counts = counts
        self._waiting: deque[Span] = deque()
        self._has_spans = threading.Event()
        self._ends = threading.Event()
        _certificates(settings)
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

    def stop(self) -> None:
        """Send what waits, if the collector takes it within some seconds."""
        self._ends.set()
        self._has_spans.set()
        self._thread.join(timeout=_STOP_S)
        self._counts.dropped["stopped"].value += len(self._waiting)
        self._waiting.clear()

    # On the thread

    def _run(self) -> None:
        for name in ("opentelemetry.exporter", "opentelemetry.sdk"):
            # failures are counted, and an alarm says why
            logging.getLogger(name).setLevel(logging.CRITICAL)
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
            problem = self._why_denied()
            if not problem:
                try:
                    exporter = exporter or _exporter(self._settings)
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

    def _why_denied(self) -> str:
        """Reason why the collector's address must not be called, or cannot be found; empty if it may be called."""
        parts = urlsplit(self._settings.endpoint)
        host = parts.hostname or ""
        reason = self._guard.why_not_host(host)
        if reason is None and self._guard.is_on:
            try:
                addresses = [
                    str(entry[4][0]) for entry in socket.getaddrinfo(host, parts.port or 0)
                ]
            except (OSError, UnicodeError) as error:
                return f"{host}: {error}"
            reason = next(filter(None, map(self._guard.why_not_address, addresses)), None)
        return "" if reason is None else str(AddressDenied(f"{host} must not be called: {reason}"))

    def _count(self, reason: str, spans: int) -> None:
        counter = self._counts.dropped[reason] if reason else self._counts.exported

        def count() -> None:
            counter.value += spans

        self._on_loop(count)

    def _report(self, problem: str) -> None:
        text = f"the telemetry collector {self._settings.endpoint} takes no spans: {problem}"
        self._on_loop(
            lambda: self._alarms.set(ALARM, bool(problem), text, waiting=len(self._waiting))
        )

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
    """The exporter of a node, as its settings say."""

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
        self.exporter: Exporter | None = None

    def use(self, settings: TelemetrySettings) -> Exporter | None:
        """Export by these settings from now on.

        Raises:
            ConfigError: they cannot be used; nothing has changed.
        """
        exporter = None
        if settings.enable:
            resource = {**self._resource, "service.name": settings.service_name}
            exporter = Exporter(
                settings, self._guard, resource, self._loop, self._alarms, self._counts
            )
        self.stop()
        self.exporter = exporter
        return exporter

    def stop(self) -> None:
        """Export no more."""
        exporter = self.exporter
        self.exporter = None
        if exporter is not None:
            exporter.stop()
        self._alarms.deactivate(ALARM)


def _certificates(settings: TelemetrySettings) -> tuple[bytes | None, bytes | None, bytes | None]:
    """Contents of the files of TLS: authorities, private key, certificate."""
    contents: list[bytes | None] = []
    for name, path in (
        ("cacertfile", settings.cacertfile),
        ("keyfile", settings.keyfile),
        ("certfile", settings.certfile),
    ):
        try:
            contents.append(None if path is None else Path(path).read_bytes())
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ConfigError(
                [f"telemetry.{name}: expected a file that can be read, got {path!r}: {reason}"]
            ) from None
    authorities, key, certificate = contents
    return authorities, key, certificate


def _exporter(settings: TelemetrySettings) -> Send:
    """The exporter of OpenTelemetry for the protocol. Raises ``SecretUnreadable``."""
    headers = {name.lower(): value.reveal() for name, value in settings.headers.items()}
    if settings.protocol == "http":
        return _over_http(settings, headers)
    return _over_grpc(settings, headers)


def _over_http(settings: TelemetrySettings, headers: dict[str, str]) -> Send:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    exporter = OTLPSpanExporter(
        endpoint=settings.endpoint,
        certificate_file=settings.cacertfile,
        client_key_file=settings.keyfile,
        client_certificate_file=settings.certfile,
        headers=headers,
        timeout=settings.timeout,
    )

    def send(request: bytes) -> bool:
        return exporter._client.export(request).success

    return Send(send, exporter.shutdown)


def _over_grpc(settings: TelemetrySettings, headers: dict[str, str]) -> Send:
    import grpc
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

    is_plain = urlsplit(settings.endpoint).scheme != "https"
    credentials = None if is_plain else grpc.ssl_channel_credentials(*_certificates(settings))
    exporter = Exporter(
        endpoint=settings.endpoint,
        insecure=is_plain,
        credentials=credentials,
        headers=headers,
        timeout=settings.timeout,
    )

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
