"""Calls on threads, of which so many run at once: each slot that is given back is taken."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.support.mqtt_server import on_loop
from tests.support.waiting import until
from ui.api.deadline import BoundedCalls


@on_loop
async def test_who_is_cancelled_as_its_turn_comes_ends_and_leaves_it_to_the_next() -> None:
    calls = BoundedCalls(60, slots=1)
    held = threading.Event()
    first = asyncio.create_task(calls.run("first", held.wait))
    await until(lambda: calls._free == 0)
    cancelled = asyncio.create_task(calls.run("second", str))
    last = asyncio.create_task(calls.run("third", lambda: "done"))
    await until(lambda: len(calls._waiting) == 2)
    calls._give_back()
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert await last == "done"
    held.set()
    assert await first


@on_loop
async def test_who_comes_as_a_slot_is_given_back_waits_behind_those_that_wait() -> None:
    calls = BoundedCalls(60, slots=1)
    await calls._take_slot()
    waiting = asyncio.create_task(calls._take_slot())
    await until(lambda: len(calls._waiting) == 1)
    late = asyncio.create_task(calls._take_slot())
    calls._give_back()  # before the late one has had its first turn
    await waiting
    assert not late.done()
    calls._give_back()
    await late
    calls._give_back()
    assert calls._free == 1
