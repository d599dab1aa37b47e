"""Messages and bytes by topic, as a tree by level that is bounded, for users who watch.

Nothing is counted without a look: the first one switches counting on, and ``IDLE_S`` after the last one it ends
and all is forgotten. Then a read costs one comparison. What is always counted instead would cost each message, and
the short way of QoS 0 forwards two million of those in a second without looking at their topics one by one.

While it counts, what a connection read is read once more, packet by packet. Above ``_PACKETS_PER_S`` only
some of the reads are, drawn by lot, and each counts for all: rates are estimates then, and sums are right on average.

When there is no room for another level, those with the fewest messages go, and what they counted goes to the ``rest``
of the level above. So the sums of every level stay right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush
from random import random
from typing import Final

from broker.codec import properties as p
from broker.codec.primitives import Reader, end_of_topic
from broker.core.client import Client
from broker.core.clock import Clock
from broker.core.errors import PeerError
from broker.pipeline.plan import Plans

# Counting ends so long after the last look.
IDLE_S: Final = 300.0
MAX_LEVELS: Final = 20_000
MAX_BYTES: Final = 16 * 1024 * 1024
# Bytes that a level takes in addition to its name and topic.
_LEVEL_BYTES: Final = 520
_MAX_TOPIC_BYTES: Final = 1024
# Longer and deeper topics count as the rest of the root.
_MAX_DEPTH: Final = 64
# Packets checked in a second, before only some of the reads are: some 15 ms where topics alternate.
_PACKETS_PER_S: Final = 20_000
_WINDOW_NS: Final = 100_000_000
_ROLL_S: Final = 1.0


class Level:
    """One level of the tree: its own topic's counts, those of topics below that have no level, and their sum.

    ``messages`` and ``bytes`` (of payloads) are its own topic's, ``rest_*`` those of topics that made room. ``all_*``
    and the rates, per second, are of itself and everything below, as of the last look.
    """

    __slots__ = (
        "all_bytes", "all_last_ns", "all_messages", "all_topics", "byte_rate", "bytes", "children", "is_topic",
        "last_ns", "messages", "name", "parent", "rate", "rest_bytes", "rest_last_ns", "rest_messages", "rest_topics",
        "seen_bytes", "seen_messages", "topic",
    )  # fmt: skip

    def __init__(self, parent: Level | None, name: str, topic: str) -> None:
        self.parent = parent
        self.name = name
        self.topic = topic
        self.children: dict[str, Level] = {}
        self.is_topic = False
        self.messages = self.bytes = self.last_ns = 0
        self.rest_messages = self.rest_bytes = self.rest_last_ns = self.rest_topics = 0
        self.all_messages = self.all_bytes = self.all_last_ns = self.all_topics = 0
        self.seen_messages = self.seen_bytes = 0
        self.rate: float | None = None
        self.byte_rate: float | None = None

    @property
    def size_bytes(self) -> int:
        """About what it takes."""
        return _LEVEL_BYTES + len(self.name) + 2 * len(self.topic)

    def fold(self) -> None:
        """Leave what it counted to the level above, as its rest. It has no children."""
        above = self.parent
        assert above is not None
        above.rest_messages += self.messages + self.rest_messages
        above.rest_bytes += self.bytes + self.rest_bytes
        above.rest_topics += self.is_topic + self.rest_topics
        above.rest_last_ns = max(above.rest_last_ns, self.last_ns, self.rest_last_ns)
        del above.children[self.name]


class TopicCounts:
    """Counts of messages from clients and from inside the broker, by topic, while a user watches.

    The tree begins with the topics that were published recently, as the plans know them.
    """

    def __init__(
        self, clock: Clock, plans: Plans, max_levels: int = MAX_LEVELS, max_bytes: int = MAX_BYTES
    ) -> None:
        self._clock = clock
        self._plans = plans
        self._max_levels = max_levels
        self._max_bytes = max_bytes
        self.is_on = False
        self.since_ns = 0
        self._forget()

    def _forget(self) -> None:
        self.root = Level(None, "", "")
        self._by_topic: dict[bytes, Level] = {}
        self._levels: list[Level] = [self.root]
        """Each behind the one above it."""
        self._bytes = self._looked_s = self._rolled_s = 0.0
        self._weight = 1
        self._window_ns = 0
        self._packets = 0
        self.is_sampled = False
        """True if some reads were left out, so that counts are estimates."""

    # -- counting --

    def scan(
        self,
        client: Client,
        now_ns: int,
        aliases: Mapping[int, bytes],
        data: bytes,
        position: int,
        end: int,
    ) -> None:
        """Count the PUBLISH packets in ``data[position:end]``, which were read from a client and have been handled.

        ``aliases`` are the topics by the aliases that it has set.
        """
        is_v5 = client.protocol_version == 5
        weight = self._weight
        if not 0 <= now_ns - self._window_ns < _WINDOW_NS:
            self._window_ns = now_ns
            if weight > 1 and self._packets * 4 < _PACKETS_PER_S * _WINDOW_NS // 1_000_000_000:
                weight = self._weight = weight // 2
            self._packets = 0
        if weight > 1 and random() * weight >= 1:
            return
        find = self._by_topic.get
        packets = 0
        while end - position > 1:
            first = data[position]
            length = data[position + 1]
            body = position + 2
            if length > 127:
                length = length & 127
                shift = 7
                while body < end and shift < 28:
                    byte = data[body]
                    body += 1
                    length |= (byte & 127) << shift
                    shift += 7
                    if byte < 128:
                        break
            stop = body + length
            if stop > end:
                break
            if first & 0xF0 != 0x30 or stop - body < 2:
                position = stop
                continue
            at = end_of_topic(data, body)
            topic = data[body + 2 : at]
            size = stop - position
            count = 1
            head = data[position:at]
            following = stop
            while topic and following + size <= end and data.startswith(head, following):
                following += size
                count += 1
            at += 2 if first & 6 else 0
            if is_v5 and at < stop:
                if not topic:
                    topic = _aliased(data, at, stop, aliases)
                at = _behind_properties(data, at, stop)
            packets += count
            level = find(topic) or self._level_for(topic, client)
            if level is not None:
                level.messages += count * weight
                level.bytes += count * weight * max(0, stop - at)
                level.last_ns = now_ns
            position = following
        self._packets += packets
        if self._packets > _PACKETS_PER_S * _WINDOW_NS // 1_000_000_000:
            self._weight = weight * 2
            self._packets = 0
            self._window_ns = now_ns
            self.is_sampled = True

    def count(self, topic: str, size: int, now_ns: int) -> None:
        """Count a message that was made inside the broker, or that a transform moved to another topic."""
        level = self._level_of(topic)
        level.messages += 1
        level.bytes += size
        level.last_ns = now_ns

    def add(self, topic: str, last_ns: int) -> None:
        """Show a topic that was published before counting began."""
        level = self._level_of(topic)
        level.last_ns = max(level.last_ns, last_ns)

    def _level_for(self, topic: bytes, client: Client) -> Level | None:
        """The level of the topic that a client names; None where it is not a topic."""
        try:
            return self._level_of(self._plans.meant(topic, client)) if topic else None
        except (PeerError, UnicodeDecodeError):
            return None

    def _level_of(self, topic: str) -> Level:
        """The level of a topic, made if need be."""
        key = topic.encode(errors="replace")
        if (existing := self._by_topic.get(key)) is not None:
            return existing
        names = topic.split("/", _MAX_DEPTH)
        if len(key) > _MAX_TOPIC_BYTES or len(names) > _MAX_DEPTH:
            return self.root
        if len(self._levels) + len(names) > self._max_levels or self._bytes > self._max_bytes:
            self._make_room()
        level = self.root
        end = -1
        for name in names:
            end += 1 + len(name)
            below = level.children.get(name)
            if below is None:
                below = level.children[name] = Level(level, name, topic[:end])
                self._levels.append(below)
                self._bytes += below.size_bytes
            level = below
        level.is_topic = True
        self._by_topic[key] = level
        return level

    def _make_room(self) -> None:
        """Fold the levels with the fewest messages until an eighth of the room is free: some 15 ms."""
        ends = [
            (
                candidate.messages + candidate.rest_messages,
                candidate.last_ns,
                id(candidate),
                candidate,
            )
            for candidate in self._levels[1:]
            if not candidate.children
        ]
        heapify(ends)
        gone: set[Level] = set()
        most = self._max_levels * 7 // 8
        most_bytes = self._max_bytes * 7 / 8
        while ends and (len(self._levels) - len(gone) > most or self._bytes > most_bytes):
            level = heappop(ends)[-1]
            above = level.parent
            assert above is not None
            level.fold()
            gone.add(level)
            self._bytes -= level.size_bytes
            self._by_topic.pop(level.topic.encode(), None)
            if not above.children and above is not self.root:
                heappush(
                    ends, (above.messages + above.rest_messages, above.last_ns, id(above), above)
                )
        self._levels = [candidate for candidate in self._levels if candidate not in gone]

    # -- looking --

    def look(self) -> None:
        """Count from now on, and work out the sums and rates of all levels, at most once a second."""
        now_s = self._clock.monotonic_s()
        self._looked_s = now_s
        if not self.is_on:
            self.is_on, self.since_ns, self._rolled_s = True, self._clock.now_ns(), now_s
            for topic in tuple(self._plans.by_topic)[-self._max_levels // 4 :]:
                if not topic.startswith(b"$"):
                    self._level_of(topic.decode())
        passed_s = now_s - self._rolled_s
        if passed_s >= _ROLL_S:
            self._rolled_s = now_s
            self.sum_up(passed_s)

    def sum_up(self, passed_s: float = 0.0) -> None:
        """Work out the sums of all levels, and the rates where some time has passed since the last ones."""
        for level in self._levels:
            level.all_messages = level.messages + level.rest_messages
            level.all_bytes = level.bytes + level.rest_bytes
            level.all_topics = level.is_topic + level.rest_topics
            level.all_last_ns = max(level.last_ns, level.rest_last_ns)
        for level in reversed(self._levels):
            above = level.parent
            if above is not None:
                above.all_messages += level.all_messages
                above.all_bytes += level.all_bytes
                above.all_topics += level.all_topics
                above.all_last_ns = max(above.all_last_ns, level.all_last_ns)
            if passed_s:
                level.rate = (level.all_messages - level.seen_messages) / passed_s
                level.byte_rate = (level.all_bytes - level.seen_bytes) / passed_s
                level.seen_messages = level.all_messages
                level.seen_bytes = level.all_bytes

    def find(self, topic: str | None) -> Level | None:
        """The level of a topic, or of the common beginning of several; the root for None."""
        level: Level | None = self.root
        for name in () if topic is None else topic.split("/"):
            level = level.children.get(name) if level is not None else None
        return level

    def below(self, level: Level) -> Iterator[Level]:
        """The levels that are topics, at this level and below it."""
        waiting = [level]
        while waiting:
            next_level = waiting.pop()
            waiting += next_level.children.values()
            if next_level.is_topic:
                yield next_level

    def tick(self) -> None:
        """Stop counting, and forget everything, when the last look was a while ago."""
        if self.is_on and self._clock.monotonic_s() - self._looked_s > IDLE_S:
            self.is_on = False
            self._forget()


def _behind_properties(data: bytes, at: int, stop: int) -> int:
    """Position of the payload behind properties that begin here."""
    length = shift = 0
    while at < stop:
        byte = data[at]
        at += 1
        length |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    return min(stop, at + length)


def _aliased(data: bytes, at: int, stop: int, aliases: Mapping[int, bytes]) -> bytes:
    """The topic of a PUBLISH that has an alias in its place; empty where it has none."""
    try:
        properties = p.decode_properties(Reader(data, at, stop, "PUBLISH"), p.PUBLISH)
    except PeerError:
        return b""
    return aliases.get(properties.get("Topic-Alias", 0), b"")
