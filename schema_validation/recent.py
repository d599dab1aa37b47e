"""Recent messages to try schemas on: those of a stream that captures the topics, else those kept in memory.

What is kept in memory is bounded for each filter by count, bytes and rate (one message a millisecond), and costs a
busy topic one comparison a message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from broker.core.errors import Invalid, NotFound, PeerError, Problem
from broker.core.feature import Services
from broker.core.message import Message
from broker.core.stage import GateCall
from broker.core.topic import TopicFilter, covers

MAX_SAMPLES = 1000
_EVERY_NS = 1_000_000
# Maximum filters watched because a user asked for their messages.
_MOST_ASKED_FOR = 8


@dataclass(frozen=True, slots=True)
class Binding:
    """Topics that a schema is bound to by a validation, and the message type it names there."""

    topic_filter: str
    message_type: str | None


@dataclass(frozen=True, slots=True)
class Sample:
    """A payload as it was published, and by which filter it was found."""

    topic_filter: str
    topic: str
    payload: bytes


class Ring:
    """The last messages on a filter's topics."""

    __slots__ = ("_bytes", "_entries", "_max_bytes", "_max_messages", "next_ns")

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: deque[tuple[str, bytes]] = deque()
        self.next_ns = 0

    def take(self, message: Message) -> None:
        """Keep a message; the oldest make room."""
        self.next_ns = message.received_ns + _EVERY_NS
        payload = message.payload
        if len(payload) > self._max_bytes:
            return
        self._entries.append((message.topic, payload))
        self._bytes += len(payload)
        while self._bytes > self._max_bytes or len(self._entries) > self._max_messages:
            self._bytes -= len(self._entries.popleft()[1])

    def entries(self) -> Sequence[tuple[str, bytes]]:
        """Topic and payload, oldest first."""
        return tuple(self._entries)


class Sampler:
    """A gate that lets everything pass and keeps a sample, in front of all others: refused messages count too."""

    name = "samples"

    def __init__(
        self, filters: Callable[[], Sequence[TopicFilter]], max_messages: int, max_bytes: int
    ) -> None:
        self._filters = filters
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._rings: dict[str, Ring] = {}
        self._asked_for: dict[str, TopicFilter] = {}

    def plan(self, topic: str) -> GateCall | None:
        """Samplers of a topic's messages; None if no filter that matches is watched."""
        wanted = {own.filter: own for own in (*self._filters(), *self._asked_for.values())}
        self._rings = {text: ring for text, ring in self._rings.items() if text in wanted}
        if self._max_messages == 0:
            return None
        rings = [self._ring(text) for text, own in wanted.items() if own.matches(topic)]
        return _sampling(rings) if rings else None

    def watch(self, topic_filter: TopicFilter) -> None:
        """Keep samples of these topics too; the oldest that was asked for makes room. Plans must be made again."""
        while len(self._asked_for) >= _MOST_ASKED_FOR:
            del self._asked_for[next(iter(self._asked_for))]
        self._asked_for[topic_filter.filter] = topic_filter

    def entries(self, topic_filter: str) -> Sequence[tuple[str, bytes]]:
        """Samples of a watched filter, topic and payload."""
        ring = self._rings.get(topic_filter)
        return () if ring is None else ring.entries()

    def _ring(self, text: str) -> Ring:
        return self._rings.setdefault(text, Ring(self._max_messages, self._max_bytes))


def _sampling(rings: Sequence[Ring]) -> GateCall:
    if len(rings) == 1:
        ring = rings[0]

        def sample(message: Message) -> Message:
            if message.received_ns >= ring.next_ns:
                ring.take(message)
            return message

        return sample

    def sample_all(message: Message) -> Message:
        for ring in rings:
            if message.received_ns >= ring.next_ns:
                ring.take(message)
        return message

    return sample_all


@dataclass(slots=True)
class Recent:
    """Finds samples. Used on the event loop; each call takes milliseconds."""

    services: Services
    sampler: Sampler
    bindings: Callable[[str], Sequence[Binding]]
    """The topics a schema is bound to, by its name."""

    def samples(self, filters: Sequence[str]) -> Sequence[Sample]:
        """The last messages on the topics of the filters, at most ``MAX_SAMPLES`` in all."""
        each = MAX_SAMPLES // max(1, len(filters))
        return [
            sample for text in dict.fromkeys(filters) for sample in self._of_filter(text)[-each:]
        ]

    def of_topic(self, text: str) -> Sequence[Sample]:
        """The last messages on the topics of a filter.

        Raises:
            Invalid: it is not a filter, or there are no samples yet; they are kept from now on.
        """
        try:
            wanted = TopicFilter.parse(text)
        except PeerError as error:
            raise Invalid("no messages are known", [Problem(str(error), "/topic")]) from None
        samples = self._of_filter(wanted.filter)
        if not samples:
            self.sampler.watch(wanted)
            self.services.messaging.plans.invalidate()
            hint = "publish some and ask again: they are kept from now on"
            raise Invalid(
                "no messages are known",
                [Problem(f"none were kept of {text!r}", "/topic", suggestion=hint)],
            )
        return samples

    def of_stream(self, name: str) -> Sequence[Sample]:
        """The last messages, or rows, of a stream. Raises ``Invalid`` when there is no such stream, or it is empty."""
        try:
            samples = self._read(name, None)
        except NotFound as error:
            raise Invalid("no messages are known", [Problem(str(error), "/stream")]) from None
        if not samples:
            raise Invalid(
                "no messages are known",
                [Problem(f"the stream {name!r} holds nothing yet", "/stream")],
            )
        return samples

    def _of_filter(self, text: str) -> Sequence[Sample]:
        for stream in self._capturing(text):
            if samples := self._read(stream, text):
                return samples
        return [Sample(text, topic, payload) for topic, payload in self.sampler.entries(text)]

    def _capturing(self, text: str) -> Sequence[str]:
        """The streams that capture every topic of a filter."""
        wanted = TopicFilter.parse(text).levels
        return [
            spec["name"]
            for spec in self.services.storage.section("streams").load()
            if any(
                covers(TopicFilter.parse(own).levels, wanted) for own in spec.get("topics") or ()
            )
        ]

    def _read(self, stream: str, text: str | None) -> Sequence[Sample]:
        matches = TopicFilter.parse(text).matches if text is not None else None
        samples: list[tuple[int, Sample]] = []
        history = self.services.storage.history
        for shard in history.ranges(stream):
            start = max(shard.first_offset, shard.next_offset - MAX_SAMPLES)
            for _, record in history.read(stream, shard.shard, start, MAX_SAMPLES):
                if matches is None or matches(record.topic):
                    samples.append(
                        (record.ts_us, Sample(text or stream, record.topic, bytes(record.payload)))
                    )
        return [sample for _, sample in sorted(samples, key=lambda item: item[0])[-MAX_SAMPLES:]]
