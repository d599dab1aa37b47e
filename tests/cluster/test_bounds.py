"""Bounds of a link: bytes of a frame, memory of what it remembers, and work for each packet while the other cell takes
nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.cluster import inbox
from broker.cluster.frames import Frame, FrameDecoder, FrameType, Taken, decoded
from broker.cluster.inbox import OwnRoutes
from broker.cluster.sender import LinkBox
from broker.codec.packets import Publish, SubscriptionRequest
from broker.core.signals import Signal
from broker.core.topic import TopicFilter
from broker.session.outbox import PendingWrites
from tests.support.linked_cells import Cell, cells
from tests.support.mqtt_server import on_loop
from tests.support.waiting import until

_KEEPS: dict[str, Any] = {
    "clean_start": False,
    "properties": {"Session-Expiry-Interval": 3600},
}


class Packet(bytes):
    """Counts how often its length is asked for."""

    weighed = 0

    def __len__(self) -> int:
        Packet.weighed += 1
        return super().__len__()


def test_each_packet_that_waits_is_weighed_once() -> None:
    pending = PendingWrites(lambda _: None, lambda _: None)
    peer = SimpleNamespace(hub=SimpleNamespace(context=SimpleNamespace(pending_writes=pending)))
    box = LinkBox(cast(Any, SimpleNamespace(peer=peer, write=None)))
    for number in range(1, 1001):
        box.chunks.append(Packet(b"x" * 10))
        assert box.waiting_bytes() == 10 * number
    assert Packet.weighed == 1000
    assert len(box.take()) == 1000
    box.chunks.append(b"xyz")
    assert box.waiting_bytes() == 3


def test_topics_of_other_cells_are_remembered_within_a_bound_of_bytes() -> None:
    made: list[str] = []

    def own_routes(topic: str) -> object:
        made.append(topic)
        return object()

    hub = SimpleNamespace(
        router=SimpleNamespace(own_routes=own_routes),
        on_routes=Signal[TopicFilter](),
    )
    routes = OwnRoutes(cast(Any, hub))
    for number in range(20_000):
        routes.of(f"{number:05}/{'x' * 1000}".encode())
        if number % 1000 == 100:
            assert 0 < sum(map(len, routes.known)) <= inbox._MOST_TOPIC_BYTES
    del made[:]
    long = ("y" * 60_000).encode()
    assert routes.of(long) is not routes.of(long)
    assert len(made) == 2
    routes.of(b"one")
    hub.on_routes(TopicFilter.parse("one"))
    routes.of(b"one")
    assert made[2:] == ["one", "one"]


def frames_sent(cell: Cell) -> list[Frame]:
    """The frames that a cell sends to the other one from now on."""
    [link] = cell.links
    peer = link._peer
    decoder = FrameDecoder()
    frames: list[Frame] = []
    write = peer._write
    assert write is not None

    def note(data: bytes) -> None:
        frames.extend(decoder.feed(data))
        write(data)

    peer._write = note
    return frames


@pytest.mark.parametrize(
    ("topic_filter", "qos", "kind"),
    [("t", 1, FrameType.LOG), (f"$share/{'g' * 20_000}/t", 0, FrameType.GRANTS)],
)
@on_loop
async def test_names_and_properties_count_in_the_bytes_of_a_frame(
    topic_filter: str, qos: int, kind: FrameType, tmp_path: Path
) -> None:
    async with cells(2, tmp_path) as (one, two):
        subscriber = await two.node.client("s", 5, **_KEEPS)
        await subscriber.subscribe(SubscriptionRequest(topic_filter, qos))
        publisher = await one.node.client("p", 5)
        frames = frames_sent(one)
        one.store.allow.clear()
        properties = {"User-Property": [("k", "v" * 16_000)]}
        for packet_id in range(1, 61):
            packet = Publish("t", b"x", qos, packet_id=packet_id * qos, properties=properties)
            publisher.send(packet)
        await publisher.silence()
        one.store.allow.set()

        def sent() -> list[int]:
            return [len(frame.body) for frame in frames if frame.type is kind]

        await until(lambda: sum(sent()) > 60 * 16_000)
        assert max(sent()) < 320_000


@on_loop
async def test_many_messages_that_are_released_at_once_are_told_in_several_frames(
    tmp_path: Path,
) -> None:
    async with cells(2, tmp_path) as (_, two):
        [link] = two.links
        receiver = link.receiver
        frames = frames_sent(two)
        receiver.held.update(range(70_000))
        for position in range(70_000):
            receiver._released(receiver._incarnations, position)
        await until(lambda: [frame for frame in frames if frame.type is FrameType.TAKEN])
        told = [decoded(Taken, frame) for frame in frames if frame.type is FrameType.TAKEN]
        released = [position for taken in told for position in taken.released]
        assert released == list(range(70_000))
