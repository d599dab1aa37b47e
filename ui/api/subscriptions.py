"""Subscriptions: by client, by filter, by a topic that they match."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from broker.admin.subscriptions import SubscriptionDesk, SubscriptionSelection
from broker.core import jsontext
from broker.core.errors import Invalid, Problem
from ui.api.models.shapes import Page
from ui.api.objects import Cursor, Limit
from ui.api.operation import described
from ui.api.parameters import decode_cursor, encode_cursor
from ui.api.wire import answer


def add_subscriptions(router: APIRouter, desk: SubscriptionDesk) -> None:
    """Add ``/subscriptions``."""

    @router.get(
        "/subscriptions",
        operation_id="listSubscriptions",
        tags=["Subscriptions"],
        summary="List subscriptions",
        **described(answer=Page, problems=(422,)),
    )
    async def list_subscriptions(
        limit: Limit = 100,
        cursor: Cursor = None,
        client_id: Annotated[str | None, Query(description="The client identifier.")] = None,
        filter: Annotated[str | None, Query(description="The filter, as it was subscribed.")] = None,
        match: Annotated[str | None, Query(description="A topic: only subscriptions that match it.")] = None,
        share_group: Annotated[str | None, Query(description="The name of a share group.")] = None,
        durable: Annotated[bool | None, Query(description="Only of sessions that are on disk.")] = None,
        qos: Annotated[int | None, Query(ge=0, le=2, description="The granted QoS.")] = None,
    ) -> Response:
        """Returns subscriptions by client and filter. `match` finds those that receive a topic."""
        wanted = SubscriptionSelection(client_id, filter, match, share_group, durable, qos)
        page = await desk.page(wanted, limit, None if cursor is None else _decoded(cursor))
        following = page["next"]
        shown = None if following is None else encode_cursor(0, jsontext.encode(list(following)).decode())
        return answer({**page, "next": shown, "total_is_estimate": False})


def _decoded(cursor: str) -> tuple[str, str]:
    _, text = decode_cursor(cursor)
    try:
        client_id, topic_filter = jsontext.decode(text.encode())
    except (jsontext.JsonError, ValueError, TypeError):
        client_id = topic_filter = None
    if not isinstance(client_id, str) or not isinstance(topic_filter, str):
        wrong = Problem("it is not the 'next' of an earlier answer", "/query/cursor")
        raise Invalid("the parameter 'cursor' cannot be used", [wrong])
    return client_id, topic_filter
