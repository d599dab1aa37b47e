"""What connectors, actions and sources have beside the five verbs: switching, testing, counters, dead letters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from broker.core.kinds import Kind
from broker.core.objects import Spec
from ui.api.models.bridges import Drain
from ui.api.models.gates import TakeAgain
from ui.api.models.shapes import Anything, ObjectList
from ui.api.objects import KindRoutes, whole_list
from ui.api.operation import described
from ui.api.parameters import NamePath, checked_name
from ui.api.wire import answer, read_model


def add_connectors(router: APIRouter, kind: Kind, service: Any) -> None:
    """Add the routes of connectors."""
    KindRoutes(router, kind, service).add_all()
    add_types(router, service.types)


def add_actions(router: APIRouter, kind: Kind, service: Any) -> None:
    """Add the routes of actions."""
    KindRoutes(router, kind, service).add_all()
    add_drain(router, kind, service.drain)
    add_dead_letters(router, kind, service)


def add_types(router: APIRouter, types: Callable[[], Sequence[Spec]]) -> None:
    """The types of connectors there are."""

    @router.get(
        "/connector-types",
        operation_id="listConnectorTypes",
        tags=["Bridges"],
        summary="List the types of connectors",
        **described(answer=ObjectList),
    )
    async def list_types() -> Response:
        """Returns each type with the JSON Schemas of its settings, and what is missing where it cannot be used here."""
        return answer(whole_list(types()))


def add_drain(router: APIRouter, kind: Kind, drain: Callable[[str, float], Awaitable[Spec]]) -> None:
    """Take no more rows, and send those that wait."""

    @router.post(
        f"/{kind.path}/{{name}}:drain",
        operation_id="drainAction",
        tags=[kind.tag],
        summary="Drain an action",
        **described(body=Drain, answer=Anything, problems=(404, 422)),
    )
    async def drained(name: NamePath, request: Request) -> Response:
        """Accepts no more rows, sends those in the buffer, then stops. Returns when the buffer is empty or `timeout_s`
        is over.
        """
        return answer(await drain(checked_name(name), (await read_model(request, Drain)).timeout_s))


def add_dead_letters(router: APIRouter, kind: Kind, service: Any) -> None:
    """What an action gave up: shown, sent again, forgotten."""
    path = f"/{kind.path}/{{name}}/dead-letters"
    tags: list[Any] = [kind.tag]

    @router.get(
        path,
        operation_id="listDeadLetters",
        tags=tags,
        summary="List the dead letters of an action",
        **described(answer=Anything, problems=(404, 422)),
    )
    async def show(
        name: NamePath, limit: Annotated[int, Query(ge=1, le=1000, description="At most so many.")] = 20
    ) -> Response:
        """Returns rows that the action gave up, oldest first, each with the reason and its attempts."""
        return answer(await service.dead_letters(checked_name(name), limit))

    @router.post(
        f"{path}:redrive",
        operation_id="redriveDeadLetters",
        tags=tags,
        summary="Send dead letters again",
        **described(body=TakeAgain, answer=Anything, problems=(404,)),
    )
    async def redrive(name: NamePath, request: Request) -> Response:
        """Sends dead letters again, oldest first. One that fails again becomes a new dead letter."""
        return answer(await service.redrive(checked_name(name), (await read_model(request, TakeAgain)).limit))

    @router.post(
        f"{path}:purge",
        operation_id="purgeDeadLetters",
        tags=tags,
        summary="Delete the dead letters of an action",
        **described(answer=Anything, problems=(404, 422)),
    )
    async def purge(name: NamePath) -> Response:
        """Deletes all dead letters of the action. This cannot be undone."""
        return answer(service.purge(checked_name(name)))
