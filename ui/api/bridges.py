"""What connectors, actions and sources have beside the five verbs: switching, testing, counters, dead letters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from bridges.resource.registry import ConnectorTypeView
from bridges.resource.services import DeadLetterList, DrainedAction, PurgedLetters, RedrivenLetters
from broker.core.kinds import Kind
from broker.core.objects import Reference
from ui.api.context import ApiContext
from ui.api.effects import DryRun, effect_of_verb
from ui.api.jobs import result_of
from ui.api.models.bridges import ConnectorTypes, Drain
from ui.api.models.gates import TakeAgain
from ui.api.objects import whole_list
from ui.api.operation import Operations
from ui.api.parameters import NamePath

Offsets = Annotated[
    list[int] | None,
    Query(alias="offset", max_length=200, description="Only those with this `offset`; may be repeated."),
]


def add_types(router: APIRouter, types: Callable[[], Sequence[ConnectorTypeView]]) -> None:
    """The types of connectors there are."""

    @Operations(router, "Bridges").get(
        "/connector-types", "listConnectorTypes", "List the types of connectors", answer=ConnectorTypes
    )
    def list_types() -> Any:
        """Returns each type with the JSON Schemas of its settings, and what is missing where it cannot be used here."""
        return whole_list(types())


def add_drain(router: APIRouter, kind: Kind, drain: Callable[[str, float], Awaitable[DrainedAction]]) -> None:
    """Take no more rows, and send those that wait."""

    @Operations(router, kind.tag).post(
        f"/{kind.path}/{{name}}:drain", "drainAction", "Drain an action", answer=DrainedAction
    )
    async def drained(name: NamePath, body: Drain) -> Any:
        """Accepts no more rows, sends those in the buffer, then stops. Returns when the buffer is empty or `timeout_s`
        is over.
        """
        return await drain(name, body.timeout_s)


def add_dead_letters(router: APIRouter, kind: Kind, service: Any, context: ApiContext) -> None:
    """What an action gave up: shown, sent again, forgotten."""
    path = f"/{kind.path}/{{name}}/dead-letters"
    ops = Operations(router, kind.tag)

    @ops.get(path, "listDeadLetters", "List the dead letters of an action", answer=DeadLetterList)
    async def show(
        name: NamePath,
        limit: Annotated[int, Query(ge=1, le=1000, description="Maximum number of items.")] = 20,
        offsets: Offsets = None,
    ) -> Any:
        """Returns rows that the action gave up, oldest first, each with its `offset`, the reason and its attempts."""
        return await service.dead_letters(name, limit, offsets)

    @ops.post(
        f"{path}:redrive",
        "redriveDeadLetters",
        "Send dead letters again",
        answer=RedrivenLetters,
        may_be_a_job=True,
        takes_key=True,
    )
    async def redrive(name: NamePath, body: TakeAgain, request: Request, offsets: Offsets = None) -> Response:
        """Sends dead letters again, oldest first. One that fails again becomes a new dead letter. It is a job:
        `Prefer: respond-async` does not wait for its end.
        """
        found = await service.dead_letters(name, 1000 if offsets else 1, offsets)
        waiting = found["waiting"] if offsets is None else len(found["items"])
        job = context.jobs.start(
            "redrive",
            name,
            "dead letters",
            min(body.limit, waiting),
            lambda job: service.redrive(name, body.limit, job.advance, offsets),
        )
        return await result_of(request, job)

    @ops.post(
        f"{path}:purge",
        "purgeDeadLetters",
        "Delete the dead letters of an action",
        answer=PurgedLetters,
        may_be_dry=True,
    )
    async def purge(name: NamePath, offsets: Offsets = None, dry_run: DryRun = False) -> Any:
        """Deletes all dead letters of the action, or those with an `offset`. This cannot be undone."""
        if dry_run:
            action = Reference(kind.name, service.get(name)["id"])
            found = await service.dead_letters(name, 1000, offsets)
            chosen = None if offsets is None else [one["offset"] for one in found["items"]]
            return await effect_of_verb(context.contributors, action, "purge", offsets=chosen)
        return service.purge(name, offsets)
