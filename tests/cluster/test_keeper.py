"""Who takes over a cell: one machine at a time, its own one first, then the one with the newest copy."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from itertools import count
from pathlib import Path
from queue import Queue

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from broker.cluster.copies import Copy
from broker.cluster.copying import CopyState, Source
from broker.cluster.decisions import (
    Views,
    is_held,
    is_leaving,
    leaves_for,
    reached_at,
    runner_of,
    spread,
    turn_of,
    yields,
)
from broker.cluster.keeper import Keeper
from broker.cluster.keeping import ALL, SHOW, Asked, State, Told
from broker.cluster.owners import make_owners, owners_in
from broker.cluster.replication import Replication
from broker.cluster.settings import ClusterSettings
from broker.core.cells import LEAVES, Machine, Place
from broker.core.errors import Unavailable

MACHINES = ("a", "b", "c", "d")
CELL = 1
HOUR_NS = 3600 * 1_000_000_000
WANTING = State("x", 1, [CELL], {}, {}, wants=[CELL])
ROOT = Path(__file__).parents[2]
HOME = "b"
STATES = st.dictionaries(
    st.sampled_from(MACHINES),
    st.builds(
        State,
        life=st.just("x"),
        number=st.just(1),
        runs=st.just([]),
        copies=st.dictionaries(st.just(CELL), st.integers(0, 9)),
        ends=st.just({}),
        behind=st.lists(st.just(CELL), max_size=1),
        is_leaving=st.booleans(),
        is_drained=st.booleans(),
    ),
    min_size=1,
)


def views(own: str, states: dict[str, State]) -> Views:
    return Views(own, {CELL: HOME}, states)


@given(STATES)
def test_machines_take_turns(states: dict[str, State]) -> None:
    turns = {name: turn_of(views(name, states), CELL) for name in states}
    taking = {name: turn for name, turn in turns.items() if turn is not None}
    assert sorted(taking.values()) == list(range(len(taking)))
    for name, state in states.items():
        follows = CELL in state.copies or (name == HOME and CELL not in state.behind)
        can = not state.is_leaving and follows
        assert (turns[name] is not None) == can
    order = sorted(taking, key=taking.__getitem__)
    drained = [states[name].is_drained for name in order]
    assert drained == sorted(drained)  # last
    if HOME in taking and not states[HOME].is_drained:
        assert taking[HOME] == 0
    for is_drained in (False, True):
        positions = [
            states[name].copies[CELL]
            for name in order
            if name != HOME and states[name].is_drained == is_drained
        ]
        assert positions == sorted(positions, reverse=True)


def test_a_machine_that_was_forgotten_and_is_back_runs_no_cell() -> None:
    """It has the newest copy."""
    states = {name: State("x", 1, [], {CELL: 5}, {}) for name in "acd"}
    states["c"] = State("x", 1, [], {CELL: 9}, {})

    def of(own: str) -> Views:
        return Views(own, {CELL: HOME}, states, ["c"])

    assert [turn_of(of(name), CELL) for name in "adc"] == [0, 1, 2]
    states["a"] = State("x", 1, [CELL], {}, {CELL: 9}, is_drained=True)
    assert leaves_for(of("a"), CELL) == "d"
    # no other one could take its cell before
    states["a"], states["c"] = states["c"], State("x", 1, [CELL], {}, {CELL: 9})
    assert leaves_for(of("c"), CELL) == "a"
    assert is_leaving(of("a"), CELL, "c")


def test_a_cell_that_runs_is_known_by_its_machine() -> None:
    running = State("x", 1, [CELL], {}, {})
    assert runner_of(views("a", {"c": running}), CELL) == "c"
    assert runner_of(views("a", {"c": running}), 7) == ""


def test_a_cell_that_runs_here_is_reached_here_until_it_has_ended() -> None:
    """A machine that wants it, and then yields, leaves its sockets alone."""
    running = State("x", 1, [CELL], {}, {})
    for names in ("ab", "ba"):
        for other in (running, WANTING):
            both = {names[0]: running, names[1]: other}
            assert {reached_at(views(own, both), CELL) for own in names} == {""}
    at_c = State("x", 1, [], {}, {})
    assert reached_at(views("c", {"a": running, "c": at_c}), CELL) == "a"
    assert reached_at(views("c", {"a": WANTING, "b": running, "c": at_c}), CELL) == "b"
    assert reached_at(views("c", {"a": WANTING, "c": at_c}), CELL) == ""


def test_a_table_of_owners_names_machines_that_are_there(tmp_path: Path) -> None:
    """Also where one was left out of the sections since; who has the table of before keeps it."""
    machines = [Machine(name, name, 7946, at, 1) for at, name in enumerate("abc")]
    make_owners(tmp_path, machines)
    owners_in(tmp_path, is_keeper=True)[0] = 2
    before = owners_in(tmp_path)
    make_owners(tmp_path, machines)
    assert list(owners_in(tmp_path)[:3]) == [2, 1, 2]
    make_owners(tmp_path, machines[:2])
    assert list(owners_in(tmp_path)[:3]) == [0, 1, 0]
    assert list(before[:3]) == [2, 1, 2]


@pytest.fixture
def keeper(tmp_path: Path) -> Keeper:
    """Of machine a of three with a cell each, before it begins."""
    return _keeper(tmp_path, 1)


def _keeper(directory: Path, cells: int) -> Keeper:
    """Of machine a of three, which has so many cells."""
    section = {
        "machine": "a",
        "machines": {
            name: {"address": f"{name}:7946", "cells": cells if name == "a" else 1}
            for name in "abc"
        },
        "tls": dict.fromkeys(("certfile", "keyfile", "cacertfile"), "none.pem"),
        "nats": {"servers": ["127.0.0.1:1"]},
    }
    cluster = ClusterSettings.model_validate(section)
    (directory / "run").mkdir(exist_ok=True)
    make_owners(directory / "run", cluster.layout)
    return Keeper(directory, cluster, lambda _line: None)


def test_who_asks_a_keeper_does_not_use_its_connection(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is that of another thread, which may be in the middle of an answer."""
    keeper.told("runs 1")  # a guest, of whose log the end is asked for in each round
    asked: list[int] = []
    monkeypatch.setattr(keeper._board, "end_of", asked.append)
    told = keeper.answer(SHOW)
    assert told.machines["a"].runs == [1]
    assert asked == []


class _Copy(Copy):
    """The copy of a cell of machine b or c, which follows; ``slow`` keeps it from ending."""

    def __init__(self, cell: int = CELL, position: int = 5) -> None:
        self.cell = cell
        self.position = position
        self.slow = threading.Event()
        self.slow.set()
        self.ended = threading.Event()

    def stop(self) -> None:
        assert self.slow.wait(10)
        self.ended.set()

    @property
    def is_opening(self) -> bool:
        return False

    def state(self) -> tuple[CopyState, Source | None]:
        return CopyState(self.position, 1), self


def test_the_copy_of_a_cell_ends_that_an_earlier_keeper_has_started(keeper: Keeper) -> None:
    """It would hold the lock of the store when the cell is started again."""
    keeper._copies[CELL] = copy = _Copy()
    keeper.told(f"runs {CELL}")
    keeper._keep_copies()
    assert copy.ended.wait(10)
    assert CELL not in keeper._copies


def test_a_copy_that_does_not_end_does_not_keep_the_machine_silent(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk is slow; the cell starts once the copy has let go of the store."""
    ordered: Queue[str] = Queue()
    keeper._order = ordered.put
    keeper._copies[CELL] = copy = _Copy()
    copy.slow.clear()
    monkeypatch.setattr(keeper._board, "exchange", lambda _own: {})
    keeper._alone[CELL] = 0
    for _ in range(4):
        keeper._round()
    assert CELL in keeper.answer(SHOW).machines["a"].runs
    assert f"start {CELL}" not in ordered.queue
    copy.slow.set()
    while ordered.get(timeout=10) != f"start {CELL}":
        pass


def _machine_b_follows(keeper: Keeper) -> dict[str, bytes]:
    """What machine b writes: it has copies of its own cell, which runs here, and of this machine's."""
    state = State("x", 1, [], {0: 5, CELL: 5}, {}, cluster=keeper._cluster.digest)
    return {"b": msgspec.json.encode(state)}


def test_a_machine_writes_before_it_asks_for_the_end_of_one_log(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While NATS elects leaders of logs, each answer takes 2 s: the machine must not be silent, or deaf, meanwhile."""
    asked: list[str] = []

    def exchange(_own: bytes) -> dict[str, bytes]:
        asked.append("exchange")
        return _machine_b_follows(keeper)

    def end_of(cell: int) -> int:
        asked.append(f"end of {cell}")
        told: Queue[Told] = Queue()
        threading.Thread(target=lambda: told.put(keeper.answer(SHOW)), daemon=True).start()
        assert told.get(timeout=5).machines["a"].runs == [0, 1, 2]
        raise Unavailable("no leader")

    monkeypatch.setattr(keeper._board, "exchange", exchange)
    monkeypatch.setattr(keeper._board, "end_of", end_of)
    for cell in range(3):
        keeper.told(f"runs {cell}")
    for _ in range(2):
        keeper._round()
    # machine c, whose cell 2 runs here, has no copy of it that follows
    assert asked == ["exchange", "end of 1", "exchange", "end of 1"]
    keeper._is_drained = True
    for _ in range(2):
        keeper._round()
    assert asked[4:] == ["exchange", "end of 1", "exchange", "end of 0"]


class Giving:
    """A keeper whose cells 0, 1 and 2 machine b can take at any time."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keeper = keeper = _keeper(directory, 3)
        self.lines: list[str] = []
        self.stopped: list[int] = []
        keeper._order = self.lines.append
        digest = keeper._cluster.digest
        self._state = State("x", 1, [], {0: 5, 1: 5, 2: 5}, {}, cluster=digest)
        monkeypatch.setattr(keeper._board, "exchange", self._exchange)
        monkeypatch.setattr(keeper._board, "end_of", lambda _cell: 5)
        for cell in range(3):
            keeper.told(f"runs {cell}")

    def _exchange(self, _own: bytes) -> dict[str, bytes]:
        return {"b": msgspec.json.encode(self._state)}

    def play(self) -> list[int]:
        """Rounds in which the machine could give all its cells; those that it has given."""
        for _ in range(40):
            self.keeper._round()
            self._state = replace(self._state, number=self._state.number + 1)
            for line in self.lines:
                verb, _, number = line.partition(" ")
                if verb == "stop":
                    self.stopped.append(int(number))
                    self.keeper.told(f"ended {number}")
                    self._state.runs.append(int(number))
            self.lines.clear()
        return self.stopped


def test_the_first_cell_of_a_drained_machine_leaves_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers of the records of the others come to it."""
    giving = Giving(tmp_path, monkeypatch)
    giving.keeper.answer(Asked("drain"))
    stopped = giving.play()
    assert sorted(stopped[:2]) == [1, 2]
    assert stopped[2:] == [0]


def test_a_drained_machine_gives_as_many_cells_as_it_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after its keeper was started again."""
    giving = Giving(tmp_path, monkeypatch)
    giving.keeper.answer(Asked("drain", gives=0))
    for gives, total in ((0, 0), (1, 1), (0, 1), (1, 2)):
        giving.keeper.answer(Asked("give", gives=gives))
        assert len(giving.play()) == total
    giving.keeper.answer(Asked("drain", gives=0))
    assert (_keeper(tmp_path, 3)._is_drained, _keeper(tmp_path, 3)._gives) == (True, 0)
    giving.keeper.answer(Asked("drain"))
    assert _keeper(tmp_path, 3)._gives == ALL
    assert len(giving.play()) == 3
    giving.keeper.answer(Asked("resume"))
    assert giving.keeper.answer(Asked("give")).refused == "machine 'a' was resumed"
    assert not _keeper(tmp_path, 3)._is_drained
    for text in ("none", "-1", "²", ""):  # somebody has edited it
        (tmp_path / "drained").write_text(text)
        assert (_keeper(tmp_path, 3)._is_drained, _keeper(tmp_path, 3)._gives) == (True, ALL)


def test_a_keeper_says_whom_it_has_not_heard_yet(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it finds in NATS may be of a time before all machines were started again: copies may be newer."""
    written: dict[str, bytes] = {}

    def write(name: str, number: int) -> None:
        """The clock of machine b is an hour late."""
        clock_ns = time.time_ns() - HOUR_NS
        state = State("x", number, [], {}, {}, cluster=keeper._cluster.digest, clock_ns=clock_ns)
        written[name] = msgspec.json.encode(state)

    monkeypatch.setattr(keeper._board, "exchange", lambda _own: written)
    monkeypatch.setattr(Keeper, "_decide", lambda *_: None)
    assert keeper.answer(SHOW).unheard == ["b", "c"]
    write("b", 7)
    keeper._round()
    assert keeper.answer(SHOW).unheard == ["b", "c"]
    assert keeper.answer(SHOW).clocks_s == {}  # it may have written that an hour ago
    write("b", 8)
    keeper._round()
    told = keeper.answer(SHOW)
    assert (told.unheard, told.problem) == (["c"], "the keeper is starting")
    assert told.clocks_s == {"b": pytest.approx(-3600, abs=60)}
    assert keeper.answer(Asked("forget", "c")).problem == "the keeper is starting"
    for _ in range(6):
        keeper._round()
    told = keeper.answer(SHOW)
    assert (told.unheard, told.problem) == ([], "")  # c is silent


def test_a_machine_is_silent_also_where_a_server_of_nats_lags(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other answer is of that one."""
    numbers = count()

    def exchange(_own: bytes) -> dict[str, bytes]:
        state = State("x", 7 + next(numbers) % 2, [], {}, {}, cluster=keeper._cluster.digest)
        return {"b": msgspec.json.encode(state)}

    monkeypatch.setattr(keeper._board, "exchange", exchange)
    for _ in range(12):
        keeper._round()
    assert "b" not in keeper.answer(SHOW).machines


def test_a_machine_that_stops_says_that_its_cells_have_ended(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other machines would take them over only once it is silent."""
    written: list[State] = []

    def exchange(own: bytes) -> dict[str, bytes]:
        written.append(msgspec.json.decode(own, type=State))
        if len(written) == 1:
            for line in ("stop 0", "ended 0"):
                keeper.told(line)
            keeper.orphaned()
        return {}

    monkeypatch.setattr(keeper._board, "exchange", exchange)
    for line in ("runs 0", "begin 0"):
        keeper.told(line)
    keeper.play()
    assert [(state.runs, state.is_leaving) for state in written] == [([0], False), ([], True)]


def test_a_cell_without_copies_begins_without_a_keeper(tmp_path: Path) -> None:
    section = {
        "machine": "a",
        "copies": 1,
        "machines": {name: {"address": f"{name}:7946"} for name in "abc"},
        "tls": dict.fromkeys(("certfile", "keyfile", "cacertfile"), "none.pem"),
        "nats": {"servers": ["127.0.0.1:1"]},
    }
    replication = Replication(
        Place(0, 3, tmp_path), ClusterSettings.model_validate(section), tmp_path
    )
    assert replication._machines_with_copies() == {}


def test_a_keeper_that_fails_ends() -> None:
    program = (
        "from broker.cluster.keeper import Keeper\n"
        "keeper = Keeper.__new__(Keeper)\n"
        "keeper.play()\n"  # without all that it needs
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "keeper.failed" in done.stderr


def test_of_two_that_want_a_cell_at_once_one_takes_it() -> None:
    states = dict.fromkeys(("a", "c", "d"), WANTING)
    assert [name for name in states if not yields(views(name, states), CELL)] == ["a"]
    assert not yields(views("c", {"c": WANTING, "a": State("x", 1, [], {}, {})}), CELL)


def test_a_machine_that_runs_a_cell_after_all_keeps_it() -> None:
    """It was silent for a while, and others wanted its cell."""
    running = State("x", 1, [CELL], {}, {})
    for other in ("a", "c"):
        assert yields(views(other, {"b": running, other: WANTING}), CELL)
    assert not yields(views("b", {"b": WANTING, "c": WANTING}), CELL)


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.booleans(), st.booleans())
def test_a_cell_goes_home_to_a_copy_that_is_up_to_date(
    copied: int, end: int, is_leaving: bool, is_drained: bool
) -> None:
    guest = State("x", 1, [CELL], {}, {CELL: end})
    home = State("x", 1, [], {CELL: copied}, {}, [], is_leaving, "", is_drained)
    can = not is_leaving and not is_drained and copied >= end - 2000
    assert leaves_for(views("a", {"a": guest, HOME: home}), CELL) == (HOME if can else "")
    assert leaves_for(views("a", {"a": guest}), CELL) == ""
    # the end of its log is not known
    unknown = State("x", 1, [CELL], {}, {})
    assert leaves_for(views("a", {"a": unknown, HOME: home}), CELL) == ""
    # its copy does not follow yet
    without = State("x", 1, [], {}, {})
    assert leaves_for(views("a", {"a": guest, HOME: without}), CELL) == ""
    assert leaves_for(views(HOME, {HOME: guest}), CELL) == ""


@given(STATES, st.integers(0, 9))
def test_a_machine_that_is_drained_gives_its_cells_to_one_that_follows(
    states: dict[str, State], end: int
) -> None:
    states["a"] = State("x", 1, [CELL], {}, {CELL: end}, is_drained=True)
    to = leaves_for(views("a", states), CELL)
    able = {
        name
        for name, state in states.items()
        if name != "a" and CELL in state.copies and not state.is_leaving and not state.is_drained
    }
    assert (to in able) if able else to == ""
    if HOME in able:
        assert to == HOME
    elif able:
        assert states[to].copies[CELL] == max(states[name].copies[CELL] for name in able)


@given(
    st.dictionaries(st.integers(0, 9), st.sampled_from(MACHINES), min_size=1),
    st.sets(st.sampled_from(MACHINES)),
    st.data(),
)
def test_cells_of_machines_that_are_forgotten_are_spread(
    homes: dict[int, str], forgotten: set[str], data: st.DataObject
) -> None:
    copied = {cell: data.draw(st.sets(st.sampled_from(MACHINES))) for cell in homes}
    found = spread(homes, {cell: sorted(names) for cell, names in copied.items()}, forgotten)
    assert found.keys() == homes.keys()
    for cell, home in homes.items():
        able = copied[cell] - forgotten
        if home in forgotten and able:
            assert found[cell] in able
        else:
            assert found[cell] == home


def test_cells_are_spread_evenly() -> None:
    homes = {0: "a", 1: "b", 2: "c", 3: "c", 4: "c"}
    found = spread(homes, dict.fromkeys(homes, MACHINES[:3]), {"c"})
    assert found == {0: "a", 1: "b", 2: "a", 3: "b", 4: "a"}


@given(STATES, st.sets(st.sampled_from(MACHINES)), st.sampled_from((*MACHINES, "")))
def test_a_copy_is_given_up_once_the_cell_runs_and_all_that_are_to_have_it_do(
    states: dict[str, State], holders: set[str], runner: str
) -> None:
    if runner:
        states = {**states, runner: State("x", 1, [CELL], {}, {})}
    having = {name for name, state in states.items() if CELL in (*state.runs, *state.copies)}
    assert is_held(views("a", states), CELL, sorted(holders)) == (
        bool(runner) and holders <= having
    )


DRAINED = State("x", 1, [CELL], {}, {}, is_drained=True)


@pytest.mark.parametrize(
    ("runner", "states", "leaves"),
    [
        (HOME, {HOME: State("x", 1, [CELL], {}, {})}, False),
        (HOME, {HOME: DRAINED}, False),  # there is no other one that takes cells
        (HOME, {HOME: DRAINED, "c": State("x", 1, [], {}, {}, is_drained=True)}, False),
        (HOME, {HOME: DRAINED, "c": State("x", 1, [], {}, {})}, True),
        (HOME, {HOME: State("x", 1, [CELL], {}, {}, is_leaving=True)}, True),
        ("c", {"c": State("x", 1, [CELL], {}, {})}, False),  # its own machine is away
        ("c", {"c": State("x", 1, [CELL], {}, {}), HOME: State("x", 1, [], {}, {})}, True),
    ],
)
def test_no_client_is_referred_to_a_machine_that_its_cell_leaves(
    runner: str, states: dict[str, State], leaves: bool
) -> None:
    assert is_leaving(views("a", states), CELL, runner) == leaves
    machines = [
        Machine(name, "", 0, place, 1, f"{name}:1883") for place, name in enumerate(MACHINES)
    ]
    owners = [0, MACHINES.index(runner) | (LEAVES if leaves else 0), 2, 3]
    place = Place(0, 4, Path(), machines, redirects=True, machine="a", owners=owners)
    name = next(name for name in map(str, range(100)) if place.cell_of(name) == CELL)
    assert place.machine_of(CELL).name == runner
    assert place.server_of(name) == ("" if leaves else f"{runner}:1883")
