"""Share groups: who is in them, what waits, what is under way."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from ui.api.context import Groups
from ui.api.models.shapes import Anything, ObjectList
from ui.api.operation import described
from ui.api.wire import answer, read_object

GroupPath = Annotated[
    str, Path(description="What members subscribe to, percent-encoded: `%24share%2Fpool%2Fjobs%2F%23`.")
]


def add_groups(router: APIRouter, groups: Groups) -> None:
    """Add ``/groups``."""

    @router.get(
        "/groups",
        operation_id="listGroups",
        tags=["Share groups"],
        summary="Share groups with their members, and what waits for them",
        **described(answer=ObjectList),
    )
    async def list_groups() -> Response:
        items = list(groups.overview())
        return answer({"items": items, "next": None, "total": len(items), "total_is_estimate": False})

    @router.post(
        "/groups",
        operation_id="makeGroup",
        tags=["Share groups"],
        summary="Make a share group that outlives its members",
        **described(body=Anything, answer=Anything, status=201, problems=(409, 422)),
    )
    async def make(request: Request) -> Response:
        return answer(groups.make(await read_object(request)), 201)

    @router.get(
        "/groups/{group:path}",
        operation_id="getGroup",
        tags=["Share groups"],
        summary="One share group with its members and places",
        **described(answer=Anything, problems=(404,)),
    )
    async def show(group: GroupPath) -> Response:
        return answer(groups.show(group))

    @router.delete(
        "/groups/{group:path}",
        operation_id="deleteGroup",
        tags=["Share groups"],
        summary="Discard what waits for a share group; without members it is gone",
        **described(status=204, problems=(404,)),
    )
    async def delete(group: GroupPath) -> Response:
        groups.delete(group)
        return Response(status_code=204)
