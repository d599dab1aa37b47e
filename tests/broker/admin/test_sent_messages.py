"""Messages read from the bytes that are written to a connection: whatever these are, they are still written."""

from __future__ import annotations

from collections.abc import Sequence
from time import thread_time
from typing import Any

import pytest

from broker.admin.sent_messages import SentMessages
from broker.codec.encode import encode_packet
from broker.codec.packets import Publish
from broker.session.outbox import Outbox, PendingWrites
from tests.support.processor import is_within

PACKETS = [
    encode_packet(Publish("a", b"1"), 5),
    encode_packet(Publish("b/c", b"2" * 200, 1, packet_id=7), 5),
    encode_packet(Publish("", b"3", properties={"Topic-Alias": 4}), 5),
    encode_packet(Publish("d", b"4", properties={"Topic-Alias": 4}), 5),
    encode_packet(Publish("", b"5", properties={"Topic-Alias": 4}), 5),
]


class Reading:
    """A connection, and what was read of it."""

    def __init__(self, takes: int = 1 << 30) -> None:
        self.written = b""
        self.packets: list[Publish] = []
        self.skipped = 0
        self.takes = takes
        self.box = Outbox(PendingWrites(lambda _: None, lambda _: None), self._write)
        self.reader: SentMessages[int] = SentMessages(
            self.box, self._choose, self._take, self._skip, is_v5=True
        )

    def _write(self, data: bytes) -> None:
        self.written += data

    def _choose(self, _topic: str) -> Sequence[int]:
        self.takes -= 1
        return [1] if self.takes >= 0 else []

    def _take(self, packet: Publish, _chosen: Any) -> None:
        self.packets.append(packet)

    def _skip(self, count: int) -> None:
        self.skipped += count

    def send(self, data: bytes) -> None:
        self.box.add(data)
        self.box.flush()


@pytest.mark.parametrize("size", [1, 3, 50, 10_000])
def test_packets_are_read_wherever_writes_are_cut(size: int) -> None:
    reading = Reading()
    data = b"".join(PACKETS)
    for at in range(0, len(data), size):
        reading.send(data[at : at + size])
    assert [packet.payload[:1] for packet in reading.packets] == [b"1", b"2", b"3", b"4", b"5"]
    assert [packet.topic for packet in reading.packets] == ["a", "b/c", "", "d", "d"]
    assert reading.written == data


def test_bytes_that_are_no_packets_are_written_and_not_kept() -> None:
    reading = Reading()
    for data in (b"\x30\xff\xff\xff\xff\xff", *[b"x" * 1000] * 100, PACKETS[0]):
        reading.send(data)
    assert reading.written.endswith(PACKETS[0])
    assert len(reading.reader._rest) < 2000
    assert not reading.packets


def test_many_messages_in_one_write_take_a_bounded_time_and_are_counted() -> None:
    reading = Reading(takes=200)
    count = 20_000  # as many of the smallest packets as a turn of the loop makes in its 20 ms
    began_s = thread_time()
    reading.send(PACKETS[0] * count)
    took_s = thread_time() - began_s
    assert len(reading.packets) == 200
    assert reading.skipped == count - 5000
    assert is_within(took_s, 0.1)
