"""The history of metrics under clocks that the test moves: sums, gaps, restarts, clock steps, bounds."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.core.errors import Invalid, Unavailable
from broker.core.values import Values
from broker.observe.metric_rows import COARSER, RESOLUTIONS, SECONDS, Point, joined, unpack
from broker.observe.metrics import Metrics
from broker.observe.metrics_history import MAX_POINTS, MetricsHistory
from broker.observe.settings import MetricsHistorySettings
from broker.storage.writer import Writer
from broker.streams.queues import StoredValues
from tests.support.mqtt_server import GatedStore, on_loop

MIB = 1024 * 1024
START_S = 1_800_000_000
CONNECTIONS, PASSED = 1, 2
"""The numbers of the series that every broker here has from its start."""


class Clocks:
    """Both clocks; the wall clock can be set."""

    def __init__(self) -> None:
        self.wall_s, self.passed_s = float(START_S), 50.0

    def now_ns(self) -> int:
        return int(self.wall_s * 1e9)

    def monotonic_s(self) -> float:
        return self.passed_s

    def pass_time(self, seconds: float) -> None:
        self.wall_s += seconds
        self.passed_s += seconds


class Broker:
    """One run of a broker, from its start to a stop or a kill: new counters, the stored values of the run before."""

    def __init__(self, values: Values, clocks: Clocks, **limits: Any) -> None:
        self.metrics, self.clocks, self.level = Metrics(), clocks, 0.0
        self.history = MetricsHistory(
            self.metrics, values, clocks, MetricsHistorySettings(**limits), "1.0"
        )
        self.received = self.metrics.counter("messages_received", qos="0")
        self.passed = self.metrics.counter("messages_passed")
        self.metrics.gauge("connections", lambda: self.level)
        self.history.start()

    def run(self, seconds: int, per_second: int = 0) -> None:
        """Let so many seconds pass, with a sample of each."""
        for _ in range(seconds):
            self.received.value += per_second
            self.clocks.pass_time(1)
            self.history.sample()

    async def read(
        self, *names: str, last_s: float, step_s: int = 1, **labels: str
    ) -> dict[str, Any]:
        """The answer for the time until now."""
        return await self.history.read(
            names, labels, int((self.clocks.wall_s - last_s) * 1e6), None, step_s
        )

    async def means(self, name: str, *, last_s: float, step_s: int = 1) -> list[float | None]:
        """The means of the one series that has the name."""
        [series] = (await self.read(name, last_s=last_s, step_s=step_s))["series"]
        means: list[float | None] = series["mean"]
        return means


def point_of(values: Values, step_s: int, number: int) -> Point:
    """A series over all time, joined from all rows of a resolution."""
    point: Point = (0.0, 0.0, float("inf"), float("-inf"))
    for name in values.names(f"metrics-history/1/{step_s}/"):
        row = values.get(name) or b""
        points = unpack(row, int.from_bytes(row[:8], "little", signed=True))
        point = joined(point, points[number]) if number in points else point
    return point


@on_loop
async def test_a_rate_is_the_increase_of_a_counter_and_a_gauge_its_level() -> None:
    broker = Broker(Values(), Clocks())
    broker.run(5, per_second=20)
    broker.level = 7
    broker.run(5)
    assert await broker.means("messages_received", last_s=10) == [20] * 5 + [0] * 5
    [connections] = (await broker.read("connections", last_s=10, step_s=10))["series"]
    assert connections == {
        "name": "connections", "labels": {}, "kind": "gauge", "mean": [3.5], "min": [0], "max": [7],
    }  # fmt: skip


@on_loop
async def test_a_time_without_a_broker_is_a_gap_and_the_rate_after_it_that_of_the_new_counters() -> (
    None
):
    values, clocks = Values(), Clocks()
    first = Broker(values, clocks)
    first.run(20, per_second=100)
    first.history.stop()
    clocks.pass_time(10)
    second = Broker(values, clocks)
    second.run(10, per_second=3)
    assert await second.means("messages_received", last_s=40) == [100] * 20 + [None] * 10 + [3] * 10
    assert await second.means("messages_received", last_s=40, step_s=10) == [100, 100, None, 3]
    [minute] = [
        mean
        for mean in await second.means("messages_received", last_s=40, step_s=60)
        if mean is not None
    ]
    assert minute == pytest.approx((20 * 100 + 10 * 3) / 30)
    markers = (await second.read("connections", last_s=60))["markers"]
    assert [marker["what"] for marker in markers] == ["started", "stopped", "started"]
    assert markers[1] == {
        "at": "2027-01-15T08:00:20.000Z",
        "kind": "broker",
        "name": "1.0",
        "what": "stopped",
    }


@on_loop
async def test_a_kill_loses_no_more_than_what_was_read_since_the_last_writing() -> None:
    values, clocks = Values(), Clocks()
    killed = Broker(values, clocks)
    killed.run(36, per_second=5)
    after = Broker(values, clocks)
    assert await after.means("messages_received", last_s=36) == [5] * 30 + [None] * 6
    assert await after.means("messages_received", last_s=36, step_s=600) == [5]
    after.run(4, per_second=5)
    assert await after.means("messages_received", last_s=40, step_s=10) == [5, 5, 5, 5]
    markers = (await after.read(last_s=60))["markers"]
    assert [marker["what"] for marker in markers] == ["started", "started_after_crash"]


@on_loop
async def test_the_newest_markers_are_kept() -> None:
    broker = Broker(Values(), Clocks())
    for number in range(700):
        broker.history.mark("rule", str(number), "changed")
    broker.run(1, per_second=1)
    markers = (await broker.read(last_s=60))["markers"]
    assert [marker["name"] for marker in markers] == [str(number) for number in range(200, 700)]


happenings = st.lists(
    st.one_of(
        st.tuples(
            st.just("sample"), st.sampled_from((0.5, 1.0, 1.25, 3.0, 12.0)), st.integers(0, 1000)
        ),
        st.tuples(
            st.just("clock set"), st.sampled_from((-45.0, -10.0, -1.0, 1.0, 10.0, 60.0)), st.just(0)
        ),
        st.tuples(st.just("restart"), st.sampled_from((0.0, 0.25, 5.0, 30.0)), st.just(0)),
    ),
    max_size=14,
)


@settings(deadline=None)
@given(happenings)
def test_every_resolution_keeps_what_was_observed_across_restarts_and_clock_steps(
    happened: list[tuple[str, float, int]],
) -> None:
    values, clocks = Values(), Clocks()
    gauges, rates = list[tuple[float, float]](), list[tuple[float, float]]()

    async def run() -> None:
        broker = Broker(values, clocks)
        for what, amount, number in [("sample", 1.0, 5), *happened, ("restart", 0.0, 0)]:
            if what == "clock set":
                clocks.wall_s += amount
            elif what == "sample":
                broker.level = number
                broker.passed.value += number
                clocks.pass_time(amount)
                broker.history.sample()
                gauges.append((number, amount))
                rates.append((number / amount, amount))
            else:
                broker.history.stop()
                clocks.pass_time(amount)
                broker = Broker(values, clocks)

    asyncio.run(run())
    for resolution in RESOLUTIONS:
        for number, seen in ((CONNECTIONS, gauges), (PASSED, rates)):
            seconds, total, least, most = point_of(values, resolution.step_s, number)
            assert (seconds, total) == pytest.approx(
                (sum(s for _, s in seen), sum(v * s for v, s in seen)), rel=1e-6
            )
            assert (least, most) == pytest.approx(
                (min(v for v, _ in seen), max(v for v, _ in seen)), rel=1e-6
            )


@on_loop
async def test_a_counter_with_labels_begins_with_its_first_count_and_counts_again_after_a_reset() -> (
    None
):
    broker = Broker(Values(), Clocks())
    refused = broker.metrics.counter("messages_dropped", reason="refused")
    broker.run(2)
    assert (await broker.read("messages_dropped", last_s=10))["series"] == []
    refused.value = 8
    broker.run(1)
    refused.value = 3
    broker.run(1)
    assert await broker.means("messages_dropped", last_s=4) == [None, None, 8, 3]
    broker.metrics.remove(reason="refused")
    broker.run(2)
    assert await broker.means("messages_dropped", last_s=4) == [8, 3, None, None]


@on_loop
async def test_a_gauge_that_fails_or_has_no_value_is_a_gap_and_the_others_are_kept() -> None:
    broker = Broker(Values(), Clocks())
    broker.metrics.gauge("sessions", lambda: 1 / 0)
    broker.metrics.gauge("subscriptions", lambda: float("nan"))
    broker.metrics.gauge("memory_bytes", lambda: 1e300)
    broker.run(2)
    names = {series["name"] for series in (await broker.read(last_s=2))["series"]}
    assert names == {"connections", "messages_passed"}


@on_loop
async def test_what_a_failing_store_refused_is_in_the_next_row_of_a_coarse_interval() -> None:
    store, clocks = GatedStore(), Clocks()
    writer = Writer(store, asyncio.get_running_loop())
    broker = Broker(StoredValues(writer), clocks)
    broker.run(9)
    await writer.committed()
    store.fails = True
    broker.run(1, per_second=60)
    with pytest.raises(Unavailable):
        await writer.committed()
    store.fails = False
    broker.run(10)
    await writer.committed()
    after = Broker(StoredValues(writer), clocks)
    assert await after.means("messages_received", last_s=20, step_s=600) == [3]
    await writer.close()


@on_loop
async def test_what_is_stored_is_bounded_and_series_beyond_that_are_counted() -> None:
    values, clocks = Values(), Clocks()
    broker = Broker(values, clocks, max_bytes=16 * MIB)
    most = broker.history.most_series
    counters = [
        broker.metrics.counter("rule_matched", rule=f"rule-{number:03}")
        for number in range(2 * most)
    ]
    chance = random.Random(1)  # values that do not compress
    for resolution in (SECONDS, *COARSER):
        for _ in range(resolution.rows + 20):
            clocks.pass_time(resolution.step_s)
            clocks.wall_s = clocks.wall_s // 10 * 10 if resolution.step_s > 1 else clocks.wall_s
            for counter in counters:
                counter.value += chance.getrandbits(40)
            broker.history.sample()
    names = values.names("")
    assert len(names) == sum(resolution.rows for resolution in RESOLUTIONS) + 2
    size = sum(len(name) + len(values.get(name) or b"") for name in names)
    assert 8 * MIB < size < 16 * MIB
    assert broker.metrics.value("metrics_history_series") == most
    assert broker.metrics.value("metrics_history_left_out", reason="max_bytes") == 2 * most - (
        most - 2
    )
    answer = await broker.read(last_s=7 * 86_400)
    assert MAX_POINTS / 2 < sum(len(series["mean"]) for series in answer["series"]) <= MAX_POINTS


@on_loop
async def test_a_series_that_is_gone_makes_room_and_its_points_are_not_those_of_the_new_one() -> (
    None
):
    values, clocks = Values(), Clocks()
    broker = Broker(values, clocks, max_bytes=16 * MIB)
    room = broker.history.most_series - 2
    for number in range(room):
        broker.metrics.counter("rule_matched", rule=f"old-{number:03}").value = 1
    broker.run(12)
    late = broker.metrics.counter("rule_matched", rule="late")
    late.value = 1000
    broker.run(1)
    assert broker.metrics.value("metrics_history_left_out", reason="max_bytes") == 1
    broker.metrics.remove(rule="old-003")
    late.value = 1010
    broker.run(3)
    assert broker.metrics.value("metrics_history_left_out", reason="max_bytes") == 0
    [series] = (await broker.read("rule_matched", last_s=15, rule="late"))["series"]
    assert series["mean"][:13] == [None] * 13
    # not the 1,000 from before
    assert max(mean for mean in series["mean"] if mean is not None) <= 10
    assert (await broker.read("rule_matched", last_s=15, rule="old-003"))["series"] == []
    after = Broker(values, clocks, max_bytes=16 * MIB)
    assert after.metrics.value("metrics_history_series") == room + 2


@on_loop
async def test_the_step_is_the_finest_that_reaches_back_and_keeps_the_answer_small() -> None:
    broker = Broker(Values(), Clocks())
    broker.run(1, per_second=1)
    for last_s, asked, step_s, values in (
        (60, 1, 1, 60), (60, 7, 7, 9), (900, 1, 1, 900), (3600, 1, 10, 360), (3 * 3600, 15, 20, 540),
        (86_400, 1, 60, 1440), (7 * 86_400, 1, 600, 1008), (7 * 86_400, 3600, 3600, 168), (30 * 86_400, 1, 600, 1020),
    ):  # fmt: skip
        answer = await broker.read("connections", last_s=last_s, step_s=asked)
        assert answer["step_s"] == step_s
        assert values <= len(answer["series"][0]["mean"]) <= values + 1
        assert [mean for mean in answer["series"][0]["mean"] if mean is not None] == [0]


@on_loop
async def test_names_and_times_that_there_are_not_are_refused_in_a_sentence() -> None:
    broker = Broker(Values(), Clocks())
    broker.run(2, per_second=1)
    names = {
        series["name"]
        for series in (await broker.read("sluice_messages_received_total", last_s=2))["series"]
    }
    assert names == {"messages_received"}
    with pytest.raises(
        Invalid, match=r"expected a metric of the history, got 'mesages_sent'\. Try: messages_sent"
    ):
        await broker.read("connections", "mesages_sent", last_s=2)
    with pytest.raises(Invalid, match="Try: sluice metrics ls"):
        await broker.read("qqqq", last_s=2)
    with pytest.raises(Invalid, match="expected a time before `to` and before now"):
        await broker.read("connections", last_s=-5)


@on_loop
async def test_a_history_that_is_switched_off_keeps_nothing() -> None:
    values = Values()
    broker = Broker(values, Clocks(), enable=False)
    broker.history.stop()
    assert values.names("") == []
    with pytest.raises(Unavailable, match=r"metrics_history\.enable"):
        await broker.read(last_s=5)
