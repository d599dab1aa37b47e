"""Alarms over HTTP, and evaluations that wait while the node is overloaded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Request
from fastapi.routing import APIRoute

from broker.admin.alarms import AlarmService
from broker.core.clock import SystemClock
from broker.core.errors import Unavailable
from broker.core.events import Events
from broker.core.objects import Spec
from broker.observe.alarms import Alarms
from broker.observe.metrics import Metrics
from rules.service import RuleService
from tests.support.plain_http import NO_TLS
from tests.ui.api_node import Node, Running
from ui.api.backtests import add_backtests
from ui.api.deadline import BoundedCalls


class AlarmedServer(Running):
    """An API that knows alarms."""

    def __init__(self) -> None:
        node, clock = Node(), SystemClock()
        self.alarms = Alarms(clock, Events(), Metrics())
        node.context.alarms = AlarmService(self.alarms, clock)
        super().__init__(node)


@pytest.fixture(scope="module")
def alarmed() -> Iterator[AlarmedServer]:
    server = AlarmedServer()
    yield server
    server.stop()


@pytest.fixture
def api(alarmed: AlarmedServer) -> Iterator[httpx.Client]:
    with alarmed.client() as client:
        yield client


def test_alarms_are_listed_while_they_are_active_and_then_in_the_history(
    alarmed: AlarmedServer, api: httpx.Client
) -> None:
    alarms = alarmed.alarms
    alarms.activate("disk_nearly_full", "the disk is nearly full", free_bytes=12)
    [item] = api.get("/alarms").json()["items"]
    assert (item["name"], item["details"], item["deactivated_at"]) == (
        "disk_nearly_full",
        {"free_bytes": 12},
        None,
    )
    assert item["activated_at"].endswith("Z")
    alarms.deactivate("disk_nearly_full")
    assert api.get("/alarms").json() == {
        "items": [],
        "next": None,
        "total": 0,
        "total_is_estimate": False,
    }
    [item] = api.get("/alarms/history").json()["items"]
    assert item["deactivated_at"] >= item["activated_at"]
    assert item["lasted_s"] >= 0
    assert api.delete("/alarms/history").status_code == 204
    assert api.get("/alarms/history").json()["items"] == []


def test_alarms_need_the_token_and_know_their_parameters(
    alarmed: AlarmedServer, api: httpx.Client
) -> None:
    assert httpx.get(f"{alarmed.url}/api/v1/alarms", verify=NO_TLS).status_code == 401
    assert api.get("/alarms", params={"nam": "x"}).status_code == 400
    assert api.get("/alarms", params={"severity": "bad"}).status_code == 422
    assert api.get("/alarms", params={"name": "*" * 9}).status_code == 422


def test_an_alarm_is_acknowledged_by_its_user_with_a_note(
    alarmed: AlarmedServer, api: httpx.Client
) -> None:
    alarms = alarmed.alarms
    alarms.activate("source_disconnected:kafka:in", "it is away", source="kafka:in")
    path = "/alarms/source_disconnected%3Akafka%3Ain"
    shown = api.post(f"{path}:acknowledge", json={"note": "Kafka is being moved"}).json()
    assert (shown["acknowledged_by"], shown["note"]) == ("administrator", "Kafka is being moved")
    assert shown["acknowledged_at"] >= shown["activated_at"]
    assert (shown["page"], shown["severity"]) == ("/sources/in", "critical")
    assert api.get(path).json()["note"] == "Kafka is being moved"
    found = api.get("/alarms", params={"acknowledged": True, "search": "MOVED kafka"}).json()
    assert [item["name"] for item in found["items"]] == ["source_disconnected:kafka:in"]
    assert api.get("/alarms", params={"acknowledged": False}).json()["items"] == []
    assert api.post(f"{path}:unacknowledge").json()["acknowledged_by"] is None
    assert api.post("/alarms/nothing:acknowledge", json={}).status_code == 404
    assert api.post(f"{path}:acknowledge", json={"note": "x" * 1001}).status_code == 422
    alarms.deactivate("source_disconnected:kafka:in")
    assert api.post(f"{path}:acknowledge", json={}).status_code == 404


def test_past_alarms_are_searched_and_paged(alarmed: AlarmedServer, api: httpx.Client) -> None:
    api.delete("/alarms/history")
    for number in range(7):
        alarmed.alarms.activate(f"table_late:t{number}", f"table t{number} is late", table="t")
        alarmed.alarms.deactivate(f"table_late:t{number}")
    alarmed.alarms.activate("store_not_writable", "the disk is full")
    alarmed.alarms.deactivate("store_not_writable")
    query: dict[str, Any] = {"name": "table_late:*", "limit": 3}
    names = []
    while True:
        page = api.get("/alarms/history", params=query).json()
        names += [item["name"] for item in page["items"]]
        assert page["total"] == 7
        if page["next"] is None:
            break
        query["cursor"] = page["next"]
    assert names == [f"table_late:t{number}" for number in reversed(range(7))]

    def found(**query: Any) -> list[str]:
        items = api.get("/alarms/history", params=query).json()["items"]
        return [item["name"] for item in items]

    assert found(search="t3 LATE") == ["table_late:t3"]
    assert found(severity="critical") == ["store_not_writable"]
    assert found(until="2020-01-01T00:00:00Z") == []
    assert found(since="2020-01-01T00:00:00Z", name="store*") == ["store_not_writable"]


def test_an_evaluation_waits_until_the_node_is_no_longer_overloaded() -> None:
    looks = iter([True, True, False])
    calls = BoundedCalls(5.0, is_put_off=lambda: next(looks))
    assert asyncio.run(calls.run("it", lambda: 42)) == 42


def test_an_evaluation_is_to_come_again_where_the_node_stays_overloaded() -> None:
    calls = BoundedCalls(0.3, is_put_off=lambda: True)
    with pytest.raises(Unavailable, match="overloaded") as caught:
        asyncio.run(calls.run("it", lambda: 42))
    assert caught.value.retry_after_s == 10


def test_no_back_test_begins_while_the_node_is_overloaded() -> None:
    class Backtests:
        def backtest_request(self, body: Spec) -> Spec:
            raise AssertionError("it must not begin")

    router = APIRouter()
    add_backtests(
        router, cast(RuleService, Backtests()), BoundedCalls(0.1, is_put_off=lambda: True)
    )
    [start] = [
        route.endpoint
        for route in router.routes
        if isinstance(route, APIRoute) and route.path.endswith(":backtest")
    ]

    async def read() -> dict[str, object]:
        return {"type": "http.request", "body": b'{"stream": "a", "name": "a"}'}

    app = FastAPI()
    app.state.context = SimpleNamespace(faces=None)
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "headers": [(b"content-type", b"application/json")],
        "app": app,
    }
    with pytest.raises(Unavailable, match="overloaded"):
        asyncio.run(start(Request(scope, read)))
