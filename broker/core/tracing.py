"""Trace contexts of messages, and spans of their stages, without any telemetry library.

The context of a sampled message travels inside the message, as the first of its ``via``: so it goes with it through
transformations, rules, buffers and logs, in memory and on disk, and earlier releases read past it. All other messages
carry nothing. Times are nanoseconds since 1970.
"""

from __future__ import annotations

import random
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, runtime_checkable

import msgspec

from broker.core.errors import SluiceError
from broker.core.message import Message
from broker.core.signals import Signal
from broker.core.stream import ShardRange

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
_MARK: Final = "$trace/"
# W3C Trace Context, section 3.2: version, trace, parent and flags; what later versions add behind is ignored.
_TRACEPARENT: Final = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)
_SAMPLED: Final = 1
# W3C Trace Context, section 3.3.1.5: what at least must be passed on of a trace state.
_LONGEST_STATE: Final = 512
# Traces about which it is remembered that their late spans are not wanted.
_MAX_UNWANTED: Final = 10_000

Kind = Literal["internal", "server", "client", "producer", "consumer"]


class TraceContext(NamedTuple):
    """A trace and the span in it that is the parent of others; ``state`` is that of vendors."""

    trace_id: int
    span_id: int
    is_sampled: bool = True
    state: str = ""

    @property
    def traceparent(self) -> str:
        """The value of the header and user property of this name."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{'01' if self.is_sampled else '00'}"

    @property
    def mark(self) -> str:
        """The context in ``Message.via``."""
        return _MARK + self.traceparent


class Span(msgspec.Struct, gc=False):
    """A step in the way of one message. ``error`` says why it failed; empty where it did not."""

    name: str
    context: TraceContext
    parent: TraceContext | None
    start_ns: int
    end_ns: int
    kind: Kind = "internal"
    attributes: Mapping[str, Any] = {}
    error: str = ""


def new_context(parent: TraceContext | None = None) -> TraceContext:
    """A context for a new span: in the trace of its parent, or in a new one."""
    if parent is None:
        return TraceContext(random.getrandbits(128) or 1, random.getrandbits(64) or 1)
    return TraceContext(parent.trace_id, random.getrandbits(64) or 1, True, parent.state)


def parse_traceparent(text: str, state: str = "") -> TraceContext | None:
    """The context that a header or a user property holds, or None where it is not valid."""
    match = _TRACEPARENT.fullmatch(text)
    if match is None or (match[1] == "00" and match[5]):
        return None
    state = state if len(state) <= _LONGEST_STATE else ""
    return TraceContext(
        int(match[2], 16), int(match[3], 16), bool(int(match[4], 16) & _SAMPLED), state
    )


def received_context(message: Message) -> TraceContext | None:
    """The context that the publisher of a message sent with it, in user properties."""
    parent = state = None
    for name, value in message.properties.get("User-Property", ()) if message.properties else ():
        if name == TRACEPARENT and parent is None:
            parent = value
        elif name == TRACESTATE and state is None:
            state = value
    return None if parent is None else parse_traceparent(parent, state or "")


def sampled_context(message: Message) -> TraceContext | None:
    """The context of a sampled message, None for all others."""
    via = message.via
    if not via or not via[0].startswith(_MARK):
        return None
    return parse_traceparent(via[0].removeprefix(_MARK))


def without_mark(via: tuple[str, ...]) -> tuple[str, ...]:
    """The rules that a message came through."""
    return via[1:] if via and via[0].startswith(_MARK) else via


@runtime_checkable
class SpanProvider(Protocol):
    """Exports spans: the only thing the broker knows of a telemetry library. Called on the event loop; never waits."""

    def export(self, spans: Sequence[Span]) -> None:
        """Take the spans of a message; what there is no room for is dropped and counted."""


class Spans:
    """Spans that the parts of the broker report; they cost nothing while there is no provider."""

    def __init__(self) -> None:
        self._provider: SpanProvider | None = None
        self._unwanted: OrderedDict[int, None] = OrderedDict()
        self.on_stored = Signal[str, TraceContext, Sequence[ShardRange]]()
        """A message of a trace is on disk in a stream: its name, and its ranges, which have the message."""

    @property
    def is_on(self) -> bool:
        """True if there is a provider."""
        return self._provider is not None

    def use(self, provider: SpanProvider | None) -> None:
        """Export by this provider from now on, or not at all.

        Raises:
            SluiceError: it is not a provider.
        """
        if provider is not None and not isinstance(provider, SpanProvider):
            raise SluiceError(
                f"expected a provider of spans with the method export, got {type(provider).__name__}"
            )
        self._provider = provider

    def export(self, spans: Sequence[Span]) -> None:
        """Export the spans of a message."""
        if self._provider is not None:
            self._provider.export(spans)

    def leave_out(self, trace_id: int) -> None:
        """Export no later spans of a trace, except those of failures."""
        self._unwanted[trace_id] = None
        if len(self._unwanted) > _MAX_UNWANTED:
            self._unwanted.popitem(last=False)

    def export_late(self, spans: Sequence[Span]) -> None:
        """Export spans that end after their message was processed, such as those of bridges."""
        self.export(
            [span for span in spans if span.error or span.context.trace_id not in self._unwanted]
        )
