"""The messages that a client is sent, as it gets them: read from the bytes that are written to its connection.

So they are those of every way to a client: live and from a store, of share groups and other cells, retained, and sent
again. A connection that is not read costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from broker.codec.decode import decode_packet
from broker.codec.framing import frame_at
from broker.codec.packets import Publish
from broker.core.errors import PeerError
from broker.session.outbox import Outbox

_PUBLISH: Final = 3
_ALIAS: Final = "Topic-Alias"
_QOS_BITS: Final = 0x06
_MOST_BYTES: Final = 1 << 28


class SentMessages:
    """Reads what is written to one connection until ``end``. ``wants`` says whether to read a message on a topic,
    ``take`` gets it, with its topic where the packet has an alias."""

    def __init__(
        self,
        box: Outbox,
        wants: Callable[[str], bool],
        take: Callable[[Publish], None],
        *,
        is_v5: bool,
    ) -> None:
        self._wants = wants
        self._take = take
        self._version = 5 if is_v5 else 4
        self._topics = {alias: topic.decode() for alias, topic in box.topics_by_alias().items()}
        self._rest = b""
        self.end = box.tap(self._hear)

    def _hear(self, data: bytes) -> None:
        data = self._rest + data
        position = 0
        with suppress(PeerError):  # what cannot be read is left out of the capture
            while (frame := frame_at(data, position, _MOST_BYTES)) is not None:
                start, stop = frame
                if stop > len(data):
                    break
                if data[position] >> 4 == _PUBLISH:
                    self._read(data, position, start, stop)
                position = stop
        self._rest = data[position:]

    def _read(self, data: bytes, position: int, start: int, stop: int) -> None:
        topic_at = start + 2
        topic_end = topic_at + (data[start] << 8 | data[start + 1])
        properties_at = topic_end + 2 if data[position] & _QOS_BITS else topic_end
        has_properties = self._version == 5 and data[properties_at] != 0
        if not has_properties and not self._wants(data[topic_at:topic_end].decode()):
            return
        packet = decode_packet(data[position], data, start, stop, self._version)
        assert isinstance(packet, Publish)
        if alias := packet.properties.pop(_ALIAS, 0):
            packet.topic = packet.topic or self._topics.get(alias, "")
            self._topics[alias] = packet.topic
        if not has_properties or self._wants(packet.topic):
            self._take(packet)
