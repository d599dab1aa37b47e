"""``$SYS`` topics over cells: numbers are sums over all cells, and names of several levels reach subscribers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from broker.cluster.frames import Figures, Frame, FrameError, FrameType, encoded
from broker.codec.packets import Publish, SubscriptionRequest, UnsubAck, Unsubscribe
from tests.cluster.test_links import publish
from tests.support.linked_cells import Cell, cells, linked
from tests.support.mqtt_server import on_loop
from tests.support.waiting import until
from tests.support.wire import WireClient

_CLIENTS = ("clients/connected", "clients/total", "clients/maximum")
_SUMS = (
    "publish/messages/sent",  # first, since answers count too
    *_CLIENTS,
    "subscriptions/count",
    "publish/messages/received",
    "mqtt/publish/received",
)


async def told(client: WireClient, names: Sequence[str]) -> dict[str, str]:
    """The present values of some topics."""
    found = {}
    for name in names:
        await client.subscribe(SubscriptionRequest(f"$SYS/broker/{name}", 0))
        found[name] = (await client.expect(Publish)).payload.decode()
        client.send(Unsubscribe(9, [f"$SYS/broker/{name}"]))
        await client.expect(UnsubAck)
    return found


async def interval(joined: Sequence[Cell], seconds: float = 10) -> None:
    """Let an interval pass, until all have heard of it."""
    told = {cell.place.number: cell.node.server.hub.sys_topics.others for cell in joined}
    before = {cell: dict(others) for cell, others in told.items()}
    joined[0].clock.move(seconds)
    for cell in joined:
        cell.node.server.hub.tick()
    await until(
        lambda: all(
            others.get(number) is not before[cell].get(number)
            for cell, others in told.items()
            for number in told.keys() - {cell}
        )
    )


@on_loop
async def test_numbers_are_sums_over_the_cells(tmp_path: Path) -> None:
    async with cells(3, tmp_path, sys_interval_s=10) as joined:
        clients = [await cell.node.client(f"c{at}", 5) for at, cell in enumerate(joined)]
        for client in clients[1:]:
            await client.subscribe(SubscriptionRequest("a/#", 0))
        await linked(joined)
        for number in range(4):
            await publish(clients[0], "a/b", b"%d" % number, 0, 0)
        for client in clients[1:]:
            for _ in range(4):
                await client.expect(Publish)
        await interval(joined)
        await interval(joined)
        everywhere = [await told(client, _SUMS) for client in clients]
        assert everywhere[0] == {
            "publish/messages/sent": "8",
            **dict.fromkeys(_CLIENTS, "3"),
            "subscriptions/count": "3",  # with the one that asks
            "publish/messages/received": "4",
            "mqtt/publish/received": "4",
        }
        assert (
            float(
                (await told(clients[2], ["load/publish/received/1min"]))[
                    "load/publish/received/1min"
                ]
            )
            > 0
        )

        await joined[1].stop()
        await until(lambda: 1 not in joined[0].node.server.hub.sys_topics.others)
        assert (await told(clients[0], _CLIENTS)) == {
            "clients/connected": "2",
            "clients/total": "2",
            "clients/maximum": "3",
        }
        await joined[1].start()
        await linked(joined)
        again = await joined[1].node.client("d", 5)
        await interval(joined)
        assert (await told(again, _CLIENTS[:2])) == dict.fromkeys(_CLIENTS[:2], "3")


@on_loop
async def test_a_subscriber_gets_sums_when_another_cell_changes(tmp_path: Path) -> None:
    async with cells(2, tmp_path, sys_interval_s=10) as joined:
        reader = await joined[0].node.client("r", 5)
        await reader.subscribe(SubscriptionRequest("$SYS/broker/clients/connected", 0))
        assert (await reader.expect(Publish)).payload == b"1"
        await joined[1].node.client("w", 5)
        await interval(joined)
        await interval(joined)
        # what it was before the other cell told the same interval, and then the sum
        assert [(await reader.expect(Publish)).payload for _ in range(2)] == [b"1", b"2"]


@on_loop
async def test_the_state_of_a_bridge_whose_name_has_levels_reaches_all_cells(
    tmp_path: Path,
) -> None:
    async with cells(2, tmp_path, sys_interval_s=10) as joined:
        readers = [await cell.node.client(f"r{at}", 5) for at, cell in enumerate(joined)]
        for reader in readers:
            await reader.subscribe(SubscriptionRequest("$SYS/broker/connection/#", 0))
        await linked(joined)
        names = [f"site-{at}/line" for at in range(8)]  # of both cells by their topics
        for name in names:
            for cell in joined:
                cell.node.server.hub.sys_topics.set_state(f"connection/{name}/state", "1")
        for reader in readers:
            topics = sorted([(await reader.expect(Publish)).topic for _ in names])
            assert topics == [f"$SYS/broker/connection/{name}/state" for name in names]


@on_loop
async def test_figures_that_are_none_end_the_link(tmp_path: Path) -> None:
    async with cells(2, tmp_path, sys_interval_s=10) as joined:
        [link] = joined[0].links
        for body in (b"", b"\xc1", encoded(Figures({"x" * 256: 1}))[8:], b"\x91\x81\xa1x\xa1y"):
            with pytest.raises(FrameError):
                link.take(Frame(FrameType.FIGURES, body))
