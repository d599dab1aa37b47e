"""Clients: list, show, disconnect, subscribe and unsubscribe for them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from broker.admin.clients import ClientDesk
from broker.admin.listing import Selection
from broker.codec.packets import SubscriptionRequest
from broker.core.errors import Problem
from ui.api.members import Members
from ui.api.models.clients import KickClients, SubscribeClient, Subscribed, UnsubscribeClient
from ui.api.models.shapes import Anything, Page
from ui.api.objects import Cursor, Limit
from ui.api.operation import described
from ui.api.parameters import decode_cursor
from ui.api.selections import session_filter, with_cursor
from ui.api.sessions import ClientIdPath
from ui.api.wire import answer, read_object

_TAGS: list[Any] = ["Clients"]


def add_clients(router: APIRouter, desk: ClientDesk) -> None:
    """Add ``/clients`` and its verbs."""
    _add_list(router, desk)
    _add_kick(router, desk)
    _add_subscribing(router, desk)
    _add_show(router, desk)


def _add_list(router: APIRouter, desk: ClientDesk) -> None:
    @router.get(
        "/clients",
        operation_id="listClients",
        tags=_TAGS,
        summary="List clients",
        **described(answer=Page, problems=(422,)),
    )
    async def list_clients(
        limit: Limit = 100,
        cursor: Cursor = None,
        sort: Annotated[
            str,
            Query(
                description="`client_id`, `connected_at`, `queued`, `queue_bytes`, `inflight` or `subscriptions`; with "
                "`-` in front, falling."
            ),
        ] = "client_id",
        wanted: Selection = Depends(session_filter),  # noqa: B008 # the way FastAPI wants it
    ) -> Response:
        """Returns clients that are connected or have a session. Filters combine."""
        after = decode_cursor(cursor) if cursor is not None else None
        return answer(with_cursor(await desk.page(wanted, sort, limit, after)))


def _add_kick(router: APIRouter, desk: ClientDesk) -> None:
    @router.post(
        "/clients:kick",
        operation_id="kickClients",
        tags=_TAGS,
        summary="Disconnect clients",
        **described(body=KickClients, answer=Anything),
    )
    async def kick(request: Request) -> Response:
        """Disconnects the clients with reason code 0x98. Their sessions expire as usual."""
        members = Members(await read_object(request))
        client_ids = members.texts("client_ids")
        members.done("nobody was disconnected")
        return answer(desk.kick(client_ids))


def _add_subscribing(router: APIRouter, desk: ClientDesk) -> None:
    @router.post(
        "/clients:subscribe",
        operation_id="subscribeClient",
        tags=_TAGS,
        summary="Subscribe a client",
        **described(body=SubscribeClient, answer=Subscribed, problems=(404, 409)),
    )
    async def subscribe(request: Request) -> Response:
        """Adds subscriptions to a connected client, as if it had sent SUBSCRIBE."""
        members = Members(await read_object(request))
        client_id, items = members.needed_text("client_id"), members.objects("subscriptions")
        requests = [
            SubscriptionRequest(
                item.needed_text("filter"),
                item.number("qos", 0, 2) or 0,
                bool(item.flag("no_local")),
                bool(item.flag("retain_as_published")),
                item.number("retain_handling", 0, 2) or 0,
            )
            for item in items
        ]
        checks_rules = members.flag("check_acl")
        if not items and not members.problems:
            members.problems.append(Problem("expected at least one filter", "/subscriptions"))
        members.done("nothing was subscribed", *items)
        return answer(await desk.subscribe(client_id, requests, checks_rules=checks_rules is not False))

    @router.post(
        "/clients:unsubscribe",
        operation_id="unsubscribeClient",
        tags=_TAGS,
        summary="Unsubscribe a client",
        **described(body=UnsubscribeClient, answer=Anything, problems=(404, 409)),
    )
    async def unsubscribe(request: Request) -> Response:
        """Removes subscriptions of a connected client, as if it had sent UNSUBSCRIBE."""
        members = Members(await read_object(request))
        client_id, filters = members.needed_text("client_id"), members.texts("filters")
        members.done("nothing was unsubscribed")
        return answer(await desk.unsubscribe(client_id, filters))


def _add_show(router: APIRouter, desk: ClientDesk) -> None:
    """Comes last: its path would take the others'."""

    @router.get(
        "/clients/{client_id:path}",
        operation_id="getClient",
        tags=_TAGS,
        summary="Show a client",
        **described(answer=Anything, problems=(404,)),
    )
    async def show(client_id: ClientIdPath) -> Response:
        """Returns the connection, its properties and its session."""
        return answer(desk.show(client_id))
