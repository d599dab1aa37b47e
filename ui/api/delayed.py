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
        summary="List delayed messages",
        **described(answer=ObjectList, problems=(422,)),
    )
    async def list_delayed(
        limit: Annotated[int, Query(ge=1, le=1000, description="At most so many.")] = 100,
        cursor: Annotated[str | None, Query(max_length=64, description="'next' of the page before.")] = None,
    ) -> Response:
        """Returns delayed messages without payloads, those due first come first."""
        return answer(delayed.list(limit, cursor))

    @router.get(
        "/delayed/{id}",
        operation_id="getDelayed",
        tags=["Delayed"],
        summary="Show a delayed message",
        **described(answer=Anything, problems=(404, 422)),
    )
    async def get_delayed(id: Id) -> Response:
        """Returns the message with its payload."""
        return answer(delayed.get(id))

    @router.delete(
        "/delayed/{id}",
        operation_id="deleteDelayed",
        tags=["Delayed"],
        summary="Delete a delayed message",
        **described(status=204, problems=(404, 422)),
    )
    async def delete_delayed(id: Id) -> Response:
        """The message will not be published."""
        delayed.delete(id)
        return Response(status_code=204)
