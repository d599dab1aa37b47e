"""A client of the broker at the other end, that broker as a test plays it, and the ends of a bridge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from broker.codec.packets import ConnAck, Connect, Packet, PubRel, SubAck, Subscribe
from tests.support.bridges import FAST, FAST_CONNECTOR, Bridges
from tests.support.waiting import until
from tests.support.wire import WireClient

VERSIONS = {"v3": paho.MQTTv31, "v4": paho.MQTTv311, "v5": paho.MQTTv5}
DEADLINE_S = 60.0


class Watcher:
    """Subscribes to a filter, keeps what comes, publishes what it is told."""

    def __init__(
        self, port: int, topic_filter: str = "", *, version: str = "v5", qos: int = 2, **login: str
    ) -> None:
        self.messages: list[paho.MQTTMessage] = []
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=VERSIONS[version])
        self._client.on_message = lambda _client, _data, message: self.messages.append(message)
        self._subscribed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if login:
            self._client.username_pw_set(login["username"], login["password"])

        def on_connect(client: paho.Client, *_: Any) -> None:
            if topic_filter:
                client.subscribe(topic_filter, qos)
            else:
                self._loop.call_soon_threadsafe(self._subscribed.set)

        self._client.on_connect = on_connect

        def on_subscribe(*_: Any) -> None:
            self._loop.call_soon_threadsafe(self._subscribed.set)

        self._client.on_subscribe = on_subscribe
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    async def ready(self) -> Watcher:
        async with asyncio.timeout(DEADLINE_S):
            await self._subscribed.wait()
        return self

    async def publish(
        self, topic: str, payload: bytes, qos: int = 1, *, retain: bool = False, **props: Any
    ) -> None:
        """Returns once it is confirmed."""
        properties: Any = None
        if props:
            properties = Properties(PacketTypes.PUBLISH)
            for name, value in props.items():
                setattr(properties, name, value)
        told = self._client.publish(topic, payload, qos, retain, properties)
        await asyncio.to_thread(told.wait_for_publish, DEADLINE_S)

    def publish_soon(self, topic: str, payload: bytes, qos: int = 1) -> None:
        """Does not wait."""
        self._client.publish(topic, payload, qos)

    async def until(self, count: int) -> list[paho.MQTTMessage]:
        await until(lambda: len(self.messages) >= count, f"{count} messages")
        return self.messages

    @property
    def payloads(self) -> list[bytes]:
        return [bytes(message.payload) for message in self.messages]

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@asynccontextmanager
async def watching(port: int, topic_filter: str = "", **options: Any) -> AsyncIterator[Watcher]:
    watcher = Watcher(port, topic_filter, **options)
    try:
        yield await watcher.ready()
    finally:
        await asyncio.to_thread(watcher.close)


class PlayedBroker:
    """A broker of MQTT 3.1.1 that says what a test tells it to."""

    def __init__(self) -> None:
        self.port = 0
        self.connections: list[WireClient] = []
        self._came: asyncio.Queue[WireClient] = asyncio.Queue()

    def come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(WireClient(reader, writer, 4))
        self._came.put_nowait(self.connections[-1])

    async def accept(self, *, has_session: bool) -> tuple[WireClient, Connect]:
        """The next connection."""
        async with asyncio.timeout(DEADLINE_S):
            wire = await self._came.get()
        connect = await wire.expect(Connect)
        wire.send(ConnAck(has_session))
        return wire, connect

    async def subscribed(self, *, has_session: bool, before: Packet | None = None) -> WireClient:
        """The next connection, whose source is subscribed. ``before`` is sent right behind CONNACK."""
        wire, _ = await self.accept(has_session=has_session)
        if before is not None:
            wire.send(before)
        others: list[Packet] = []
        while not isinstance(packet := await wire.receive(), Subscribe):
            if not isinstance(packet, PubRel):  # those of identifiers that an earlier process used
                others.append(packet)
        wire.push_back(others)
        wire.send(SubAck(packet.packet_id, [2] * len(packet.requests)))
        return wire


@asynccontextmanager
async def played_broker() -> AsyncIterator[PlayedBroker]:
    broker = PlayedBroker()
    server = await asyncio.start_server(broker.come, "127.0.0.1", 0)
    broker.port = server.sockets[0].getsockname()[1]
    try:
        yield broker
    finally:
        server.close()
        for wire in broker.connections:
            wire.abort()


def connector(bridges: Bridges, port: int, name: str = "plant", **members: Any) -> None:
    opts = {**FAST_CONNECTOR, "health_check_interval": "200ms"}
    bridges.connectors.create(
        {
            "name": name,
            "type": "mqtt",
            "server": f"127.0.0.1:{port}",
            "resource_opts": opts,
            **members,
        }
    )


def source(bridges: Bridges, name: str = "in", *, on: str = "plant", **parameters: Any) -> None:
    bridges.sources.create(
        {
            "name": name,
            "type": "mqtt",
            "connector": on,
            "parameters": {"publish": {}, **parameters},
            "resource_opts": {"health_check_interval": "200ms"},
        }
    )


def action(
    bridges: Bridges,
    name: str = "out",
    *,
    on: str = "plant",
    options: dict[str, Any] | None = None,
    **parameters: Any,
) -> None:
    bridges.actions.create(
        {
            "name": name,
            "type": "mqtt",
            "connector": on,
            "parameters": parameters,
            "resource_opts": {**FAST, "health_check_interval": "200ms", **(options or {})},
        }
    )


async def connected(bridges: Bridges, name: str = "plant") -> None:
    await bridges.until(lambda: bridges.connectors.get(name)["status"] == "connected", "connected")
