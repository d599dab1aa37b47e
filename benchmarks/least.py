"""The least that a broker in Python can do, as a limit to compare with: `python -m benchmarks.least PORT`.

A uvloop protocol without topics, sessions or checks: what devices publish goes to all who subscribed, QoS 1 is
acknowledged at once, and each socket is written once in a turn of the loop.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import cast

from benchmarks.load import publish
from broker.app import loops
from broker.codec.encode import encode_packet
from broker.codec.packets import ConnAck, SubAck

_CONNACK, _SUBACK = encode_packet(ConnAck(False, 0), 4), encode_packet(SubAck(1, [0]), 4)
_CONNECT, _SUBSCRIBE = 0x10, 0x82
_PUBLISH_1 = publish("t", b"", 1)[0]


class _Hub:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.by_topic: dict[bytes, list[_Link]] = {}
        self.to_all: list[_Link] = []
        self.dirty: list[_Link] = []

    def send(self, link: _Link, data: bytes) -> None:
        if not self.dirty:
            self.loop.call_soon(self.flush)
        if not link.chunks:
            self.dirty.append(link)
        link.chunks.append(data)

    def flush(self) -> None:
        dirty, self.dirty = self.dirty, []
        for link in dirty:
            chunks, link.chunks = link.chunks, []
            link.transport.write(b"".join(chunks))


class _Link(asyncio.Protocol):
    """Packets of at most 16 KiB; a subscriber's acknowledgements are not looked at."""

    def __init__(self, hub: _Hub) -> None:
        self._hub = hub
        self._rest = b""
        self.chunks: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, _error: Exception | None) -> None:
        for links in (self._hub.to_all, *self._hub.by_topic.values()):
            if self in links:
                links.remove(self)

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        position, end = 0, len(data)
        while end - position > 2:  # PINGREQ, the only shorter packet, is not sent
            size = data[position + 1]
            body = position + 2
            if size >= 128:
                size, body = size & 127 | data[body] << 7, body + 1
            stop = body + size
            if stop > end:
                break
            self._take(data if end == stop - position else data[position:stop], body - position)
            position = stop
        self._rest = data[position:]

    def _take(self, packet: bytes, body: int) -> None:
        first, hub = packet[0], self._hub
        if first & 0xF0 == 0x30:
            topic_end = body + 2 + (packet[body] << 8 | packet[body + 1])
            if first == _PUBLISH_1:
                hub.send(self, b"\x40\x02" + packet[topic_end : topic_end + 2])
                size = len(packet) - body - 2
                length = bytes((size,)) if size < 128 else bytes((size & 127 | 128, size >> 7))
                packet = b"\x30" + length + packet[body:topic_end] + packet[topic_end + 2 :]
                body = 1 + len(length)
                topic_end = body + 2 + (packet[body] << 8 | packet[body + 1])
            for link in hub.by_topic.get(packet[body + 2 : topic_end]) or hub.to_all:
                hub.send(link, packet)
        elif first == _SUBSCRIBE:
            topic_filter = packet[6:-1]
            if topic_filter.endswith(b"#"):
                hub.to_all.append(self)
            else:
                hub.by_topic.setdefault(topic_filter, []).append(self)
            self.transport.write(_SUBACK)
        elif first == _CONNECT:
            self.transport.write(_CONNACK)


def main() -> None:
    """Serve until SIGTERM."""

    async def run(port: int) -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, ended.set)
        hub = _Hub(loop)
        server = await loop.create_server(lambda: _Link(hub), "127.0.0.1", port, backlog=1000)
        await ended.wait()
        server.close()

    loops.run(run(int(sys.argv[1])), "uvloop")


if __name__ == "__main__":
    main()
