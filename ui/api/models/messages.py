"""Messages to publish."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, SkipValidation

from ui.api.models.shapes import Body


class EncodedPayload(BaseModel, extra="forbid"):
    """A payload with its encoding."""

    encoding: Literal["utf8", "base64", "json"] = "utf8"
    data: Any


class PublishRequest(Body):
    """A message to publish, as a client would."""

    topic: str = Field(examples=["meters/1/telemetry"])
    payload: Annotated[str | EncodedPayload, SkipValidation] = ""  # checked where it is decoded
    qos: int = Field(default=0, ge=0, le=2)
    retain: bool = False
    user_properties: list[Annotated[list[str], Field(min_length=2, max_length=2)]] = Field(
        default=[], description="Pairs of name and value."
    )
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: str | None = Field(default=None, description="As text in UTF-8.")
    message_expiry_interval: int | None = Field(
        default=None, ge=0, le=0xFFFFFFFF, description="Seconds."
    )
    payload_format_indicator: int | None = Field(default=None, ge=0, le=1)
    check_acl: bool = Field(
        default=False,
        description="Whether access rules apply, to the client `sluice-api` of the listener `api`.",
    )


class Published(BaseModel):
    """Outcome of a message that was not refused: the number of receivers, and whether it was retained.

    With QoS 1 and 2 the answer comes once it is stored for all that are to get it later.
    """

    receivers: int
    outcome: Literal["delivered", "no_subscribers"]
    retained: bool
