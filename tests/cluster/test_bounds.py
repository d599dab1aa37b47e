"""Bounds of a link: memory of what it remembers, and work for each packet while the other cell takes nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from broker.cluster import inbox
from broker.cluster.inbox import OwnRoutes
from broker.cluster.sender import LinkBox
from broker.core.signals import Signal
from broker.core.topic import TopicFilter
from broker.session.outbox import PendingWrites


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
            assert 0 < sum(map(len, routes._known)) <= inbox._MOST_TOPIC_BYTES
    del made[:]
    long = ("y" * 60_000).encode()
    assert routes.of(long) is not routes.of(long)
    assert len(made) == 2
    routes.of(b"one")
    hub.on_routes(TopicFilter.parse("one"))
    routes.of(b"one")
    assert made[2:] == ["one", "one"]
