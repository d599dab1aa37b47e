"""Further verbs of connectors, actions and sources: switching, testing, counters, dead letters."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from bridges.resource.services import PurgedLetters
from broker.core.kinds import Kind
from broker.core.objects import Reference
from ui.api.context import ApiContext
from ui.api.effects import DryRun, effect_of_verb
from ui.api.operation import Operations
from ui.api.parameters import NamePath

Offsets = Annotated[
    list[int] | None,
    Query(alias="offset", max_length=200, description="Only those with this `offset`; may be repeated."),
]


def add_dead_letters(router: APIRouter, kind: Kind, service: Any, context: ApiContext) -> None:
    """Add the dead letters of an action: list, send again, purge."""
    path = f"/{kind.path}/{{name}}/dead-letters"
    ops = Operations(router, kind.tag, "dead letter")

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
            letters = await service.dead_letters(name, 1000, offsets)
            chosen = None if offsets is None else [letter["offset"] for letter in letters["items"]]
            return await effect_of_verb(context.contributors, action, "purge", {"offsets": chosen})
        return service.purge(name, offsets)
