"""Topics: their tree, tails, and the latest messages."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, RootModel

from broker.admin.tails import RefusalView, TailedMessage, TailStatus
from broker.admin.topics import TopicRest, TopicRow
from ui.api.models.gates import TestMessage
from ui.api.models.messages import EncodedPayload
from ui.api.models.shapes import Page


class TopicPage(Page[TopicRow]):
    """A page of the levels right below a level, `under`, or of all topics below it that match.

    The numbers of `under` are those of its own topic, of all its levels and of `rest`. `is_sampled` means that counts
    and rates are estimates from a sample, since too much was published to count all of it.
    """

    under: TopicRow
    rest: TopicRest
    counting_since: str
    is_sampled: bool


class TailLine(RootModel[TailedMessage | TailStatus]):
    """One line of a tail."""


class MessageEvent(BaseModel):
    """The columns of a message as rules read them."""

    id: str
    clientid: str
    username: str | None = None
    peerhost: str | None = None
    peername: str | None = None
    topic: str
    payload: EncodedPayload
    qos: int
    flags: dict[str, bool]
    pub_props: dict[str, Any]
    publish_received_at: int


class LatestMessage(BaseModel):
    """A message as trials take it: `message` as published, `event` as validations and transformations left it, which is
    what rules see. Streams and retained messages are kept as they were left. `stream` names the stream that it was read
    from; `refusal` says what stopped it, and no rule sees it then."""

    at: str
    source: Literal["stream", "retained", "live"]
    stream: str | None
    refusal: RefusalView | None
    message: TestMessage
    event: MessageEvent


class LatestMessages(BaseModel):
    """Messages, newest first."""

    items: list[LatestMessage]
