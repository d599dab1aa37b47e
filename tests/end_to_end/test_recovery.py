"""What a data directory costs: the time to start on much of it, and the room that deleted sessions give back."""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path

import psutil
import pytest

from broker.codec.packets import Connect, PubAck, Publish, SubscriptionRequest
from broker.core.stream import StreamRecord
from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import Batch, LogShard
from tests.support.node import Node, eventually, running
from tests.support.wire import WireClient

SESSION_LOG = LogShard(1)
HOUR = {"Session-Expiry-Interval": 3600}
CONFIG = "lake.run_spark = false\noverload.enable = false\n"


async def _leave_session(node: Node, client_id: str, topic_filter: str) -> None:
    async with await WireClient.connected(
        node.mqtt[1], Connect(client_id, 5, False, properties=HOUR)
    ) as client:
        await client.subscribe(SubscriptionRequest(topic_filter, 1))


async def _first(node: Node, client_id: str, count: int) -> list[bytes]:
    async with await WireClient.connected(
        node.mqtt[1], Connect(client_id, 5, False, properties=HOUR)
    ) as client:
        assert client.connack.session_present
        found: list[bytes] = []
        while len(found) < count:
            packet = await client.expect(Publish)
            found.append(packet.payload)
            client.send(PubAck(packet.packet_id))
        return found


def _store_messages(data_dir: Path, count: int) -> None:
    """Put messages into the session log, as if they had been published while the session was away."""
    store = RocksStore(data_dir, "os")
    now_us, at_once = time.time_ns() // 1000, 10_000
    assert store.range_of(SESSION_LOG).next_offset == 0
    for start in range(0, count, at_once):
        added = [
            StreamRecord(now_us + number, f"much/{number % 100}", b"%0100d" % number, 1, False, "p")
            for number in range(start, start + at_once)
        ]
        store.commit(Batch({SESSION_LOG: added}))
    store.close()


@pytest.mark.heavy
def test_a_start_on_a_million_stored_messages_takes_seconds_and_its_time_is_logged(
    tmp_path: Path,
) -> None:
    with running(tmp_path / "node", config=CONFIG + "mqtt.max_stored_messages = 2000000\n") as node:
        asyncio.run(_leave_session(node, "s", "much/#"))
        node.kill()
        _store_messages(node.data_dir, 1_000_000)
        began_s = time.monotonic()
        node.start()
        took_s = time.monotonic() - began_s
        said = node.log.read_text()
        [opened] = re.findall(r"store\.opened records=1000000 .* took_s=([0-9.]+)", said)
        loaded = re.findall(r"node\.loaded .* took_s=([0-9.]+)", said)[-1]
        [loop_s] = [
            one.user_time + one.system_time
            for one in psutil.Process(node.pid).threads()
            if one.id == node.pid
        ]
        print(
            f"started in {took_s:.1f} s; store opened in {opened} s, sessions loaded in {loaded} s; {loop_s=:.1f}"
        )
        assert loop_s < 30
        assert asyncio.run(_first(node, "s", 1000)) == [
            b"%0100d" % number for number in range(1000)
        ]


async def _publish(node: Node, count: int, size: int) -> None:
    async with await WireClient.connected(node.mqtt[1], Connect("p", 5)) as client:
        for start in range(0, count, 50):
            client.send(
                *[
                    Publish("room/x", os.urandom(size), 1, packet_id=n + 1)
                    for n in range(start, start + 50)
                ]
            )
            for _ in range(50):
                assert (await client.expect(PubAck)).reason_code < 0x80


def _disk_bytes(node: Node) -> int:
    files = [
        path
        for path in (node.data_dir / "rocksdb").iterdir()
        if path.is_file() and path.name != "LOG"
    ]
    return sum(path.stat().st_blocks * 512 for path in files)


@pytest.mark.heavy
def test_deleted_sessions_give_the_room_of_what_waited_for_them_back(tmp_path: Path) -> None:
    with running(tmp_path / "node", config=CONFIG + "store.durability = os\n") as node:
        asyncio.run(_leave_session(node, "gone", "room/#"))
        asyncio.run(_publish(node, 4000, 20_000))
        held = _disk_bytes(node)
        assert held > 70_000_000
        node.call("DELETE", "/sessions/gone")
        eventually(lambda: _disk_bytes(node) < held / 4, 60, what="the room to be given back")
