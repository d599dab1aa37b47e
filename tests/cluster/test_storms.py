"""Much at once over cells, and a cell that hangs: bounds of memory and of waiting, and others are not slowed."""

from __future__ import annotations

import asyncio
import re
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median

import httpx
import pytest

from broker.codec.packets import (
    Connect,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
)
from broker.core import reason
from tests.cluster.test_workers import of_cell
from tests.support.linked_cells import cells, linked
from tests.support.mqtt_server import on_loop
from tests.support.node import Node, eventually
from tests.support.processes import pause
from tests.support.processor import is_within
from tests.support.waiting import until, within
from tests.support.wire import WireClient

_FILTERS = 100_000
_DEVICES = 10_000
_AT_ONCE = 400
"""Connects that the queue of the listening sockets takes."""
_MIB = 1024 * 1024


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    config = "lake.run_spark = false\noverload.enable = false\n"
    node = Node(tmp_path / "data", config=config, workers=2).start()
    yield node
    for cell in range(2):
        with suppress(OSError):
            node.cell(cell).resume()
    node.stop()


def _alarms(node: Node) -> list[str]:
    return [alarm["name"] for alarm in node.call("GET", "/alarms")["items"]]


def test_a_cell_that_hangs_costs_others_a_bounded_wait_and_little_memory(node: Node) -> None:
    _with_a_cell_that_hangs(node)
    eventually(lambda: "cell_away:1" not in _alarms(node), what="the alarm ends")


@on_loop
async def _with_a_cell_that_hangs(node: Node) -> None:
    port = node.mqtt[1]
    (here, near, quick), (there,) = of_cell(0, 3), of_cell(1, 1)
    far = await WireClient.connected(port, Connect(there, 5))
    await far.subscribe(SubscriptionRequest("far", 1))
    own = await WireClient.connected(port, Connect(near, 5))
    await own.subscribe(SubscriptionRequest("own", 1))
    waits = await WireClient.connected(port, Connect(here, 5))
    other = await WireClient.connected(port, Connect(quick, 5))
    hangs, lives = node.cell(1), node.cell(0)
    before = lives.memory_info().rss
    pause(hangs.pid)
    waits.send(Publish("far", b"x", 1, packet_id=1))
    payload = bytes(16 * 1024)
    for number in range(1, 65):
        other.send(*[Publish("far", payload) for _ in range(32)])
        other.send(Publish("own", b"%d" % number, 1, packet_id=number))
        await other.drain()
        assert (await other.expect(PubAck)).packet_id == number
        got = await own.expect(Publish)
        assert got.payload == b"%d" % number
        own.send(PubAck(got.packet_id))
    assert lives.memory_info().rss - before < 64 * _MIB
    await within(waits.expect(PubAck), 60)
    assert "cell_away:1" in await asyncio.to_thread(_alarms, node)
    health = await asyncio.to_thread(httpx.get, f"{node.url}/readyz", trust_env=False)
    assert (health.status_code, health.text.startswith("degraded: ")) == (200, True), health.text
    text = await asyncio.to_thread(lambda: httpx.get(f"{node.url}/metrics", timeout=60).text)
    dropped = re.findall(
        r'^sluice_cell_messages_dropped_total\{(?=.*cell="0")(?=.*reason="link_\w+").*\} (\d+)',
        text,
        re.M,
    )
    assert sum(map(int, dropped)) > 500, dropped
    hangs.resume()
    again = await WireClient.connected(port, Connect(of_cell(1, 2)[1], 5))
    await until(lambda: _arrives(other, again), "messages reach the other cell again")


async def _arrives(publisher: WireClient, subscriber: WireClient) -> bool:
    await subscriber.subscribe(SubscriptionRequest("again", 1))
    publisher.send(Publish("again", b"y", 1, packet_id=100))
    if (await publisher.expect(PubAck)).reason_code:
        return False
    subscriber.send(PubAck((await subscriber.expect(Publish)).packet_id))
    return True


@pytest.mark.heavy
@on_loop
async def test_a_hundred_thousand_filters_are_told_and_one_more_waits_for_none(
    tmp_path: Path,
) -> None:
    async with cells(2, tmp_path, max_subscriptions=_FILTERS) as joined:
        one, two = joined
        began_s = time.process_time()
        clients = []
        for start in range(0, _FILTERS, 1000):
            if start % 20_000 == 0:  # a client may have so many within its bytes
                client = await one.node.client(f"many-{start}", 5)
                clients.append(client)
            requests = [
                SubscriptionRequest(f"site/{number}/+/t", 1)
                for number in range(start, start + 1000)
            ]
            client.send(Subscribe(1, requests))
            assert set((await client.expect(SubAck)).reason_codes) == {1}
        await linked(joined)
        spent_s = time.process_time() - began_s
        assert len(two.node.server.hub.router.remote("site/99999/x/t")) == 1
        waits = []
        single = await two.node.client("single", 5)
        for number in range(200):
            began_s = time.perf_counter()
            await single.subscribe(SubscriptionRequest(f"own/{number}", 1))
            waits.append(time.perf_counter() - began_s)
        print(
            f"{spent_s / _FILTERS * 1e6:.1f} us a filter, SUBACK p50 {median(waits) * 1e3:.2f} ms"
        )
        assert is_within(spent_s, _FILTERS * 200e-6)
        for client in clients:
            client.abort()
        await two.node.until(lambda: not two.node.server.hub.router.remote("site/99999/x/t"))


def test_ten_thousand_clients_churn_and_are_reached_by_wildcards_and_by_name(node: Node) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _DEVICES + 1000
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    try:
        _with_ten_thousand_clients(node)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@on_loop
async def _with_ten_thousand_clients(node: Node) -> None:
    port = node.mqtt[1]
    resident = [node.cell(cell).memory_info().rss for cell in range(2)]
    room = asyncio.Semaphore(_AT_ONCE)

    async def join(number: int) -> WireClient:
        requests = [SubscriptionRequest(f"dev/{number}/cmd", 1)]
        if number % 10 == 0:
            requests.append(SubscriptionRequest("site/+/alarm", 1))
        async with room:
            device = await WireClient.connected(port, Connect(f"device-{number}", 5))
            device.send(Subscribe(1, requests))
            assert set((await device.expect(SubAck)).reason_codes) == {1}
        return device

    devices = await asyncio.gather(*map(join, range(_DEVICES)))
    for cell, before in enumerate(resident):
        grown = node.cell(cell).memory_info().rss - before
        assert grown < _DEVICES / 2 * 40 * 1024, f"cell {cell}: {grown / _MIB:.0f} MiB"
    senders = [
        await WireClient.connected(port, Connect(of_cell(cell, 1)[0], 5)) for cell in range(2)
    ]

    async def send(topics: Sequence[str]) -> None:
        """Publish to each topic from both cells, and wait for every PUBACK."""
        for first in range(0, len(topics), 200):
            part = topics[first : first + 200]
            for cell, sender in enumerate(senders):
                sender.send(
                    *[
                        Publish(topic, f"{cell} {first + number}".encode(), 1, packet_id=number + 1)
                        for number, topic in enumerate(part)
                    ]
                )
            for sender in senders:
                for _ in part:
                    assert (await sender.expect(PubAck)).reason_code == 0

    async def take(device: WireClient, count: int) -> dict[bytes, list[int]]:
        """The numbers of messages that a device gets, by the cell of their publisher."""
        numbers: dict[bytes, list[int]] = {}
        for _ in range(count):
            got = await device.expect(Publish)
            device.send(PubAck(got.packet_id))
            cell, _, number = got.payload.partition(b" ")
            numbers.setdefault(cell, []).append(int(number))
        return numbers

    named = range(0, _DEVICES, 5)
    await send([f"dev/{number}/cmd" for number in named])
    for place, number in enumerate(named):
        assert await take(devices[number], 2) == {b"0": [place], b"1": [place]}

    alarms = [f"site/{number}/alarm" for number in range(20)]
    await send(alarms)
    for number in range(0, _DEVICES, 10):
        expected = {b"0": list(range(20)), b"1": list(range(20))}
        assert await take(devices[number], 40) == expected  # in order of each publisher

    waits: list[float] = []

    async def churn(number: int) -> None:
        device = devices[number]
        for turn in range(5):
            filter = f"churn/{number}/+/{turn}"
            began_s = time.perf_counter()
            await device.subscribe(SubscriptionRequest(filter, 1))
            waits.append(time.perf_counter() - began_s)
            device.send(Unsubscribe(9, [filter]))
            assert (await device.expect(UnsubAck)).reason_codes == [0]

    calm = range(2, _DEVICES, 10)
    await asyncio.gather(
        *map(churn, range(1, _DEVICES, 10)), send([f"dev/{number}/cmd" for number in calm])
    )
    for place, number in enumerate(calm):
        assert await take(devices[number], 2) == {b"0": [place], b"1": [place]}
    print(f"SUBACK in a churn of 1,000 clients, p50 {median(waits) * 1e3:.0f} ms")

    for device in devices:
        device.abort()
    for sender in senders:
        await until(partial(_is_alone, sender), "the routes of devices are gone")


async def _is_alone(sender: WireClient) -> bool:
    """True if no client subscribes to what a device of each kind did."""
    reasons = set()
    for packet_id, topic in enumerate(("dev/1/cmd", "dev/2/cmd", "site/1/alarm"), 1):
        sender.send(Publish(topic, b"x", 1, packet_id=packet_id))
        reasons.add((await sender.expect(PubAck)).reason_code)
    return reasons == {reason.NO_MATCHING_SUBSCRIBERS}
