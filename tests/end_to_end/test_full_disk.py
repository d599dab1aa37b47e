"""A broker whose disk gets full: what is told, what is kept, and that it goes on once there is room."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from broker.codec.packets import (
    Connect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubscriptionRequest,
)
from tests.support.node import Node, eventually
from tests.support.plain_http import NO_TLS
from tests.support.small_disk import SmallDisk, small_disk
from tests.support.waiting import until
from tests.support.wire import WireClient

CONFIG: Final = "lake.run_spark = false\noverload.enable = false\nalarms { interval = 200ms, disk_free_min = 0 }\n"
HOUR: Final = {"Session-Expiry-Interval": 3600}
QUOTA_EXCEEDED: Final = 0x97
ROOM_LEFT: Final = 400_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "small", 48) as mounted:
        yield mounted


@pytest.fixture
def node(disk: SmallDisk, tmp_path: Path) -> Iterator[Node]:
    """A broker on it; its log is elsewhere."""
    node = Node(disk.path / "data", config=CONFIG)
    node.log = tmp_path / "node.log"
    node.start()
    yield node
    assert node.process is not None
    if node.process.poll() is None:
        assert node.stop() == 0
    assert "Traceback" not in node.log.read_text()


@dataclass(slots=True)
class Told:
    """What a publisher was told, by reason code."""

    taken: list[bytes] = field(default_factory=list)
    refused: list[bytes] = field(default_factory=list)

    def note(self, payload: bytes, reason_code: int) -> None:
        if reason_code < 0x80:
            self.taken.append(payload)
        else:
            assert reason_code == QUOTA_EXCEEDED
            self.refused.append(payload)


async def connected(
    node: Node, client_id: str, version: int = 5, *, is_clean: bool = True
) -> WireClient:
    properties = HOUR if version == 5 and not is_clean else {}
    return await WireClient.connected(
        node.mqtt[1], Connect(client_id, version, is_clean, properties=properties)
    )


async def publish(
    client: WireClient, told: Told, number: int, qos: int, topic: str = "kept", size: int = 20_000
) -> int:
    """Publish with this identifier and wait for what is told; the reason code."""
    payload = b"%06d" % number + os.urandom(size)
    client.send(Publish(topic, payload, qos, packet_id=number))
    if qos == 1:
        code = (await client.expect(PubAck)).reason_code
    else:
        code = (await client.expect(PubRec)).reason_code
        if code < 0x80:
            client.send(PubRel(number))
            await client.expect(PubComp)
    told.note(payload, code)
    return code


async def until_refused(client: WireClient, told: Told, first: int, qos: int) -> int:
    """Publish until the first refusal; the number after it."""
    for number in range(first, first + 500):
        if await publish(client, told, number, qos) >= 0x80:
            return number + 1
    raise AssertionError("the disk did not get full")


async def retained(node: Node) -> dict[str, bytes]:
    """What a new subscriber is sent of ``r/#``."""
    found: dict[str, bytes] = {}
    async with await connected(node, "") as client:
        await client.subscribe(SubscriptionRequest("r/#"), SubscriptionRequest("end"))
        while (packet := await client.expect(Publish)).topic != "end":
            found[packet.topic] = packet.payload
    return found


async def received(client: WireClient, count: int) -> list[bytes]:
    """So many messages, acknowledged."""
    found: list[bytes] = []
    while len(found) < count:
        packet = await client.receive()
        if isinstance(packet, Publish):
            found.append(packet.payload)
            client.send(PubAck(packet.packet_id) if packet.qos == 1 else PubRec(packet.packet_id))
        elif isinstance(packet, PubRel):
            client.send(PubComp(packet.packet_id))
    return found


def alarms(node: Node, which: str = "") -> list[str]:
    return [item["name"] for item in node.call("GET", f"/alarms{which}")["items"]]


def metric(node: Node, line: str) -> float:
    """The value of a metric with its labels, as Prometheus is shown it; 0 when there is none."""
    for found in httpx.get(f"{node.url}/metrics", trust_env=False, verify=NO_TLS).text.splitlines():
        if found.startswith(line + " "):
            return float(found.rsplit(" ", 1)[1])
    return 0


def test_a_full_disk_refuses_what_it_cannot_keep_loses_nothing_and_goes_on_with_space(
    node: Node, disk: SmallDisk
) -> None:
    asyncio.run(_fill_and_free(node, disk))


async def _fill_and_free(node: Node, disk: SmallDisk) -> None:
    told, once = Told(), Told()
    kept = {"r/1": b"one", "r/2": b"two"}
    await _prepare(node, kept)
    live = await connected(node, "live")
    await live.subscribe(SubscriptionRequest("loose", 0))
    disk.fill(left_bytes=ROOM_LEFT)
    new = await connected(node, "new", is_clean=False)
    following = await until_refused(new, told, 1, qos=1)
    await until_refused(new, once, following, qos=2)
    await _old_client_is_cut_off(node)
    eventually(lambda: "store_not_writable" in alarms(node))
    assert metric(node, 'sluice_messages_dropped_total{reason="not_stored"}') >= 2
    # What needs no disk goes on: QoS 0, and what is retained can be read.
    new.send(Publish("loose", b"still there"))
    assert (await live.expect(Publish)).payload == b"still there"
    assert await retained(node) == kept
    disk.free()
    await _goes_on(node, new, told)
    assert (told.taken, told.refused, once.refused) != ([], [], [])
    await _account(node, told.taken + once.taken, kept)
    await live.close()
    await new.close()
    node.kill()
    node.start()
    assert await retained(node) == kept | {"r/3": b"three"}
    async with await connected(node, "absent", is_clean=False) as absent:
        assert absent.connack.session_present


async def _prepare(node: Node, kept: dict[str, bytes]) -> None:
    """An absent session that is to get everything, and some retained messages."""
    absent = await connected(node, "absent", is_clean=False)
    await absent.subscribe(SubscriptionRequest("kept", 2), SubscriptionRequest("more/#", 1))
    await absent.close()
    async with await connected(node, "keeper") as keeper:
        for topic, payload in {**kept, "end": b"end"}.items():
            keeper.send(Publish(topic, payload, 1, True, packet_id=1))
            assert (await keeper.expect(PubAck)).reason_code < 0x80


async def _old_client_is_cut_off(node: Node) -> None:
    """3.1.1 has no word for refusing: the connection is closed, without an acknowledgement."""
    old = await connected(node, "old", 4)
    old.send(Publish("kept", os.urandom(100_000), 1, packet_id=1))
    assert await old.closed() == []


async def _goes_on(node: Node, client: WireClient, told: Told) -> None:
    """There is room again: without a restart, publishes are taken after a moment, and the alarm is over."""
    numbers = itertools.count(1000)

    async def is_taken() -> bool:
        return await publish(client, told, next(numbers), qos=1, size=10) < 0x80

    await until(is_taken)
    client.send(Publish("r/3", b"three", 1, True, packet_id=1))
    assert (await client.expect(PubAck)).reason_code < 0x80
    eventually(lambda: alarms(node) == [] and "store_not_writable" in alarms(node, "/history"))
    books: dict[str, Any] = node.call("GET", "/status")["ledger"]
    assert books["residual"] == 0


async def _account(node: Node, taken: list[bytes], kept: dict[str, bytes]) -> None:
    """The absent session gets what was acknowledged, in order, and nothing else."""
    assert await retained(node) == kept | {"r/3": b"three"}
    async with await connected(node, "absent", is_clean=False) as absent:
        assert absent.connack.session_present
        got = await received(absent, len(taken))
        assert [payload[:6] for payload in got] == sorted(payload[:6] for payload in taken)
        assert sorted(got) == sorted(taken)
