"""Clients and what is kept for them: sessions, subscriptions, share groups, retained and delayed messages."""

from __future__ import annotations

from glob import escape
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query
from starlette.responses import Response

from broker.admin.clients import ClientService, ClientView, Subscribed, Unsubscribed
from broker.admin.delayed import MAX_LISTED, DelayedService, DelayedView
from broker.admin.listing import Selection
from broker.admin.retained import RetainedService, RetainedView
from broker.admin.sessions import MAX_TOP, SessionService, SessionView
from broker.admin.subscriptions import SubscriptionSelection, SubscriptionService
from broker.codec.packets import SubscriptionRequest
from broker.core import jsontext
from broker.core.clock import Clock
from broker.core.contributor import Contributors
from broker.core.errors import Invalid, Problem
from broker.core.objects import Reference, Spec
from ui.api.effects import DryRun, effect_of_verb
from ui.api.models.clients import (
    ClientPage,
    KickClients,
    Kicked,
    LongQueues,
    Purged,
    PurgeSessions,
    SessionPage,
    SubscribeClient,
    SubscriptionPage,
    UnsubscribeClient,
)
from ui.api.models.messages import Cleared, ClearRetained, DelayedPage, RetainedCount, RetainedPage
from ui.api.objects import Cursor, Limit
from ui.api.operation import Operations
from ui.api.parameters import decode_cursor, encode_cursor, named_values

_VERSIONS = {"3.1": 3, "3.1.1": 4, "5.0": 5}
_MOST_SIGNS = 256
_NS = 1_000_000_000

Pattern = Annotated[str | None, Query(description="As it is, or a pattern with `*`, `?` and `[abc]`.")]
Sort = Annotated[
    str,
    Query(
        description="`client_id`, `connected_at`, `queued`, `queue_bytes`, `inflight` or `subscriptions`; with `-` in "
        "front, descending."
    ),
]
ClientIdPath = Annotated[str, Path(description="The client identifier, percent-encoded.")]
DelayedId = Annotated[str, Path(min_length=1, max_length=64, description="Its `id` in the list.")]
Topic = Annotated[str, Query(description="The topic.")]


async def session_filter(
    client_id: Pattern = None,
    username: Pattern = None,
    address: Annotated[str | None, Query(description="The client's address without port, or a pattern.")] = None,
    listener: Annotated[str | None, Query(description="The listener it came through, or a pattern.")] = None,
    zone: Annotated[str | None, Query(description="The zone of that listener, or a pattern.")] = None,
    attribute: Annotated[
        list[str] | None,
        Query(description="`NAME=VALUE` of a client attribute, maybe a pattern; repeatable."),
    ] = None,
    connected: Annotated[bool | None, Query(description="Only those that are connected, or that are away.")] = None,
    durable: Annotated[bool | None, Query(description="Only those that are on disk, or in memory.")] = None,
    protocol: Annotated[Literal["3.1", "3.1.1", "5.0"] | None, Query(description="The version of MQTT.")] = None,
    min_queued: Annotated[int | None, Query(ge=0, description="At least so many messages wait.")] = None,
    min_queue_bytes: Annotated[int | None, Query(ge=0, description="At least so many bytes wait.")] = None,
) -> Selection:
    """The selection of query parameters."""
    return Selection(
        client_id=pattern_of(client_id),
        username=pattern_of(username),
        address=pattern_of(address),
        listener=pattern_of(listener),
        zone=pattern_of(zone),
        attributes={
            name: pattern_of(value) or "" for name, value in named_values(attribute or [], "attribute").items()
        },
        is_connected=connected,
        is_durable=durable,
        protocol_version=None if protocol is None else _VERSIONS[protocol],
        min_queued=min_queued,
        min_queue_bytes=min_queue_bytes,
    )


def pattern_of(text: str | None) -> str | None:
    """A pattern that can be matched quickly.

    Raises:
        Invalid: it is too long, or has so many stars that matching might take long.
    """
    if text is not None and (text.count("*") > 8 or ("*" in text and len(text) > _MOST_SIGNS)):
        raise Invalid("the pattern cannot be used", [Problem(f"at most 8 stars and {_MOST_SIGNS} characters")])
    return text


def _page(page: Spec, cursor: str | None) -> Spec:
    """A page of a service with this cursor of the next one."""
    return {**page, "next": cursor, "total_is_estimate": False}


def _add_list(
    ops: Operations, path: str, id: str, summary: str, text: str, answer: Any, service: ClientService | SessionService
) -> None:
    """Add the list of clients or sessions."""

    @ops.get(path, id, summary, description=text, answer=answer, problems=(422,))
    async def list_sessions(
        limit: Limit = 100,
        cursor: Cursor = None,
        sort: Sort = "client_id",
        wanted: Selection = Depends(session_filter),
    ) -> Spec:
        page = await service.page(wanted, sort, limit, decode_cursor(cursor) if cursor is not None else None)
        return _page(page, None if page["next"] is None else encode_cursor(*page["next"]))


def add_clients(router: APIRouter, service: ClientService, contributors: Contributors) -> None:
    """Add ``/clients`` and its verbs."""
    ops = Operations(router, "Clients")

    about = "Returns clients that are connected or have a session. Filters combine."
    _add_list(ops, "/clients", "listClients", "List clients", about, ClientPage, service)

    @ops.post("/clients:kick", "kickClients", "Disconnect clients", answer=Kicked, may_be_dry=True)
    async def kick(body: KickClients, dry_run: DryRun = False) -> Spec | Response:
        """Disconnects the clients with reason code 0x98. Their sessions expire as usual."""
        if dry_run:
            clients = Reference("client", ", ".join(body.client_ids))
            return await effect_of_verb(contributors, clients, "kick", client_ids=body.client_ids)
        return service.kick(body.client_ids)

    @ops.post("/clients:subscribe", "subscribeClient", "Subscribe a client", answer=Subscribed, problems=(404, 409))
    async def subscribe(body: SubscribeClient) -> Subscribed:
        """Adds subscriptions to a connected client, as if it had sent SUBSCRIBE."""
        requests = [
            SubscriptionRequest(one.filter, one.qos, one.no_local, one.retain_as_published, one.retain_handling)
            for one in body.subscriptions
        ]
        return await service.subscribe(body.client_id, requests, checks_rules=body.check_acl)

    @ops.post(
        "/clients:unsubscribe", "unsubscribeClient", "Unsubscribe a client", answer=Unsubscribed, problems=(404, 409)
    )
    async def unsubscribe(body: UnsubscribeClient) -> Unsubscribed:
        """Removes subscriptions of a connected client, as if it had sent UNSUBSCRIBE."""
        return await service.unsubscribe(body.client_id, body.filters)

    # Last: its path would match those of the others.
    @ops.get("/clients/{client_id:path}", "getClient", "Show a client", answer=ClientView, problems=(404,))
    def show(client_id: ClientIdPath) -> ClientView:
        """Returns the connection, its properties and its session."""
        return service.show(client_id)


def add_sessions(router: APIRouter, service: SessionService, clock: Clock, contributors: Contributors) -> None:
    """Add ``/sessions`` and its verbs."""
    ops = Operations(router, "Sessions")

    about = "Returns sessions of connected and disconnected clients. Filters combine."
    _add_list(ops, "/sessions", "listSessions", "List sessions", about, SessionPage, service)

    @ops.get(
        "/sessions:top",
        "topSessions",
        "List the sessions with the longest queues",
        answer=LongQueues,
        problems=(422,),
    )
    async def top(
        count: Annotated[int, Query(ge=1, le=MAX_TOP, description="How many.")] = 10,
        by: Annotated[Literal["messages", "bytes"], Query(description="What makes a queue long.")] = "messages",
    ) -> Spec:
        """Returns the sessions with the longest queues, in memory and on disk."""
        return await service.top(count, by)

    @ops.post("/sessions:purge", "purgeSessions", "Purge sessions", answer=Purged, may_be_dry=True)
    async def purge(body: PurgeSessions, dry_run: DryRun = False) -> Spec | Response:
        """Deletes all sessions that match, with their queued messages. `dry_run` of the body only counts them."""
        older_s = body.older_than_s
        wanted = Selection(
            client_id=pattern_of(body.client_id),
            username=pattern_of(body.username),
            zone=pattern_of(body.zone),
            is_connected=body.connected,
            is_durable=body.durable,
            away_before_ns=None if older_s is None else clock.now_ns() - older_s * _NS,
            min_queued=body.min_queued,
            min_queue_bytes=body.min_queue_bytes,
        )
        if dry_run:
            return await effect_of_verb(contributors, Reference("session", ""), "purge", selection=wanted)
        return await service.purge(wanted, dry_run=body.dry_run)

    @ops.get("/sessions/{client_id:path}", "getSession", "Show a session", answer=SessionView, problems=(404,))
    def show(client_id: ClientIdPath) -> SessionView:
        """Returns the session with its subscriptions and the size of its queue."""
        return service.show(client_id)

    @ops.delete("/sessions/{client_id:path}", "deleteSession", "Delete a session", problems=(404,), may_be_dry=True)
    async def delete(client_id: ClientIdPath, dry_run: DryRun = False) -> Response | None:
        """Deletes the session with its queued messages, and disconnects the client with reason code 0x98."""
        if dry_run:
            service.show(client_id)  # raises NotFound
            session = Reference("session", client_id)
            only = Selection(client_id=escape(client_id))
            return await effect_of_verb(contributors, session, "delete", selection=only)
        await service.delete(client_id)
        return None


def add_subscriptions(router: APIRouter, service: SubscriptionService) -> None:
    """Add ``/subscriptions``."""
    ops = Operations(router, "Subscriptions")

    @ops.get("/subscriptions", "listSubscriptions", "List subscriptions", answer=SubscriptionPage, problems=(422,))
    async def list_subscriptions(
        limit: Limit = 100,
        cursor: Cursor = None,
        client_id: Annotated[str | None, Query(description="The client identifier.")] = None,
        filter: Annotated[str | None, Query(description="The filter, as it was subscribed.")] = None,
        match: Annotated[str | None, Query(description="A topic: only subscriptions that match it.")] = None,
        share_group: Annotated[str | None, Query(description="The name of a share group.")] = None,
        durable: Annotated[bool | None, Query(description="Only of sessions that are on disk.")] = None,
        qos: Annotated[int | None, Query(ge=0, le=2, description="The granted QoS.")] = None,
    ) -> Spec:
        """Returns subscriptions by client and filter. `match` finds those that receive a topic."""
        wanted = SubscriptionSelection(client_id, filter, match, share_group, durable, qos)
        page = await service.page(wanted, limit, None if cursor is None else _subscription_after(cursor))
        following = page["next"]
        return _page(page, None if following is None else encode_cursor(0, jsontext.encode(list(following)).decode()))


def _subscription_after(cursor: str) -> tuple[str, str]:
    _, text = decode_cursor(cursor)
    try:
        client_id, topic_filter = jsontext.decode(text.encode())
    except (jsontext.JsonError, ValueError, TypeError):
        client_id = topic_filter = None
    if not isinstance(client_id, str) or not isinstance(topic_filter, str):
        wrong = Problem("expected `next` of an earlier answer", "/query/cursor")
        raise Invalid("the parameter 'cursor' cannot be used", [wrong])
    return client_id, topic_filter


def add_retained(router: APIRouter, service: RetainedService, contributors: Contributors) -> None:
    """Add ``/retained`` and its verbs."""
    ops = Operations(router, "Retained")

    @ops.get("/retained", "listRetained", "List retained messages", answer=RetainedPage, problems=(422,))
    async def list_retained(
        filter: Annotated[str, Query(description="A topic filter.")] = "#", limit: Limit = 100, cursor: Cursor = None
    ) -> Spec:
        """Returns retained messages by topic. Long payloads are cut."""
        page = await service.page(filter, limit, None if cursor is None else decode_cursor(cursor)[1])
        return _page(page, None if page["next"] is None else encode_cursor(0, page["next"]))

    @ops.get("/retained:count", "countRetained", "Count retained messages", answer=RetainedCount)
    def count() -> Spec:
        """Returns the number of retained messages and their size."""
        return service.count()

    @ops.get("/retained:message", "getRetained", "Show a retained message", answer=RetainedView, problems=(404,))
    def show(topic: Topic) -> RetainedView:
        """Returns the retained message of one topic, with its whole payload."""
        return service.get(topic)

    async def effect(topic_filter: str, only_expired: bool = False) -> Response:
        messages = Reference("retained message", topic_filter)
        options = {"only_expired": only_expired}
        return await effect_of_verb(contributors, messages, "clear", filter=topic_filter, **options)

    @ops.delete("/retained:message", "deleteRetained", "Delete a retained message", problems=(404,), may_be_dry=True)
    async def delete(topic: Topic, dry_run: DryRun = False) -> Response | None:
        """Deletes the retained message of one topic."""
        if dry_run:
            service.get(topic)  # raises NotFound
            return await effect(topic)
        await service.delete(topic)
        return None

    @ops.post("/retained:clear", "clearRetained", "Clear retained messages", answer=Cleared, may_be_dry=True)
    async def clear(body: ClearRetained, dry_run: DryRun = False) -> Spec | Response:
        """Deletes the retained messages whose topics match a filter. `dry_run` of the body only counts them."""
        if dry_run:
            return await effect(body.filter, body.only_expired)
        return await service.clear(body.filter, only_expired=body.only_expired, dry_run=body.dry_run)


def add_delayed(router: APIRouter, delayed: DelayedService, contributors: Contributors) -> None:
    """Add ``/delayed``."""
    ops = Operations(router, "Delayed")

    @ops.get("/delayed", "listDelayed", "List delayed messages", answer=DelayedPage, problems=(422,))
    def list_delayed(
        limit: Annotated[int, Query(ge=1, le=MAX_LISTED, description="Maximum number of items in the answer.")] = 100,
        cursor: Annotated[str | None, Query(max_length=64, description="`next` of the previous page.")] = None,
    ) -> Spec:
        """Returns delayed messages without payloads, those due first come first."""
        return delayed.list(limit, cursor)

    @ops.get("/delayed/{id}", "getDelayed", "Show a delayed message", answer=DelayedView, problems=(404, 422))
    def get_delayed(id: DelayedId) -> DelayedView:
        """Returns the message with its payload."""
        return delayed.get(id)

    @ops.delete("/delayed/{id}", "deleteDelayed", "Delete a delayed message", problems=(404, 422), may_be_dry=True)
    async def delete_delayed(id: DelayedId, dry_run: DryRun = False) -> Response | None:
        """The message will not be published."""
        if dry_run:
            return await effect_of_verb(contributors, Reference("delayed message", id), "delete")
        delayed.delete(id)
        return None
