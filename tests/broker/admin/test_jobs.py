"""Jobs with an order: paused, resumed, and continued by the next broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.admin.jobs import Job, Jobs
from broker.core.clock import SystemClock
from broker.core.errors import Conflict
from broker.core.values import Values
from tests.support.waiting import until


class Kept(Values):
    """Values in memory."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def names(self, prefix: str) -> list[str]:
        return [name for name in self.values if name.startswith(prefix)]

    def get(self, name: str) -> bytes | None:
        return self.values.get(name)

    def put(self, name: str, value: bytes | None) -> None:
        if value is None:
            self.values.pop(name, None)
        else:
            self.values[name] = value


async def counting(job: Job) -> dict[str, Any]:
    """Work up to what the order says, except while it is paused."""
    end = (job.order or {})["until"]
    await until(lambda: job.done >= end or not job.advance(job.done + (not job.is_paused())))
    return {"done": job.done}


def jobs_on(kept: Kept) -> Jobs:
    jobs = Jobs(kept, SystemClock())
    jobs.takes_orders("count", counting)
    return jobs


def test_an_order_that_was_paused_is_paused_after_a_restart_and_continues() -> None:
    kept = Kept()

    async def first() -> str:
        jobs = jobs_on(kept)
        job = jobs.start("count", "x", "steps", 1 << 60, order={"until": 1 << 60})
        await until(lambda: job.done > 1)
        assert jobs.pause(job.id)["state"] == "paused"
        with pytest.raises(Conflict, match="cannot be paused: it is a count that is paused"):
            jobs.pause(job.id)
        await jobs.stop()
        return job.id

    async def second(id: str) -> None:
        jobs = jobs_on(kept)
        assert jobs.known() == []
        jobs.start_again()
        before = jobs.get(id)
        assert (before["state"], before["name"], before["progress"]["unit"]) == (
            "paused",
            "x",
            "steps",
        )
        assert before["progress"]["done"] >= 0
        jobs.resume(id)
        await until(lambda: jobs.get(id)["progress"]["done"] > before["progress"]["done"])
        jobs.cancel(id)
        await until(lambda: jobs.get(id)["state"] == "cancelled")

    asyncio.run(second(asyncio.run(first())))
    assert kept.values == {}


def test_work_without_an_order_cannot_be_paused() -> None:
    async def run() -> None:
        jobs = jobs_on(Kept())

        async def work(job: Job) -> dict[str, Any]:
            await until(lambda: not job.advance(0))
            return {}

        job = jobs.start("other", "x", "steps", 1, work)
        with pytest.raises(Conflict, match="cannot be paused"):
            jobs.pause(job.id)
        await jobs.stop()
        assert job.state == "cancelled"

    asyncio.run(run())


def test_an_order_whose_work_does_not_look_at_pauses_cannot_be_paused() -> None:
    """It continues after a restart all the same."""
    kept = Kept()

    async def begin() -> str:
        jobs = jobs_on(kept)
        jobs.takes_orders("steady", counting, may_pause=False)
        job = jobs.start("steady", "x", "steps", 1 << 60, order={"until": 1 << 60})
        await until(lambda: job.done > 1)
        with pytest.raises(Conflict, match="cannot be paused: it is a steady that is running"):
            jobs.pause(job.id)
        await jobs.stop()
        return job.id

    async def go_on(id: str) -> None:
        jobs = jobs_on(kept)
        jobs.takes_orders("steady", counting, may_pause=False)
        jobs.start_again()
        assert jobs.get(id)["state"] == "running"
        with pytest.raises(Conflict, match="cannot be paused"):
            jobs.pause(id)
        jobs.cancel(id)
        await until(lambda: jobs.get(id)["state"] == "cancelled")

    asyncio.run(go_on(asyncio.run(begin())))
