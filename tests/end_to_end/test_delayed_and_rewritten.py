"""Delayed messages over a kill, and rewrites made through the API, with real clients."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from broker.codec.packets import Connect, PubAck, Publish
from tests.end_to_end.clients import Client, publish
from tests.support.node import Node, eventually, running
from tests.support.wire import WireClient


async def publish_at_once(node: Node, *delays: int) -> None:
    """In one piece, so that the times at which they are due differ by what their delays do."""
    async with await WireClient.connected(node.mqtt[1], Connect("delays")) as client:
        client.send(
            *[Publish(f"$delayed/{delay}/t/{delay}", b"x", 1, packet_id=delay) for delay in delays]
        )
        for _ in delays:
            await client.expect(PubAck)


def test_delayed_messages_survive_a_kill_and_come_once_in_their_order(tmp_path: Path) -> None:
    node = Node(tmp_path / "data").start()
    try:
        waiting = Client(node, "waiting", is_clean=True, expiry_s=3600)
        waiting.subscribe("t/#", 1)
        waiting.paho.disconnect()
        waiting.paho.loop_stop()
        asyncio.run(publish_at_once(node, 3, 1, 2, 3600))
        assert node.call("GET", "/delayed")["total"] >= 1
        node.kill()
        due_s = time.monotonic() + 3
        eventually(lambda: time.monotonic() > due_s)
        node.start()
        again = Client(node, "waiting", is_clean=False, expiry_s=3600)
        assert [again.take().topic for _ in range(3)] == ["t/1", "t/2", "t/3"]
        [left] = node.call("GET", "/delayed")["items"]
        assert node.call("GET", f"/delayed/{left['id']}")["message"]["payload"]["data"] == "x"
        node.call("DELETE", f"/delayed/{left['id']}")
        node.call("DELETE", f"/delayed/{left['id']}", expect=404)
        assert again.messages.empty()
        again.paho.disconnect()
        again.paho.loop_stop()
    finally:
        node.stop()


def test_rewrites_of_the_api_are_in_force_at_once_and_after_a_restart(tmp_path: Path) -> None:
    with running(tmp_path / "data") as node:
        node.call(
            "PUT", "/rewrites/ab", {"source_topic": "a/#", "re": "^a/(.*)$", "dest_topic": "b/$1"}
        )
        assert node.call("POST", "/rewrites:test", {"topic": "a/1"}) == {
            "topic": "b/1",
            "rewrite": "ab",
        }
        node.call(
            "POST",
            "/rewrites",
            {"name": "bad", "source_topic": "a", "dest_topic": "b/#"},
            expect=422,
        )
        publish(node, "a/1", "kept", "-r", "-q", "1")
        node.stop()
        node.start()
        client = Client(node, "c")
        client.subscribe("a/#", 1)  # is rewritten too
        found = client.take()
        assert (found.topic, found.payload, found.retain) == ("b/1", b"kept", True)
        client.paho.disconnect()
        client.paho.loop_stop()
