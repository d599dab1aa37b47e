"""Orders to machines, given to keepers that answer at their sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from broker.cluster.keeping import Asked, State, Told, server_of_keeper
from broker.cluster.service import ClusterService
from broker.core.cells import Machine, Place
from broker.core.errors import Conflict

MACHINES = [Machine(name, name, 7946, at, 1) for at, name in enumerate("ab")]


class Keepers:
    """Those of machines that hear of each other at once."""

    def __init__(self, forgotten: list[str]) -> None:
        self._states = {
            machine.name: State("x", 1, [*machine.cells], {}, {}) for machine in MACHINES
        }
        self._forgotten = forgotten

    def answer(self, name: str, asked: Asked) -> Told:
        if asked.verb == "drain":
            self._states[name] = State("x", 1, [], {}, {}, is_drained=True)
        return Told(self._states, forgotten=self._forgotten)


def _with_keepers(
    run: Path, forgotten: list[str], test: Callable[[ClusterService], Awaitable[None]]
) -> None:
    async def serve() -> None:
        keepers = Keepers(forgotten)
        async with AsyncExitStack() as stack:
            for machine in MACHINES:
                answer = partial(keepers.answer, machine.name)
                server = server_of_keeper(run, machine.name, answer)
                await server.start()
                stack.push_async_callback(server.stop)
            place = Place(0, 2, run, MACHINES, machine="a", owners=[0, 1])
            await test(ClusterService(place, lambda _cell: True))

    asyncio.run(serve())


def test_a_machine_that_was_forgotten_takes_no_cells_of_a_drained_one(tmp_path: Path) -> None:
    async def test(service: ClusterService) -> None:
        with pytest.raises(Conflict, match="no other machine than 'a' runs and could take"):
            await service.drain("a")

    _with_keepers(tmp_path, ["b"], test)


def test_of_two_drains_at_once_the_one_of_the_last_machine_is_refused(tmp_path: Path) -> None:
    async def test(service: ClusterService) -> None:
        drained = await asyncio.gather(
            *(service.drain(name) for name in "ab"), return_exceptions=True
        )
        assert [isinstance(answer, Conflict) for answer in drained] == [False, True]

    _with_keepers(tmp_path, [], test)
