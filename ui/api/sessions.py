"""Sessions: list, show, delete, purge, and those with the longest queues."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import Response

from broker.admin.listing import Selection
from broker.admin.sessions import MAX_TOP, SessionDesk
from broker.core.clock import Clock
from ui.api.members import Members
from ui.api.models.clients import Purged, PurgeSessions
from ui.api.models.shapes import Anything, ObjectList, Page
from ui.api.objects import Cursor, Limit
from ui.api.operation import described
from ui.api.parameters import decode_cursor
from ui.api.selections import pattern_of, session_filter, with_cursor
from ui.api.wire import answer, read_object

ClientIdPath = Annotated[str, Path(description="The client identifier, percent-encoded.")]
_NS = 1_000_000_000
_TAGS: list[Any] = ["Sessions"]


def add_sessions(router: APIRouter, desk: SessionDesk, clock: Clock) -> None:
    """Add ``/sessions`` and its verbs."""
    _add_lists(router, desk)
    _add_purge(router, desk, clock)
    _add_one(router, desk)


def _add_lists(router: APIRouter, desk: SessionDesk) -> None:
    @router.get(
        "/sessions",
        operation_id="listSessions",
        tags=_TAGS,
        summary="List sessions",
        **described(answer=Page, problems=(422,)),
    )
    async def list_sessions(
        limit: Limit = 100,
        cursor: Cursor = None,
        sort: Annotated[str, Query(description="`client_id`, or a number, falling with `-`: `-queued`.")] = "client_id",
        wanted: Selection = Depends(session_filter),  # noqa: B008 # the way FastAPI wants it
    ) -> Response:
        """Returns sessions of connected and disconnected clients. Filters combine."""
        after = decode_cursor(cursor) if cursor is not None else None
        return answer(with_cursor(await desk.page(wanted, sort, limit, after)))

    @router.get(
        "/sessions:top",
        operation_id="topSessions",
        tags=_TAGS,
        summary="List the sessions with the longest queues",
        **described(answer=ObjectList, problems=(422,)),
    )
    async def top(
        count: Annotated[int, Query(ge=1, le=MAX_TOP, description="How many.")] = 10,
        by: Annotated[Literal["messages", "bytes"], Query(description="What makes a queue long.")] = "messages",
    ) -> Response:
        """Returns the sessions with the longest queues, in memory and on disk."""
        return answer(await desk.top(count, by))


def _add_purge(router: APIRouter, desk: SessionDesk, clock: Clock) -> None:
    @router.post(
        "/sessions:purge",
        operation_id="purgeSessions",
        tags=_TAGS,
        summary="Purge sessions",
        **described(body=PurgeSessions, answer=Purged),
    )
    async def purge(request: Request) -> Response:
        """Deletes all sessions that match, with their queued messages. `dry_run` only counts them."""
        members = Members(await read_object(request))
        wanted, dry_run = _to_purge(members, clock.now_ns()), members.flag("dry_run")
        members.done("nothing was purged")
        return answer(await desk.purge(wanted, dry_run=bool(dry_run)))


def _add_one(router: APIRouter, desk: SessionDesk) -> None:
    @router.get(
        "/sessions/{client_id:path}",
        operation_id="getSession",
        tags=_TAGS,
        summary="Show a session",
        **described(answer=Anything, problems=(404,)),
    )
    async def show(client_id: ClientIdPath) -> Response:
        """Returns the session with its subscriptions and the size of its queue."""
        return answer(desk.show(client_id))

    @router.delete(
        "/sessions/{client_id:path}",
        operation_id="deleteSession",
        tags=_TAGS,
        summary="Delete a session",
        **described(status=204, problems=(404,)),
    )
    async def delete(client_id: ClientIdPath) -> Response:
        """Deletes the session with its queued messages, and disconnects the client with reason code 0x98."""
        await desk.delete(client_id)
        return Response(status_code=204)


def _to_purge(members: Members, now_ns: int) -> Selection:
    """Sessions that are away; those of connected clients go only when asked for."""
    older_s = members.number("older_than_s", 0, 1 << 40)
    connected = members.flag("connected")
    return Selection(
        client_id=pattern_of(members.text("client_id")),
        username=pattern_of(members.text("username")),
        zone=pattern_of(members.text("zone")),
        is_connected=bool(connected),
        is_durable=members.flag("durable"),
        away_before_ns=None if older_s is None else now_ns - older_s * _NS,
        min_queued=members.number("min_queued", 0, 1 << 40),
        min_queue_bytes=members.number("min_queue_bytes", 0, 1 << 50),
    )
