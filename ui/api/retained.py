"""Retained messages: list by filter, show, delete, clear, count."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from broker.admin.retained import RetainedDesk
from ui.api.members import Members
from ui.api.models.messages import Cleared, ClearRetained, RetainedCount
from ui.api.models.shapes import Anything, Page
from ui.api.objects import Cursor, Limit
from ui.api.operation import described
from ui.api.parameters import decode_cursor, encode_cursor
from ui.api.wire import answer, read_object

Topic = Annotated[str, Query(description="The topic.")]
_TAGS: list[Any] = ["Retained"]


def add_retained(router: APIRouter, desk: RetainedDesk) -> None:
    """Add ``/retained`` and its verbs."""

    @router.get(
        "/retained",
        operation_id="listRetained",
        tags=_TAGS,
        summary="List retained messages",
        **described(answer=Page, problems=(422,)),
    )
    async def list_retained(
        filter: Annotated[str, Query(description="A topic filter.")] = "#", limit: Limit = 100, cursor: Cursor = None
    ) -> Response:
        """Returns retained messages by topic. Long payloads are cut."""
        page = await desk.page(filter, limit, None if cursor is None else decode_cursor(cursor)[1])
        following = page["next"]
        shown = None if following is None else encode_cursor(0, following)
        return answer({**page, "next": shown, "total_is_estimate": False})

    @router.get(
        "/retained:count",
        operation_id="countRetained",
        tags=_TAGS,
        summary="Count retained messages",
        **described(answer=RetainedCount),
    )
    async def count() -> Response:
        """Returns the number of retained messages and their size."""
        return answer(desk.count())

    @router.get(
        "/retained:message",
        operation_id="getRetained",
        tags=_TAGS,
        summary="Show a retained message",
        **described(answer=Anything, problems=(404,)),
    )
    async def show(topic: Topic) -> Response:
        """Returns the retained message of one topic, with its whole payload."""
        return answer(desk.get(topic))

    @router.delete(
        "/retained:message",
        operation_id="deleteRetained",
        tags=_TAGS,
        summary="Delete a retained message",
        **described(status=204, problems=(404,)),
    )
    async def delete(topic: Topic) -> Response:
        """Deletes the retained message of one topic."""
        await desk.delete(topic)
        return Response(status_code=204)

    @router.post(
        "/retained:clear",
        operation_id="clearRetained",
        tags=_TAGS,
        summary="Clear retained messages",
        **described(body=ClearRetained, answer=Cleared),
    )
    async def clear(request: Request) -> Response:
        """Deletes the retained messages whose topics match a filter. `dry_run` only counts them."""
        members = Members(await read_object(request))
        topic_filter = members.needed_text("filter")
        only_expired, dry_run = members.flag("only_expired"), members.flag("dry_run")
        members.done("nothing was cleared")
        return answer(await desk.clear(topic_filter, only_expired=bool(only_expired), dry_run=bool(dry_run)))
