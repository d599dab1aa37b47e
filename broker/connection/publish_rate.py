"""Limits of the rate at which clients publish: messages and bytes a second, each client and all clients of a listener.

What was read is handled; a client that has spent more than its bucket holds is then not read from until the debt is
paid, so that nothing is lost and the system's own flow control slows it down. Where the settings say so it is
disconnected instead (0x96). Without limits there is nothing here on the way of a message.
"""

from __future__ import annotations

from typing import Final

from broker.connection.context import Context
from broker.connection.link import Peer
from broker.core import reason
from broker.core.bucket import TokenBucket
from broker.observe.log import get_logger
from broker.observe.metrics import Counter

_log = get_logger(__name__)

# The longest wait before the clock is asked again: it is not the loop's.
_LOOK_AGAIN_S: Final = 0.5
_HELP: Final = (
    "times that a client was not read from, or was disconnected, since it published too fast"
)


class Allowance:
    """The buckets of one client, or of one listener: messages and bytes, each only where it is limited."""

    __slots__ = ("_buckets", "exceeded")

    def __init__(
        self, messages: float, size_bytes: float, burst_s: float, exceeded: Counter, now_s: float
    ) -> None:
        self._buckets = [
            None if not rate else TokenBucket(rate, rate * burst_s, now_s)
            for rate in (messages, size_bytes)
        ]
        self.exceeded = exceeded

    def spend(self, messages: int, size_bytes: int, now_s: float) -> None:
        """Take what was published from both."""
        for bucket, amount in zip(self._buckets, (messages, size_bytes), strict=True):
            if bucket is not None:
                bucket.spend(amount, now_s)

    def debt_s(self, now_s: float) -> float:
        """Seconds until both are paid."""
        return max(bucket.wait_s(now_s) for bucket in self._buckets if bucket is not None)


class PublishRates:
    """The limits of all clients of a node. ``add_listener`` says what those of one listener may do together."""

    def __init__(self, context: Context) -> None:
        self._context = context
        metrics = context.metrics
        self._listeners: dict[str, Allowance] = {}
        self._of_client = metrics.counter("publish_rate_exceeded", _HELP, scope="client")
        self._of_listener = metrics.counter("publish_rate_exceeded", _HELP, scope="listener")

    def add_listener(self, name: str, messages: float, size_bytes: float) -> None:
        """Limit what all clients of a listener publish together; 0 is no limit."""
        self._listeners.pop(name, None)
        if messages or size_bytes:
            self._listeners[name] = self._allowance(messages, size_bytes, self._of_listener)

    def meter(self, connection: Peer) -> PublishMeter | None:
        """Meter of a new connection, None when nothing limits it."""
        settings = self._context.settings
        meters = []
        if settings.max_publish_rate or settings.max_publish_bytes_rate:
            own = self._allowance(
                settings.max_publish_rate, settings.max_publish_bytes_rate, self._of_client
            )
            meters.append(own)
        if (shared := self._listeners.get(connection.link.listener)) is not None:
            meters.append(shared)
        if not meters:
            return None
        disconnects = settings.publish_rate_exceeded == "disconnect"
        return PublishMeter(self._context, connection, meters, disconnects=disconnects)

    def _allowance(self, messages: float, size_bytes: float, exceeded: Counter) -> Allowance:
        burst_s = self._context.settings.publish_rate_burst
        now_s = self._context.clock.monotonic_s()
        return Allowance(messages, size_bytes, burst_s, exceeded, now_s)


class PublishMeter:
    """Amount that one connection has published, measured after each read."""

    __slots__ = ("_allowances", "_connection", "_context", "_disconnects")

    def __init__(
        self, context: Context, connection: Peer, allowances: list[Allowance], *, disconnects: bool
    ) -> None:
        self._context = context
        self._connection = connection
        self._allowances = allowances
        self._disconnects = disconnects

    def spend(self, messages: int, size_bytes: int) -> None:
        """Account for one read; stops reading, or disconnects, when it was too much."""
        if not messages:
            return
        now_s = self._context.clock.monotonic_s()
        for allowance in self._allowances:
            allowance.spend(messages, size_bytes, now_s)
        over = [allowance for allowance in self._allowances if allowance.debt_s(now_s) > 0]
        if not over:
            return
        for allowance in over:
            allowance.exceeded.value += 1
        connection = self._connection
        _log.warning(
            "publish.rate_exceeded",
            client_id=connection.client.client_id,
            peer=connection.link.peer_host,
        )
        if self._disconnects:
            connection.disconnect(reason.MESSAGE_RATE_TOO_HIGH, "message_rate_too_high")
            return
        self._context.timelines.add(connection.client.client_id, "throttled", "publish_rate")
        connection.hold(self)
        self._wait()

    def _wait(self) -> None:
        connection = self._connection
        if connection.is_closed:
            return
        now_s = self._context.clock.monotonic_s()
        debt_s = max(allowance.debt_s(now_s) for allowance in self._allowances)
        if debt_s > 0:
            self._context.later(min(debt_s, _LOOK_AGAIN_S), self._wait)
        else:
            connection.let_go(self)
