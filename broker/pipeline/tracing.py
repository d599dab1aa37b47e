"""Traces of messages: which are sampled, and the spans that their recordings become.

Attributes follow the semantic conventions of OpenTelemetry for messaging, networks and errors; what these have no name
for begins with ``mqtt.`` or ``sluice.``.
"""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Mapping, Sequence
from fnmatch import translate
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Any, Final

from broker.core.bucket import TokenBucket
from broker.core.client import Client
from broker.core.message import Message
from broker.core.topic import TopicFilter
from broker.core.tracing import (
    TRACEPARENT,
    Kind,
    Span,
    Spans,
    TraceContext,
    new_context,
    received_context,
    sampled_context,
)
from broker.observe.metrics import Counter, Metrics
from broker.observe.settings import TelemetrySettings
from broker.observe.telemetry import Telemetry
from broker.pipeline.recording import RecordedStep, Recorders, Recording

# More messages than any broker takes: none is chosen by number.
_NEVER: Final = 1 << 62
_VERSIONS: Final = {3: "3.1", 4: "3.1.1", 5: "5.0"}
_KINDS: Final[Mapping[str, Kind]] = {"delivery": "producer"}
# Publishers about which it is remembered whether they are traced.
_MAX_CLIENTS: Final = 10_000


class Sampler:
    """Chooses the messages that are traced; a ``broker.pipeline.recording.Recorder``."""

    def __init__(self, settings: TelemetrySettings, spans: Spans, beyond: Counter) -> None:
        """``beyond`` counts the messages that the limit of traces leaves out."""
        self._settings = settings
        self._beyond = beyond
        rate = settings.max_traces_per_s
        self._bucket = TokenBucket(rate, rate, time.monotonic()) if rate else None
        self._spans = spans
        self._filters = [TopicFilter.parse(text) for text in settings.filter.topics]
        clients = settings.filter.clients
        self._clients = re.compile("|".join(map(translate, clients))) if clients else None
        self._networks = [ip_network(text) for text in settings.filter.addresses]
        self._ratio = settings.ratio if settings.trace_all else 0.0
        self._is_traced = lru_cache(_MAX_CLIENTS)(self._matches)

    def reads(self, topic: str) -> bool:
        """See ``Recorder``: where the topic is not one that is traced, what rules publish there in a trace still is."""
        return True

    def follows(self, message: Message) -> TraceContext | None:
        """See ``Recorder``."""
        return sampled_context(message)

    def draws(self, topic: str) -> bool:
        """See ``Recorder``."""
        return self._ratio > 0 and (
            not self._filters or any(each.matches(topic) for each in self._filters)
        )

    def may_choose(self, client: Client) -> bool:
        """See ``Recorder``."""
        return self._is_traced(client.client_id, client.peer_host)

    def has_room(self) -> bool:
        """See ``Recorder``."""
        return self._bucket is None or not self._bucket.wait_s(time.monotonic(), 1)

    def leaves_out(self, count: int) -> None:
        """See ``Recorder``: of those behind the first as many as would be drawn in the mean."""
        self._beyond.value += 1 + int((count - 1) * self._ratio + random.random())

    def skip(self) -> int:
        """See ``Recorder``: geometrically distributed, so that each message is drawn with the same chance."""
        ratio = self._ratio
        if ratio >= 1:
            return 0
        if ratio <= 0:
            return _NEVER
        return int(math.log(1.0 - random.random()) / math.log(1.0 - ratio))

    def chooses(self, message: Message, *, is_drawn: bool) -> bool:
        """See ``Recorder``."""
        if message.via and sampled_context(message) is not None:
            return True
        client = message.client
        if self._filters and not any(
            topic_filter.matches(message.topic) for topic_filter in self._filters
        ):
            return False
        if not self._is_traced(client.client_id, client.peer_host):
            return False
        context = received_context(message) if message.properties else None
        return (is_drawn if context is None else context.is_sampled) and self._takes_room()

    def _takes_room(self) -> bool:
        if self._bucket is None or self._bucket.try_take(time.monotonic()):
            return True
        self._beyond.value += 1
        return False

    def begins(self, recording: Recording) -> None:
        """Give the message a context, which goes with it from now on."""
        message = recording.message
        properties = message.properties
        via = message.via
        received = received_context(message) if properties else None
        sampled = sampled_context(message) if via else None
        recording.parent = sampled or received
        recording.context = context = new_context(recording.parent)
        if self._settings.pass_context and received is None:
            pairs = [*message.user_properties, (TRACEPARENT, context.traceparent)]
            properties = {**(properties or {}), "User-Property": pairs}
        entered = message.changed(
            message.topic, message.payload, message.qos, message.retain, properties
        )
        entered.via = (context.mark, *(via if sampled is None else via[1:]))
        recording.entered = entered

    def ends(self, recording: Recording) -> None:
        """Export its spans, unless the settings for the tail leave the trace out."""
        assert recording.context is not None
        tail = self._settings.tail
        if tail.is_on:
            is_slow = 0 < tail.min_latency * 1e9 <= recording.end_ns - recording.start_ns
            if not (is_slow or (tail.errors and recording.error)):
                self._spans.leave_out(recording.context.trace_id)
                return
        self._spans.export(_spans_of(recording))

    def _matches(self, client_id: str, peer_host: str | None) -> bool:
        if self._clients is not None and self._clients.match(client_id) is None:
            return False
        if not self._networks:
            return True
        try:
            address = ip_address(peer_host or "")
        except ValueError:
            return False
        return any(address in network for network in self._networks)


class Tracing:
    """Traces of a node, as the section ``telemetry`` says."""

    def __init__(
        self, recorders: Recorders, spans: Spans, telemetry: Telemetry, metrics: Metrics
    ) -> None:
        self._beyond = metrics.counter(
            "telemetry_traces_beyond_limit",
            "messages that telemetry.max_traces_per_s kept from being traced",
        )
        self._recorders = recorders
        self._spans = spans
        self._telemetry = telemetry
        self._sampler: Sampler | None = None

    def use(self, settings: TelemetrySettings) -> None:
        """Trace by these settings from the next message on.

        Raises:
            ConfigError: they cannot be used; nothing has changed.
        """
        self._spans.use(self._telemetry.use(settings))
        sampler = self._sampler
        self._sampler = None
        if sampler is not None:
            self._recorders.remove(sampler)
        if settings.enable:
            self._sampler = Sampler(settings, self._spans, self._beyond)
            self._recorders.add(self._sampler)

    def stop(self) -> None:
        """Trace no more; what waits is exported, if the collector takes it at once."""
        self._spans.use(None)
        if self._sampler is not None:
            self._recorders.remove(self._sampler)
        self._telemetry.stop()


def _spans_of(recording: Recording) -> Sequence[Span]:
    """The spans of a message: the root, unless another cell has it, and one for each step."""
    message = recording.message
    context = recording.context
    assert context is not None
    client = message.client
    attributes = destination_attributes(message)
    attributes["messaging.operation.type"] = "process"
    attributes["messaging.operation.name"] = "publish"
    attributes["messaging.client.id"] = client.client_id
    if client.protocol_version:
        attributes["network.protocol.name"] = "mqtt"
        attributes["network.protocol.version"] = _VERSIONS.get(client.protocol_version, "")
    if client.peer_host is not None:
        attributes["network.peer.address"] = client.peer_host
        attributes["network.peer.port"] = client.peer_port
    if client.listener:
        attributes["sluice.listener"] = client.listener
    if recording.left_out:
        attributes["sluice.receivers_left_out"] = recording.left_out
    refusal = None if recording.outcome is None else recording.outcome.refusal
    error = "" if refusal is None else refusal.text or refusal.reason
    if refusal is not None:
        attributes["error.type"] = refusal.reason
    root = Span(
        "publish",
        context,
        recording.parent,
        recording.start_ns,
        recording.end_ns,
        "consumer",
        attributes,
        error,
    )
    steps = [_span_of(step, message, context) for step in recording.steps]
    return steps if recording.is_further else [root, *steps]


def _span_of(step: RecordedStep, message: Message, parent: TraceContext) -> Span:
    attributes: dict[str, Any] = {"sluice.stage": step.stage, "sluice.name": step.name}
    name = step.stage if step.name in (step.stage, "store") else f"{step.stage} {step.name}"
    if step.stage == "delivery":
        name = "forward" if step.is_cell else "send"
        attributes = destination_attributes(step.before or message)
        attributes["messaging.operation.type"] = "send"
        attributes["messaging.operation.name"] = "send"
        attributes["messaging.client.id"] = step.name
        attributes["sluice.delivery"] = step.state
    if step.refusal is not None:
        attributes["error.type"] = step.refusal.reason
    elif step.error:
        attributes["error.type"] = "failed"
    if step.stage == "rules":
        name = f"rule {step.name}"
        attributes["sluice.rows"] = len(step.rows)
    error = step.error or ("" if step.refusal is None else step.refusal.text)
    kind = _KINDS.get(step.stage, "internal")
    return Span(
        name, new_context(parent), parent, step.start_ns, step.end_ns, kind, attributes, error
    )


def destination_attributes(message: Message) -> dict[str, Any]:
    """The attributes of a message by the conventions for messaging."""
    return {
        "messaging.system": "mqtt",
        "messaging.destination.name": message.topic,
        "messaging.message.body.size": len(message.payload),
        "mqtt.qos": message.qos,
        "mqtt.retain": message.retain,
    }
