"""Small reads of one turn of the loop are taken together, and nobody can tell."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random
from typing import Final

import pytest

from broker.codec.encode import encode_packet
from broker.codec.framing import Decoder
from broker.codec.packets import (
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PubAck,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
)
from broker.connection.connection import SMALL_BYTES
from broker.connection.scheduler import TURN_S
from broker.core.message import Message
from broker.core.stage import Refusal
from broker.core.stored import record_of
from broker.storage.store import LogShard
from broker.storage.writer import Writer
from tests.support.memory_link import MemoryLink
from tests.support.mqtt_server import MovedClock, Node, on_loop, running

VERSIONS: Final = (4, 5, 4, 5, 5)
"""Of the clients, which publish and subscribe."""
TOPICS: Final = ("plain/a", "plain/b", "checked/a", "kept/a", "checked/kept", "nobody")
FILTERS: Final = ("#", "plain/+", "plain/a", "kept/#", "checked/#")


class Checked:
    """Refuses some messages of some topics, and changes others."""

    name = "checked"

    def plan(self, topic: str) -> object:
        return self._check if topic.startswith("checked/") else None

    @staticmethod
    def _check(message: Message) -> Message | Refusal:
        if message.payload.startswith(b"bad"):
            return Refusal(
                "checked", "checked", "bad", 0x99, "bad", disconnect=message.payload == b"bad end"
            )
        return message.changed(
            message.topic, message.payload.upper(), message.qos, message.retain, message.properties
        )


class Kept:
    """Stores the messages of some topics."""

    name = "kept"

    def __init__(self) -> None:
        self.writer: Writer

    def plan(self, topic: str) -> object:
        return self._keep if "kept" in topic else None

    def _keep(self, message: Message) -> None:
        self.writer.append(LogShard(16), record_of(message))


class Echoed:
    """Publishes what comes on a topic once more, on another one."""

    name = "echoed"

    def __init__(self) -> None:
        self.node: Node

    def plan(self, topic: str) -> object:
        return self._echo if topic == "checked/a" else None

    def _echo(self, message: Message) -> None:
        echo = message.changed("plain/b", b"echo " + message.payload, message.qos, False, None)
        self.node.server.hub.pipeline.publish(echo)


@dataclass
class Player:
    """A client over memory."""

    node: Node
    name: str
    version: int
    takes_together: bool
    link: MemoryLink = field(default_factory=MemoryLink)
    got: list[Packet] = field(default_factory=list)
    open: list[bytes] = field(default_factory=list)
    """Acknowledgements that it has not sent yet."""

    def __post_init__(self) -> None:
        self._connection = self.node.server.hub.connect(self.link)
        self._connection.opened()
        self._decoder = Decoder(self.version)
        self._connection.data_received(
            encode_packet(Connect(self.name, self.version), self.version)
        )

    def send(self, data: bytes) -> None:
        """A read of these bytes."""
        if self.link.is_closed:
            return
        if self.takes_together:
            self._connection.data_received(data)
        else:
            self._connection.take(data)

    def hang_up(self) -> None:
        """The connection is gone."""
        if not self.link.is_closed:
            self.link.is_closed = True
            self._connection.connection_lost()

    def look(self) -> None:
        """Take what was said, and make the acknowledgements that are due."""
        said, self.link.said = bytes(self.link.said), bytearray()
        for packet in self._decoder.feed(said):
            self.got.append(packet)
            if isinstance(packet, Publish) and packet.qos:
                kind = PubAck if packet.qos == 1 else PubRec
                self.open.append(encode_packet(kind(packet.packet_id), self.version))

    @property
    def published(self) -> list[Packet]:
        """The messages that it was sent."""
        return [one for one in self.got if isinstance(one, Publish)]

    @property
    def answers(self) -> list[Packet]:
        """What it was sent besides. Between messages of QoS 0 they have no place of their own: those wait for retained
        messages of new subscriptions, answers for commits."""
        return [one for one in self.got if not isinstance(one, Publish)]

    @property
    def is_busy(self) -> bool:
        """Whether answers to what it sent are still to come."""
        c = self._connection
        return not c.is_closed and bool(c.is_parked or c.answers.waiting or c.answers.batches)

    @property
    def counted(self) -> tuple[int, int, int]:
        """Of its connection."""
        return self._connection.bytes_in, self._connection.packets_in, self._connection.messages_in


@dataclass
class Play:
    """The same reads for a node that takes them together and for one that does not."""

    node: Node
    players: list[Player]

    async def turn(self, reads: Sequence[tuple[int, bytes | str]]) -> None:
        """Reads of one turn of the loop; ``hang up`` and ``acknowledge`` are not bytes."""
        for number, data in reads:
            player = self.players[number]
            if data == "hang up":
                player.hang_up()
            elif data == "acknowledge":
                for one in player.open:
                    player.send(one)
                player.open.clear()
            else:
                assert isinstance(data, bytes)
                player.send(data)
        self.node.server.hub.arrivals.take()
        await self.node.until(lambda: not any(player.is_busy for player in self.players))
        await self.node.writer.committed()
        self.node.server.hub.context.pending_writes.flush()
        for player in self.players:
            player.look()

    def outcome(self) -> object:
        """What clients got and what was counted."""
        figures = {
            (one.name, *sorted(one.labels.items())): one.read()
            for one in self.node.metrics
            if one.name.startswith(
                ("messages_", "packets_", "bytes_", "publish_", "deliveries_", "disconnections")
            )
        }
        return [
            (one.published, one.answers, one.counted, one.link.is_closed) for one in self.players
        ], figures


def packet_of(chance: Random, version: int, identifier: int) -> bytes:
    """A packet that a client may send, mostly a PUBLISH as fleets send them."""
    kind = chance.choice(
        ("publish",) * 8 + ("ping", "subscribe", "unsubscribe", "release", "odd", "goodbye")
    )
    if kind == "ping":
        return encode_packet(PingReq(), version)
    if kind == "subscribe":
        requests = [SubscriptionRequest(chance.choice(FILTERS), chance.randrange(3))]
        return encode_packet(Subscribe(identifier, requests), version)
    if kind == "unsubscribe":
        return encode_packet(Unsubscribe(identifier, [chance.choice(FILTERS)]), version)
    if kind == "release":
        return encode_packet(PubRel(chance.randint(1, identifier)), version)
    if kind == "goodbye":
        return (
            encode_packet(Disconnect(), version)
            if chance.random() < 0.1
            else encode_packet(PingReq(), version)
        )
    qos = chance.choice((0, 0, 0, 1, 1, 1, 2))
    payload = chance.choice((b"", b"good", b"bad", b"x" * 200, b"y" * 2 * SMALL_BYTES))
    if chance.random() < 0.02:
        payload = b"bad end"
    properties = {"Content-Type": "text"} if version == 5 and chance.random() < 0.1 else {}
    packet = Publish(
        chance.choice(TOPICS), payload, qos, chance.random() < 0.05, qos > 0 and chance.random() < 0.05,
        identifier if qos else 0, properties,
    )  # fmt: skip
    encoded = encode_packet(packet, version)
    if kind == "odd":
        return chance.choice(
            (encoded[:1] + b"\xff" + encoded[2:], encoded + b"\x30\x00", b"\x40\x02\x00\x07")
        )
    return encoded


def turns_of(chance: Random) -> list[list[tuple[int, bytes | str]]]:
    """What clients send in some turns of the loop, cut anywhere."""
    turns: list[list[tuple[int, bytes | str]]] = [
        [
            (
                number,
                encode_packet(
                    Subscribe(1, [SubscriptionRequest(FILTERS[number], number % 3)]),
                    VERSIONS[number],
                ),
            )
        ]
        for number in range(3)
    ]
    identifier = 10
    for _ in range(12):
        reads: list[tuple[int, bytes | str]] = []
        for _ in range(chance.randint(1, 40)):
            number, identifier = chance.randrange(len(VERSIONS)), identifier + 1
            chance_of = chance.random()
            if chance_of < 0.1:
                reads.append((number, "acknowledge"))
                continue
            if chance_of < 0.11:
                reads.append((number, "hang up"))
                continue
            data = packet_of(chance, VERSIONS[number], identifier) * chance.choice(
                (1,) * 7 + (2, 3, 100)
            )
            cut = chance.randrange(len(data)) if chance.random() < 0.1 else 0
            reads += [(number, part) for part in (data[:cut], data[cut:]) if part]
        turns.append(reads)
    return turns


async def outcome_of(
    turns: Sequence[Sequence[tuple[int, bytes | str]]], *, takes_together: bool
) -> object:
    kept, echoed = Kept(), Echoed()
    async with AsyncExitStack() as stack:
        gates, taps = (Checked(),), (kept, echoed)
        node = await stack.enter_async_context(running(gates=gates, taps=taps))
        kept.writer, echoed.node = node.writer, node
        players = [
            Player(node, f"client{number}", version, takes_together)
            for number, version in enumerate(VERSIONS)
        ]
        play = Play(node, players)
        for reads in turns:
            await play.turn(reads)
        return play.outcome()


@pytest.mark.parametrize("seed", range(60))
@on_loop
async def test_reads_taken_together_have_the_same_outcome_as_one_by_one(seed: int) -> None:
    turns = turns_of(Random(seed))
    assert await outcome_of(turns, takes_together=True) == await outcome_of(
        turns, takes_together=False
    )


@on_loop
async def test_what_takes_long_gives_way_once_the_turn_is_over() -> None:
    clock, seen = MovedClock(), []

    class Slow:
        name = "slow"

        def plan(self, topic: str) -> object:
            return self._check

        @staticmethod
        def _check(message: Message) -> Message:
            seen.append(message.payload)
            clock.move(0.005)
            return message

    async with running(gates=(Slow(),), clock=clock) as node:
        players = [Player(node, f"client{number}", 4, takes_together=True) for number in range(50)]
        for turn in range(2):  # the topic's plan is made by the first message
            await node.until(lambda: not any(player.is_busy for player in players))
            before = len(seen)
            for number, player in enumerate(players):
                player.send(encode_packet(Publish("t", b"%d %d" % (turn, number)), 4))
            node.server.hub.arrivals.take()
            assert len(seen) - before <= 1 + TURN_S / 0.005
        await node.until(lambda: len(seen) == 100)
        assert seen == sorted(seen, key=lambda one: [int(part) for part in one.split()])


@on_loop
async def test_what_was_sent_before_the_end_of_a_connection_arrives() -> None:
    async with running() as node:
        subscriber = await node.client("subscriber")
        await subscriber.subscribe(SubscriptionRequest("t"))
        for number in range(50):
            device = await node.client(f"device{number}")
            device.send(Publish("t", b"%d" % number))
            await device.close()
        got = {(await subscriber.expect(Publish)).payload for _ in range(50)}
        assert got == {b"%d" % number for number in range(50)}
