"""Topic aliases to a client (MQTT 5.0, section 3.3.2.3.4): a topic is sent once with a number, then only the number.

The first topics win, and keep their number as long as they are used. When all numbers are taken, a topic that keeps
coming gets the number of one that has gone cold: every ``_PATIENCE``-th time that a topic is missed, one number is
looked at, in turn; one that was not used since it was last looked at is given away. So a late hot topic costs a
dictionary entry per message until it has its number, and a stream of topics that come once each takes nobody's.

Packets are rewritten as they are put into the outbox, the last place before the wire: what waits for a commit leaves
later than what does not, and a number must not overtake the topic it stands for. Clients that ask for no aliases have
the plain outbox.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.codec.encode import aliased_publish, publish_topic
from broker.session.outbox import Outbox, Turn

_PATIENCE: Final = 8
_CANDIDATES_MIN: Final = 64
_CANDIDATES_FACTOR: Final = 4
_PUBLISH: Final = 0x30


class TopicAliases:
    """The numbers 1 to ``maximum`` of one connection; they end with it [MQTT-3.3.2-7]."""

    __slots__ = ("_candidates", "_hand", "_maximum", "_most_candidates", "_numbers", "_topics", "_uses")

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._numbers: dict[bytes, int] = {}
        self._topics: list[bytes] = []
        self._uses: list[int] = []
        self._candidates: dict[bytes, int] = {}
        self._most_candidates = max(_CANDIDATES_MIN, _CANDIDATES_FACTOR * maximum)
        self._hand = 0

    def find(self, topic: bytes) -> int:
        """The number that the client knows for the topic, 0 when there is none."""
        number = self._numbers.get(topic, 0)
        if number:
            self._uses[number - 1] += 1
        return number

    def free_for(self, topic: bytes) -> int:
        """A number that the topic could have, which has none; 0 when it must go without. Then ``assign``."""
        if len(self._topics) < self._maximum:
            return len(self._topics) + 1
        candidates = self._candidates
        missed = candidates.get(topic, 0) + 1
        if missed < _PATIENCE:
            if len(candidates) >= self._most_candidates:
                candidates.clear()
            candidates[topic] = missed
            return 0
        candidates.pop(topic, None)
        slot = self._hand
        self._hand = (slot + 1) % self._maximum
        if self._uses[slot]:
            self._uses[slot] = 0
            return 0
        return slot + 1

    def assign(self, number: int, topic: bytes) -> None:
        """The client has been sent the topic with this number."""
        if number > len(self._topics):
            self._topics.append(topic)
            self._uses.append(1)
        else:
            del self._numbers[self._topics[number - 1]]
            self._topics[number - 1], self._uses[number - 1] = topic, 1
        self._numbers[topic] = number


class AliasingOutbox(Outbox):
    """An outbox that writes topics as aliases; every packet comes through ``add``, whole and alone."""

    __slots__ = ("_aliases", "_max_packet_bytes")

    is_plain = False

    def __init__(
        self, turn: Turn, write: Callable[[bytes], object], alias_maximum: int, max_packet_bytes: float
    ) -> None:
        super().__init__(turn, write)
        self._aliases, self._max_packet_bytes = TopicAliases(alias_maximum), max_packet_bytes

    def add(self, chunk: bytes) -> None:
        """Write this packet in the present turn."""
        super().add(self._with_alias(chunk) if chunk[0] & 0xF0 == _PUBLISH else chunk)

    def _with_alias(self, packet: bytes) -> bytes:
        topic, aliases = publish_topic(packet), self._aliases
        if number := aliases.find(topic):
            return aliased_publish(packet, number, is_known=True)
        number = aliases.free_for(topic)
        if not number:
            return packet
        introduced = aliased_publish(packet, number, is_known=False)
        if len(introduced) > self._max_packet_bytes:  # [MQTT-3.1.2-24]: it fitted without the alias
            return packet
        aliases.assign(number, topic)
        return introduced
