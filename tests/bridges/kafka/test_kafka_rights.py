"""A login that may not do everything, on a real Kafka: what is closed to it holds up nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.bridges import FAST, FAST_CONNECTOR, Bridges
from tests.support.kafka_server import WITH_RIGHTS, Kafka
from tests.support.kafka_topic import DESCRIBE, WRITE, Topic
from tests.support.mqtt_server import on_loop
from tests.support.processes import free_port

ROWS = 20


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    directory = tmp_path_factory.mktemp("kafka") / "cluster"
    with Kafka(directory, sasl=["PLAIN"], settings=WITH_RIGHTS) as started:
        yield started


@asynccontextmanager
async def as_bob(kafka: Kafka, **actions: str) -> AsyncIterator[Bridges]:
    """A connector whose user is bob, and actions with their topics."""
    bridges = Bridges()
    bridges.begin()
    try:
        login = {"mechanism": "plain", "username": "bob", "password": "builder"}
        hosts = kafka.secured("SASL_PLAINTEXT")
        plant = {
            "name": "plant",
            "type": "kafka",
            "bootstrap_hosts": hosts,
            "authentication": login,
        }
        bridges.connectors.create({**plant, "resource_opts": FAST_CONNECTOR})
        for name, topic in actions.items():
            parameters = {"topic": topic, "message": {"value": "${n}"}}
            made = {"name": name, "type": "kafka", "connector": "plant", "parameters": parameters}
            bridges.actions.create({**made, "resource_opts": FAST})
        yield bridges
    finally:
        await bridges.end()


def shown(bridges: Bridges, action: str) -> dict[str, Any]:
    found: dict[str, Any] = bridges.actions.get(action)
    return found


@on_loop
async def test_a_topic_that_is_closed_to_the_login_holds_up_nothing_else(kafka: Kafka) -> None:
    free, closed = await Topic(kafka).make(), await Topic(kafka).make()
    await free.grant("bob", WRITE)
    await closed.grant("bob", DESCRIBE)
    async with as_bob(kafka, free=free.name, closed=closed.name) as bridges:
        await bridges.until(lambda: shown(bridges, "free")["status"] == "connected")
        since = bridges.connectors.get("plant")["since"]
        bridges.send({"n": 0}, action="kafka:closed")
        await bridges.until(
            lambda: "authorization failed" in shown(bridges, "closed")["status_reason"]
        )
        for number in range(ROWS):
            bridges.send({"n": number}, action="kafka:free")
            await bridges.until(lambda: bridges.counts("free")["success"] > number)  # noqa: B023 - awaited here
            assert shown(bridges, "closed")["status"] != "connected"
        assert shown(bridges, "closed")["status_reason"].startswith("unhealthy target:")
        assert bridges.connectors.get("plant")["since"] == since
        await closed.grant("bob", WRITE)
        await bridges.until(lambda: bridges.counts("closed")["success"] == 1)
        await bridges.until(lambda: shown(bridges, "closed")["status"] == "connected")


@on_loop
async def test_rows_beside_those_that_wait_for_rights_are_sent_once(kafka: Kafka) -> None:
    free, closed = await Topic(kafka).make(), await Topic(kafka).make()
    await free.grant("bob", WRITE)
    await closed.grant("bob", DESCRIBE)
    async with as_bob(kafka, both="${t}") as bridges:
        for number in range(ROWS):
            bridges.send(
                {"n": number, "t": closed.name if number % 2 else free.name}, action="kafka:both"
            )
        await bridges.until(lambda: bridges.counts("both")["success"] == ROWS / 2)
        await closed.grant("bob", WRITE)
        await bridges.until(lambda: bridges.counts("both")["success"] == ROWS)
    assert [record.value for record in await free.records()] == [
        b"%d" % number for number in range(0, ROWS, 2)
    ]
    assert [record.value for record in await closed.records()] == [
        b"%d" % number for number in range(1, ROWS, 2)
    ]


@on_loop
async def test_the_test_says_no_more_than_it_has_found_out_and_any_host_will_do(
    kafka: Kafka,
) -> None:
    closed = await Topic(kafka).make()
    await closed.grant("bob", DESCRIBE)
    async with as_bob(kafka, closed=closed.name) as bridges:
        gone = f"127.0.0.1:{free_port()}"
        hosts = f"{gone},{kafka.secured('SASL_PLAINTEXT')}"
        login = {"mechanism": "plain", "username": "bob", "password": "builder"}
        moved = {"bootstrap_hosts": hosts, "authentication": login}
        bridges.connectors.replace("plant", {**bridges.connectors.get("plant"), **moved})
        shown = await bridges.actions.test("closed")
        found = {step["name"]: (step["result"], step["message"]) for step in shown["steps"]}
    assert not shown["ok"], shown
    assert found["connect"] == (
        "ok",
        f"{gone}: connection refused; {kafka.secured('SASL_PLAINTEXT')} accepts connections",
    )
    assert found["target"] == ("ok", "ready for rows")
    result, why = found["permission"]
    assert result == "failed"
    assert closed.name in why
    assert "authorization failed" in why


@on_loop
async def test_the_test_of_an_action_asks_for_the_right_to_write_and_writes_nothing(
    kafka: Kafka,
) -> None:
    opened = await Topic(kafka).make()
    await opened.grant("bob", DESCRIBE)
    await opened.grant("bob", WRITE)
    async with as_bob(kafka, opened=opened.name) as bridges:
        shown = await bridges.actions.test("opened")
    assert shown["ok"], shown
    assert shown["steps"][-1]["message"] == f"the topic {opened.name!r} may be written to"
    assert await opened.records() == []
