"""The certification of connectors: what each must show to be shipped. See docs/bridges/certification.md."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.config.secret_text import ADDRESS
from broker.core.errors import Invalid
from tests.support.bridges import Bridges
from tests.support.certified import ALL, Certified
from tests.support.processor import Stopwatch

CONNECTOR_OPTS = {
    "health_check_interval": "200ms",
    "reconnect_interval": "20ms",
    "start_timeout": "5s",
}
ACTION_OPTS = {
    "health_check_interval": "200ms",
    "retry_interval": "10ms",
    "resume_interval": "200ms",
}
OUT_S = 180.0
CAUSE_S = 10.0
"""An outage must be told within this time."""


WITH_LOGINS = sorted(name for name, kind in ALL.items() if kind.secret)
WITH_TARGETS = sorted(name for name, kind in ALL.items() if kind.has_targets)


@pytest.fixture(params=sorted(ALL))
def certified(request: pytest.FixtureRequest, tmp_path: Path) -> Certified:
    return ALL[request.param](tmp_path)


class Trial:
    """A connector ``plant`` and an action ``out`` of the type under test."""

    def __init__(self, certified: Certified, bridges: Bridges) -> None:
        self.certified, self.bridges, self.sent = certified, bridges, 0
        self.action = f"{certified.type}:out"

    def connect(self, members: dict[str, Any] | None = None) -> None:
        given = self.certified.connector() if members is None else members
        self.bridges.connectors.create(
            {"resource_opts": CONNECTOR_OPTS, **given, "name": "plant", "type": self.certified.type}
        )

    def act(self, parameters: dict[str, Any] | None = None, **options: Any) -> None:
        self.bridges.actions.create(self.spec(parameters, **options))

    def spec(self, parameters: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
        return {
            "name": "out",
            "type": self.certified.type,
            "connector": "plant",
            "parameters": self.certified.parameters() if parameters is None else parameters,
            "resource_opts": {**ACTION_OPTS, **options},
        }

    def send(self, count: int) -> None:
        self.bridges.send_many(count, start=self.sent, action=self.action)
        self.sent += count

    @property
    def shown(self) -> dict[str, Any]:
        return self.bridges.actions.get("out")

    @property
    def alarms(self) -> list[str]:
        return [alarm.name for alarm in self.bridges.services.monitoring.alarms.active()]

    async def all_arrived(self) -> list[tuple[str, int]]:
        await self.bridges.until(
            lambda: self.shown["metrics"]["success"] >= self.sent, "all rows confirmed"
        )
        found = await self.certified.arrived()
        assert {number for _, number in found} == set(range(self.sent))
        return found


@asynccontextmanager
async def trial(certified: Certified) -> AsyncIterator[Trial]:
    await certified.up()
    bridges = Bridges(*certified.kinds())
    bridges.begin()
    try:
        yield Trial(certified, bridges)
    finally:
        await bridges.end()
        await certified.close()


def run(certified: Certified, check: Callable[[Trial], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(OUT_S), trial(certified) as made:
            await check(made)

    asyncio.run(whole())


def assert_in_order(found: list[tuple[str, int]]) -> None:
    """The first arrivals of each key are in the order sent; what came twice came as a whole tail again."""
    seen: dict[str, list[int]] = {}
    for key, number in found:
        numbers = seen.setdefault(key, [])
        if number not in numbers:
            numbers.append(number)
    assert all(numbers == sorted(numbers) for numbers in seen.values()), seen


@pytest.mark.parametrize("mode", ["memory_only", "disk"])
def test_rows_arrive_once_each_in_the_order_of_their_key(certified: Certified, mode: str) -> None:
    async def check(made: Trial) -> None:
        made.connect()
        made.act(buffer_mode=mode)
        made.send(300)
        found = await made.all_arrived()
        assert len(found) == 300
        assert_in_order(found)
        assert made.shown["status"] == "connected"

    run(certified, check)


@pytest.mark.parametrize("mode", ["memory_only", "disk"])
def test_a_target_that_is_away_at_the_start_is_told_and_gets_everything_later(
    certified: Certified, mode: str
) -> None:
    async def check(made: Trial) -> None:
        await certified.down()
        made.connect()
        made.act(buffer_mode=mode)
        made.send(100)
        watch = Stopwatch(os.getpid())
        await made.bridges.until(
            lambda: made.bridges.connectors.get("plant")["status"] == "disconnected"
        )
        assert watch.elapsed_s() < CAUSE_S
        assert made.bridges.connectors.get("plant")["status_reason"]
        assert made.shown["status"] in ("disconnected", "connecting"), (
            "an action is not better than its connector"
        )
        await certified.up()
        assert_in_order(await made.all_arrived())

    run(certified, check)


@pytest.mark.parametrize("mode", ["memory_only", "disk"])
def test_an_outage_is_told_with_its_cause_and_loses_nothing(
    certified: Certified, mode: str
) -> None:
    async def check(made: Trial) -> None:
        made.connect()
        made.act(buffer_mode=mode, request_timeout="2s")
        made.send(200)
        await made.bridges.until(lambda: made.shown["metrics"]["success"] > 0)
        await certified.down()
        made.send(200)
        watch = Stopwatch(os.getpid())
        await made.bridges.until(
            lambda: made.shown["status"] != "connected" and made.shown["status_reason"]
        )
        assert watch.elapsed_s() < CAUSE_S
        made.bridges.assert_adds_up()
        await certified.up()
        found = await made.all_arrived()
        assert_in_order(found)
        metrics = made.shown["metrics"]
        assert (metrics["failed"], metrics["dropped"]) == (0, 0)
        await made.bridges.until(lambda: made.shown["status"] == "connected")

    run(certified, check)


def test_an_outage_of_a_day_loses_nothing_by_default_and_is_an_alarm(certified: Certified) -> None:
    async def check(made: Trial) -> None:
        made.connect()
        made.act()
        assert made.shown["resource_opts"]["buffer_mode"] == "disk"
        await made.bridges.until(lambda: made.shown["status"] == "connected")
        await certified.down()
        made.send(20)
        watch = Stopwatch(os.getpid())
        await made.bridges.until(lambda: made.alarms == [f"action_disconnected:{made.action}"])
        assert watch.elapsed_s() < CAUSE_S
        made.bridges.clock.ahead_s = 24 * 3600
        await made.bridges.until(lambda: made.shown["metrics"]["inflight"] == 0)
        assert made.shown["metrics"]["queuing"] == 20
        await certified.up()
        assert_in_order(await made.all_arrived())
        assert made.bridges.feature.lost_rows() == {}
        await made.bridges.until(lambda: not made.alarms, "no alarm")

    run(certified, check)


def test_rows_that_a_full_buffer_drops_are_an_alarm_and_counted_as_lost(
    certified: Certified,
) -> None:
    async def check(made: Trial) -> None:
        await certified.down()
        made.connect()
        made.act(max_buffer_records=10)
        made.send(25)
        await made.bridges.until(lambda: f"action_dropping:{made.action}" in made.alarms)
        assert made.bridges.feature.lost_rows() == {"queue_full": 15}
        assert made.shown["metrics"]["queuing"] == 10
        made.bridges.clock.ahead_s = 3600
        await made.bridges.until(lambda: f"action_dropping:{made.action}" not in made.alarms)
        await certified.up()

    run(certified, check)


@pytest.mark.parametrize("certified", WITH_LOGINS, indirect=True)
def test_credentials_that_are_refused_are_named_and_never_shown(certified: Certified) -> None:
    members = certified.bad_credentials()

    async def check(made: Trial) -> None:
        made.connect(members)
        shown = made.bridges.connectors.get
        await made.bridges.until(
            lambda: shown("plant")["status"] == "disconnected" and shown("plant")["status_reason"]
        )
        probed = await made.bridges.connectors.test("plant")
        failed = [step for step in probed["steps"] if step["result"] == "failed"]
        assert len(failed) == 1
        assert failed[0]["name"] in ("authenticate", "request"), "HTTP has no login of its own"
        assert failed[0]["message"]
        seen = json.dumps([shown("plant"), probed])
        assert not [value for value in _texts(members) if "wrong" in value and value in seen]

    run(certified, check)


@pytest.mark.parametrize("certified", WITH_LOGINS, indirect=True)
def test_secrets_are_shown_nowhere(certified: Certified, capfd: pytest.CaptureFixture[str]) -> None:
    async def check(made: Trial) -> None:
        made.connect()
        made.act()
        made.send(10)
        await made.all_arrived()
        told = [
            *made.bridges.connectors.list(),
            *made.bridges.actions.list(),
            await made.bridges.actions.test("out"),
        ]
        assert certified.secret not in json.dumps(told)
        await certified.down()
        made.send(1)
        await made.bridges.until(lambda: made.shown["status"] != "connected")
        assert certified.secret not in json.dumps(
            [*made.bridges.connectors.list(), *made.bridges.actions.list()]
        )
        await certified.up()

    run(certified, check)
    assert certified.secret not in "".join(capfd.readouterr())


@pytest.mark.parametrize("certified", WITH_LOGINS, indirect=True)
def test_stars_stand_for_a_secret_only_while_it_goes_to_the_same_address(
    certified: Certified,
) -> None:
    async def check(made: Trial) -> None:
        made.connect()
        connectors = made.bridges.connectors
        model = made.bridges.feature.registry.get(certified.type).connector
        [member] = [name for name, field in model.model_fields.items() if ADDRESS in field.metadata]
        given = {**certified.connector(), "name": "plant", "type": certified.type}
        starred = json.loads(json.dumps(given).replace(certified.secret, "******"))
        before = connectors.get("plant")[member]
        connectors.replace("plant", {**starred, "description": "the same address"})
        moved = re.sub(r":\d+", ":9", before)
        patched = connectors.patched("plant", {member: moved})
        for changed in ({**starred, member: moved}, patched):
            with pytest.raises(Invalid) as refused:
                connectors.replace("plant", changed)
            assert "send the secret again" in refused.value.problems[0].message
        with pytest.raises(Invalid):
            await connectors.probe({**starred, member: moved})
        assert connectors.get("plant")[member] == before
        connectors.replace("plant", {**given, member: moved})

    run(certified, check)


@pytest.mark.parametrize("certified", WITH_LOGINS, indirect=True)
@pytest.mark.parametrize(
    "reference", ["${env:SLUICE_API_TOKEN}", "${env:HOME}", "${file:/etc/passwd}"]
)
def test_a_secret_refers_to_nothing_that_is_not_allowed(
    certified: Certified, reference: str
) -> None:
    members = json.loads(json.dumps(certified.connector()).replace(certified.secret, reference))

    async def check(made: Trial) -> None:
        with pytest.raises(Invalid) as refused:
            made.connect(members)
        assert refused.value.problems[0].message.startswith(f"{reference}: expected a ")

    run(certified, check)


@pytest.mark.parametrize("certified", WITH_TARGETS, indirect=True)
def test_a_target_that_is_missing_is_told_as_such(certified: Certified) -> None:
    parameters = certified.missing_target()

    async def check(made: Trial) -> None:
        made.connect()
        made.act(parameters, missing_target="wait")
        made.send(5)
        await made.bridges.until(
            lambda: made.shown["status_reason"].startswith("unhealthy target: ")
        )
        assert made.bridges.connectors.get("plant")["status"] == "connected"
        if certified.asks_for_target:
            assert not (await made.bridges.actions.test("out"))["ok"]
        made.bridges.actions.replace("out", made.spec(missing_target="wait"))
        await made.all_arrived()

    run(certified, check)


@pytest.mark.parametrize("mode", ["memory_only", "disk"])
def test_changes_keep_what_waits(certified: Certified, mode: str) -> None:
    async def check(made: Trial) -> None:
        made.connect()
        made.act(buffer_mode=mode)
        await made.bridges.until(lambda: made.shown["status"] == "connected")
        made.bridges.actions.pause("out")
        made.send(50)
        made.bridges.actions.replace(
            "out", {**made.spec(buffer_mode=mode), "description": "changed"}
        )
        connector = {
            **certified.connector(),
            "resource_opts": CONNECTOR_OPTS,
            "description": "changed",
        }
        made.bridges.connectors.replace(
            "plant", {**connector, "name": "plant", "type": certified.type}
        )
        await made.bridges.connectors.restart("plant")
        await made.bridges.actions.restart("out")
        assert made.shown["metrics"]["success"] == 0
        made.bridges.actions.resume("out")
        assert_in_order(await made.all_arrived())

    run(certified, check)


def test_draining_sends_what_waits_and_takes_nothing_more(certified: Certified) -> None:
    async def check(made: Trial) -> None:
        made.connect()
        made.act()
        made.send(100)
        drained = await made.bridges.actions.drain("out", 30.0)
        assert (drained["left"], drained["status"]) == (0, "stopped")
        assert len(await made.all_arrived()) == 100

    run(certified, check)


def test_rows_on_disk_outlive_the_process(certified: Certified) -> None:
    async def check(made: Trial) -> None:
        made.connect()
        made.act(buffer_mode="disk")
        made.send(50)
        await made.all_arrived()
        await certified.down()
        made.send(100)
        await made.bridges.writer.committed()
        await made.bridges.crash()
        await certified.up()
        again = Bridges(
            *certified.kinds(), store=made.bridges.store, sections=made.bridges.sections
        )
        again.begin()
        try:
            await again.until(lambda: again.actions.get("out")["metrics"]["success"] >= 100)
            found = await certified.arrived()
            assert {number for _, number in found} == set(range(150))
            assert_in_order(found)
            again.assert_adds_up()
        finally:
            await again.end()

    run(certified, check)


def test_the_test_of_a_connection_names_the_step_that_fails(certified: Certified) -> None:
    async def check(made: Trial) -> None:
        made.connect()
        made.act()
        good = await made.bridges.actions.test("out")
        assert good["ok"], good
        assert len(good["steps"]) >= 2
        await certified.down()
        bad = await made.bridges.connectors.test("plant")
        failed = [step for step in bad["steps"] if step["result"] == "failed"]
        assert len(failed) == 1
        assert failed[0]["message"]
        await certified.up()

    run(certified, check)


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in _texts(item)]
    return [value] if isinstance(value, str) else []
