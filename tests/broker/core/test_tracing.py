"""Trace contexts: read from user properties, carried in ``via`` through changes and storage."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from broker.core.client import Client
from broker.core.errors import ConfigError, SluiceError
from broker.core.message import Message
from broker.core.stored import StoredMessage, decoder, encode, logged, message_of
from broker.core.tracing import (
    Span,
    Spans,
    TraceContext,
    new_context,
    parse_traceparent,
    received_context,
    sampled_context,
    without_mark,
)
from broker.observe.collector import check_installed

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


def message(*pairs: tuple[str, str], via: tuple[str, ...] = ()) -> Message:
    properties = {"User-Property": list(pairs)} if pairs else None
    return Message("a", b"1", 1, False, Client("c"), 1, properties, via=via)


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        (f"00-{TRACE}-{PARENT}-01", True),
        (f"00-{TRACE}-{PARENT}-00", True),
        (f"cc-{TRACE}-{PARENT}-01-what-later-versions-add", True),
        (f"00-{TRACE}-{PARENT}-01-more", False),  # version 00 has four members
        (f"ff-{TRACE}-{PARENT}-01", False),  # W3C Trace Context, section 3.2.2.1
        (f"00-{'0' * 32}-{PARENT}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (f"00-{TRACE.upper()}-{PARENT}-01", False),
        (f"00-{TRACE}-{PARENT}-1", False),
        (f"00-{TRACE}-{PARENT}-01\n", False),
        ("", False),
    ],
)
def test_a_traceparent_is_read_as_the_standard_says(text: str, is_valid: bool) -> None:
    context = parse_traceparent(text)
    assert (context is not None) is is_valid
    if context is not None and text.startswith("00-"):
        assert context.traceparent == text


def test_the_context_of_a_publisher_is_the_first_of_its_user_properties() -> None:
    first = f"00-{TRACE}-{PARENT}-01"
    received = received_context(
        message(("x", "y"), ("tracestate", "a=1"), ("traceparent", first), ("traceparent", ""))
    )
    assert received == TraceContext(int(TRACE, 16), int(PARENT, 16), True, "a=1")
    assert received_context(message()) is None
    assert received_context(message(("traceparent", "nonsense"))) is None
    too_long = received_context(message(("traceparent", first), ("tracestate", "a" * 513)))
    assert too_long is not None
    assert too_long.state == ""


def test_a_sampled_message_keeps_its_context_when_it_is_changed_and_stored() -> None:
    context = new_context()
    marked = message(via=(context.mark, "rule"))
    changed = marked.changed("b", b"2", 0, False, None)
    stored = decoder(StoredMessage, "a message", lambda *members: members)(
        encode(changed)
    ).message()
    from_log = message_of(logged(changed, None))
    assert (
        sampled_context(changed) == sampled_context(stored) == sampled_context(from_log) == context
    )
    assert without_mark(stored.via) == ("rule",)
    assert sampled_context(message(via=("rule",))) is None


def test_late_spans_of_a_trace_that_is_left_out_are_kept_if_they_failed() -> None:
    exported: list[Span] = []

    class Provider:
        def export(self, spans: Sequence[Span]) -> None:
            exported.extend(spans)

    spans = Spans()
    spans.use(Provider())
    context = new_context()
    spans.leave_out(context.trace_id)
    spans.export_late(
        [Span("fine", context, None, 1, 2), Span("failed", context, None, 1, 2, error="away")]
    )
    assert [span.name for span in exported] == ["failed"]
    spans.use(None)
    spans.export(exported)
    assert len(exported) == 1


def test_what_is_not_a_provider_is_refused() -> None:
    spans = Spans()
    with pytest.raises(
        SluiceError, match="expected a provider of spans with the method export, got str"
    ):
        spans.use("not a provider")  # type: ignore[arg-type]
    assert not spans.is_on


def test_a_broker_without_the_extra_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    with pytest.raises(ConfigError, match=r"pip install 'sluicemq\[telemetry\]'"):
        check_installed()
