"""Publishers with so many messages under way, and subscribers that acknowledge at their own pace."""

from __future__ import annotations

import asyncio

from broker.codec.packets import (
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubscriptionRequest,
)
from tests.support.mqtt_server import Node
from tests.support.wire import WireClient


class Publisher:
    """Publishes ``count`` messages on a topic, ``window`` of them under way. ``acknowledged`` are their payloads."""

    def __init__(
        self, client: WireClient, name: str, topic: str, qos: int = 1, window: int = 1
    ) -> None:
        self.client, self.name, self.topic, self.qos, self.window = client, name, topic, qos, window
        self.acknowledged: list[bytes] = []
        self.sent = 0

    def send(self, count: int = 1, padding: int = 0) -> None:
        """Publish some more, without waiting for anything."""
        packets = []
        for _ in range(count):
            self.sent += 1
            payload = b"%s:%d" % (self.name.encode(), self.sent) + b" " * padding
            packets.append(Publish(self.topic, payload, self.qos, packet_id=self.sent))
        self.client.send(*packets)

    async def hear(self) -> None:
        """The next acknowledgement. It is of the oldest message without one."""
        first, last = (PubAck, PubAck) if self.qos == 1 else (PubRec, PubComp)
        heard = await self.client.expect(first)
        assert heard.packet_id == len(self.acknowledged) + 1
        assert heard.reason_code < 0x80
        if self.qos == 2:
            self.client.send(PubRel(heard.packet_id))
        self.acknowledged.append(b"%s:%d" % (self.name.encode(), heard.packet_id))
        del last

    async def run(self, count: int) -> None:
        """Publish so many, and wait until all are acknowledged."""
        self.send(min(self.window, count))
        completed = 0
        while completed < count:
            packet = await self.client.receive()
            if isinstance(packet, PubRec):
                self.client.send(PubRel(packet.packet_id))
                self.acknowledged.append(b"%s:%d" % (self.name.encode(), packet.packet_id))
                continue
            assert isinstance(packet, (PubAck, PubComp)), packet
            if isinstance(packet, PubAck):
                self.acknowledged.append(b"%s:%d" % (self.name.encode(), packet.packet_id))
            completed += 1
            if self.sent < count:
                self.send()


class Subscriber:
    """Acknowledges ``batch`` messages at once, or what it has when no more come. ``got`` are their payloads."""

    def __init__(self, client: WireClient, batch: int = 1) -> None:
        self.client, self._batch = client, batch
        self.got: list[bytes] = []
        self._pending: list[Publish] = []

    @classmethod
    async def on(
        cls, node: Node, name: str, topic: str, *, qos: int = 1, batch: int = 1, clean: bool = True
    ) -> Subscriber:
        """One that is connected and subscribed."""
        client = await node.client(name, clean_start=clean)
        await client.subscribe(SubscriptionRequest(topic, qos))
        return cls(client, batch)

    async def run(self) -> None:
        """Receive and acknowledge until cancelled."""
        is_asking = is_fresh = False
        while True:
            packet = await self.client.receive(None)
            if isinstance(packet, Publish):
                self.got.append(packet.payload.strip())
                self._pending.append(packet)
                is_fresh = True
                if len(self._pending) >= self._batch:
                    self.acknowledge()
                elif not is_asking:
                    self.client.send(PingReq())
                    is_asking, is_fresh = True, False
            elif isinstance(packet, PingResp):
                is_asking = False
                if not is_fresh:
                    self.acknowledge()
                elif self._pending:
                    self.client.send(PingReq())
                    is_asking, is_fresh = True, False
            elif isinstance(packet, PubRel):
                self.client.send(PubComp(packet.packet_id))

    async def take(self, count: int) -> list[bytes]:
        """Receive so many and do not acknowledge them; what they are."""
        taken = [await self.client.expect(Publish) for _ in range(count)]
        self._pending += taken
        self.got += [packet.payload.strip() for packet in taken]
        return [packet.payload.strip() for packet in taken]

    def acknowledge(self) -> None:
        """Acknowledge what was received."""
        for packet in self._pending:
            self.client.send((PubAck if packet.qos == 1 else PubRec)(packet.packet_id))
        self._pending.clear()


async def all_run(
    node: Node,
    publishers: list[tuple[Publisher, int]],
    subscribers: list[Subscriber],
    *,
    is_shared: bool,
) -> None:
    """Have all publish and receive until each subscriber, or all of a share group together, have all that was
    acknowledged."""
    running = [asyncio.create_task(one.run()) for one in subscribers]
    try:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for publisher, count in publishers:
                group.create_task(publisher.run(count))
        expected = {payload for publisher, _ in publishers for payload in publisher.acknowledged}
        receivers = [subscribers] if is_shared else [[subscriber] for subscriber in subscribers]
        await node.until(
            lambda: all(
                expected <= {payload for one in together for payload in one.got}
                for together in receivers
            )
        )
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
