"""Messages that are published later: see them, and delete some."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from ui.api.context import Delayed
from ui.api.models.shapes import Anything, ObjectList
from ui.api.operation import described
from ui.api.wire import answer

Id = Annotated[str, Path(min_length=1, max_length=64, description="Its 'id' in the list.")]


def add_delayed(router: APIRouter, delayed: Delayed) -> None:
    """Add ``/delayed``."""

    @router.get(
        "/delayed",
        operation_id="listDelayed",
        tags=["Delayed"],
        summary="Delayed messages in the order in which they are due, without their payloads",
        **described(answer=ObjectList, problems=(422,)),
    )
    async def list_delayed(
        limit: Annotated[int, Query(ge=1, le=1000, description="At most so many.")] = 100,
        cursor: Annotated[str | None, Query(max_length=64, description="'next' of the page before.")] = None,
    ) -> Response:
        return answer(delayed.list(limit, cursor))

    @router.get(
        "/delayed/{id}",
        operation_id="getDelayed",
        tags=["Delayed"],
        summary="A delayed message with its payload",
        **described(answer=Anything, problems=(404, 422)),
    )
    async def get_delayed(id: Id) -> Response:
        return answer(delayed.get(id))

    @router.delete(
        "/delayed/{id}",
        operation_id="deleteDelayed",
        tags=["Delayed"],
        summary="Delete a delayed message: it is not published",
        **described(status=204, problems=(404, 422)),
    )
    async def delete_delayed(id: Id) -> Response:
        delayed.delete(id)
        return Response(status_code=204)
