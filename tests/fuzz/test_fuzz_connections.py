"""Connections in process, fed with packets that are right, wrong and out of turn: what holds whatever they are told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.codec.encode import encode_packet
from broker.codec.framing import Decoder
from broker.codec.packets import (
    Connect,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
)
from broker.connection.connection import Connection
from tests.support.examples import examples
from tests.support.memory_link import MemoryLink
from tests.support.mqtt_server import Node, running
from tests.support.strategies import VERSIONS, packets

WINDOW = 3
CLIENTS = ("a", "b")
TOPICS = st.sampled_from(("t", "t/u", "$SYS/x", "r"))
FILTERS = st.sampled_from(("t", "t/#", "#", "+/u", "$share/g/t/#", "r"))
IDS = st.integers(1, 4)
QOS = st.integers(0, 2)


class Peer:
    """One client at a time under one identifier, which checks what it is sent."""

    def __init__(self, node: Node, client_id: str) -> None:
        self._node, self._client_id = node, client_id
        self._link, self.version = MemoryLink(), 4
        self._connection: Connection | None = None
        self._decoder = Decoder(4)
        self._open: set[int] = set()

    def connect(self, version: int, is_clean: bool) -> None:
        """A new connection, which takes over from the one before."""
        self._link, self.version = MemoryLink(), version
        self._connection = self._node.server.hub.connect(self._link)
        self._connection.opened()
        self._decoder, self._open = Decoder(version), set()
        properties = {"Session-Expiry-Interval": 60} if version == 5 and not is_clean else {}
        self.feed(
            encode_packet(
                Connect(self._client_id, version, is_clean, properties=properties), version
            )
        )

    def feed(self, data: bytes) -> None:
        """Bytes from the client, whatever they are."""
        if self._connection is not None and not self._link.is_closed:
            self._connection.data_received(data)

    def cut(self) -> None:
        """The connection is gone."""
        if self._connection is not None and not self._link.is_closed:
            self._connection.connection_lost()
            self._link.is_closed = True

    def check(self) -> None:
        """What came is MQTT, within the window, and no identifier is in use twice on a connection."""
        said = bytes(self._link.said)
        self._link.said.clear()
        for packet in self._decoder.feed(said):
            if isinstance(packet, Publish) and packet.qos:
                assert packet.packet_id not in self._open, packet
                self._open.add(packet.packet_id)
        session = self._node.server.hub.sessions.get(self._client_id)
        if session is not None:
            assert len(session.window.inflight) <= WINDOW
            assert session.window.quota <= session.window.size <= WINDOW
            assert all(packet_id > 0 for packet_id in session.window.inflight)

    def answered(self, packet: Packet) -> None:
        """The client has sent an acknowledgement: the identifier may be used for another message."""
        if isinstance(packet, PubAck | PubComp) or (
            isinstance(packet, PubRec) and packet.reason_code >= 0x80
        ):
            self._open.discard(packet.packet_id)


Step = tuple[str, str, Any]
"""What is done, by whom, and with what: a version and whether to start clean, a packet, bytes, or how to damage one."""
USUAL: st.SearchStrategy[Packet] = st.one_of(
    st.builds(lambda topic, qos, number, dup, retain: Publish(
        topic, b"x" * number, qos, retain, dup and qos > 0, number if qos else 0
    ), TOPICS, QOS, IDS, st.booleans(), st.booleans()),
    st.builds(lambda number, name, qos: Subscribe(number, [SubscriptionRequest(name, qos)]), IDS, FILTERS, QOS),
    st.builds(lambda number, name: Unsubscribe(number, [name]), IDS, FILTERS),
    *[st.builds(kind, IDS) for kind in (PubAck, PubRec, PubRel, PubComp)],
)  # fmt: skip


@st.composite
def steps(draw: st.DrawFn) -> list[Step]:
    """Who does what, in turn; most of it is what clients do."""
    found: list[Step] = [
        ("connect", name, (draw(VERSIONS), draw(st.booleans()))) for name in CLIENTS
    ]
    for _ in range(draw(st.integers(1, 30))):
        who = draw(st.sampled_from(CLIENTS))
        match draw(st.integers(0, 11)):
            case 0:
                found.append(("connect", who, (draw(VERSIONS), draw(st.booleans()))))
            case 1:
                found.append(("cut", who, None))
            case 2:
                found.append(("packet", who, draw(VERSIONS.flatmap(packets))))
            case 3:
                found.append(
                    (
                        "damage",
                        who,
                        (draw(USUAL), draw(st.integers(0, 40)), draw(st.integers(0, 255))),
                    )
                )
            case 4:
                found.append(("bytes", who, draw(st.binary(max_size=30))))
            case _:
                found.append(("packet", who, draw(USUAL)))
    return found


def _bytes_of(kind: str, what: Any, version: int) -> bytes:
    if kind == "bytes":
        return bytes(what)
    if kind == "packet":
        return encode_packet(what, version)
    packet, at, value = what
    data = bytearray(encode_packet(packet, version))
    data[at % len(data)] = value
    return bytes(data)


async def _play(found: list[Step]) -> None:
    async with running(max_inflight=WINDOW, max_queued_messages=5) as node:
        peers = {name: Peer(node, name) for name in CLIENTS}
        for kind, who, what in found:
            peer = peers[who]
            if kind == "connect":
                peer.connect(*what)
            elif kind == "cut":
                peer.cut()
            else:
                if kind == "packet":
                    peer.answered(what)
                peer.feed(_bytes_of(kind, what, peer.version))
            await _settled(node)
            for one in peers.values():
                one.check()
        for one in peers.values():
            one.cut()


async def _settled(node: Node) -> None:
    """Let commits be made and told, and what they release be sent."""
    await node.writer.committed()
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.fixture
def no_failures() -> Iterator[None]:
    """Nothing was raised but the peer's kind of error: the broker would have logged it."""
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler = Keep(logging.ERROR)
    logging.getLogger().addHandler(handler)
    yield
    logging.getLogger().removeHandler(handler)
    assert records == []


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(steps())
def test_no_bytes_make_a_connection_fail_or_its_session_lose_count(
    no_failures: None, found: list[Step]
) -> None:
    asyncio.run(_play(found))
