"""Overload: when a node counts as overloaded, when no longer, and what is told meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.events import Events
from broker.observe.alarms import Alarms
from broker.observe.load import Load, LoopLag, Machine, Processor
from broker.observe.metrics import Metrics
from broker.observe.overload import ALARM, Judge, Overload
from broker.observe.settings import OverloadSettings
from tests.support.mqtt_server import MovedClock, on_loop
from tests.support.waiting import within

QUIET = Load(0.01, 50, 100, 1.0)
LATE = Load(3.0, 50, 100, 1.0)
NEAR = Load(0.9, 50, 100, 1.0)


def test_so_many_looks_in_a_row_make_it_overloaded_and_so_many_end_it() -> None:
    judge = Judge(OverloadSettings(polls=3, clear_polls=2, max_loop_lag=1))
    assert [judge.look(load) for load in (LATE, LATE, QUIET, LATE, LATE, LATE)] == [False] * 5 + [
        True
    ]
    assert judge.reasons == ("event_loop",)
    assert [judge.look(load) for load in (NEAR, NEAR, QUIET, LATE, QUIET, QUIET)] == [True] * 5 + [
        False
    ]


def test_the_run_queue_is_a_further_reason_and_never_the_only_one() -> None:
    judge = Judge(OverloadSettings(polls=1, clear_polls=1, max_run_queue=10))
    assert not judge.look(Load(0.014, 50, 100, 60))
    assert not judge.reasons
    assert judge.look(Load(3.0, 50, 100, 60))
    assert judge.reasons == ("event_loop", "run_queue")
    assert not judge.look(Load(0.014, 50, 100, 60))


@pytest.mark.parametrize(
    ("worked_s", "waited_s", "cpu_share", "is_overloaded"),
    [
        (0.05, 2.9, 0.1, False),  # other programs had the CPUs
        (0.05, 9.0, 0.1, False),  # several threads waited
        (1.5, 2.9, 0.1, True),  # its own work alone is above the limit
        (0.05, 2.9, 0.6, True),  # it is itself what it waits for
        (0.05, 0.2, 0.1, True),  # the loop stood still, and nobody took the CPUs
    ],
)
def test_lag_counts_as_far_as_the_broker_causes_it(
    worked_s: float, waited_s: float, cpu_share: float, is_overloaded: bool
) -> None:
    judge = Judge(OverloadSettings(polls=1, max_loop_lag=1))
    assert judge.look(Load(3.0, 50, 100, 60, worked_s, waited_s, cpu_share)) is is_overloaded


def test_memory_and_the_run_queue_count_too_and_limits_of_0_are_off() -> None:
    judge = Judge(OverloadSettings(polls=1, max_memory=0.9, max_run_queue=10))
    assert judge.look(Load(0, 91, 100, 11))
    assert judge.because(Load(0, 91, 100, 11)) == (
        "the process uses 91% of its memory (limit 90%)",
        "11 threads wait for each CPU (limit 10)",
    )
    assert judge.reasons == ("memory", "run_queue")
    off = Judge(OverloadSettings(polls=1, max_memory=0, max_run_queue=0, max_loop_lag=0))
    assert not off.look(Load(99, 100, 100, 99))


@given(
    st.lists(st.sampled_from((QUIET, NEAR, LATE)), max_size=60),
    st.integers(1, 5),
    st.integers(1, 4),
)
def test_it_never_changes_without_as_many_looks_in_a_row_as_the_settings_ask_for(
    loads: list[Load], polls: int, clear_polls: int
) -> None:
    judge = Judge(OverloadSettings(polls=polls, clear_polls=clear_polls, max_loop_lag=1))
    was = False
    for position, load in enumerate(loads, 1):
        now = judge.look(load)
        if now and not was:
            assert loads[position - polls : position] == [LATE] * polls
        if was and not now:
            assert loads[position - clear_polls : position] == [QUIET] * clear_polls
        was = now


@on_loop
async def test_the_alarm_comes_when_overload_lasts_and_goes_with_it() -> None:
    clock, metrics = MovedClock(), Metrics()
    alarms = Alarms(clock, Events(), metrics)
    settings = OverloadSettings(polls=1, clear_polls=1, alarm_after=60)
    overload = Overload(settings, asyncio.get_running_loop(), clock, alarms, metrics)
    changes: list[bool] = []
    overload.on_change.connect(changes.append)
    overload.take(LATE)
    assert (overload.is_active, metrics.value("overloaded"), metrics.value("overload_times")) == (
        True,
        1,
        1,
    )
    assert alarms.active() == []
    clock.move(61)
    overload.take(LATE)
    [alarm] = alarms.active()
    assert alarm.name == ALARM
    assert alarm.details["loop_lag_s"] == 3.0
    assert "event_loop" in alarm.message
    overload.take(QUIET)
    assert alarms.active() == []
    assert changes == [True, False]


@on_loop
async def test_a_loop_that_stands_still_is_noticed_from_outside() -> None:
    lag = LoopLag(asyncio.get_running_loop())
    lag.start()
    found: list[float] = []
    stands_still, was_asked = threading.Event(), threading.Event()

    def ask() -> None:
        stands_still.wait(60)
        found.append(lag.worst_s())
        was_asked.set()

    watcher = threading.Thread(target=ask)
    watcher.start()
    blocked = threading.Event()
    blocked.wait(0.4)  # the loop does not turn
    stands_still.set()
    was_asked.wait(60)
    watcher.join()
    lag.stop()
    assert found[0] > 0.2


class HeldLoop:
    """A loop whose only timer the test lets run."""

    def call_later(self, _delay_s: float, run: Callable[[], None]) -> None:
        self.run = run


def test_what_the_loop_waited_for_a_processor_is_told_apart_from_its_own_work() -> None:
    now_s, used_s, loop = 100.0, 5.0, HeldLoop()
    lag = LoopLag(cast(asyncio.AbstractEventLoop, loop), lambda: now_s, lambda: used_s)
    lag.start()
    for late_s, worked_s in ((0.3, 0.05), (0.1, 0.11), (0.2, 0.0)):
        now_s, used_s = now_s + 0.02 + late_s, used_s + worked_s
        loop.run()
    assert lag.worst_s() == pytest.approx(0.3)
    assert lag.own_s == pytest.approx(0.1)
    assert lag.worst_s() == 0
    assert lag.own_s == 0


@on_loop
async def test_the_thread_watches_until_it_is_stopped() -> None:
    clock, metrics = MovedClock(), Metrics()
    alarms = Alarms(clock, Events(), metrics)
    settings = OverloadSettings(
        interval=0.01, polls=1, max_memory=0.5, memory_limit=1, max_run_queue=0, max_loop_lag=0
    )
    overload = Overload(settings, asyncio.get_running_loop(), clock, alarms, metrics)
    became = asyncio.Event()
    overload.on_change.connect(lambda _: became.set())
    overload.start()
    await within(became.wait(), 60)
    overload.stop()
    assert overload.reasons == ("memory",)


@on_loop
async def test_a_guard_that_is_switched_off_starts_nothing() -> None:
    clock, metrics = MovedClock(), Metrics()
    before = threading.active_count()
    alarms = Alarms(clock, Events(), metrics)
    overload = Overload(
        OverloadSettings(enable=False), asyncio.get_running_loop(), clock, alarms, metrics
    )
    overload.start()
    assert threading.active_count() == before
    overload.stop()


def test_the_memory_limit_is_the_least_of_what_the_system_sets(tmp_path: Path) -> None:
    for path, text in (
        ("sys/fs/cgroup/memory.max", "3000000\n"),
        ("proc/meminfo", "MemTotal:  4000 kB\nMemFree: 1 kB\n"),
        ("proc/self/statm", "100 10 5 1 0 1 0\n"),
        ("proc/loadavg", "0.5 0.5 0.5 7/300 1234\n"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    machine = Machine(root=tmp_path)
    assert machine.memory_limit_bytes == 3_000_000
    assert machine.memory_bytes() % 10 == 0
    assert machine.run_queue() > 0
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert Machine(root=tmp_path).memory_limit_bytes == 4000 * 1024
    assert Machine(5, root=tmp_path).memory_limit_bytes == 5
    nowhere = Machine(root=tmp_path / "nothing")
    assert nowhere.look(0.5) == Load(0.5, 0, 0, 0.0)
    assert nowhere.waited_s() == 0


def test_a_quota_of_the_control_group_limits_the_cpus_and_waiting_is_that_of_all_threads(
    tmp_path: Path,
) -> None:
    for path, text in (
        ("sys/fs/cgroup/cpu.max", "50000 100000\n"),
        ("proc/self/task/1/schedstat", "1000 500000000 3\n"),
        ("proc/self/task/2/schedstat", "1000 250000000 3\n"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    machine = Machine(root=tmp_path)
    assert machine.allowed_cpus() == 0.5
    assert machine.waited_s() == 0.75
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("max 100000\n")
    assert machine.allowed_cpus() >= 1


class LateLoop:
    """The lag of a loop that the test says is late, or not."""

    own_s = 0.25

    def __init__(self) -> None:
        self.lag_s = 0.0

    def worst_s(self) -> float:
        return self.lag_s

    def is_late(self) -> bool:
        return self.lag_s > 0


def test_waiting_for_a_cpu_counts_from_the_last_look_that_found_the_loop_on_time(
    tmp_path: Path,
) -> None:
    waits = tmp_path / "proc/self/task/1/schedstat"
    waits.parent.mkdir(parents=True)

    def wait(total_s: int) -> None:
        waits.write_text(f"0 {total_s * 10**9} 1")

    wait(100)
    lag = LateLoop()
    processor = Processor(Machine(root=tmp_path), cast(LoopLag, lag))
    found = []
    for lag.lag_s, total_s in ((0.0, 101), (2.5, 103), (4.5, 106), (0.0, 107), (0.0, 108)):
        wait(total_s)
        load = processor.look()
        found.append((load.loop_lag_s, load.worked_s, load.waited_s))
        assert load.cpu_share >= 0
    assert found == [(0.0, 0.25, 1), (2.5, 0.25, 2), (4.5, 0.25, 5), (0.0, 0.25, 6), (0.0, 0.25, 1)]
