"""Bridges of mosquitto, which say that they are bridges by the high bit of the protocol level."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.codec.packets import Connect, PubAck, Publish, Will
from tests.support.connections import tls_ports
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.peers import mosquitto
from tests.support.restarts import on_disk, subscribed
from tests.support.wire import WireClient

STATE = "$SYS/broker/connection/here.there/state"
BELOW_5 = pytest.mark.parametrize("version", [3, 4])


async def bridge(node: Node, version: int, will: Will | None = None) -> WireClient:
    return await node.client("here.there", version, is_bridge=True, will=will)


@BELOW_5
@on_loop
async def test_a_bridge_gets_nothing_back_and_retain_as_it_was_published(version: int) -> None:
    async with running() as node:
        far = await subscribed(await bridge(node, version), ("t", 0))
        near = await subscribed(await node.client("near", version), ("t", 0))
        far.send(Publish("t", b"from the bridge"))
        assert (await near.expect(Publish)).payload == b"from the bridge"
        near.send(Publish("t", b"kept", retain=True))
        assert (await near.expect(Publish)).retain is False
        message = await far.expect(Publish)
        assert (message.payload, message.retain) == (b"kept", True)


@BELOW_5
@on_loop
async def test_the_state_of_a_bridge_is_published_and_its_will_too(version: int) -> None:
    async with running() as node:
        watcher = await subscribed(await node.client("watcher", version), (STATE, 1))
        far = await bridge(node, version, Will(STATE, b"0", 1, retain=True))
        far.send(Publish(STATE, b"1", 1, retain=True, packet_id=7))
        await far.expect(PubAck)
        message = await watcher.expect(Publish)
        assert message.payload == b"1"
        watcher.send(PubAck(message.packet_id))
        node.kick("here.there")
        assert (await watcher.expect(Publish)).payload == b"0"


@pytest.mark.parametrize("clean_start", [True, False])
@on_loop
async def test_the_will_of_a_bridge_is_published_after_a_kill_of_the_broker(
    tmp_path: Path, clean_start: bool
) -> None:
    async with on_disk(tmp_path) as node:
        will = Will(STATE, b"0", 1, retain=True)
        far = await node.client("here.there", 4, clean_start=clean_start, is_bridge=True, will=will)
        far.send(Publish(STATE, b"1", 1, retain=True, packet_id=7))
        await far.expect(PubAck)
    async with on_disk(tmp_path) as node:
        watcher = await subscribed(await node.client("watcher", 4), (STATE, 0))
        assert (await watcher.expect(Publish)).payload == b"0"


@pytest.mark.parametrize("topic", ["$SYS/brokers", "$SYS/broker/connection/a", "$share/g/state"])
@on_loop
async def test_bridges_publish_on_no_other_topic_of_the_broker(topic: str) -> None:
    async with running() as node:
        far = await bridge(node, 4)
        far.send(Publish(topic, b"x"))
        near = await node.client("near", 4)
        near.send(Publish(STATE, b"x"))
        await node.until(
            lambda: node.metrics.value("messages_refused", reason="reserved_topic") == 2
        )


@on_loop
async def test_a_bridge_of_mosquitto_with_default_settings_works_both_ways(tmp_path: Path) -> None:
    async with running() as node:
        lines = [
            "connection there",
            f"address 127.0.0.1:{node.port}",
            "topic t both 1",
            "remote_clientid there",
        ]
        if authority := tls_ports.get(node.port):
            lines.append(f"bridge_cafile {authority}")
        near = await subscribed(
            await node.client("near", 4), ("t", 0), ("$SYS/broker/connection/#", 0)
        )
        with mosquitto(tmp_path, *lines) as peer:
            state = await near.expect(Publish)
            assert (state.topic, state.payload) == ("$SYS/broker/connection/there/state", b"1")
            far = await WireClient.connected(peer.port, Connect("far", 4))
            await subscribed(far, ("t", 0))
            for sender, payload in ((far, b"from there"), (near, b"from here"), (far, b"again")):
                sender.send(Publish("t", payload))
                for receiver in (far, near):  # which has got each message once
                    assert (await receiver.expect(Publish)).payload == payload
