"""The machines of a cluster for the API: what they run, and orders to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from broker.admin.cluster import MachineRow, Rebalanced, SlotRow
from broker.cluster.keeping import SHOW, Asked, State, Told, Verb, ask
from broker.core.cells import Machine, Place, Slots
from broker.core.errors import Conflict, NotFound, Unavailable, did_you_mean
from broker.core.hosts import address_text


class ClusterService:
    """``place`` is that of this cell, None in a broker of one process. ``is_linked`` tells if another cell answers."""

    def __init__(self, place: Place | None, is_linked: Callable[[int], bool]) -> None:
        self._place = place
        self._is_linked = is_linked
        self._ordering = asyncio.Lock()
        """Held from the check of an order to its answer."""

    async def machines(self) -> list[MachineRow]:
        """The machines, in the order of their cells.

        Raises:
            Unavailable: the keeper of this machine does not answer, or does not reach NATS: it would show what was.
        """
        place = self._place
        if place is None or not place.machines:
            return []
        if place.owners is None:
            return [self._row(machine, self._fixed_state(machine)) for machine in place.machines]
        told = await asyncio.to_thread(ask, place.run, place.machine, SHOW)
        if told.problem:
            raise Unavailable(f"the state of the machines is not known: {told.problem}")
        return [
            self._row(machine, told.machines.get(machine.name), told) for machine in place.machines
        ]

    async def drain(self, name: str) -> MachineRow:
        """Have a machine give its cells to others, one after the other.

        Raises:
            NotFound: there is no such machine.
            Conflict: no other machine could take its cells.
            Unavailable: it does not answer.
        """
        return await self._ordered(name, "drain")

    async def resume(self, name: str) -> MachineRow:
        """Have a machine take its cells again. Raises as ``drain``."""
        return await self._ordered(name, "resume")

    async def take(self, name: str, cell: int) -> MachineRow:
        """Have a machine run a cell from now on. Raises as ``drain``."""
        return await self._ordered(name, "take", cell)

    async def forget(self, name: str) -> MachineRow:
        """Expect a machine that is away no more, and give its cells to others permanently. Raises as ``drain``."""
        return await self._ordered(name, "forget")

    async def rebalance(self) -> Rebalanced:
        """Give each cell to its own machine; those of machines that were forgotten to others.

        Raises:
            Conflict: cells cannot move.
            Unavailable: NATS does not take the order.
        """
        told = await self._told(self._with_copies(), "", Asked("rebalance"))
        runs = {cell: name for name, state in told.machines.items() for cell in state.runs}
        moves = {cell: home for cell, home in told.homes.items() if runs.get(cell) != home}
        return {"cells": {str(cell): home for cell, home in sorted(moves.items())}}

    def _with_copies(self) -> Place:
        place = self._place
        if place is None or not place.machines or place.owners is None:
            raise Conflict(
                "cells move only where other machines have copies of them; set cluster.nats"
            )
        return place

    async def _ordered(self, name: str, verb: Verb, cell: int = -1) -> MachineRow:
        machines = () if self._place is None else self._place.machines
        machine = next((one for one in machines if one.name == name), None)
        if machine is None:
            raise NotFound("machine", name, did_you_mean(name, [one.name for one in machines]))
        place = self._with_copies()
        # a machine is drained by its own keeper, and any one may keep the other orders
        to = name if verb in ("drain", "resume") else ""
        async with self._ordering:
            if verb == "drain":
                others = [one.name for one in machines if one.name != name]
                if not any(await asyncio.gather(*map(self._takes_cells, others))):
                    raise Conflict(f"no other machine than {name!r} runs and could take its cells")
            told = await self._told(place, to, Asked(verb, name, cell))
        if to and name not in told.machines:
            raise Unavailable(f"machine {name!r} cannot do so: {told.problem}")
        return self._row(machine, told.machines.get(name), told)

    @staticmethod
    async def _told(place: Place, to: str, asked: Asked) -> Told:
        told = await asyncio.to_thread(ask, place.run, to or place.machine, asked)
        if told.refused:
            raise Conflict(told.refused)
        if told.problem and not to:
            raise Unavailable(f"the order is not kept: {told.problem}")
        return told

    async def _takes_cells(self, name: str) -> bool:
        assert self._place is not None
        try:
            told = await asyncio.to_thread(ask, self._place.run, name, SHOW)
        except Unavailable:
            return False
        state = told.machines[name]
        return not (state.is_drained or state.is_leaving or name in told.forgotten)

    def _fixed_state(self, machine: Machine) -> State | None:
        """The state of a machine whose cells stay: None where none of them answers."""
        assert self._place is not None
        own = self._place.number
        runs = [cell for cell in machine.cells if cell == own or self._is_linked(cell)]
        return State("", 0, runs, {}, {}) if runs else None

    def _row(self, machine: Machine, state: State | None, told: Told | None = None) -> MachineRow:
        homes = dict.fromkeys(machine.cells, machine.name) if told is None else told.homes
        is_forgotten = told is not None and machine.name in told.forgotten
        return {
            "name": machine.name,
            "state": _word(state, is_forgotten=is_forgotten),
            "version": (state.version if state is not None else "") or None,
            "cells": [] if state is None else sorted(state.runs),
            "home_cells": [cell for cell, home in homes.items() if home == machine.name],
            "copies": [] if state is None else sorted(state.copies),
            "first_cell": machine.first if machine.size else None,
            "last_cell": machine.cells[-1] if machine.size else None,
            "address": address_text(machine.host, machine.port),
            "mqtt": machine.mqtt or None,
        }

    def slots(self) -> list[SlotRow]:
        """The table of slots."""
        place = self._place
        rows: list[SlotRow] = []
        for cell in range(1 if place is None else place.count):
            slots = Slots.of_cell(cell, 1 if place is None else place.count)
            machine = place.machine_of(cell) if place is not None and place.machines else None
            rows.append(
                {
                    "first": slots.first,
                    "last": slots.last,
                    "cell": cell,
                    "machine": None if machine is None else machine.name,
                    "mqtt": None if machine is None else machine.mqtt or None,
                }
            )
        return rows


def _word(
    state: State | None, *, is_forgotten: bool
) -> Literal["running", "draining", "drained", "away", "forgotten"]:
    if state is None:
        return "forgotten" if is_forgotten else "away"
    if not state.is_drained and not is_forgotten:
        return "running"
    return "draining" if state.runs else "drained"
