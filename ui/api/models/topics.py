"""Topics: their tree, tails, and the latest messages."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, RootModel

from broker.admin.tails import TailedMessage, TailStatus
from broker.admin.topics import TopicRest, TopicRow
from ui.api.models.gates import TestMessage
from ui.api.models.shapes import Page


class TopicPage(Page[TopicRow]):
    """A page of the levels right below a level, `under`, or of all topics below it that match.

    The numbers of `under` are those of its own topic, of all its levels and of `rest`. `is_sampled` means that so much
    was published that counts and rates are estimates from a sample.
    """

    under: TopicRow
    rest: TopicRest
    counting_since: str
    is_sampled: bool


class TailLine(RootModel[TailedMessage | TailStatus]):
    """One line of a tail."""


class LatestMessage(BaseModel):
    """A message as trials take it. `stream` names the stream that it was read from."""

    at: str
    source: Literal["stream", "retained", "live"]
    stream: str | None
    message: TestMessage
    event: dict[str, Any]


class LatestMessages(BaseModel):
    """Messages, newest first."""

    items: list[LatestMessage]
