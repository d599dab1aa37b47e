"""Time lines of clients: what happened to each, kept over reconnects, within bounds in count and bytes over all."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, Literal

from broker.core.clock import Clock
from broker.core.signals import Signal
from broker.observe.metrics import Metrics

EventKind = Literal[
    "connected",
    "refused",
    "subscribed",
    "unsubscribed",
    "throttled",
    "slow",
    "dropped",
    "taken_over",
    "disconnected",
]
# Maximum events of one client; then its oldest go.
MAX_EVENTS: Final = 50
# Maximum bytes of the time lines of all clients that connected; then those of clients without news for longest go.
MAX_BYTES: Final = 8 * 1024 * 1024
# The same for clients that were only ever refused: anyone may make up identifiers.
MAX_REFUSED_BYTES: Final = 512 * 1024
_MAX_DETAIL: Final = 300
# Memory of an event and of a time line besides their texts.
_EVENT_BYTES: Final = 250
_LINE_BYTES: Final = 250


class ClientEvent:
    """Something that happened to a client, ``count`` times in a row from ``first_ns`` to ``last_ns``."""

    __slots__ = ("count", "detail", "first_ns", "kind", "last_ns", "reason")

    def __init__(self, at_ns: int, kind: EventKind, reason: str, detail: str, count: int) -> None:
        self.first_ns = self.last_ns = at_ns
        self.kind = kind
        self.reason = reason
        self.detail = detail
        self.count = count

    def is_like(self, other: ClientEvent) -> bool:
        """Return whether another event is counted with this one."""
        return (
            self.kind == other.kind and self.reason == other.reason and self.detail == other.detail
        )

    @property
    def size_bytes(self) -> int:
        """Size in the bound."""
        return _EVENT_BYTES + len(self.detail)


class _Table:
    """Time lines by client identifier, those without news for longest first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lines: OrderedDict[str, list[ClientEvent]] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._lines)

    def get(self, client_id: str) -> list[ClientEvent] | None:
        return self._lines.get(client_id)

    def add(self, client_id: str, event: ClientEvent) -> None:
        line = self._lines.get(client_id)
        if line is None:
            line = self._lines[client_id] = []
            self.size_bytes += _LINE_BYTES + len(client_id)
        line.append(event)
        self.size_bytes += event.size_bytes
        if len(line) > MAX_EVENTS:
            self.size_bytes -= line.pop(0).size_bytes
        self._lines.move_to_end(client_id)
        while self.size_bytes > self._max_bytes and len(self._lines) > 1:
            self.pop(next(iter(self._lines)))

    def pop(self, client_id: str) -> list[ClientEvent]:
        line = self._lines.pop(client_id, None)
        if line is None:
            return []
        self.size_bytes -= _LINE_BYTES + len(client_id) + sum(event.size_bytes for event in line)
        return line


class Timelines:
    """The time lines of a node's clients, in memory."""

    def __init__(self, clock: Clock, metrics: Metrics) -> None:
        self._clock = clock
        self._admitted = _Table(MAX_BYTES)
        self._refused = _Table(MAX_REFUSED_BYTES)
        self.on_event = Signal[str, ClientEvent]()
        """Something happened to the client of this identifier, also where it is only counted in its time line."""
        metrics.gauge(
            "client_timeline_bytes",
            lambda: self.size_bytes,
            "memory of the time lines of clients",
        )

    @property
    def size_bytes(self) -> int:
        """Memory of all time lines."""
        return self._admitted.size_bytes + self._refused.size_bytes

    def add(
        self, client_id: str, kind: EventKind, reason: str = "", detail: str = "", count: int = 1
    ) -> None:
        """Add an event of a client that is or was connected. One like the last before is counted there."""
        event = ClientEvent(self._clock.now_ns(), kind, reason, detail[:_MAX_DETAIL], count)
        line = self._admitted.get(client_id)
        if line and line[-1].is_like(event):
            line[-1].count += count
            line[-1].last_ns = event.last_ns
        else:
            if line is None and len(self._refused):
                for earlier in self._refused.pop(client_id):
                    self._admitted.add(client_id, earlier)
            self._admitted.add(client_id, event)
        self.on_event(client_id, event)

    def dropped(self, client_id: str, reason: str, count: int) -> None:
        """Add that messages were not delivered to a client."""
        self.add(client_id, "dropped", reason, "", count)

    def refused(self, client_id: str, reason: str, detail: str) -> None:
        """Add that a CONNECT was refused."""
        if self._admitted.get(client_id) is not None:
            self.add(client_id, "refused", reason, detail)
            return
        event = ClientEvent(self._clock.now_ns(), "refused", reason, detail[:_MAX_DETAIL], 1)
        line = self._refused.get(client_id)
        if line and line[-1].is_like(event):
            line[-1].count += 1
            line[-1].last_ns = event.last_ns
        else:
            self._refused.add(client_id, event)
        self.on_event(client_id, event)

    def of(self, client_id: str) -> Sequence[ClientEvent]:
        """The events of a client, oldest first."""
        return self._admitted.get(client_id) or self._refused.get(client_id) or ()
