"""An OTLP receiver over real HTTP and gRPC, made of the messages of ``opentelemetry-proto``."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from tests.support.processes import free_port


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as the collector got it."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    kind: int
    attributes: dict[str, Any]
    error: str
    resource: dict[str, Any]


@dataclass(frozen=True)
class ReceivedMetric:
    """A value of a metric as the collector got it; of a histogram, the counts between its bounds."""

    name: str
    kind: str
    unit: str
    help: str
    attributes: dict[str, Any]
    value: Any
    bounds: tuple[float, ...]
    start_ns: int
    time_ns: int
    resource: dict[str, Any]


class Collector:
    """Takes spans and metrics on a port of its own; may be stopped and started again there."""

    def __init__(self, protocol: Literal["http", "grpc"]) -> None:
        self.protocol = protocol
        self.port = free_port()
        self.spans: list[ReceivedSpan] = []
        self.metrics: list[ReceivedMetric] = []
        self.headers: list[dict[str, str]] = []
        self._stop: Any = None

    @property
    def endpoint(self) -> str:
        """The setting of this name."""
        return f"http://127.0.0.1:{self.port}" + ("/v1/traces" if self.protocol == "http" else "")

    def named(self, name: str) -> list[ReceivedSpan]:
        """The spans of a name."""
        return [span for span in self.spans if span.name == name]

    def take(self, request: ExportTraceServiceRequest, headers: dict[str, str]) -> None:
        """Keep the spans of a request."""
        self.headers.append(headers)
        for group in request.resource_spans:
            resource = _attributes(group.resource.attributes)
            for scope in group.scope_spans:
                self.spans += [
                    ReceivedSpan(
                        span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(),
                        span.start_time_unix_nano, span.end_time_unix_nano, span.kind, _attributes(span.attributes),
                        span.status.message if span.status.code == 2 else "", resource,
                    )
                    for span in scope.spans
                ]  # fmt: skip

    def take_metrics(self, request: ExportMetricsServiceRequest, headers: dict[str, str]) -> None:
        """Keep the metrics of a request."""
        self.headers.append(headers)
        for group in request.resource_metrics:
            resource = _attributes(group.resource.attributes)
            for scope in group.scope_metrics:
                for metric in scope.metrics:
                    kind = metric.WhichOneof("data")
                    for point in getattr(metric, kind).data_points:
                        self.metrics.append(_received(metric, kind, point, resource))

    def latest(self, name: str, **attributes: str) -> ReceivedMetric | None:
        """The value of a metric that came last."""
        found = (
            metric
            for metric in reversed(self.metrics)
            if metric.name == name and metric.attributes == attributes
        )
        return next(found, None)

    def start(self) -> Collector:
        """Listen."""
        self._stop = self._serve_http() if self.protocol == "http" else self._serve_grpc()
        return self

    def stop(self) -> None:
        """Listen no more."""
        if self._stop is not None:
            self._stop()
            self._stop = None

    def _serve_http(self) -> Any:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {k.lower(): v for k, v in self.headers.items()}
                if self.path == "/v1/metrics":
                    collector.take_metrics(ExportMetricsServiceRequest.FromString(data), headers)
                    answer = ExportMetricsServiceResponse().SerializeToString()
                elif self.path != "/v1/traces":
                    self.send_error(404)
                    return
                else:
                    collector.take(ExportTraceServiceRequest.FromString(data), headers)
                    answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return stop

    def _serve_grpc(self) -> Any:
        collector = self

        class Servicer(TraceServiceServicer):
            def Export(self, request: Any, context: Any) -> Any:
                collector.take(request, dict(context.invocation_metadata()))
                return ExportTraceServiceResponse()

        class Metrics(MetricsServiceServicer):
            def Export(self, request: Any, context: Any) -> Any:
                collector.take_metrics(request, dict(context.invocation_metadata()))
                return ExportMetricsServiceResponse()

        server = grpc.server(ThreadPoolExecutor(2))
        add_MetricsServiceServicer_to_server(Metrics(), server)  # type: ignore[no-untyped-call]  # generated
        add_TraceServiceServicer_to_server(Servicer(), server)  # type: ignore[no-untyped-call]  # generated
        assert server.add_insecure_port(f"127.0.0.1:{self.port}") == self.port
        server.start()
        return lambda: server.stop(0).wait()


@contextmanager
def collecting(protocol: Literal["http", "grpc"]) -> Iterator[Collector]:
    """A started collector."""
    collector = Collector(protocol).start()
    try:
        yield collector
    finally:
        collector.stop()


def _received(metric: Any, kind: str, point: Any, resource: dict[str, Any]) -> ReceivedMetric:
    is_histogram = kind == "histogram"
    if is_histogram:
        value = tuple(point.bucket_counts)
    else:
        value = getattr(point, point.WhichOneof("value"))
    return ReceivedMetric(
        metric.name,
        kind,
        metric.unit,
        metric.description,
        _attributes(point.attributes),
        value,
        tuple(point.explicit_bounds) if is_histogram else (),
        point.start_time_unix_nano,
        point.time_unix_nano,
        resource,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
