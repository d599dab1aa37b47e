"""A cell has one owner, whatever is lost, late or refused between its owners and their log: tried on the log's own
code and real databases in every order of events that hypothesis comes upon, with a model of the stream."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from broker.cluster.nats import log as nats_log
from broker.cluster.nats.line import Servers
from broker.cluster.nats.log import NatsLog
from broker.core.errors import ConfigError, Unavailable
from broker.storage.commit_log import BASE, Fenced, LogBehind, LogLost, Mark
from broker.storage.rocksdb.database import Changes, Database
from broker.storage.rocksdb.options import Memory
from tests.cluster.fencing import written
from tests.support.examples import examples
from tests.support.jetstream_model import FAULTS, Fault, ModelLine, Stream

MEMORY = Memory(write_buffer=64 * 1024, block_cache=64 * 1024)
PICKS = st.integers(0, 2)
MACHINES = st.sampled_from(("a", "b", "c"))
MEMORY_DISK = Path("/dev/shm")
# Of 5,000 bytes, 904 are a group's: a large one has several parts.
MAX_PAYLOAD = 5000


class Machine:
    """The copy of a cell on one machine, and the process there that may own it."""

    def __init__(self, name: str, stream: Stream, directory: Path) -> None:
        self.name = name
        self.directory = directory
        """Of its database, in one of its own."""
        self.faults: list[Fault] = []
        """What befalls its next messages; the last of all is well."""
        self.is_cut_off_at: int | None = None
        """Its reads see the stream up to here."""
        self.is_owner = False
        self.is_over = False
        """True once it has been told that it is the owner no more."""
        self.undecided = ""
        self.stream = stream
        self._lives = 0
        self.start()

    def start(self) -> None:
        """A process begins with what the disk has."""
        self._lives += 1
        self.directory.parent.mkdir(exist_ok=True)
        who = f"{self.name}{self._lives}"
        self.log = NatsLog(Servers([]), "plant", 0, who, 0.0, self._over)
        self.log._line = ModelLine(self.stream, self._next_fault, self._seen, MAX_PAYLOAD)  # type: ignore[assignment]
        self.database = Database(self.directory, MEMORY, log=self.log)
        self.is_owner = self.is_over = False
        self.undecided = ""

    def kill(self) -> None:
        """The process ends. What it sent may still arrive."""
        self.database.close()
        self.start()

    def _over(self, _reason: str) -> None:
        self.is_over = True

    def _next_fault(self) -> Fault:
        return self.faults.pop(0) if self.faults else "none"

    def _seen(self) -> int:
        return self.stream.last if self.is_cut_off_at is None else self.is_cut_off_at

    def replace_by(self, other: Machine) -> None:
        """Its copy is made of another one."""
        entries = list(other.database.entries())
        self.database.close()
        shutil.rmtree(self.directory.parent)
        self.start()
        changes = Changes()
        for key, value in entries:
            changes.put(key, value)
        self.database._write(changes, sync=False)

    def content(self) -> dict[bytes, bytes]:
        return {key: value for key, value in self.database.entries() if key.startswith(b"k")}


class Fencing(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(mkdtemp(dir=MEMORY_DISK if MEMORY_DISK.exists() else None))
        self.stream = Stream()
        self.machines = {
            name: Machine(name, self.stream, self.folder / name / "db") for name in ("a", "b", "c")
        }
        self.acknowledged: list[str] = []
        self.number = 0
        self.base: set[bytes] = set()
        """What machine a had before the log began."""

    def teardown(self) -> None:
        try:
            self._all_follow()
        finally:
            for machine in self.machines.values():
                machine.database.close()
            shutil.rmtree(self.folder)

    # -- what happens --

    @rule(name=MACHINES, faults=st.lists(st.sampled_from(FAULTS), min_size=1, max_size=3))
    def messages_fail(self, name: str, faults: list[Fault]) -> None:
        self.machines[name].faults = faults

    @rule(name=MACHINES)
    def network_is_cut(self, name: str) -> None:
        """Its server has no leader: reads are as old as the cut, and no message arrives."""
        machine = self.machines[name]
        machine.is_cut_off_at = self.stream.last
        machine.faults = ["request lost"] * 4

    @rule(name=MACHINES)
    def network_is_back(self, name: str) -> None:
        self.machines[name].is_cut_off_at = None
        self.machines[name].faults = []

    @precondition(lambda self: self.stream.late)
    @rule()
    def late_message_arrives(self) -> None:
        self.stream.arrive()

    @rule(name=MACHINES)
    def process_is_killed(self, name: str) -> None:
        self.machines[name].kill()

    @rule(name=MACHINES)
    def copy_follows(self, name: str) -> None:
        machine = self.machines[name]
        if machine.is_owner:
            return
        try:
            for mark, steps in machine.log.follow(machine.database.applied):
                machine.database.apply(mark, steps)
        except LogLost:
            self._replace(machine)

    @rule(name=MACHINES)
    def machine_claims(self, name: str) -> None:
        machine = self.machines[name]
        if machine.is_owner or (self.base and name != "a" and not self.stream.last):
            return
        try:
            machine.database.lead()
        except LogLost:
            self._replace(machine)
        except (Unavailable, LogBehind):
            # a claim may be on its way, or a leader that was cut off knows less than this copy: another process asks
            # again
            machine.kill()
        else:
            machine.is_owner = True

    def _replace(self, machine: Machine) -> None:
        marks = {name: one.database.applied for name, one in self.machines.items()}
        newest = max(marks, key=marks.__getitem__)
        assert newest != machine.name, "trimmed before anybody had it"
        machine.replace_by(self.machines[newest])

    @precondition(lambda self: self.owners)
    @rule(pick=PICKS, size=st.sampled_from((10, 2000)))
    def group_is_written(self, pick: int, size: int) -> None:
        """Also by an owner of before that does not know it yet."""
        self._write(self.owners[pick % len(self.owners)], size)

    @precondition(lambda self: self.owners)
    @rule(pick=PICKS)
    def owner_ends_within_a_group(self, pick: int) -> None:
        machine = self.owners[pick % len(self.owners)]
        machine.faults = ["none", "request lost"]
        self._write(machine, 2000)
        machine.kill()

    @property
    def owners(self) -> list[Machine]:
        return [machine for machine in self.machines.values() if machine.is_owner]

    def _write(self, machine: Machine, size: int) -> None:
        database = machine.database
        newest = max(one.database.applied for one in self.machines.values())
        is_owner_now = database.applied.epoch == newest.epoch
        try:
            if machine.undecided:
                database.recover()
                self._is_acknowledged(machine, machine.undecided, is_owner_now)
                machine.undecided = ""
            self.number += 1
            value = f"{machine.name}{self.number}"
            changes = Changes()
            changes.put(b"k%d" % self.number, value.encode() + bytes(size))
            machine.undecided = value
            database.write(changes, sync=False)
            self._is_acknowledged(machine, value, is_owner_now)
            machine.undecided = ""
        except (Fenced, LogLost):
            assert machine.is_over
            machine.kill()
        except Unavailable:
            pass  # it is decided before the next one
        except LogBehind:
            assert machine.is_cut_off_at is not None
            machine.kill()

    def _is_acknowledged(self, machine: Machine, value: str, is_owner_now: bool) -> None:
        assert not machine.is_over, "acknowledged after it was fenced"
        assert is_owner_now, "acknowledged by an owner of before"
        self.acknowledged.append(value)

    @precondition(lambda self: self.owners)
    @rule(pick=PICKS)
    def owner_trims(self, pick: int) -> None:
        machine = self.owners[pick % len(self.owners)]
        if not machine.database.is_broken:
            machine.log.trim(machine.database.applied.position)

    # -- what is promised --

    @invariant()
    def groups_are_in_order_of_their_owners(self) -> None:
        values = written(self.stream.messages, epoch=BASE.epoch if self.base else 0)
        places = {value: at for at, value in enumerate(values)}
        acknowledged = [places[value] for value in self.acknowledged]
        assert acknowledged == sorted(acknowledged)
        self.written = values

    def _all_follow(self) -> None:
        contents = []
        for name, machine in self.machines.items():
            machine.is_cut_off_at = None
            machine.faults = []
            if not machine.is_owner or machine.undecided:
                machine.kill()
            self.copy_follows(name)
            if machine.is_owner:
                with suppress(Fenced):
                    self._write(machine, 10)
                machine.kill()
        self.groups_are_in_order_of_their_owners()
        for name, machine in self.machines.items():
            self.copy_follows(name)
            self.copy_follows(name)  # of a copy that was replaced
            assert machine.database.applied >= Mark()
            contents.append(machine.content())
        written = {value.encode() for value in self.written}
        for content in contents:
            assert {value.rstrip(b"\0") for value in content.values()} == written | self.base


class FencingWithBase(Fencing):
    """The log begins with the data of a machine, for which the others wait."""

    def __init__(self) -> None:
        super().__init__()
        self.base = {b"base"}
        database = self.machines["a"].database
        changes = Changes()
        changes.put(b"kbase", b"base")
        database._write(changes, sync=False)
        database.apply(BASE, ())

    def _all_follow(self) -> None:
        if not self.stream.last:
            self.network_is_back("a")
            self.machines["a"].kill()
            self.machine_claims("a")
        super()._all_follow()


@pytest.mark.parametrize("machine", [Fencing, FencingWithBase])
def test_a_cell_has_one_owner_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, machine: type[Fencing]
) -> None:
    monkeypatch.setattr(nats_log, "_PAUSE_S", 0.0)
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=examples(60), stateful_step_count=40, deadline=None),
    )


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Machine, Machine]]:
    """An owner with one group, and another machine."""
    monkeypatch.setattr(nats_log, "_PAUSE_S", 0.0)
    stream = Stream()
    machines = tuple(Machine(name, stream, tmp_path / name / "db") for name in ("a", "b"))
    machines[0].database.lead()
    write(machines[0], 1)
    yield machines[0], machines[1]
    for machine in machines:
        machine.database.close()


def write(machine: Machine, number: int) -> None:
    changes = Changes()
    changes.put(b"k%d" % number, b"x")
    machine.database.write(changes, sync=False)


def test_a_group_that_was_undecided_is_applied_before_the_next_one(
    pair: tuple[Machine, Machine],
) -> None:
    """Also where the server that is read does not have it yet."""
    owner, _ = pair
    owner.is_cut_off_at = owner.stream.last
    owner.faults = ["answer lost"]
    with pytest.raises(Unavailable):
        write(owner, 2)
    with pytest.raises(Unavailable, match="lacks its end"):
        owner.database.recover()
    assert owner.database.is_broken
    owner.is_cut_off_at = None
    owner.database.recover()
    write(owner, 3)
    assert owner.content().keys() == {b"k1", b"k2", b"k3"}


def test_a_store_does_not_continue_with_the_log_of_another_one(
    pair: tuple[Machine, Machine],
) -> None:
    """What was there before a log is not mixed with what is in it."""
    _, other = pair
    changes = Changes()
    changes.put(b"kbase", b"base")
    other.database._write(changes, sync=False)
    other.database.apply(BASE, ())
    with pytest.raises(ConfigError, match="began with another store than this machine's"):
        other.database.lead()
    assert other.content() == {b"kbase": b"base"}


def test_an_owner_whose_undecided_group_was_trimmed_ends(pair: tuple[Machine, Machine]) -> None:
    owner, other = pair
    owner.is_cut_off_at = owner.stream.last
    owner.faults = ["answer lost"]
    with pytest.raises(Unavailable):
        write(owner, 2)
    with pytest.raises(Unavailable):
        owner.database.recover()
    other.database.lead()
    other.log.trim(other.database.applied.position)
    owner.is_cut_off_at = None
    with pytest.raises(LogLost):
        owner.database.recover()
    assert owner.is_over


def test_who_claims_at_a_server_that_is_behind_is_told(pair: tuple[Machine, Machine]) -> None:
    owner, other = pair
    other.is_cut_off_at = 0
    owner.log.trim(owner.database.applied.position)
    with pytest.raises(LogLost, match="begins at 2, and this copy ends at 0"):
        other.database.lead()
    other.is_cut_off_at = None
    with pytest.raises(LogLost):
        other.database.lead()
