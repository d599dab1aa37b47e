"""What connectors, actions and sources have beside the five verbs: switching, testing, counters, dead letters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query

from broker.core.kinds import Kind
from broker.core.objects import Spec
from ui.api.models.bridges import Drain
from ui.api.models.gates import TakeAgain
from ui.api.models.shapes import Anything, ObjectList
from ui.api.objects import whole_list
from ui.api.operation import Operations
from ui.api.parameters import NamePath


def add_types(router: APIRouter, types: Callable[[], Sequence[Spec]]) -> None:
    """The types of connectors there are."""

    @Operations(router, "Bridges").get(
        "/connector-types", "listConnectorTypes", "List the types of connectors", answer=ObjectList
    )
    def list_types() -> Any:
        """Returns each type with the JSON Schemas of its settings, and what is missing where it cannot be used here."""
        return whole_list(types())


def add_drain(router: APIRouter, kind: Kind, drain: Callable[[str, float], Awaitable[Spec]]) -> None:
    """Take no more rows, and send those that wait."""

    @Operations(router, kind.tag).post(
        f"/{kind.path}/{{name}}:drain", "drainAction", "Drain an action", answer=Anything, problems=(404, 422)
    )
    async def drained(name: NamePath, body: Drain) -> Any:
        """Accepts no more rows, sends those in the buffer, then stops. Returns when the buffer is empty or `timeout_s`
        is over.
        """
        return await drain(name, body.timeout_s)


def add_dead_letters(router: APIRouter, kind: Kind, service: Any) -> None:
    """What an action gave up: shown, sent again, forgotten."""
    path = f"/{kind.path}/{{name}}/dead-letters"
    ops = Operations(router, kind.tag)

    @ops.get(path, "listDeadLetters", "List the dead letters of an action", answer=Anything, problems=(404, 422))
    async def show(
        name: NamePath, limit: Annotated[int, Query(ge=1, le=1000, description="Maximum number of items.")] = 20
    ) -> Any:
        """Returns rows that the action gave up, oldest first, each with the reason and its attempts."""
        return await service.dead_letters(name, limit)

    @ops.post(
        f"{path}:redrive",
        "redriveDeadLetters",
        "Send dead letters again",
        answer=Anything,
        problems=(404,),
        takes_key=True,
    )
    async def redrive(name: NamePath, body: TakeAgain) -> Any:
        """Sends dead letters again, oldest first. One that fails again becomes a new dead letter."""
        return await service.redrive(name, body.limit)

    @ops.post(
        f"{path}:purge",
        "purgeDeadLetters",
        "Delete the dead letters of an action",
        answer=Anything,
        problems=(404, 422),
    )
    def purge(name: NamePath) -> Any:
        """Deletes all dead letters of the action. This cannot be undone."""
        return service.purge(name)
