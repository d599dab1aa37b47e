"""A hub with sessions whose clients a test plays: what they are sent is decoded, what they answer is told to it.

There are no sockets; the store, the writer, the log and the share groups are the real ones.
"""

from __future__ import annotations

import asyncio
from typing import Any

from broker.codec.framing import Decoder
from broker.codec.packets import Packet, Publish
from broker.connection.context import Context
from broker.connection.hub import Hub, ServerSettings
from broker.connection.settings import MqttSettings
from broker.connection.sharing.group import ShareGroup
from broker.connection.sharing.settings import SharedSettings
from broker.core.client import Client
from broker.core.events import Events
from broker.core.message import Message
from broker.core.subscription import Subscription
from broker.core.topic import TopicFilter
from broker.observe.metrics import Metrics
from broker.session import acks
from broker.session.outbox import Outbox
from broker.session.session import Session
from broker.storage.memory import MemoryStore
from broker.storage.store import LogShard, Store
from broker.storage.writer import Writer
from tests.support.mqtt_server import MovedClock

NEVER_S = 0xFFFFFFFF


class Player:
    """One connection of one client. ``got`` are the publishes that it has not answered, oldest first."""

    is_unread = False

    def __init__(
        self, bench: ShareBench, client_id: str, *, is_durable: bool, window: int, max_bytes: int
    ) -> None:
        hub = bench.hub
        self._decoder = Decoder(5)
        self.got: list[Publish] = []
        self.other: list[Packet] = []
        box = Outbox(hub.context.pending_writes, self._take)
        found = hub.sessions.get(client_id)
        if found is None or not is_durable:
            found = hub.life.new_session(client_id, hub.zones.default, is_durable=is_durable)
        self.session: Session = found
        found.expiry_s = NEVER_S if is_durable else 0
        found.attach(self, Client(client_id, protocol_version=5), box, window, max_bytes)
        if is_durable:
            hub.records.changed(found)
        hub.session_log.load_inflight(found)
        hub.share_groups.here(found)
        found.resume()

    def fail(self, error: BaseException) -> None:
        raise AssertionError(error)

    def overrun(self) -> None:
        raise AssertionError("more waits than may")

    def _take(self, data: bytes) -> None:
        for packet in self._decoder.feed(data):
            if isinstance(packet, Publish):
                self.got.append(packet)
            else:
                self.other.append(packet)


class ShareBench:
    """A hub with sessions whose clients a test plays. ``settle`` lets everything happen that is under way."""

    def __init__(
        self, store: Store | None = None, mqtt: MqttSettings | None = None, **shared: Any
    ) -> None:
        self.loop = asyncio.new_event_loop()
        self.store = store or MemoryStore()
        self.clock = MovedClock()
        self.mqtt, self.shared = mqtt or MqttSettings(), SharedSettings(**shared)
        self.start()

    def start(self) -> None:
        """Begin with what the store holds."""
        self.metrics = Metrics()
        self.writer = Writer(self.store, self.loop, metrics=self.metrics)
        context = Context(
            self.mqtt,
            writer=self.writer,
            metrics=self.metrics,
            events=Events(),
            clock=self.clock,
            defer=self.loop.call_soon,
            later=self.loop.call_later,
        )
        self.hub = Hub(context, ServerSettings(shared=self.shared), LogShard(1))
        for _ in self.hub.load():
            pass

    def crash(self) -> None:
        """What is committed is there again, and nothing else."""
        self.settle()
        self.loop.run_until_complete(self.writer.close())
        self.start()

    def close(self) -> None:
        self.loop.run_until_complete(self.writer.close())
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    def settle(self) -> None:
        async def turns() -> None:
            for _ in range(6):
                await self.writer.committed()
                for _ in range(4):
                    await asyncio.sleep(0)

        self.loop.run_until_complete(turns())

    def pass_time(self, seconds: float) -> None:
        self.clock.move(seconds)
        self.hub.tick()
        self.settle()

    def connect(
        self, client_id: str, *, is_durable: bool = False, window: int = 32, max_bytes: int = 0
    ) -> Player:
        player = Player(self, client_id, is_durable=is_durable, window=window, max_bytes=max_bytes)
        self.settle()
        return player

    def disconnect(self, player: Player) -> None:
        self.hub.life.detached(player.session, is_will_due=False)
        self.settle()

    def subscribe(self, player: Player, text: str, qos: int = 1, **options: Any) -> None:
        session = player.session
        topic_filter = TopicFilter.parse(text)
        subscription = Subscription(
            topic_filter, qos, since_offset=self.hub.session_log.since_offset, **options
        )
        is_new = text not in session.subscriptions
        self.hub.subscriptions.add(session, subscription, is_new)
        self.hub.subscriptions.changed(session)
        self.settle()

    def unsubscribe(self, player: Player, text: str) -> None:
        self.hub.subscriptions.remove(player.session, text)
        self.hub.subscriptions.changed(player.session)
        self.settle()

    def publish(
        self,
        topic: str,
        payload: str | bytes,
        qos: int = 1,
        client_id: str = "p",
        expiry_s: int = 0,
    ) -> None:
        data = payload.encode() if isinstance(payload, str) else payload
        properties = {"Message-Expiry-Interval": expiry_s} if expiry_s else None
        message = Message(
            topic, data, qos, False, Client(client_id), self.clock.now_ns(), properties
        )
        self.hub.pipeline.publish(message)

    def ack(self, player: Player, packet: Publish) -> None:
        player.got.remove(packet)
        acks.puback(player.session, packet.packet_id)
        self.settle()

    def ack_all(self, player: Player) -> list[str]:
        """Acknowledge all that a client has, also what comes then; the payloads in the order received."""
        taken: list[str] = []
        while player.got:
            packet = player.got.pop(0)
            taken.append(packet.payload.decode())
            if packet.qos == 1:
                acks.puback(player.session, packet.packet_id)
            if not player.got:
                self.settle()
        return taken

    def group(self, text: str) -> ShareGroup:
        return self.hub.share_groups.groups[text]

    def dropped(self, why: str) -> float:
        return self.metrics.value("deliveries_dropped", reason=why)


def payloads(player: Player) -> list[str]:
    """What a client has and has not answered."""
    return [packet.payload.decode() for packet in player.got]
