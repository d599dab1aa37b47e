"""An HTTP service with a connector and an action to it, and what tests ask of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from broker.config.ssrf import AddressGuard
from tests.support.bridges import FAST, FAST_CONNECTOR, Bridges
from tests.support.http_service import Received, Reply, Service

ACTION = "http:out"
DEADLINE_S = 120.0


@asynccontextmanager
async def bridged(
    service: Service,
    parameters: dict[str, Any] | None = None,
    connector: dict[str, Any] | None = None,
    guard: AddressGuard | None = None,
    base: str = "",
    **options: Any,
) -> AsyncIterator[Bridges]:
    """A service with a connector and an action to it."""
    async with asyncio.timeout(DEADLINE_S), service:
        bridges = Bridges()
        if guard is not None:
            bridges.feature.resources.guard = guard
        bridges.begin()
        try:
            bridges.connectors.create(
                {
                    "resource_opts": FAST_CONNECTOR,
                    "url": service.url + base,
                    **(connector or {}),
                    "name": "plant",
                    "type": "http",
                }
            )
            bridges.actions.create(
                {
                    "name": "out",
                    "type": "http",
                    "connector": "plant",
                    "parameters": parameters or {},
                    "resource_opts": {**FAST, **options},
                }
            )
            yield bridges
        finally:
            await bridges.end()


def run(
    check: Callable[[Bridges, Service], Any],
    parameters: dict[str, Any] | None = None,
    answer: Callable[[Received], Reply] = lambda request: Reply(),
    **named: Any,
) -> Service:
    """Run a check on a service; the service, for what it got."""
    context = named.pop("context", None)
    service = Service(answer, context)

    async def whole() -> None:
        async with bridged(service, parameters, **named) as bridges:
            await check(bridges, service)

    asyncio.run(whole())
    return service


async def sent(bridges: Bridges, count: int) -> None:
    """Until so many rows are confirmed."""
    await bridges.until(lambda: bridges.counts()["success"] >= count, f"{count} rows sent")


async def failed(bridges: Bridges, count: int = 1) -> str:
    """Until so many rows are given up; why the last was."""
    await bridges.until(lambda: bridges.counts()["failed"] >= count, f"{count} rows given up")
    text: str = bridges.actions.get("out")["last_error"]["text"]
    return text


def one_row(row: dict[str, Any], parameters: dict[str, Any], **named: Any) -> Received:
    """The request of a row."""

    async def check(bridges: Bridges, _service: Service) -> None:
        bridges.send(row, ACTION)
        await sent(bridges, 1)

    return run(check, parameters, **named).taken[-1]


def given_up(row: dict[str, Any], parameters: dict[str, Any], **named: Any) -> str:
    """Why a row is given up."""
    said: list[str] = []

    async def check(bridges: Bridges, _service: Service) -> None:
        bridges.send(row, ACTION)
        said.append(await failed(bridges))

    run(check, parameters, **named)
    return said[0]
