"""Actions that are changed while rows of theirs are on the way: each row is counted once, and none is lost."""

from __future__ import annotations

from typing import Any

import pytest

from bridges.resource.errors import TargetUnusable
from broker.core.errors import Invalid
from tests.support.bridges import FAST, Outside, scripted_bridges
from tests.support.mqtt_server import on_loop

ROWS = 50


def on_disk(**options: Any) -> dict[str, Any]:
    """The action ``out`` with a buffer on disk."""
    options = {**FAST, "buffer_mode": "disk", **options}
    return {"name": "out", "type": "scripted", "connector": "plant", "resource_opts": options}


@on_loop
async def test_rows_on_the_way_when_the_buffer_moves_to_disk_are_counted_once() -> None:
    outside = Outside()
    outside.answers.clear()
    async with scripted_bridges(outside) as bridges:
        bridges.send_many(ROWS)
        await bridges.until(lambda: bridges.counts()["inflight"])
        bridges.actions.replace("out", on_disk())
        bridges.assert_adds_up()
        outside.answers.set()
        await bridges.until(lambda: bridges.counts()["queuing"] + bridges.counts()["inflight"] == 0)
        bridges.assert_adds_up()
        assert bridges.counts()["success"] == ROWS
        assert bridges.settled == [None] * ROWS
        assert set(outside.values) == set(range(ROWS))


@pytest.mark.parametrize("overflow", ["refuse", "drop_oldest"])
@on_loop
async def test_rows_that_wait_move_to_a_buffer_on_disk_that_is_smaller(overflow: str) -> None:
    outside = Outside()
    outside.is_there = False
    async with scripted_bridges(outside) as bridges:
        bridges.send_many(ROWS)
        bridges.actions.replace("out", on_disk(max_buffer_records=10, overflow=overflow))
        bridges.assert_adds_up()
        outside.is_there = True
        await bridges.until_sent(ROWS)
        assert sorted(outside.values) == list(range(ROWS))


@on_loop
async def test_a_paused_action_is_not_drained() -> None:
    async with scripted_bridges(Outside()) as bridges:
        bridges.actions.pause("out")
        with pytest.raises(Invalid, match="'out' is paused and sends nothing; resume it"):
            await bridges.actions.drain("out", 60.0)
        assert bridges.send({"n": 1, "key": "k"}) is None


@on_loop
async def test_a_target_that_is_closed_leaves_the_connection_to_others() -> None:
    outside = Outside()
    outside.refuses = lambda value: (
        TargetUnusable("the user may not write to 't'") if value == "closed" else None
    )
    async with scripted_bridges(outside, {"batch_size": 1}) as bridges:
        await bridges.until(lambda: bridges.actions.get("out")["status"] == "connected")
        since = bridges.connectors.get("plant")["since"]
        bridges.send({"n": "closed", "key": "a"})
        await bridges.until(lambda: bridges.counts()["retried"] == 1)
        assert (
            bridges.actions.get("out")["status_reason"]
            == "unhealthy target: the user may not write to 't'"
        )
        outside.refuses = lambda _value: None
        await bridges.until_sent(1)
        await bridges.until(lambda: bridges.actions.get("out")["status"] == "connected")
        assert bridges.connectors.get("plant")["since"] == since
