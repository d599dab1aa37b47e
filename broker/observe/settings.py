"""Settings of the log, alarms and overload protection."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, field_validator

from broker.config.model import Settings
from broker.config.secret_text import SecretText
from broker.config.units import Duration, Size
from broker.core.errors import PeerError
from broker.core.topic import TopicFilter
from broker.observe.rotating_file import RotatingFile

# Path of traces in the URLs of OTLP over HTTP.
_TRACES_PATH: Final = "/v1/traces"


def _network(text: str) -> str:
    ip_network(text)
    return text


class LogSettings(Settings):
    """Section ``log``."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The least severe level written."
    )
    format: Literal["text", "json"] = Field(
        "text", description="Readable lines, or one JSON object a line."
    )
    file: str | None = Field(
        default=None,
        min_length=1,
        description="File that gets every line, in addition to standard error; made with access for its owner and "
        "group. Without it only standard error. Needs a restart.",
    )
    rotation_size: Size = Field(
        default=10 * 1024 * 1024,
        ge=64 * 1024,
        description="Size in bytes at which the file is renamed, with the time at the end of its name, and a new one "
        "is begun; also where another program, such as logrotate, renames it. Needs a restart.",
    )
    rotation_count: int = Field(
        default=10,
        ge=0,
        le=1000,
        description="Renamed files that are kept; the oldest are deleted. Needs a restart.",
    )

    def rotating_file(self) -> RotatingFile | None:
        """The file, not yet opened, or None."""
        if self.file is None:
            return None
        return RotatingFile(
            Path(self.file),
            max_bytes=self.rotation_size,
            max_files=self.rotation_count,
            rotation="none",
        )


class AlarmSettings(Settings):
    """Section ``alarms``."""

    history: int = Field(
        default=1000, ge=0, le=100_000, description="How many alarms are kept that are over."
    )
    history_age: Duration = Field(
        default=24 * 3600, gt=0, description="Seconds for which they are kept."
    )
    disk_free_min: Size = Field(
        default=512 * 1024 * 1024,
        ge=0,
        description="Free bytes on the disk of the data directory below which the alarm `disk_nearly_full` is "
        "active; 0 is off.",
    )
    interval: Duration = Field(
        default=5, gt=0, description="Seconds between two looks at the store and the disk."
    )


class MetricsHistorySettings(Settings):
    """Section ``metrics_history``: what the broker keeps of its own metrics, for seven days."""

    enable: bool = Field(
        default=True, description="Whether the history of metrics is kept. Needs a restart."
    )
    max_bytes: Size = Field(
        default=64 * 1024 * 1024,
        ge=16 * 1024 * 1024,
        le=256 * 1024 * 1024,
        description="Maximum size of the stored points, in bytes before compression. A series takes 111 KB; series "
        "beyond the limit are left out and counted. Needs a restart.",
    )


class AuditLogSettings(Settings):
    """Section ``audit_log``: the size and age of the record of changes."""

    max_bytes: Size = Field(
        default=64 * 1024 * 1024,
        ge=4 * 1024 * 1024,
        le=1024 * 1024 * 1024,
        description="Maximum size of the audit log, in bytes before compression; the oldest entries are deleted. Needs "
        "a restart.",
    )
    max_age: Duration = Field(
        default=365 * 24 * 3600,
        ge=3600,
        description="Seconds for which entries are kept. Needs a restart.",
    )


class OverloadSettings(Settings):
    """Section ``overload``: when the node counts as overloaded, and what it does then."""

    enable: bool = Field(default=True, description="Whether the node watches itself.")
    interval: Duration = Field(default=3, gt=0, description="Seconds between two looks.")
    polls: int = Field(
        default=5,
        ge=1,
        description="Looks in a row that must find a limit passed before it is overloaded.",
    )
    clear_polls: int = Field(
        default=2, ge=1, description="Looks in a row that must find it well before it no longer is."
    )
    clear_ratio: float = Field(
        default=0.8,
        gt=0,
        le=1,
        description="What well means: everything below this part of its limit.",
    )
    max_loop_lag: Duration = Field(
        default=1,
        ge=0,
        description="Seconds by which the event loop may be late, at the worst between two looks; 0 is off. Time in "
        "which other programs have the CPUs does not count.",
    )
    max_memory: float = Field(
        default=0.9,
        ge=0,
        le=1,
        description="The part of the memory limit that the process may use; 0 is off.",
    )
    memory_limit: Size = Field(
        default=0,
        ge=0,
        description="The memory that the process may use, in bytes; 0 is what the control group or the machine has.",
    )
    max_run_queue: float = Field(
        default=10,
        ge=0,
        description="Runnable threads for each CPU, of all programs of the machine, above which `run_queue` is named "
        "as a further reason of an overload; it never is the only one. 0 is off.",
    )
    alarm_after: Duration = Field(
        default=60, ge=0, description="Seconds of overload until the alarm `overload` is active."
    )
    refuse_connections: bool = Field(
        default=True, description="Refuse new connections (0x89, server busy) while overloaded."
    )
    server_reference: str | None = Field(
        default=None,
        min_length=1,
        description="Where MQTT 5 clients refused so are sent instead (0x9C, use another server): addresses as "
        "`host:port`, with spaces between them.",
    )
    defer_work: bool = Field(
        default=True,
        description="While overloaded put off what can wait: joining small files of streams, and evaluations and "
        "trials asked for through the API.",
    )
    drop_qos0: bool = Field(
        default=False, description="While overloaded drop QoS 0 messages of clients as they come."
    )
    health: Literal["unavailable", "degraded"] = Field(
        default="unavailable",
        description="What `/readyz` says while overloaded: `unavailable` answers 503, so that load balancers send "
        "clients elsewhere; `degraded` answers 200 and says so in words.",
    )


class SaturationLogSettings(Settings):
    """Section ``saturation_log``: when the broker writes down what keeps it busy, and how much of that it keeps."""

    enable: bool = Field(default=True, description="Whether the node is watched. Needs a restart.")
    max_loop_lag: Duration = Field(
        default=0.5,
        ge=0,
        description="Seconds by which the event loop may be late; entries are written while it is later. 0 is off. "
        "Needs a restart.",
    )
    max_memory: float = Field(
        default=0.85,
        ge=0,
        le=1,
        description="The part of the memory limit that the process may use before entries are written; 0 is off. "
        "Needs a restart.",
    )
    max_store_backlog: float = Field(
        default=0.5,
        ge=0,
        description="The part of `store.max_backlog_bytes` or `store.max_backlog_records` that may wait for its commit "
        "before entries are written; 0 is off. Needs a restart.",
    )
    interval: Duration = Field(
        default=10,
        gt=0,
        description="Seconds between two entries while the node is saturated. Needs a restart.",
    )
    top: int = Field(
        default=10,
        ge=1,
        le=100,
        description="Number of tasks and connections of each kind in an entry. Needs a restart.",
    )
    max_file_bytes: Size = Field(
        default=4 * 1024 * 1024,
        ge=64 * 1024,
        le=64 * 1024 * 1024,
        description="Size of a file at which a new one is begun. Needs a restart.",
    )
    max_files: int = Field(
        default=5,
        ge=0,
        le=100,
        description="Earlier files that are kept in addition. Needs a restart.",
    )
    max_age: Duration = Field(
        default=30 * 24 * 3600,
        ge=3600,
        description="Seconds for which entries are kept. Needs a restart.",
    )


class TelemetryFilter(Settings):
    """Filter of the messages that are traced, by topic and publisher. A list that is empty leaves nothing out."""

    topics: list[str] = Field(
        default_factory=list, description="Topic filters of the messages that are traced."
    )
    clients: list[str] = Field(
        default_factory=list,
        description="Client identifiers whose messages are traced; patterns with `*`, `?` and `[abc]` too.",
    )
    addresses: list[Annotated[str, AfterValidator(_network)]] = Field(
        default_factory=list,
        description="Networks of the publishers whose messages are traced, such as `10.0.0.0/8`.",
    )

    @field_validator("topics")
    @classmethod
    def _are_filters(cls, topics: list[str]) -> list[str]:
        for text in topics:
            try:
                TopicFilter.parse(text)
            except PeerError as error:
                raise ValueError(str(error)) from None
        return topics


class TelemetryTail(Settings):
    """Filter of the traces that are exported, decided once a message was processed. By default all are."""

    min_latency: Duration = Field(
        default=0,
        ge=0,
        description="Seconds from the arrival of a message to its last delivery from which on its trace is exported; 0 "
        "is off.",
    )
    errors: bool = Field(
        default=False,
        description="Export the traces of messages that were refused, or for which a stage, a rule, the store or an "
        "action failed.",
    )

    @property
    def is_on(self) -> bool:
        """True if some traces are not exported."""
        return self.min_latency > 0 or self.errors


class TelemetryMetrics(Settings):
    """The broker's metrics for the collector."""

    enable: bool = Field(
        default=False, description="Whether metrics are sent, those of `/metrics`."
    )
    interval: Duration = Field(
        default=60, ge=1, le=3600, description="Seconds between two readings that are sent."
    )
    endpoint: str | None = Field(
        default=None,
        min_length=1,
        description="URL of the receiver. Default: `telemetry.endpoint`, with `/v1/metrics` for `/v1/traces` at "
        "its end.",
    )


class TelemetrySettings(Settings):
    """Section `telemetry`: traces of messages and metrics, sent to an OpenTelemetry collector. Needs the extra
    `telemetry`."""

    enable: bool = Field(default=False, description="Whether messages are traced.")
    metrics: TelemetryMetrics = Field(
        default_factory=TelemetryMetrics, description="Whether and when metrics are sent."
    )
    endpoint: str = Field(
        default="http://127.0.0.1:4318/v1/traces",
        min_length=1,
        description="URL of the collector's OTLP receiver. For `grpc` the scheme says whether TLS is used, as in "
        "`http://127.0.0.1:4317`.",
    )
    protocol: Literal["http", "grpc"] = Field(
        default="http", description="OTLP over HTTP with Protobuf, or over gRPC."
    )
    headers: dict[str, SecretText] = Field(
        default_factory=dict, description="Headers of each request, such as `authorization`."
    )
    cacertfile: str | None = Field(
        default=None,
        description="Authorities that the collector's certificate is checked against, PEM; else the system's.",
    )
    certfile: str | None = Field(
        default=None, description="Certificate that is shown to the collector, PEM."
    )
    keyfile: str | None = Field(default=None, description="Its private key, PEM.")
    timeout: Duration = Field(
        default=10, gt=0, le=60, description="Seconds that a request may take, with its retries."
    )
    interval: Duration = Field(
        default=1, gt=0, le=60, description="Seconds for which spans are gathered."
    )
    max_queue: int = Field(
        default=8192,
        ge=64,
        le=1_000_000,
        description="Maximum number of spans that wait for the collector; those beyond are dropped and counted.",
    )
    service_name: str = Field(
        default="sluice", min_length=1, description="The resource attribute `service.name`."
    )
    trace_all: bool = Field(
        default=False,
        description="Trace messages that bring no context too, in traces of their own. Otherwise only messages whose "
        "publisher sends the user property `traceparent` with the flag *sampled* are traced.",
    )
    ratio: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="The share of the messages without a context that `trace_all` traces; 0.01 is one in a hundred.",
    )
    max_traces_per_s: int = Field(
        default=100,
        ge=0,
        description="Maximum number of traces that begin in a second, and of the first second at once; messages beyond "
        "are not traced, and counted. Bounds the cost at any rate of messages. 0 is no limit.",
    )
    filter: TelemetryFilter = Field(
        default_factory=TelemetryFilter, description="Which messages are traced."
    )
    tail: TelemetryTail = Field(
        default_factory=TelemetryTail, description="Which traces are exported."
    )
    pass_context: bool = Field(
        default=False,
        description="Pass the context of traces that began in the broker on, as user properties `traceparent` and "
        "`tracestate` of the message: MQTT 5 subscribers, and bridges that pass properties on as headers, receive it. "
        "A context that a publisher sent is always passed on, unaltered.",
    )

    @property
    def metrics_endpoint(self) -> str:
        """URL of the receiver of metrics."""
        endpoint = self.endpoint
        if endpoint.endswith(_TRACES_PATH):
            endpoint = endpoint.removesuffix(_TRACES_PATH) + "/v1/metrics"
        return self.metrics.endpoint or endpoint
