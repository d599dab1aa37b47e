"""Members that validations and transformations have in common; their names are those EMQX users know."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from broker.config.model import Settings
from broker.config.names import ObjectName, repeated
from broker.core.errors import PeerError
from broker.core.topic import TopicFilter

# Members of a shown object that are left out when it is sent back.
READ_ONLY = frozenset({"metrics", "recent_failures", "failure_shapes"})


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class LogFailure(Settings):
    """Level at which a failure is logged."""

    level: Literal["error", "warning", "notice", "info", "debug", "none"] = "info"


class GateSpec(Settings):
    """Selection of messages, and treatment of those that fail.

    In ``shadow`` mode failures are counted and reported, and the message passes as it was. ``quarantine`` names a
    stream of rows that keeps the messages it stops.
    """

    name: ObjectName
    topics: Annotated[list[str], BeforeValidator(_listed)]
    failure_action: Literal["drop", "disconnect", "ignore"]
    log_failure: LogFailure = LogFailure()
    mode: Literal["enforce", "shadow"] = "enforce"
    quarantine: str | None = Field(default=None, min_length=1)
    enable: bool = True
    description: str = ""
    tags: list[str] = Field(default_factory=list)

    @field_validator("topics")
    @classmethod
    def _topics(cls, value: list[str]) -> list[str]:
        """Require at least one filter, valid filters only, and no duplicates."""
        if not value:
            raise ValueError("at least one topic filter is needed")
        if doubled := repeated(value):
            raise ValueError(f"duplicated topics: {', '.join(doubled)}")
        for topic in value:
            _check_filter(topic)
        return value

    @model_validator(mode="after")
    def _stops_something(self) -> GateSpec:
        if self.quarantine is not None and self.failure_action == "ignore":
            raise ValueError(
                "quarantine keeps messages that are stopped, and failure_action 'ignore' stops none"
            )
        return self

    @property
    def effective_action(self) -> str:
        """Treatment of a message that fails: ``drop``, ``disconnect``, ``ignore``, or ``shadow``."""
        return "shadow" if self.mode == "shadow" else self.failure_action

    @property
    def stops(self) -> bool:
        """True if a message that fails is stopped."""
        return self.effective_action in ("drop", "disconnect")


def _check_filter(topic: str) -> None:
    try:
        parsed = TopicFilter.parse(topic)
    except PeerError as error:
        raise ValueError(str(error)) from None
    if parsed.share_group is not None:
        raise ValueError(f"topic filter {topic!r}: shared subscriptions have no meaning here")
