"""Tails: samples of the messages on a filter's topics as they pass, for users to read. Delivery does not change.

Without an open tail no message is inspected: an open tail is part of the plans of the topics that it matches, and of no
others. On topics with stages it is a gate before and behind all others, so it sees what was published and the result.
On others it is part of their routes, so that received bytes still go the short way.

A tail takes a maximum of messages and bytes per second, all of one second at once after a quiet one, and counts the
rest. It may be limited to publishers, by client identifier and address.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from fnmatch import translate
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from re import compile as compiled
from typing import Final

from broker.codec.framing import plain_publishes
from broker.core.bucket import TokenBucket
from broker.core.client import Client
from broker.core.clock import Clock
from broker.core.errors import Unavailable
from broker.core.message import Message
from broker.core.stage import Refusal
from broker.core.topic import TopicFilter

MAX_TAILS: Final = 32
MAX_MESSAGES_PER_S: Final = 200
MAX_BYTES_PER_S: Final = 1024 * 1024
# Maximum bytes of a payload; the rest is cut off.
MAX_PAYLOAD_BYTES: Final = 64 * 1024
_MAX_KEPT: Final = 400
_MAX_KEPT_BYTES: Final = 2 * MAX_BYTES_PER_S
# A tail that was full takes no message for so long, so that it takes several at once: each wake of a reader costs.
_PAUSE_S: Final = 0.1
# Messages that a gate keeps waiting.
_MAX_UNDECIDED: Final = 400
_NS: Final = 1_000_000_000


class Tailed:
    """A message as it was published, its payload perhaps cut, and its outcome.

    ``became`` is what stages made of it, None where they changed nothing; ``refusal`` says why it was stopped.
    ``size_bytes`` and ``became_bytes`` are the lengths of the whole payloads. ``line`` is how it is shown, kept by its
    reader: many tails may have it.
    """

    __slots__ = ("became", "became_bytes", "line", "message", "refusal", "size_bytes")

    def __init__(self, message: Message) -> None:
        self.message, self.size_bytes = _cut(message), len(message.payload)
        self.became: Message | None = None
        self.became_bytes = 0
        self.line = b""
        self.refusal: Refusal | None = None


def _cut(message: Message) -> Message:
    payload = message.payload
    if len(payload) <= MAX_PAYLOAD_BYTES:
        return message
    cut = payload[:MAX_PAYLOAD_BYTES]
    return message.changed(message.topic, cut, message.qos, message.retain, message.properties)


class Publishers:
    """The publishers whose messages a tail shows: client identifiers by a pattern with ``*``, ``?`` and ``[abc]``, and
    a network. None leaves no one out.

    The last answer is remembered, since the messages of one client come together.

    Raises:
        ValueError: it is not an address or a network.
    """

    __slots__ = ("_is_last_accepted", "_last", "_matches", "_network")

    def __init__(self, client_id: str | None = None, network: str | None = None) -> None:
        self._matches = None if client_id is None else compiled(translate(client_id)).match
        self._network = None if network is None else ip_network(network, strict=False)
        self._last: Client | None = None
        self._is_last_accepted = False

    def accept(self, client: Client) -> bool:
        """True if messages of the client are shown."""
        if client is not self._last:
            self._last = client
            self._is_last_accepted = (
                self._matches is None or self._matches(client.client_id) is not None
            ) and (self._network is None or self._is_within(client.peer_host))
        return self._is_last_accepted

    def _is_within(self, host: str | None) -> bool:
        try:
            address: IPv4Address | IPv6Address | None = ip_address((host or "").partition("%")[0])
        except ValueError:  # none, or the path of a socket
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return address in (self._network or ())


class Tail:
    """One open tail.

    ``on_ready`` is called on the loop when there is something to take after there was nothing, and when all tails are
    closed.
    """

    __slots__ = (
        "_bytes", "_kept", "_kept_bytes", "_messages", "count", "filter", "is_open", "on_ready",
        "publishers",
    )  # fmt: skip

    def __init__(
        self,
        topic_filter: TopicFilter,
        messages_per_s: int,
        bytes_per_s: int,
        on_ready: Callable[[], None],
        now_s: float,
        publishers: Publishers | None = None,
    ) -> None:
        self.filter = topic_filter
        self.publishers = publishers
        self.on_ready = on_ready
        self.is_open = True
        self._messages, self._bytes = (
            TokenBucket(rate, rate, now_s) for rate in (messages_per_s, bytes_per_s)
        )
        self.count = self._kept_bytes = 0
        self._kept: deque[Tailed] = deque()

    def take(self) -> list[Tailed]:
        """Messages kept since the last call, oldest first."""
        tailed = list(self._kept)
        self._kept.clear()
        self._kept_bytes = 0
        return tailed

    def accepts(self, client: Client) -> bool:
        """True if messages of the client are shown."""
        return self.publishers is None or self.publishers.accept(client)

    def wait_s(self, now_s: float) -> float:
        """Seconds until it takes another message, 0 when it does now. A large one may put it into debt."""
        return max(self._messages.wait_s(now_s, 1), self._bytes.wait_s(now_s))

    def admit(self, size_bytes: int, now_s: float) -> bool:
        """Count a message, and whether it is taken."""
        self.count += 1
        if self.wait_s(now_s):
            return False
        self._messages.spend(1, now_s)
        self._bytes.spend(min(size_bytes, MAX_PAYLOAD_BYTES), now_s)
        return True

    def keep(self, tailed: Tailed) -> None:
        """Keep a message that was admitted; the oldest make room."""
        self._kept.append(tailed)
        if len(self._kept) == 1:
            self.on_ready()
        self._kept_bytes += len(tailed.message.payload)
        while len(self._kept) > _MAX_KEPT or self._kept_bytes > _MAX_KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popleft().message.payload)


class Watch:
    """The open tails that match a topic."""

    __slots__ = ("__weakref__", "_all", "_full_until_ns", "_limited", "_uncounted", "tails")

    is_shown = True
    """See ``broker.routing.router.Watch``."""
    recorder = None
    """Messages that it sees may go the short way."""

    def __init__(self, all_tails: Tails, tails: tuple[Tail, ...]) -> None:
        self._all = all_tails
        self.tails = tails
        self._limited = tuple(tail for tail in tails if tail.publishers is not None)
        self._full_until_ns = self._uncounted = 0

    def arrives(self, message: Message) -> Message:
        """The gate in front of all others."""
        if admitting := self._admitting(message):
            self._all.undecided(message, Tailed(message), admitting)
        return message

    def passes(self, message: Message) -> Message:
        """The gate behind all others."""
        self._all.decided(message, None)
        return message

    def delivers(self, message: Message) -> None:
        """A message whose topic has no stages goes to its subscribers."""
        if message is not self._all.moved_last and (admitting := self._admitting(message)):
            self._all.keep(message, Tailed(message), admitting)

    def forwards(
        self, chunk: bytes, count: int, client: Client, now_ns: int, *, is_v5: bool
    ) -> None:
        """Messages without properties, whose topics have no stages, go to their subscribers as they came."""
        if not any(tail.accepts(client) for tail in self.tails):
            return
        for position, topic, payload_at, stop in plain_publishes(chunk, is_v5=is_v5):
            if self._is_full(now_ns):
                break
            qos = chunk[position] >> 1 & 3
            self.delivers(
                Message(topic.decode(), chunk[payload_at:stop], qos, False, client, now_ns)
            )
            count = count - 1
        self._skip(client, count)

    def settle(self) -> None:
        """Make the tails count what passed while none of them had room."""
        for tail in self.tails:
            tail.count += self._uncounted if tail.publishers is None else 0
        self._uncounted = 0

    def _skip(self, client: Client, count: int) -> None:
        """Count messages that no tail takes."""
        self._uncounted += count
        for tail in self._limited:
            tail.count += count if tail.accepts(client) else 0

    def _is_full(self, now_ns: int) -> bool:
        """True if no tail has room: remembered until one of them has, so that ten tails cost what one does."""
        if 0 < self._full_until_ns - now_ns <= _NS:
            return True
        now_s = self._all.clock.monotonic_s()
        wait_s = min(tail.wait_s(now_s) for tail in self.tails)
        if wait_s > 0:
            self._full_until_ns = now_ns + int(min(max(wait_s, _PAUSE_S), 1) * _NS)
        return wait_s > 0

    def _admitting(self, message: Message) -> list[Tail]:
        if self._is_full(message.received_ns):
            self._skip(message.client, 1)
            return []
        return self._all.admitting(message, self.tails)


class Tails:
    """All open tails. ``on_change`` is called when another is opened or closed: plans must be made again."""

    def __init__(self, clock: Clock, on_change: Callable[[], None]) -> None:
        self.clock = clock
        self._on_change = on_change
        self._open: list[Tail] = []
        self._watches: dict[tuple[Tail, ...], Watch] = {}
        self._undecided: dict[str, tuple[Tailed, list[Tail]]] = {}
        self._last: tuple[str, Tailed] | None = None
        self.moved_last: Message | None = None
        """The message that a stage moved to another topic last."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def is_open(self) -> bool:
        """True if there is any tail."""
        return bool(self._open)

    def open(
        self,
        topic_filter: TopicFilter,
        messages_per_s: int = MAX_MESSAGES_PER_S,
        bytes_per_s: int = MAX_BYTES_PER_S,
        on_ready: Callable[[], None] = lambda: None,
        publishers: Publishers | None = None,
    ) -> Tail:
        """A new tail; ``close`` it when it is no longer needed.

        Raises:
            Unavailable: too many are open.
        """
        if len(self._open) >= MAX_TAILS:
            raise Unavailable(
                f"expected at most {MAX_TAILS} open tails. Try: close one", retry_after_s=10
            )
        now_s = self.clock.monotonic_s()
        tail = Tail(topic_filter, messages_per_s, bytes_per_s, on_ready, now_s, publishers)
        self._open.append(tail)
        self._changed()
        return tail

    def close(self, tail: Tail) -> None:
        """Look for it no more. May be called twice."""
        if tail.is_open:
            tail.is_open = False
            self._open.remove(tail)
            self._changed()

    def close_all(self) -> None:
        """Close every tail, and wake those who wait for something to take."""
        for tail in tuple(self._open):
            self.close(tail)
            tail.on_ready()

    def matched(self, tail: Tail) -> int:
        """Number of messages published on the tail's topics; what ``take`` did not give of them was skipped."""
        for watch in self._watches.values():
            watch.settle()
        return tail.count

    def _changed(self) -> None:
        for watch in self._watches.values():
            watch.settle()
        self._watches.clear()
        if not self._open:
            self._undecided.clear()
            self._last = self.moved_last = None
        self._on_change()

    def watch(self, topic: str) -> Watch | None:
        """The tails that match a topic, the same object for all topics that the same ones match."""
        tails = tuple(tail for tail in self._open if tail.filter.matches(topic))
        if not tails:
            return None
        watch = self._watches.get(tails)
        if watch is None:
            watch = self._watches[tails] = Watch(self, tails)
        return watch

    def undecided(self, message: Message, tailed: Tailed, tails: list[Tail]) -> None:
        """A message is about to meet its gates."""
        if len(self._undecided) >= _MAX_UNDECIDED:
            del self._undecided[next(iter(self._undecided))]
        self._undecided[message.id] = tailed, tails

    def decided(self, message: Message, refusal: Refusal | None) -> None:
        """Result of the gates for a message, or the reason for its refusal, maybe by a later stage."""
        undecided = self._undecided.pop(message.id, None) if self._undecided else None
        if undecided is not None:
            tailed, tails = undecided
            tailed.refusal, changed = refusal, _cut(message)
            if refusal is None and changed != tailed.message:
                tailed.became, tailed.became_bytes = changed, len(message.payload)
            self.keep(message, tailed, tails)
        elif refusal is not None and self._last is not None and self._last[0] == message.id:
            self._last[1].refusal = refusal

    def moved(self, message: Message, topic: str) -> None:
        """A stage moved a message from a topic to another one: shown to those who did not see it there."""
        self.moved_last = message
        watch = self.watch(message.topic)
        tails = (
            ()
            if watch is None
            else [tail for tail in watch.tails if not tail.filter.matches(topic)]
        )
        if admitting := self.admitting(message, tails):
            self.keep(message, Tailed(message), admitting)

    def admitting(self, message: Message, tails: Iterable[Tail]) -> list[Tail]:
        """Count a message for tails; those that take it."""
        size_bytes = len(message.payload)
        now_s = self.clock.monotonic_s()
        client = message.client
        return [tail for tail in tails if tail.accepts(client) and tail.admit(size_bytes, now_s)]

    def keep(self, message: Message, tailed: Tailed, tails: list[Tail]) -> None:
        """Hand a message to tails that have admitted it."""
        self._last = message.id, tailed
        for tail in tails:
            tail.keep(tailed)
