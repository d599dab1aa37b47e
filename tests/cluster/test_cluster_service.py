"""Orders to machines, given to keepers that answer at their sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from broker.admin.cells import CellRow
from broker.admin.cluster import Moves
from broker.cluster.keeping import ALL, SHOW, Asked, State, Told, server_of_keeper
from broker.cluster.service import ClusterService
from broker.core.cells import Machine, Place
from broker.core.errors import Conflict, Unavailable
from tests.support.waiting import until

MACHINES = [Machine("a", "a", 7946, 0, 1), Machine("b", "b", 7946, 1, 3)]


class Keepers:
    """Those of machines that hear of each other at once. A drained machine gives its cells to the other one."""

    def __init__(self, forgotten: list[str]) -> None:
        self.states = {
            machine.name: State("x", 1, [*machine.cells], {}, {}) for machine in MACHINES
        }
        self.homes = {cell: machine.name for machine in MACHINES for cell in machine.cells}
        self.asked: list[Asked] = []
        self.before: Callable[[Asked], None] | None = None
        """Called with each question, before its answer."""
        self._forgotten = forgotten

    def answer(self, name: str, asked: Asked) -> Told:
        if asked != SHOW:
            self.asked.append(asked)
        if self.before is not None:
            self.before(asked)
        if name not in self.states:
            return Told(problem="it is lost")
        state = self.states[name]
        if asked.verb == "give" and not state.is_drained:
            return Told(refused="it was resumed")
        if asked.verb in ("drain", "give"):
            gives = len(state.runs) if asked.gives < 0 else asked.gives
            self.states[name] = replace(state, runs=state.runs[gives:], is_drained=True)
        elif asked.verb == "resume":
            self.states[name] = replace(state, is_drained=False)
        elif asked.verb == "take":
            self.homes[asked.cell] = asked.machine
        return Told(self.states, homes=self.homes, forgotten=self._forgotten)

    async def rows(self, cells: Sequence[int]) -> list[CellRow | None]:
        """What cells show; each has come from machine b, with 2 clients, 3 sessions and 4 messages."""
        figures = {"clients": 2, "sessions": 3, "messages": 4, "expired_sessions": 1}
        arrival = {"machine": "b", **figures, "lost_sessions": 0, "lost_messages": 0}
        at_b = self.states["b"].runs if "b" in self.states else []

        def row(cell: int) -> Any:
            machine = "b" if cell in at_b else "a"
            return {"state": "running", "arrival": arrival, "machine": machine}

        return [row(cell) for cell in cells]


class Running:
    """What a job has: progress, and whether it goes on."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.is_cancelled = self.is_paused = False

    def advance(self, done: int) -> bool:
        self.done.append(done)
        return not self.is_cancelled


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.s = 1000.0

    def now_ns(self) -> int:
        return int(self.s * 1e9)

    def monotonic_s(self) -> float:
        return self.s

    def tick(self) -> bool:
        """Let a tenth of a second pass; false."""
        self.s += 0.1
        return False


def _with_keepers(
    run: Path,
    keepers: Keepers,
    test: Callable[[ClusterService], Awaitable[None]],
    clock: Hands | None = None,
) -> None:
    async def serve() -> None:
        async with AsyncExitStack() as stack:
            for machine in MACHINES:
                answer = partial(keepers.answer, machine.name)
                server = server_of_keeper(run, machine.name, answer)
                await server.start()
                stack.push_async_callback(server.stop)
            place = Place(0, 4, run, MACHINES, machine="a", owners=[0, 1, 1, 1])
            service = ClusterService(place, lambda _cell: True, clock)
            service.rows = keepers.rows
            await test(service)

    asyncio.run(serve())


def test_a_machine_that_was_forgotten_takes_no_cells_of_a_drained_one(tmp_path: Path) -> None:
    async def test(service: ClusterService) -> None:
        with pytest.raises(Conflict, match="no other machine than 'a' runs and could take"):
            await service.begin_drain("a", 0, 0)

    _with_keepers(tmp_path, Keepers(["b"]), test)


def test_of_two_drains_at_once_the_one_of_the_last_machine_is_refused(tmp_path: Path) -> None:
    async def test(service: ClusterService) -> None:
        drained = await asyncio.gather(
            *(service.begin_drain(name, 0, 0) for name in "ab"), return_exceptions=True
        )
        assert [isinstance(answer, Conflict) for answer in drained] == [False, True]

    _with_keepers(tmp_path, Keepers([]), test)


def _drained(
    tmp_path: Path, wait_s: int, pause_s: int, test: Callable[[Draining], Awaitable[None]]
) -> None:
    keepers, clock = Keepers([]), Hands()

    async def drain(service: ClusterService) -> None:
        plan = await service.begin_drain("b", wait_s, pause_s)
        order = service.drain_order(plan, wait_s, pause_s)
        running = Running()
        work = service.drain("job", "b", order, running.advance, lambda: running.is_paused)
        await test(Draining(service, keepers, clock, running, asyncio.create_task(work)))

    _with_keepers(tmp_path, keepers, drain, clock)


@dataclass
class Draining:
    """The drain of machine b, which has three cells."""

    service: ClusterService
    keepers: Keepers
    clock: Hands
    running: Running
    task: asyncio.Task[Moves]

    def left(self) -> int:
        return len(self.keepers.states["b"].runs)

    async def looks(self, more: int = 3) -> None:
        """It has looked at the machine so many times, or is over."""
        done = len(self.running.done)
        await until(lambda: self.task.done() or len(self.running.done) >= done + more)


def test_a_drain_gives_its_cells_after_a_wait_one_at_a_time_and_none_while_it_is_paused(
    tmp_path: Path,
) -> None:
    async def test(drain: Draining) -> None:
        drain.clock.s += 59
        await drain.looks()
        assert drain.left() == 3
        drain.clock.s += 2
        await until(lambda: drain.left() == 2)
        await drain.looks()
        assert drain.left() == 2
        drain.running.is_paused = True
        drain.clock.s += 11
        await drain.looks()
        assert drain.left() == 2
        drain.running.is_paused = False
        await until(lambda: drain.left() == 1)
        await drain.looks()
        drain.clock.s += 11
        moves = await drain.task
        assert drain.running.done[-1] == 3
        assert [(move["cell"], move["machine"]) for move in moves["cells"]] == [
            (1, "a"),
            (2, "a"),
            (3, "a"),
        ]
        sums = [moves["clients"], moves["sessions"], moves["messages"], moves["expired_sessions"]]
        assert sums == [6, 9, 12, 3]
        assert (moves["lost_sessions"], moves["lost_messages"], moves["uncounted"]) == (0, 0, 0)

    _drained(tmp_path, 60, 10, test)


def test_a_drain_without_a_wait_gives_all_cells_at_once(tmp_path: Path) -> None:
    async def test(drain: Draining) -> None:
        await drain.task
        assert drain.keepers.asked == [Asked("drain", "b", gives=ALL)]
        assert drain.left() == 0

    _drained(tmp_path, 0, 0, test)


def test_a_drain_that_is_cancelled_resumes_the_machine(tmp_path: Path) -> None:
    async def test(drain: Draining) -> None:
        await drain.looks()
        drain.running.is_cancelled = True
        assert (await drain.task)["cells"] == []
        assert drain.keepers.asked[-1] == Asked("resume", "b")
        assert not drain.keepers.states["b"].is_drained

    _drained(tmp_path, 60, 0, test)


@pytest.mark.parametrize("is_away", [True, False])
def test_a_drain_ends_where_its_machine_was_resumed_or_is_away(
    tmp_path: Path, is_away: bool
) -> None:
    async def test(drain: Draining) -> None:
        await drain.looks()
        if is_away:
            del drain.keepers.states["b"]
        else:
            drain.keepers.answer("b", Asked("resume", "b"))
        await until(lambda: drain.task.done() or drain.clock.tick())
        why = "is away: others take its cells over" if is_away else "was resumed"
        with pytest.raises(Conflict, match=f"machine 'b' {why}"):
            await drain.task

    _drained(tmp_path, 60, 0, test)


def test_a_machine_that_is_resumed_is_not_drained_again_by_the_job(tmp_path: Path) -> None:
    """The job has seen it drained just before."""

    async def test(drain: Draining) -> None:
        await drain.looks()

        def resumed(asked: Asked) -> None:
            if asked.verb == "give":
                drain.keepers.answer("b", Asked("resume", "b"))

        drain.keepers.before = resumed
        drain.clock.s += 61
        with pytest.raises(Conflict, match="it was resumed"):
            await drain.task
        assert not drain.keepers.states["b"].is_drained

    _drained(tmp_path, 60, 0, test)


def test_a_move_ends_where_a_later_order_sends_the_cell_elsewhere(tmp_path: Path) -> None:
    keepers = Keepers([])

    async def test(service: ClusterService) -> None:
        plan = await service.begin_move("a", 1)
        assert plan["total"] == 1
        work = service.move("job", "a", service.move_order(plan, 1), Running().advance)
        task = asyncio.create_task(work)
        keepers.homes[1] = "b"
        with pytest.raises(Conflict, match="cell 1 belongs to machine 'b' by a later order"):
            await task

    _with_keepers(tmp_path, keepers, test)


def test_cells_go_home_one_after_the_other_with_a_pause(tmp_path: Path) -> None:
    keepers, clock = Keepers([]), Hands()
    a, b = keepers.states["a"], keepers.states["b"]
    keepers.states |= {"a": replace(a, runs=[0, 1, 2]), "b": replace(b, runs=[3])}
    keepers.homes |= {1: "a", 2: "a"}

    async def test(service: ClusterService) -> None:
        plan = await service.begin_rebalance()
        assert plan == {"cells": {"1": "b", "2": "b"}, "stay": [], "total": 2}
        running = Running()
        order = service.rebalance_order(plan, 30)
        work = service.rebalance("job", order, running.advance, lambda: False)
        task = asyncio.create_task(work)
        await until(lambda: keepers.asked)
        assert keepers.asked == [Asked("rebalance", cell=1)]
        keepers.states |= {"a": replace(a, runs=[0, 2]), "b": replace(b, runs=[1, 3])}
        await until(lambda: running.done[-1] == 1)
        done = len(running.done)
        await until(lambda: len(running.done) > done + 2)
        assert len(keepers.asked) == 1
        clock.s += 31
        await until(lambda: len(keepers.asked) == 2)
        assert keepers.asked[1] == Asked("rebalance", cell=2)
        keepers.states |= {"a": a, "b": b}
        assert [move["cell"] for move in (await task)["cells"]] == [1, 2]

    _with_keepers(tmp_path, keepers, test, clock)


def test_cells_of_a_machine_that_is_away_go_there_when_it_is_back(tmp_path: Path) -> None:
    keepers, clock = Keepers([]), Hands()
    del keepers.states["b"]
    keepers.states["a"] = replace(keepers.states["a"], runs=[0, 1, 2, 3])

    async def test(service: ClusterService) -> None:
        plan = await service.begin_rebalance()
        order = service.rebalance_order(plan, 0)
        work = service.rebalance("job", order, Running().advance, lambda: False)
        task = asyncio.create_task(work)
        await until(lambda: task.done() or clock.tick())
        with pytest.raises(Conflict, match=r"'b' is away: it gets 3 cells \(1, 2, 3\) when it is"):
            await task
        assert [asked.cell for asked in keepers.asked] == [1, 2, 3]

    _with_keepers(tmp_path, keepers, test, clock)


def test_two_jobs_do_not_move_cells_at_once(tmp_path: Path) -> None:
    async def test(drain: Draining) -> None:
        await drain.looks()
        with pytest.raises(
            Conflict, match=r"job job \(drain b\) moves cells: wait until it is over"
        ):
            await drain.service.begin_rebalance()
        with pytest.raises(Conflict, match="moves cells"):
            await drain.service.begin_drain("b", 0, 0)
        drain.running.is_cancelled = True
        await drain.task
        await drain.service.begin_rebalance()

    _drained(tmp_path, 60, 0, test)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_drain_ends_where_its_machine_is_lost_between_a_look_and_an_order(
    tmp_path: Path, is_cancelled: bool
) -> None:
    async def test(drain: Draining) -> None:
        def lost(asked: Asked) -> None:
            if asked.verb == "give" and asked.gives:
                drain.keepers.states.pop("b", None)
                drain.running.is_cancelled = is_cancelled

        await drain.looks()
        drain.keepers.before = lost
        drain.clock.s += 61
        await until(lambda: drain.task.done() or drain.clock.tick())
        why = "cannot do so: it is lost" if is_cancelled else "is away"
        with pytest.raises((Conflict, Unavailable), match=f"machine 'b' {why}"):
            await drain.task

    _drained(tmp_path, 60, 0, test)


def _has_given(drain: Draining, left: int) -> bool:
    return drain.left() < left


def test_a_drain_goes_on_where_a_cell_came_back_to_its_machine(tmp_path: Path) -> None:
    """The one that it had given was lost elsewhere."""

    async def test(drain: Draining) -> None:
        await until(lambda: drain.left() == 2)
        await drain.looks()
        state = drain.keepers.states["b"]
        drain.keepers.states["b"] = replace(state, runs=[1, 2, 3])
        await drain.looks()
        while drain.left():
            left = drain.left()
            drain.clock.s += 11
            await until(partial(_has_given, drain, left))
            await drain.looks()
        assert len((await drain.task)["cells"]) == 3

    _drained(tmp_path, 0, 10, test)


def test_a_cell_that_is_there_already_is_not_reported_as_moved(tmp_path: Path) -> None:
    async def test(service: ClusterService) -> None:
        plan = await service.begin_move("b", 1)
        assert plan["total"] == 0
        running = Running()
        moves = await service.move("job", "b", service.move_order(plan, 1), running.advance)
        assert (moves["cells"], moves["sessions"], running.done[-1]) == ([], 0, 0)

    _with_keepers(tmp_path, Keepers([]), test)


def test_an_order_that_has_not_moved_its_cell_yet_is_taken_back_by_a_rebalance(
    tmp_path: Path,
) -> None:
    keepers = Keepers([])
    keepers.homes[1] = "a"  # which cannot take it now

    async def test(service: ClusterService) -> None:
        plan = await service.begin_rebalance()
        assert plan == {"cells": {"1": "b"}, "stay": ["1"], "total": 0}
        order = service.rebalance_order(plan, 0)
        moves = await service.rebalance("job", order, Running().advance, lambda: False)
        assert keepers.asked == [Asked("rebalance", cell=1)]
        assert moves["cells"] == []

    _with_keepers(tmp_path, keepers, test)
