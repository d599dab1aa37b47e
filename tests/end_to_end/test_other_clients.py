"""Clients with codecs and habits of their own: aiomqtt, gmqtt, and MQTT.js over WebSocket and TCP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import aiomqtt
import pytest
from aiomqtt import ProtocolVersion

from tests.support import gmqtt_library, mqttjs
from tests.support.node import Node, running

DEADLINE_S = 60.0
CONFIG = 'listeners.ws.default.bind = "127.0.0.1:0"'


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("other-clients") / "node", config=CONFIG) as node:
        yield node


# -- aiomqtt --


@pytest.mark.parametrize(
    "version", [ProtocolVersion.V31, ProtocolVersion.V311, ProtocolVersion.V5], ids=str
)
def test_aiomqtt_gets_what_was_retained_and_then_every_qos_in_order(
    node: Node, version: ProtocolVersion
) -> None:
    async def exchange() -> list[tuple[str, bytes, int, bool]]:
        async with (
            asyncio.timeout(DEADLINE_S),
            aiomqtt.Client(*node.mqtt, protocol=version) as client,
        ):
            await client.publish(f"aio/{version}/kept", b"kept", qos=1, retain=True)
            await client.subscribe(f"aio/{version}/+", qos=2)
            for qos in range(3):
                await client.publish(f"aio/{version}/live", str(qos), qos=qos)
            found = []
            async for message in client.messages:
                assert isinstance(message.payload, bytes)
                found.append(
                    (
                        message.topic.value.rpartition("/")[2],
                        message.payload,
                        message.qos,
                        message.retain,
                    )
                )
                if len(found) == 4:
                    return found
        raise AssertionError("the connection ended")

    assert asyncio.run(exchange()) == [
        ("kept", b"kept", 1, True), ("live", b"0", 0, False), ("live", b"1", 1, False), ("live", b"2", 2, False),
    ]  # fmt: skip


def test_aiomqtt_that_is_taken_over_leaves_its_will(node: Node) -> None:
    async def exchange() -> object:
        will = aiomqtt.Will("aio/will", b"gone", qos=1)
        async with asyncio.timeout(DEADLINE_S), aiomqtt.Client(*node.mqtt) as watcher:
            await watcher.subscribe("aio/will", qos=1)
            first = aiomqtt.Client(*node.mqtt, identifier="aio-will", will=will)
            await first.__aenter__()
            async with aiomqtt.Client(*node.mqtt, identifier="aio-will"):
                with pytest.raises(aiomqtt.MqttError):
                    await anext(aiter(first.messages))
            return (await anext(aiter(watcher.messages))).payload

    assert asyncio.run(exchange()) == b"gone"


# -- gmqtt --


class _Gmqtt:
    """gmqtt, whose messages come by callback."""

    def __init__(self, client_id: str, **options: Any) -> None:
        self.messages: asyncio.Queue[tuple[str, bytes, int, dict[str, Any]]] = asyncio.Queue()
        self.subscribed: asyncio.Queue[tuple[int, ...]] = asyncio.Queue()
        self.client = gmqtt_library.load().Client(client_id, **options)
        self.client.on_message = self._on_message
        self.client.on_subscribe = lambda _client, _mid, granted, _properties: (
            self.subscribed.put_nowait(granted)
        )

    def _on_message(
        self, _client: Any, topic: str, payload: bytes, qos: int, properties: dict[str, Any]
    ) -> int:
        self.messages.put_nowait((topic, payload, qos, properties))
        return 0

    async def take(self, count: int) -> list[tuple[str, bytes, int, dict[str, Any]]]:
        """The next messages."""
        async with asyncio.timeout(DEADLINE_S):
            return [await self.messages.get() for _ in range(count)]


@pytest.mark.parametrize("version", [4, 5])
def test_gmqtt_exchanges_messages_of_every_qos(node: Node, version: int) -> None:
    async def exchange() -> None:
        client = _Gmqtt(f"gmqtt-{version}", clean_session=True)
        await client.client.connect(*node.mqtt, version=version)
        client.client.subscribe(f"gm/{version}/#", qos=2)
        async with asyncio.timeout(DEADLINE_S):
            assert tuple(await client.subscribed.get()) == (2,)
        properties: dict[str, Any] = {}
        if version == 5:
            properties = {
                "user_property": [("a", "1"), ("a", "2")],
                "content_type": "text/plain",
                "message_expiry_interval": 60,
            }
        for qos in range(3):
            client.client.publish(f"gm/{version}/t", f"grüße {qos}".encode(), qos=qos, **properties)
        found = await client.take(3)
        assert [(payload.decode(), qos) for _, payload, qos, _ in found] == [
            (f"grüße {qos}", qos) for qos in range(3)
        ]
        if version == 5:
            for _, _, _, got in found:
                assert got["user_property"] == [("a", "1"), ("a", "2")]
                assert got["content_type"] == ["text/plain"]
        await client.client.disconnect()

    asyncio.run(exchange())


def test_gmqtt_finds_its_session_with_what_came_meanwhile(node: Node) -> None:
    async def exchange() -> list[bytes]:
        first = _Gmqtt("gmqtt-away", clean_session=False, session_expiry_interval=600)
        await first.client.connect(*node.mqtt, version=5)
        first.client.subscribe("gm/away", qos=1)
        await first.subscribed.get()
        await first.client.disconnect(session_expiry_interval=600)
        async with aiomqtt.Client(*node.mqtt) as publisher:
            for number in range(5):
                await publisher.publish("gm/away", str(number), qos=1)
        again = _Gmqtt("gmqtt-away", clean_session=False, session_expiry_interval=600)
        await again.client.connect(*node.mqtt, version=5)
        found = await again.take(5)
        await again.client.disconnect(session_expiry_interval=0)
        return [payload for _, payload, _, _ in found]

    assert asyncio.run(exchange()) == [b"0", b"1", b"2", b"3", b"4"]


# -- MQTT.js --


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("scheme", ["ws", "mqtt"])
def test_mqttjs_exchanges_messages_and_finds_its_session(
    node: Node, scheme: str, version: int
) -> None:
    [address] = [
        one["address"]
        for one in node.call("GET", "/status")["listeners"]
        if one["protocol"] == scheme
    ]
    url = f"{scheme}://{address}" + ("/mqtt" if scheme == "ws" else "")
    seen = mqttjs.exchange(url, version)
    assert seen["granted"] == [2]
    name = f"js-{version}"
    assert [
        (one["topic"], one["payload"], one["qos"], one["retain"]) for one in seen["messages"]
    ] == [
        (f"{name}/kept", "retained", 1, True),
        (f"{name}/live/0", "grüße 0", 0, False),
        (f"{name}/live/1", "grüße 1", 1, False),
        (f"{name}/live/2", "grüße 2", 2, False),
    ]
    if version == 5:
        for one in seen["messages"][1:]:
            assert one["properties"]["userProperties"] == {"a": ["1", "2"]}
            assert one["properties"]["contentType"] == "text/plain"
            assert bytes(one["properties"]["correlationData"]["data"]) == b"c"
    assert seen["sessionPresent"] is (version > 3)  # 3.1 does not say
    assert seen["away"] == ["0", "1", "2", "3", "4"]
    assert seen["large"] is True
