"""Topic aliases (MQTT 5.0, section 3.3.2.3.4): a topic is sent once with a number, then only the number.

To a client the first topics win, and keep their number as long as they are used. When all numbers are taken, a topic
that came ``_PATIENCE`` times gets the number of a topic that did not come since then, if there is one among the next
few checked, in turn. So a late hot topic costs a dictionary entry per message until it has its number, and a stream
of topics that come once each takes no one's.

Packets are rewritten as they are put into the outbox, the last place before the wire: a packet that waits for a commit
leaves later than others, and a number must not overtake its topic. Clients that ask for no aliases have
the plain outbox.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.codec.encode import aliased_publish, publish_topic
from broker.core.memory import MemoryUse
from broker.session.outbox import Outbox, PendingWrites

_PATIENCE: Final = 8
_LOOKS: Final = 16
_CANDIDATES_MIN: Final = 64
_CANDIDATES_FACTOR: Final = 4
_PUBLISH: Final = 0x30
# Maximum size of a topic that gets a number, which bounds the memory of a connection.
_MAX_TOPIC_BYTES: Final = 1024


class ReceivedAliases(dict[int, bytes]):
    """Topics by the aliases that a client has set. ``size_bytes`` is what they have, and part of the tally of all."""

    __slots__ = ("_tally", "size_bytes")

    def __init__(self, tally: MemoryUse) -> None:
        super().__init__()
        self._tally = tally
        self.size_bytes = 0

    def __setitem__(self, alias: int, topic: bytes) -> None:
        self._grow(len(topic) - len(self.get(alias, b"")))
        super().__setitem__(alias, topic)

    def clear(self) -> None:
        """Forget all."""
        self._grow(-self.size_bytes)
        super().clear()

    def _grow(self, size: int) -> None:
        self.size_bytes += size
        self._tally.bytes += size


class _Candidate:
    """A topic without a number: how often it came, and since which packet."""

    __slots__ = ("count", "since")

    def __init__(self, since: int) -> None:
        self.count = 0
        self.since = since


class TopicAliases:
    """The numbers 1 to ``maximum`` of one connection; they end with it [MQTT-3.3.2-7]."""

    __slots__ = (
        "_candidates",
        "_hand",
        "_maximum",
        "_most_candidates",
        "_numbers",
        "_packets",
        "_topics",
        "_used_at",
    )

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._packets = self._hand = 0
        self._numbers: dict[bytes, int] = {}
        self._topics: list[bytes] = []
        self._used_at: list[int] = []
        self._candidates: dict[bytes, _Candidate] = {}
        self._most_candidates = max(_CANDIDATES_MIN, _CANDIDATES_FACTOR * maximum)

    def find(self, topic: bytes) -> int:
        """The number that the client knows for the topic of the next packet, 0 when there is none."""
        self._packets += 1
        number = self._numbers.get(topic, 0)
        if number:
            self._used_at[number - 1] = self._packets
        return number

    def free_for(self, topic: bytes) -> int:
        """A number that the topic could have, which has none; 0 when it must go without. Then ``assign``."""
        if len(self._topics) < self._maximum:
            return len(self._topics) + 1
        candidate = self._candidates.get(topic)
        if candidate is None:
            if len(self._candidates) >= self._most_candidates:
                self._candidates.clear()
            candidate = self._candidates[topic] = _Candidate(self._packets)
        candidate.count += 1
        if candidate.count < _PATIENCE:
            return 0
        del self._candidates[topic]
        return self._unused_since(candidate.since)

    def assign(self, number: int, topic: bytes) -> None:
        """The client has been sent the topic with this number."""
        if number > len(self._topics):
            self._topics.append(topic)
            self._used_at.append(self._packets)
        else:
            del self._numbers[self._topics[number - 1]]
            self._topics[number - 1], self._used_at[number - 1] = topic, self._packets
        self._numbers[topic] = number

    def topics(self) -> dict[int, bytes]:
        """All topics that have a number, by it."""
        return dict(enumerate(self._topics, 1))

    def _unused_since(self, packet: int) -> int:
        for _ in range(min(_LOOKS, self._maximum)):
            slot = self._hand
            self._hand = (slot + 1) % self._maximum
            if self._used_at[slot] < packet:
                return slot + 1
        return 0


class AliasingOutbox(Outbox):
    """An outbox that writes topics as aliases; every packet comes through ``add``, whole and alone."""

    __slots__ = ("_aliases", "_max_packet_bytes")

    is_plain = False

    def __init__(
        self,
        pending: PendingWrites,
        write: Callable[[bytes], object],
        alias_maximum: int,
        max_packet_bytes: float,
    ) -> None:
        super().__init__(pending, write)
        self._aliases = TopicAliases(alias_maximum)
        self._max_packet_bytes = max_packet_bytes

    def add(self, chunk: bytes) -> None:
        """Write this packet in the present turn."""
        super().add(self._with_alias(chunk) if chunk[0] & 0xF0 == _PUBLISH else chunk)

    def topics_by_alias(self) -> dict[int, bytes]:
        """The topics that the client knows by a number."""
        return self._aliases.topics()

    def _with_alias(self, packet: bytes) -> bytes:
        topic = publish_topic(packet)
        aliases = self._aliases
        if len(topic) > _MAX_TOPIC_BYTES:
            return packet
        number = aliases.find(topic)
        is_known = number > 0
        number = number or aliases.free_for(topic)
        if not number:
            return packet
        aliased = aliased_publish(packet, number, is_known=is_known)
        if len(aliased) > self._max_packet_bytes:  # [MQTT-3.1.2-24]: it fitted without the alias
            return packet
        if not is_known:
            aliases.assign(number, topic)
        return aliased
