"""The machines of a cluster for the API: what they run, and orders to them.

Keepers carry orders out. When, how fast and until when is decided by a job of the first cell, whose order is in the
store of that cell, so that it continues where the cell comes to run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Literal, cast

from typing_extensions import TypedDict

from broker.admin.cells import CellRow, Contents
from broker.admin.cluster import MachineRow, Move, Moves, SlotRow
from broker.cluster.decisions import spread
from broker.cluster.keeping import ALL, SHOW, Asked, State, Told, ask
from broker.core.cells import Machine, Place, Slots
from broker.core.clock import Clock, SystemClock
from broker.core.errors import Conflict, NotFound, Unavailable, did_you_mean
from broker.core.hosts import address_text
from broker.core.kinds import counted
from broker.core.objects import Spec

_LOOK_S: Final = 0.25
# Seconds to wait for cells that have moved, before the report says that they are not counted.
_ARRIVED_S: Final = 20.0
# Seconds without an answer of a machine until a job that needs it fails.
_AWAY_S: Final = 10.0
_SECOND_NS: Final = 1_000_000_000

Advance = Callable[[int], bool]


class Plan(TypedDict):
    """The cells of an order, each with the machine that it goes to, where that is known. Those that ``stay`` run there
    already; ``total`` is the number of the others."""

    cells: dict[str, str]
    stay: list[str]
    total: int


def _plan(cells: Mapping[int, str], stay: Sequence[int] = ()) -> Plan:
    return {
        "cells": {str(cell): name for cell, name in cells.items()},
        "stay": [*map(str, stay)],
        "total": len(cells) - len(stay),
    }


def _is_there(row: CellRow | None) -> bool:
    return row is not None and row["state"] == "running"


async def _no_rows(cells: Sequence[int]) -> list[CellRow | None]:
    return [None] * len(cells)


class ClusterService:
    """``place`` is that of this cell, None in a broker of one process. ``is_linked`` tells if another cell answers."""

    def __init__(
        self, place: Place | None, is_linked: Callable[[int], bool], clock: Clock | None = None
    ) -> None:
        self._place = place
        self._is_linked = is_linked
        self._clock = clock or SystemClock()
        self._ordering = asyncio.Lock()
        """Held from the check of an order to its answer."""
        self._at_work: dict[str, tuple[str, str]] = {}
        """Kind of the order and its machine, by the identifier of the job."""
        self.rows: Callable[[Sequence[int]], Awaitable[list[CellRow | None]]] = _no_rows
        """The rows of cells; set in the first cell."""

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
        told = await self._told(place, "", SHOW)
        return [
            self._row(machine, told.machines.get(machine.name), told) for machine in place.machines
        ]

    async def resume(self, name: str) -> MachineRow:
        """Have a machine take its cells again.

        Raises:
            NotFound: there is no such machine.
            Conflict: cells cannot move.
            Unavailable: it does not answer.
        """
        return self._told_row(name, await self._ordered(name, Asked("resume", name)))

    async def forget(self, name: str) -> MachineRow:
        """Expect a machine that is away no more, and give its cells to others permanently. Raises as ``resume``."""
        return self._told_row(name, await self._ordered(name, Asked("forget", name)))

    # -- jobs --

    async def begin_drain(self, name: str, wait_s: int, pause_s: int) -> Plan:
        """Have a machine give its cells to others, none of them yet where there is a wait or a pause. Raises as
        ``resume``, and ``Conflict`` where no other machine could take its cells, or another job moves them."""
        self._check_alone("drain", name)
        told = await self._ordered(
            name, Asked("drain", name, gives=0 if wait_s or pause_s else ALL)
        )
        return _plan(dict.fromkeys(told.machines[name].runs, ""))

    def drain_order(self, plan: Plan, wait_s: int, pause_s: int) -> Spec:
        """A drain as it is kept until it is over."""
        begins_ns = self._clock.now_ns() + wait_s * _SECOND_NS
        is_slow = bool(wait_s or pause_s)
        return {
            "cells": plan["cells"], "begins_ns": begins_ns, "pause_s": pause_s, "is_slow": is_slow
        }  # fmt: skip

    async def drain(
        self, id: str, name: str, order: Spec, advance: Advance, is_paused: Callable[[], bool]
    ) -> Moves:
        """See that a machine gives its cells away: the first one after the wait, each further one after a pause. Where
        that is cancelled it is resumed.

        Raises:
            Conflict: it was resumed, or is away.
        """
        cells = [int(cell) for cell in order["cells"]]
        pause_s = order["pause_s"]
        wait_s = (order["begins_ns"] - self._clock.now_ns()) / _SECOND_NS
        next_s = self._clock.monotonic_s() + wait_s
        given = None if order["is_slow"] else ALL
        left = len(cells)
        with self._working(id, "drain", name):
            looks = self._looks(name, lambda: advance(max(0, len(cells) - left)), asks_it=True)
            async for told in looks:
                state = told.machines[name]
                if not state.is_drained:
                    raise Conflict(f"machine {name!r} was resumed")
                if not state.runs:
                    advance(len(cells))
                    break
                if len(state.runs) != left:
                    left, given = len(state.runs), None if order["is_slow"] else ALL
                    next_s = max(next_s, self._clock.monotonic_s() + pause_s)
                is_time = self._clock.monotonic_s() >= next_s and not is_paused()
                gives = (1 if pause_s else ALL) if is_time else 0
                if gives != given:
                    with suppress(Unavailable):  # it is asked again
                        await self._told(
                            self._with_copies(), name, Asked("give", name, gives=gives)
                        )
                        given = gives
            else:
                await self._ordered(name, Asked("resume", name))
        return await self._moves(cells, name)

    async def begin_move(self, name: str, cell: int) -> Plan:
        """Have a cell belong to a machine. Raises as ``resume``, and ``Conflict`` while a rebalance is in hand."""
        self._check_alone("move", name)
        told = await self._ordered(name, Asked("take", name, cell))
        is_there = cell in told.machines[name].runs
        return _plan({cell: name}, [cell] if is_there else [])

    def move_order(self, plan: Plan, cell: int) -> Spec:
        """A move as it is kept until it is over."""
        return {"cell": cell, "stays": bool(plan["stay"])}

    async def move(self, id: str, name: str, order: Spec, advance: Advance) -> Moves:
        """Wait until a machine runs a cell.

        Raises:
            Conflict: another order has sent the cell elsewhere, or the machine is away.
        """
        cell: int = order["cell"]
        async for told in self._looks(name, lambda: advance(0)):
            if told.homes[cell] != name:
                raise Conflict(
                    f"cell {cell} belongs to machine {told.homes[cell]!r} by a later order"
                )
            if cell in told.machines[name].runs:
                moved = [] if order["stays"] else [cell]
                advance(len(moved))
                return await self._moves(moved)
        return await self._moves([])

    async def begin_rebalance(self) -> Plan:
        """The cells that are not on the machine that they belong to by the section ``cluster``, or to which they were
        spread since that one was forgotten. Raises as ``resume``, and ``Conflict`` where another job moves cells."""
        self._check_alone("rebalance", "")
        place = self._with_copies()
        told = await self._told(place, "", SHOW)
        first = {cell: machine.name for machine in place.machines for cell in machine.cells}
        copied = {
            cell: [name for name, one in told.machines.items() if cell in (*one.runs, *one.copies)]
            for cell in first
        }
        runs = {cell: name for name, one in told.machines.items() for cell in one.runs}
        homes = spread(first, copied, told.forgotten)
        cells = {
            cell: home
            for cell, home in sorted(homes.items())
            if not runs.get(cell) == told.homes[cell] == home
        }
        return _plan(cells, [cell for cell, home in cells.items() if runs.get(cell) == home])

    def rebalance_order(self, plan: Plan, pause_s: int) -> Spec:
        """A rebalance as it is kept until it is over."""
        return {"cells": plan["cells"], "stay": plan["stay"], "pause_s": pause_s}

    async def rebalance(
        self, id: str, order: Spec, advance: Advance, is_paused: Callable[[], bool]
    ) -> Moves:
        """Give each cell to its machine, one after the other, with a pause between them. Where that is cancelled, the
        others stay where they are.

        Raises:
            Conflict: some have not moved, since their machine is away.
        """
        moved: list[int] = []
        away: dict[str, list[str]] = {}
        next_s = 0.0

        def goes_on() -> bool:
            return advance(len(moved))

        def is_time() -> bool:
            return not is_paused() and self._clock.monotonic_s() >= next_s

        with self._working(id, "rebalance", ""):
            for cell, name in order["cells"].items():
                if not await self._kept(Asked("rebalance", cell=int(cell)), goes_on, is_time):
                    break
                if cell in order["stay"]:
                    continue
                try:
                    async for told in self._looks(name, goes_on):
                        if int(cell) in told.machines[name].runs:
                            moved.append(int(cell))
                            next_s = self._clock.monotonic_s() + order["pause_s"]
                            break
                except Conflict:
                    away.setdefault(name, []).append(cell)
            goes_on()
        if away:
            name, cells = next(iter(away.items()))
            raise Conflict(
                f"machine {name!r} is away: it gets {counted(len(cells), 'cell')} ({', '.join(cells)}) when it is back"
            )
        return await self._moves(moved)

    def _check_alone(self, kind: str, name: str) -> None:
        for id, (other, machine) in self._at_work.items():
            if "rebalance" in (kind, other) or (kind == "drain" and machine == name):
                word = f"{other} {machine}".strip()
                raise Conflict(
                    f"job {id} ({word}) moves cells: wait until it is over, or cancel it"
                )

    @contextmanager
    def _working(self, id: str, kind: str, name: str) -> Iterator[None]:
        self._check_alone(kind, name)
        self._at_work[id] = kind, name
        try:
            yield
        finally:
            del self._at_work[id]

    async def _looks(
        self, name: str, goes_on: Callable[[], bool], *, asks_it: bool = False
    ) -> AsyncIterator[Told]:
        """Answers of this machine's keeper about a machine, or with ``asks_it`` of that machine's own one, which knows
        half a second earlier; again and again while the work continues.

        Raises:
            Conflict: it is away.
        """
        heard_s = self._clock.monotonic_s()
        while goes_on():
            told = None
            with suppress(Unavailable):
                told = await self._told(self._with_copies(), name if asks_it else "", SHOW)
            if told is not None and name in told.machines:
                heard_s = self._clock.monotonic_s()
                yield told
            elif told is None and not asks_it:  # NATS elects a leader, or a keeper starts
                heard_s = self._clock.monotonic_s()
            elif self._clock.monotonic_s() > heard_s + _AWAY_S:
                raise Conflict(f"machine {name!r} is away: others take its cells over")
            await asyncio.sleep(_LOOK_S)

    async def _kept(
        self, asked: Asked, goes_on: Callable[[], bool], is_time: Callable[[], bool]
    ) -> bool:
        """Give an order to this machine's keeper once it is time, until NATS takes it; False where the work ended
        before."""
        while goes_on():
            if is_time():
                with suppress(Unavailable):
                    await self._told(self._with_copies(), "", asked)
                    return True
            await asyncio.sleep(_LOOK_S)
        return False

    async def _moves(self, cells: Sequence[int], left: str = "") -> Moves:
        """Report of these cells: of all, or of those that have ``left`` that machine."""
        waits_s = self._clock.monotonic_s() + _ARRIVED_S
        rows = await self.rows(cells)
        while self._clock.monotonic_s() < waits_s and not all(map(_is_there, rows)):
            await asyncio.sleep(_LOOK_S)
            rows = await self.rows(cells)
        moves: list[Move] = []
        for cell, row in zip(cells, rows, strict=True):
            if row is None or row["machine"] != left:
                arrival = None if row is None else row["arrival"]
                is_known = arrival is not None and left in ("", arrival["machine"])
                machine = None if row is None else row["machine"]
                moves.append(
                    {"cell": cell, "machine": machine, "arrival": arrival if is_known else None}
                )
        arrivals = [move["arrival"] for move in moves if move["arrival"] is not None]
        totals = {
            figure: sum(arrival[figure] for arrival in arrivals)  # type: ignore[literal-required]
            for figure in Contents.__annotations__
        }
        uncounted = len(moves) - len(arrivals)
        return cast(Moves, {**totals, "cells": moves, "uncounted": uncounted})

    # -- orders --

    def _with_copies(self) -> Place:
        place = self._place
        if place is None or not place.machines or place.owners is None:
            raise Conflict(
                "cells move only where other machines have copies of them; set cluster.nats"
            )
        return place

    async def _ordered(self, name: str, asked: Asked) -> Told:
        """What a keeper says to an order about a machine, which it carries out."""
        machines = () if self._place is None else self._place.machines
        if not any(machine.name == name for machine in machines):
            raise NotFound("machine", name, did_you_mean(name, [one.name for one in machines]))
        place = self._with_copies()
        # a machine is drained by its own keeper, and any one may keep the other orders
        to = name if asked.verb in ("drain", "resume") else ""
        async with self._ordering:
            if asked.verb == "drain":
                others = [one.name for one in machines if one.name != name]
                if not any(await asyncio.gather(*map(self._takes_cells, others))):
                    raise Conflict(f"no other machine than {name!r} runs and could take its cells")
            return await self._told(place, to, asked)

    @staticmethod
    async def _told(place: Place, to: str, asked: Asked) -> Told:
        told = await asyncio.to_thread(ask, place.run, to or place.machine, asked)
        if told.refused:
            raise Conflict(told.refused)
        if to and to not in told.machines:
            raise Unavailable(f"machine {to!r} cannot do so: {told.problem}")
        if told.problem and not to:
            about = "the state of the machines is not known"
            text = about if asked is SHOW else "the order is not kept"
            raise Unavailable(f"{text}: {told.problem}")
        return told

    def _told_row(self, name: str, told: Told) -> MachineRow:
        assert self._place is not None
        machine = next(one for one in self._place.machines if one.name == name)
        return self._row(machine, told.machines.get(name), told)

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
