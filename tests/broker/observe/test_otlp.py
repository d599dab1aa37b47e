"""Spans in Protobuf, as the messages of ``opentelemetry-proto`` read them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from broker.core.tracing import Kind, Span, TraceContext
from broker.observe.otlp import SpanEncoder

KINDS: tuple[Kind, ...] = ("internal", "server", "client", "producer", "consumer")
TEXT = st.text(st.characters(codec="utf-8"), max_size=300)
CONTEXTS = st.builds(
    TraceContext,
    st.integers(1, 2**128 - 1),
    st.integers(1, 2**64 - 1),
    st.just(True),
    TEXT,
)
VALUES = st.one_of(
    TEXT,
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
)
SPANS = st.builds(
    Span,
    TEXT,
    CONTEXTS,
    st.none() | CONTEXTS,
    st.integers(0, 2**63),
    st.integers(0, 2**63),
    st.sampled_from(KINDS),
    st.dictionaries(TEXT, VALUES, max_size=5),
    TEXT,
)


def decoded(data: bytes) -> Any:
    return ExportTraceServiceRequest.FromString(data)


def attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@given(st.lists(SPANS, max_size=4))
def test_any_span_is_read_as_it_was(spans: list[Span]) -> None:
    resource = {"service.name": "sluice", "sluice.node": "a"}
    request = decoded(SpanEncoder(resource, "scope").request(spans))
    (group,) = request.resource_spans
    (scope,) = group.scope_spans
    assert attributes(group.resource.attributes) == resource
    assert scope.scope.name == "scope"
    assert len(scope.spans) == len(spans)
    for read, span in zip(scope.spans, spans, strict=True):
        assert (read.name, read.trace_state) == (span.name, span.context.state)
        assert int.from_bytes(read.trace_id, "big") == span.context.trace_id
        assert int.from_bytes(read.span_id, "big") == span.context.span_id
        parent = span.parent.span_id if span.parent else 0
        assert int.from_bytes(read.parent_span_id, "big") == parent
        assert read.kind == KINDS.index(span.kind) + 1
        assert read.start_time_unix_nano == span.start_ns
        assert read.end_time_unix_nano == max(span.start_ns, span.end_ns)
        assert attributes(read.attributes) == span.attributes
        assert (read.status.code, read.status.message) == (2 if span.error else 0, span.error)
        is_remote = span.parent is not None and span.kind == "consumer"
        assert read.flags == (0x300 if is_remote else 0x100)


def test_what_is_not_known_is_left_out_and_repeats_are_the_same() -> None:
    encoder = SpanEncoder({}, "scope")
    context = TraceContext(1, 2)
    span = Span("a", context, None, 1, 2, "internal", {"x": None, "y": 1, "long": "é" * 1000})
    first, again = encoder.request([span]), encoder.request([span])
    assert first == again
    (read,) = decoded(again).resource_spans[0].scope_spans[0].spans
    assert attributes(read.attributes) == {"y": 1, "long": "é" * 1000}


@pytest.mark.parametrize("count", [5000])
def test_kept_attributes_are_bounded(count: int) -> None:
    encoder = SpanEncoder({}, "scope")
    for number in range(count):
        encoder.request([Span("a", TraceContext(1, 2), None, 1, 2, "internal", {"x": number})])
    assert 0 < len(encoder._known) <= 4096
