"""Clients, their subscriptions and sessions."""

from __future__ import annotations

from pydantic import BaseModel, Field

from broker.admin.clients import ClientRow
from broker.admin.session_rows import SessionRow, SubscriptionRow
from broker.admin.sessions import LongQueue
from ui.api.models.shapes import Body, Page


class ClientPage(Page[ClientRow]):
    """A page of clients."""


class SessionPage(Page[SessionRow]):
    """A page of sessions."""


class SubscriptionPage(Page[SubscriptionRow]):
    """A page of subscriptions."""


class LongQueues(Page[LongQueue]):
    """The sessions with the longest queues, longest first."""


class KickClients(Body):
    """The identifiers of the clients to disconnect."""

    client_ids: list[str]


class Kicked(BaseModel):
    """How many clients were disconnected, and which of them were not connected."""

    kicked: int
    not_connected: list[str]


class SubscriptionOptions(Body):
    """A topic filter, or ``$share/GROUP/FILTER``, and the options of the subscription."""

    filter: str
    qos: int = Field(default=0, ge=0, le=2)
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = Field(default=0, ge=0, le=2)


class SubscribeClient(Body):
    """Which client to subscribe to what."""

    client_id: str
    subscriptions: list[SubscriptionOptions] = Field(min_length=1)
    check_acl: bool = Field(default=True, description="Whether the client's access rules apply.")


class UnsubscribeClient(Body):
    """Which subscriptions of which client to end, by their filters."""

    client_id: str
    filters: list[str]


class PurgeSessions(Body):
    """Which sessions to delete. Without ``connected`` those whose client is away; what is left out does not matter."""

    client_id: str | None = Field(default=None, description="An identifier, or a pattern with `*`, `?` and `[abc]`.")
    username: str | None = Field(default=None, description="A user name, or a pattern.")
    zone: str | None = Field(default=None, description="A zone, or a pattern.")
    older_than_s: int | None = Field(default=None, ge=0, le=1 << 40, description="Away for at least this many seconds.")
    durable: bool | None = None
    connected: bool = Field(default=False, description="Sessions of connected clients, which are disconnected (0x98).")
    min_queued: int | None = Field(default=None, ge=0)
    min_queue_bytes: int | None = Field(default=None, ge=0)
    dry_run: bool = False


class Purged(BaseModel):
    """What was purged, or would be: counts, what waited for the sessions, and some of their identifiers."""

    sessions: int
    subscriptions: int
    inflight: int
    queued: int
    queued_bytes: int
    samples: list[str]
    dry_run: bool
