"""Share groups: who is in them, what waits, what is under way."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from broker.admin.groups import GroupSpec
from ui.api.context import Groups
from ui.api.models.shapes import Anything, ObjectList
from ui.api.objects import whole_list
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
        summary="List share groups",
        **described(answer=ObjectList),
    )
    async def list_groups() -> Response:
        """Returns share groups with counts of members and waiting messages."""
        return answer(whole_list(groups.overview()))

    @router.post(
        "/groups",
        operation_id="makeGroup",
        tags=["Share groups"],
        summary="Create a share group",
        **described(body=GroupSpec, answer=Anything, status=201, problems=(409, 422)),
    )
    async def make(request: Request) -> Response:
        """Creates a share group that exists without members and keeps messages for them."""
        return answer(groups.make(await read_object(request)), 201)

    @router.get(
        "/groups/{group:path}",
        operation_id="getGroup",
        tags=["Share groups"],
        summary="Show a share group",
        **described(answer=Anything, problems=(404,)),
    )
    async def show(group: GroupPath) -> Response:
        """Returns the group with its members, and its position in a stream where it reads one."""
        return answer(groups.show(group))

    @router.delete(
        "/groups/{group:path}",
        operation_id="deleteGroup",
        tags=["Share groups"],
        summary="Delete a share group",
        **described(status=204, problems=(404,)),
    )
    async def delete(group: GroupPath) -> Response:
        """Discards the messages that wait for the group. A group without members is deleted."""
        groups.delete(group)
        return Response(status_code=204)
