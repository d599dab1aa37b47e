"""Keeps copies of other machines' cells, and decides which cells this machine runs: a process of its own, on each
machine of a cluster with NATS.

Twice a second it writes into NATS what runs here and how far its copies are, and reads what others wrote. A machine
that can write there can commit, too: so the one that cannot, or that has ended, is silent, and its cells are taken over
by the machine with the newest copy. A wrong guess costs a takeover and never a message: the commit log of a cell has
one owner. A machine that is back gets its cells back as soon as its own copies of them are up to date. One that is
*drained* gives its cells to others, one after the other, and gets none back until it is resumed. A cell that was moved
belongs to another machine than the section ``cluster`` says: all read that from the orders in NATS.

The supervisor sends a line when a cell runs here, has ended or cannot go on (``runs CELL``, ``ended CELL``, ``failed
CELL``), and gets one when a cell is to start or to stop (``start CELL``, ``stop CELL``), and with the cells that are to
run here (``expects CELL,CELL``, or ``expects none``). When the supervisor is killed, cells go on, and so does their
keeper until there is another one.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from broker.cluster.copies import Copy, bring
from broker.cluster.copying import CopyState, Source, server_of_copies, socket_of_copies
from broker.cluster.decisions import (
    Views,
    followers,
    is_held,
    is_leaving,
    leaves_for,
    reached_at,
    runner_of,
    spread,
    turn_of,
    yields,
)
from broker.cluster.directories import cell_directory, copied, copy_directory
from broker.cluster.keeping import ALL, Asked, Orders, State, Told, server_of_keeper
from broker.cluster.nats.board import ORDERS, Board
from broker.cluster.nats.log import NatsLog
from broker.cluster.owners import owners_in
from broker.cluster.settings import ClusterSettings
from broker.cluster.supervisor import is_running, lock
from broker.config.sections import replace_file
from broker.core.cells import LEAVES
from broker.core.errors import Unavailable
from broker.observe.log import get_logger

_log = get_logger(__name__)

_ROUND_S: Final = 0.5
_LOCKED_AGAIN_S: Final = 0.05
# Rounds without the machine's first cell after which its stand-in serves the API, and time for that to end.
_IDLE_ROUNDS: Final = 4
_CLOSED_S: Final = 5.0
# Files of the run directory: locked by the keeper, and the life of the one that began last.
_LOCK: Final = "keeper.lock"
_LIFE: Final = "keeper"
# File of the data directory of a machine that is drained; in it the number of cells that it may still give, if not all.
_DRAINED: Final = "drained"
# Rounds without a word after which a machine is silent; only those count in which this one could write.
_SILENT: Final = 8
# Rounds in which a machine with an older copy lets others go first.
_TURN: Final = 4
# Rounds for which a machine does not take a cell again that has ended on it.
_HELD_OFF: Final = 10
# Rounds for which the copy of another machine has to follow until it gets the cell.
_FOLLOWS: Final = 3
# Problem of a keeper that has not heard from all machines.
_STARTING: Final = "the keeper is starting"
# Seconds for which a machine that leaves, and runs a server of NATS, waits for others that leave and still write.
_LAST_S: Final = 15.0


@dataclass(slots=True)
class _Heard:
    """What another machine wrote last, and rounds since it was new. ``is_old``: it was there when this keeper began."""

    state: State
    clock_s: float = 0.0
    rounds: int = 0
    is_old: bool = False


class _Refused(Exception):
    """An order that cannot be carried out."""


class Keeper:
    """The copies of one machine and its part in decisions. ``order`` tells the supervisor."""

    def __init__(
        self,
        data_dir: Path,
        cluster: ClusterSettings,
        order: Callable[[str], None],
        version: str = "",
    ) -> None:
        self._data_dir = data_dir
        self._run = data_dir / "run"
        self._cluster = cluster
        self._order = order
        self._version = version
        self._own = cluster.machine
        self._life = uuid4().hex[:12]
        self._number = 0
        self._rounds = 0
        """Rounds in which this machine could write."""
        layout = cluster.layout
        self._places = {machine.name: place for place, machine in enumerate(layout)}
        self._first_homes = {cell: machine.name for machine in layout for cell in machine.cells}
        self._orders = Orders()
        self._homes: Mapping[int, str] = self._first_homes
        """The machine that each cell belongs to."""
        first = layout[cluster.place].cells.start
        self._expected_copies = {*layout[cluster.place].cells, *cluster.copied_here()}
        """The cells whose stores this machine is to have."""
        self._directories = {
            **{
                cell: cell_directory(data_dir, cell - first) for cell in layout[cluster.place].cells
            },
            **{
                cell: copy_directory(data_dir, cell)
                for cell in (*cluster.copied_here(), *copied(data_dir))
                if cell in self._first_homes
            },
        }
        self._board = Board(cluster.nats_places, cluster.name, self._own, cluster.nats.replicas)
        self._owners = owners_in(self._run, is_keeper=True)
        self._awaited = set(self._directories) if cluster.awaits_data else set()
        """Cells whose stores begin with the data of another machine, which is not here yet."""
        self._copies: dict[int, Copy] = {}
        self._heard: dict[str, _Heard] = {}
        self._runs: set[int] = set()
        self._wanted: set[int] = set()
        """Cells that are announced to the other machines, and start after that."""
        self._alone: dict[int, int] = {}
        """Rounds for which no machine has run a cell."""
        self._ends: dict[int, int] = {}
        """Ends of the logs of cells that may leave, as far as they are known."""
        self._follows: dict[int, int] = {}
        """Rounds for which another machine could get a cell that runs here."""
        self._expected: str | None = None
        """The cells that the supervisor was told to expect."""
        self._stopping: int | None = None
        """The cell that was ordered to stop and has no other machine yet: the next one waits for it."""
        self._is_leaving = False
        self._drained = data_dir / _DRAINED
        self._is_drained = self._drained.exists()
        self._draining = threading.Lock()
        """Held while that changes, in the file too: orders come on threads."""
        self._gives = _gives_of(self._drained) if self._is_drained else ALL
        """Number of cells that this machine may still give to others while it is drained."""
        self._is_orphan = False
        self._left_s = 0.0
        self._said = ""
        self._refused: set[str] = set()
        """Machines whose messages were reported as none of this cluster."""
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._began = threading.Event()

    # -- from the supervisor --

    def told(self, line: str) -> None:
        """The supervisor says what it does."""
        verb, number = line.split()
        cell = int(number)
        with self._lock:
            if verb == "runs":
                self._runs.add(cell)
                self._awaited.discard(cell)
            elif verb in ("ended", "failed"):
                self._runs.discard(cell)
                if verb == "failed" or self._homes[cell] != self._own:
                    self._alone[cell] = -_HELD_OFF  # others go first
            elif verb == "stop":
                self._is_leaving = True
            elif verb == "begin":
                self._began.set()

    def has(self, cell: int) -> bool:
        """True if a cell runs here, or is about to."""
        return cell in self._runs

    def runs_cells(self) -> bool:
        """True if any cell runs here."""
        return bool(self._runs - self._wanted)

    def orphaned(self) -> None:
        """The supervisor has ended. Where it was killed, cells go on, and so does this for them, until the keeper of
        the next supervisor begins or no cell runs."""
        with self._lock:
            self._is_orphan = True
            self._left_s = time.monotonic()
            if self._is_leaving and not self._cluster.nats.run:
                self._is_over.set()
        self._began.set()

    def answer(self, asked: Asked) -> Told:
        """What all machines write, once an order is carried out (``server_of_keeper``)."""
        try:
            match asked.verb:
                case "drain" | "give":
                    self._drain(asked.gives, begins=asked.verb == "drain")
                case "resume":
                    self._resume()
                case "take" | "rebalance" | "forget":
                    self._order_all(asked)
        except OSError as error:
            return Told(problem=f"{self._drained}: {(error.strerror or str(error)).lower()}")
        except Unavailable as error:
            return Told(problem=str(error))
        except _Refused as error:
            return Told(refused=str(error))
        except msgspec.MsgspecError:
            return Told(refused="the orders in NATS are of another release: upgrade this machine")
        with self._lock:
            states = self._states_now()
            clocks_s = {
                name: heard.clock_s
                for name, heard in self._heard.items()
                if name in states and name != self._own and not heard.is_old
            }
            forgotten = self._orders.forgotten
            unheard = self._unheard()
            problem = self._said or (_STARTING if unheard else "")
            return Told(states, problem, "", dict(self._homes), forgotten, clocks_s, unheard)

    def _unheard(self) -> list[str]:
        """Machines that have written nothing since this keeper began, until they count as silent."""
        if self._rounds >= _SILENT:
            return []
        heard = self._heard
        others = (name for name in self._places if name != self._own)
        return [name for name in others if name not in heard or heard[name].is_old]

    def _states_now(self) -> Mapping[str, State]:
        """What machines wrote last; of this one what holds now. Without NATS, whose connection is of another thread."""
        states = dict(self._views().states)
        own = states.get(self._own) or State(self._life, 0, [], {}, {})
        states[self._own] = replace(own, runs=sorted(self._runs), is_drained=self._is_drained)
        return states

    def _drain(self, gives: int, *, begins: bool) -> None:
        with self._draining:
            was_drained = self._is_drained
            if not (begins or was_drained):
                raise _Refused(f"machine {self._own!r} was resumed")
            replace_file(self._drained, b"" if gives == ALL else b"%d" % gives)
            with self._lock:
                self._is_drained = True
                self._gives = gives
                if not was_drained:
                    self._follows.clear()
        if not was_drained:
            _log.info("machine.drained")

    def _resume(self) -> None:
        if self._own in self._orders.forgotten:
            self._change(self._with_own)
        with self._draining:
            self._drained.unlink(missing_ok=True)
            with self._lock:
                self._is_drained = False
                self._gives = ALL
                self._follows.clear()
        _log.info("machine.resumed")

    def _with_own(self, orders: Orders) -> Orders:
        """This machine was forgotten, and has its cells again."""
        homes = {
            cell: home
            for cell, home in orders.homes.items()
            if self._first_homes.get(cell) != self._own
        }
        return Orders(homes, [name for name in orders.forgotten if name != self._own])

    def _order_all(self, asked: Asked) -> None:
        """Keep an order about any machine in NATS, for all.

        Raises:
            _Refused: it could not be carried out.
            Unavailable: NATS does not take it.
        """
        with self._lock:
            states = self._states_now()
            if self._unheard():
                raise Unavailable(_STARTING)
        name, cell = asked.machine, asked.cell
        state = states.get(name)
        if asked.verb == "take":
            if cell not in self._homes:
                raise _Refused(f"expected a cell from 0 to {len(self._homes) - 1}, got {cell}")
            if state is None:
                raise _Refused(f"machine {name!r} is away")
            if state.is_drained or state.is_leaving or name in self._orders.forgotten:
                raise _Refused(
                    f"machine {name!r} is drained, forgotten or stopping: resume it first"
                )
            if cell not in state.runs and cell not in state.copies:
                raise _Refused(f"machine {name!r} has no copy of cell {cell} that follows")
            self._check_head(cell, name)
        elif asked.verb == "forget":
            if state is not None:
                raise _Refused(f"machine {name!r} runs: drain it and stop it first")
            there = {one for state in states.values() for one in (*state.runs, *state.copies)}
            lost = [one for one, home in self._homes.items() if home == name and one not in there]
            if lost:
                cells = ", ".join(map(str, lost))
                raise _Refused(f"no machine that runs has a copy of cell {cells} that follows")

        def change(orders: Orders) -> Orders:
            homes = dict(orders.homes)
            forgotten = list(orders.forgotten)
            if asked.verb == "take":
                homes[cell] = name
            else:
                if asked.verb == "forget" and name not in forgotten:
                    forgotten.append(name)
                if asked.verb == "rebalance":
                    homes.pop(cell, None)
                homes = dict(
                    spread({**self._first_homes, **homes}, self._copied(states), forgotten)
                )
            moved = {one: home for one, home in homes.items() if home != self._first_homes[one]}
            return Orders(moved, forgotten)

        self._change(change)
        _log.info("cluster.ordered", order=asked.verb, machine=name or None)

    def _check_head(self, cell: int, name: str) -> None:
        """The first cell of a machine has the API and the streams of all there (``Place.head_of``)."""
        own = self._first_homes[cell]
        others = [one for one, home in self._homes.items() if home == own == self._first_homes[one]]
        if name != own and others[:1] == [cell] and len(others) > 1:
            left = ", ".join(map(str, others[1:]))
            raise _Refused(
                f"cell {cell} has the API and the streams of machine {own!r}: move cell {left} first, or drain {own!r}"
            )

    def _copied(self, states: Mapping[str, State]) -> Mapping[int, Sequence[str]]:
        """The machines that have each cell."""
        return {
            cell: [name for name, state in states.items() if cell in (*state.runs, *state.copies)]
            for cell in self._first_homes
        }

    def _change(self, change: Callable[[Orders], Orders]) -> None:
        cluster = self._cluster
        board = Board(cluster.nats_places, cluster.name, self._own, cluster.nats.replicas)
        try:
            data = board.change_orders(
                lambda before: msgspec.json.encode(change(_ORDERS.decode(before or b"{}")))
            )
        finally:
            board.close()
        with self._lock:
            self._follow_orders(data)

    def _follow_orders(self, data: bytes) -> None:
        try:
            orders = _ORDERS.decode(data)
        except msgspec.MsgspecError:
            return  # of another release
        if orders != self._orders:
            self._orders = orders
            known = {
                cell: home
                for cell, home in orders.homes.items()
                if cell in self._first_homes and home in self._places
            }
            self._homes = {**self._first_homes, **known}
            self._follows.clear()

    def state_of(self, cell: int) -> tuple[CopyState, Source | None]:
        """The state of the copy of a cell, and the copy (``server_of_copies``)."""
        copy = self._copies.get(cell)
        if copy is None:
            return CopyState(problem="no copy of it is kept on this machine"), None
        return copy.state()

    # -- rounds, on a thread --

    def play(self) -> None:
        """Write, read and decide until the end. A keeper that cannot is no longer one: its process ends, and is started
        again."""
        try:
            self._play()
        except Exception:  # noqa: BLE001  a bug
            _log.exception("keeper.failed")
            os._exit(1)

    def _play(self) -> None:
        self._began.wait()
        held = self._lock_of_machine()
        while not self._is_over.is_set():
            with self._lock:
                self._keep_copies()
            try:
                self._round()
                self._say("")
            except Unavailable as error:
                with self._lock:
                    self._runs -= self._wanted
                    self._wanted.clear()
                self._say(str(error))
            with self._lock:
                if self._is_orphan and self._has_to_end():
                    break
            # what it wants to take is written at once, so that others see it before they do
            self._is_over.wait(0 if self._wanted else _ROUND_S)
        if self._is_leaving and not self._said:
            # its cells have ended: others need not wait until it is silent
            self._runs -= self._wanted
            self._wanted.clear()
            with suppress(Unavailable):
                self._write()
        for copy in self._copies.values():
            copy.stop()
        self._board.close()
        if held is not None:
            os.close(held)
        self._is_over.set()

    def _lock_of_machine(self) -> int | None:
        """The lock of the one keeper of this machine, once that of an earlier supervisor has ended."""
        (self._run / _LIFE).write_text(self._life)
        while not self._is_over.is_set():
            try:
                return lock(self._run, _LOCK)
            except BlockingIOError:
                self._is_over.wait(_LOCKED_AGAIN_S)
        return None

    def _has_to_end(self) -> bool:
        """Without a supervisor: note which cells still run, and end for none, or for the next keeper. Of machines that
        leave together, each has its server of NATS until the cells of all have written their last."""
        if self._is_leaving:
            states = self._views().states
            others = (state for name, state in states.items() if name != self._own)
            waits = any(state.is_leaving and state.runs for state in others)
            return not waits or time.monotonic() - self._left_s > _LAST_S
        self._runs = {cell for cell in self._runs if is_running(self._run, cell)}
        self._wanted.clear()
        return not self._runs or (self._run / _LIFE).read_text() != self._life

    def _keep_copies(self) -> None:
        """Follow the logs of all cells that have a copy here and do not run here."""
        for cell in self._runs - self._wanted:  # one of an earlier supervisor was not known yet
            self._end_copy(cell)
        views = self._views()
        for cell, directory in self._directories.items():
            if cell in self._runs or cell in self._copies or self._is_leaving:
                continue
            # a cell of this machine starts at once where no other one runs it, or has its data
            if self._homes[cell] != self._own or cell in self._awaited or runner_of(views, cell):
                log = NatsLog(
                    self._cluster.nats_places, self._cluster.name, cell, f"{self._own}-copy"
                )
                copy = self._copies[cell] = Copy(cell, directory, log, self._bring)
                copy.start()

    def _end_copy(self, cell: int, then: Callable[[], None] = lambda: None) -> None:
        """End the copy of a cell, then call ``then``. On a thread, where there is one: a slow disk must not make this
        machine silent."""
        copy = self._copies.pop(cell, None)
        if copy is None:
            then()
            return

        def end() -> None:
            copy.stop()
            then()

        threading.Thread(target=end, name=f"end of the copy of cell {cell}").start()

    def _bring(self, cell: int, directory: Path, least: int) -> None:
        bring(self._run, self._cluster, cell, directory, least)

    def _write(self) -> tuple[State, dict[str, bytes]]:
        """Write what holds now; that, and what all machines have written."""
        self._number += 1
        with self._lock:
            state = self._state()
        return state, dict(self._board.exchange(msgspec.json.encode(state)))

    def _round(self) -> None:
        state, messages = self._write()
        with self._lock:
            self._follow_orders(messages.pop(ORDERS, b"{}"))
        self._hear(messages, state)
        self._rounds += 1
        views = self._views()
        self._ask_end(views)
        with self._lock:
            for cell in self._directories:
                self._decide(views, cell)
            self._part_with_copies(views)
            self._tell_expected()
            for cell in self._homes:
                runs_here = cell in self._runs and cell not in self._wanted
                if runner := self._own if runs_here else reached_at(views, cell):
                    leaves = LEAVES if is_leaving(views, cell, runner) else 0
                    self._owners[cell] = self._places[runner] | leaves

    def _part_with_copies(self, views: Views) -> None:
        """Remove copies that other machines are to have since one was added, once all of these have them."""
        for cell in set(self._directories).difference(self._expected_copies):
            if cell not in self._runs and is_held(views, cell, self._cluster.others_with(cell)):
                directory = self._directories.pop(cell)
                self._end_copy(cell, partial(_remove_copy, cell, directory))

    def _tell_expected(self) -> None:
        """Tell the supervisor which cells are to run here: then it is ready."""
        own = [str(cell) for cell, home in self._homes.items() if home == self._own]
        expected = "none" if self._is_drained or not own else ",".join(own)
        if expected != self._expected and not (expected == "none" and self._runs):
            self._expected = expected
            self._order(f"expects {expected}")

    def _state(self) -> State:
        following = {}
        behind = []
        opening = []
        views = self._views()
        for cell, copy in self._copies.items():
            told, source = copy.state()
            if told.position:
                self._awaited.discard(cell)
            if copy.is_opening:
                opening.append(cell)
            # the log of a store that this machine comes with begins when it takes the cell
            is_first = told.epoch and not told.position and not runner_of(views, cell)
            if is_first or (source is not None and cell not in self._awaited):
                following[cell] = told.position
            else:
                behind.append(cell)
        runs = sorted(self._runs)
        return State(
            self._life, self._number, runs, following, self._ends, behind, self._is_leaving,
            self._cluster.digest, self._is_drained, self._version, time.time_ns(),
            sorted(self._wanted), opening=opening,
        )  # fmt: skip

    def _ask_end(self, views: Views) -> None:
        """Ask for the end of the log of one of the cells that may leave: after this machine has written, and of one in
        a round, since an answer takes 2 s while NATS elects a leader."""
        cells = [cell for cell in views.states[self._own].runs if followers(views, cell)]
        ends = {cell: end for cell, end in self._ends.items() if cell in cells}
        if cells:
            cell = cells[self._number % len(cells)]
            try:
                ends[cell] = self._board.end_of(cell)
            except Unavailable:
                ends.pop(cell, None)  # it does not leave now
        self._ends = ends

    def _hear(self, messages: Mapping[str, bytes], own: State) -> None:
        for name, data in messages.items():
            state = self._read(name, data)
            if state is None:
                continue
            before = self._heard.get(name)
            # a server that lags has older ones
            is_new = before is None or (
                state.life != before.state.life or state.number > before.state.number
            )
            if is_new:
                ahead_ns = state.clock_ns - time.time_ns() if state.clock_ns else 0
                self._heard[name] = _Heard(state, ahead_ns / 1e9, is_old=before is None)
            elif before is not None:
                before.rounds += 1
        self._heard[self._own] = _Heard(own)

    def _read(self, name: str, data: bytes) -> State | None:
        """What another machine wrote; None, and an error in the log once, where it is none of this cluster."""
        try:
            state = _STATE.decode(data)
        except msgspec.MsgspecError:
            state = None
        is_known = state is not None and name in self._places
        if state is None or not is_known or state.cluster != self._cluster.digest:
            why = "another cluster of this name, or another release, writes into NATS"
        elif name == self._own and state.life != self._life and self._number > _SILENT:
            why = "another machine writes into NATS under the name of this one"
        else:
            return state
        if name not in self._refused:
            self._refused.add(name)
            _log.error("keeper.refused", machine=name, reason=why)
        return None

    def _views(self) -> Views:
        states = {
            name: heard.state for name, heard in self._heard.items() if heard.rounds < _SILENT
        }
        return Views(self._own, self._homes, states, self._orders.forgotten)

    def _decide(self, views: Views, cell: int) -> None:
        if cell in self._wanted:
            self._wanted.discard(cell)
            if yields(views, cell):
                self._runs.discard(cell)
            else:
                self._take(cell)
            return
        if cell in self._runs:
            self._alone.pop(cell, None)
            waits = self._is_moving(views) or self._has_to_be_last(cell)
            waits = waits or (self._is_drained and self._gives == 0)
            other = "" if waits else leaves_for(views, cell)
            self._follows[cell] = self._follows.get(cell, 0) + 1 if other else 0
            if self._follows[cell] == _FOLLOWS and not self._is_orphan:
                _log.info("cell.leaves", cell=cell, machine=other)
                self._order(f"stop {cell}")
                self._stopping = cell
                if self._is_drained and self._gives > 0:
                    self._gives -= 1
            return
        if runner_of(views, cell) or self._is_leaving or self._is_orphan:
            self._alone.pop(cell, None)
            return
        self._alone[cell] = self._alone.get(cell, -1) + 1
        turn = turn_of(views, cell)
        if turn is not None and self._alone[cell] >= turn * _TURN:
            self._wanted.add(cell)
            self._runs.add(cell)

    def _is_moving(self, views: Views) -> bool:
        if self._stopping is not None and runner_of(views, self._stopping) not in ("", self._own):
            self._stopping = None
        return self._stopping is not None

    def _has_to_be_last(self, cell: int) -> bool:
        """True if others of this machine run here, and readers of their records come to its first cell."""
        own = self._cluster.layout[self._cluster.place].cells
        return self._is_drained and cell == own.start and any(one in self._runs for one in own[1:])

    def _take(self, cell: int) -> None:
        if cell == self._stopping:
            self._stopping = None
        _log.info("cell.taken", cell=cell, of=self._homes[cell])
        self._owners[cell] = self._places[self._own]
        self._end_copy(cell, partial(self._start, cell))

    def _start(self, cell: int) -> None:
        if cell in self._runs:  # it may have been ordered to stop meanwhile
            self._order(f"start {cell}")

    def _say(self, problem: str) -> None:
        if problem != self._said:
            self._said = problem
            if problem:
                _log.warning("keeper.cannot_write", reason=problem)
            else:
                _log.info("keeper.writes")


def _gives_of(drained: Path) -> int:
    text = drained.read_text(errors="replace").strip()
    return int(text) if text.isdecimal() and text.isascii() else ALL


def _remove_copy(cell: int, directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    _log.info("copy.removed", cell=cell)


_STATE: Final = msgspec.json.Decoder(State)
_ORDERS: Final = msgspec.json.Decoder(Orders)


class StandIn(Protocol):
    """Serves the API while the first cell of this machine does not run here."""

    def open(self, runs_cells: Callable[[], bool]) -> None:
        """Serve it; the machine is ready for clients while ``runs_cells``. May be called again."""

    async def close(self) -> None:
        """Serve it no more, and leave its address. May be called again."""


def keep(data_dir: Path, cluster: ClusterSettings, version: str, stand_in: StandIn) -> int:
    """Keep copies and decide until standard input ends; the exit status. ``version`` is that of the product."""
    asyncio.run(_keep(data_dir, cluster, version, stand_in))
    return 0


async def _stand_in(
    stand_in: StandIn, is_needed: Callable[[], bool], runs_cells: Callable[[], bool]
) -> None:
    rounds = 0
    while True:
        await asyncio.sleep(_ROUND_S)
        with suppress(OSError):  # no descriptor is free: a later round knows
            rounds = rounds + 1 if is_needed() else 0
        if rounds >= _IDLE_ROUNDS:
            stand_in.open(runs_cells)


def _tell(line: str) -> None:
    """Give the supervisor a line. Where it was killed, there is no one to tell."""
    with suppress(BrokenPipeError):
        sys.stdout.write(f"{line}\n")  # at once: threads give lines, too
        sys.stdout.flush()


async def _keep(data_dir: Path, cluster: ClusterSettings, version: str, stand_in: StandIn) -> None:
    loop = asyncio.get_running_loop()
    machine = cluster.layout[cluster.place]

    def order(line: str) -> None:
        if machine.size and line == f"start {machine.first}":
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(stand_in.close(), loop).result(_CLOSED_S)
        _tell(line)

    def is_needed() -> bool:
        first = machine.first
        # a cell that an earlier supervisor has started runs before it is reported
        return not machine.size or not (keeper.has(first) or is_running(data_dir / "run", first))

    keeper = Keeper(data_dir, cluster, order, version)
    copies = server_of_copies(data_dir / "run", socket_of_copies(cluster.machine), keeper.state_of)
    questions = server_of_keeper(data_dir / "run", cluster.machine, keeper.answer)
    await copies.start()
    await questions.start()
    playing = asyncio.create_task(asyncio.to_thread(keeper.play))
    print("ready", flush=True)

    def listen() -> None:
        for line in sys.stdin:
            keeper.told(line)

    standing = asyncio.create_task(_stand_in(stand_in, is_needed, keeper.runs_cells))
    await loop.run_in_executor(None, listen)
    keeper.orphaned()
    await playing
    standing.cancel()
    await stand_in.close()
    await questions.stop()
    await copies.stop()
