"""The messages that a client is sent, as it gets them: read from the bytes that are written to its connection.

So they are those of every way to a client: live and from a store, of share groups and other cells, retained, and sent
again. A connection that is not read costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from broker.codec.decode import decode_packet
from broker.codec.framing import frame_at
from broker.codec.packets import Publish
from broker.observe.log import get_logger
from broker.session.outbox import Outbox

_log = get_logger(__name__)

_PUBLISH: Final = 3
_ALIAS: Final = "Topic-Alias"
_QOS_BITS: Final = 0x06
_MOST_BYTES: Final = 1 << 28
# Messages of one write that are read: some 20 ms. The others are counted.
_AT_ONCE: Final = 5000

T = TypeVar("T")


class SentMessages(Generic[T]):
    """Reads what is written to one connection until ``end``.

    Args:
        choose: those that take one more message on a topic; what no one takes is not decoded.
        take: a message for those that were chosen, with its topic where the packet has an alias.
        skip: number of messages that were not read, since too many came at once.
    """

    def __init__(
        self,
        box: Outbox,
        choose: Callable[[str], Sequence[T]],
        take: Callable[[Publish, Sequence[T]], None],
        skip: Callable[[int], None],
        *,
        is_v5: bool,
    ) -> None:
        self._box = box
        self._choose = choose
        self._take = take
        self._skip = skip
        self._version = 5 if is_v5 else 4
        self._topics: dict[int, str] = {}
        self._learn()
        self._rest = b""
        self.end = box.tap(self._hear)

    def _learn(self) -> None:
        topics = self._box.topics_by_alias()
        self._topics = {alias: topic.decode() for alias, topic in topics.items()}

    def _hear(self, data: bytes) -> None:
        try:
            self._rest = self._read_all(self._rest + data)
        except Exception:  # noqa: BLE001  the client and all others are written to whatever a capture meets
            _log.exception("capture.unread", effect="what the client is sent is no longer captured")
            self._rest = b""
            self.end()

    def _read_all(self, data: bytes) -> bytes:
        """Read the packets; returns the beginning of the one that is not whole yet."""
        position = count = 0
        while (frame := frame_at(data, position, _MOST_BYTES)) is not None:
            start, stop = frame
            if stop > len(data):
                break
            if data[position] >> 4 == _PUBLISH:
                count += 1
                if count <= _AT_ONCE:
                    self._read(data, position, start, stop)
            position = stop
        if count > _AT_ONCE:
            self._skip(count - _AT_ONCE)
            self._learn()
        return data[position:]

    def _read(self, data: bytes, position: int, start: int, stop: int) -> None:
        topic_at = start + 2
        topic_end = topic_at + (data[start] << 8 | data[start + 1])
        properties_at = topic_end + 2 if data[position] & _QOS_BITS else topic_end
        has_properties = self._version == 5 and data[properties_at] != 0
        topic = data[topic_at:topic_end].decode()
        chosen = self._choose(topic) if topic else ()
        if not chosen and not has_properties:
            return
        packet = decode_packet(data[position], data, start, stop, self._version)
        assert isinstance(packet, Publish)
        if alias := packet.properties.pop(_ALIAS, 0):
            packet.topic = topic or self._topics.get(alias, "")
            self._topics[alias] = packet.topic
        if chosen := chosen or (self._choose(packet.topic) if not topic else ()):
            self._take(packet, chosen)
