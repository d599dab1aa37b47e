"""Alarms over HTTP, and evaluations that wait while the node is overloaded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import cast

import httpx
import pytest
from fastapi import APIRouter, Request
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


def test_alarms_need_the_token_and_know_no_parameters(
    alarmed: AlarmedServer, api: httpx.Client
) -> None:
    assert httpx.get(f"{alarmed.url}/api/v1/alarms", verify=NO_TLS).status_code == 401
    assert api.get("/alarms", params={"name": "x"}).status_code == 400


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

    headers = [(b"content-type", b"application/json")]
    with pytest.raises(Unavailable, match="overloaded"):
        asyncio.run(
            start(
                Request({"type": "http", "method": "POST", "path": "/", "headers": headers}, read)
            )
        )
