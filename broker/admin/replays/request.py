"""The request for a replay of a stream, its plan, and its report."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from typing_extensions import TypedDict

from broker.config.places import Place
from broker.core.errors import PeerError
from broker.core.topic import TopicFilter

MQTT: Final = "mqtt"
STREAM_PREFIX: Final = "stream:"
TOPIC_AS_IT_WAS: Final = "${topic}"
MAX_RATE: Final = 1_000_000


def _checked_target(text: str) -> str:
    kind, colon, name = text.partition(":")
    if text != MQTT and not (kind and colon and name):
        raise ValueError(
            f"expected {MQTT!r}, 'stream:NAME', or an action as 'TYPE:NAME', got {text!r}"
        )
    return text


def _checked_filter(text: str) -> str:
    try:
        TopicFilter.parse(text)
    except PeerError as error:
        raise ValueError(str(error)) from error
    return text


class StreamReplayRequest(BaseModel):
    """Records of a stream to send again, their target, and the rate.

    ``from`` is the first offset or a time, ``until`` the offset after the last or a time; offsets may be given by
    shard, as ``{"0": 100}`` or ``0:100``, other shards are left out. Without them all that the stream has now.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    to: Annotated[str, AfterValidator(_checked_target)] = Field(
        description="`mqtt` publishes on topics of this broker, `stream:NAME` appends to another stream, and "
        "`TYPE:NAME`, as `kafka:orders`, writes rows to an action.",
        examples=["mqtt", "stream:copy", "kafka:orders"],
    )
    start: Place | None = Field(None, alias="from")
    until: Place | None = None
    filter: Annotated[str, AfterValidator(_checked_filter)] | None = Field(
        None, description="Topic filter: only records with such topics."
    )
    rule: str | None = Field(
        None,
        description="Rule to run on each message; its rows are sent in place of the messages. Its actions do not run.",
    )
    rate: int | None = Field(
        1000,
        ge=1,
        le=MAX_RATE,
        description="Maximum messages or rows per second. Null means no limit.",
    )
    topic: str = Field(
        TOPIC_AS_IT_WAS,
        min_length=1,
        max_length=65_535,
        description="With `to: mqtt`: the topic of each message, a template over its columns, as `replay/${topic}`.",
    )
    retain: bool = Field(
        False, description="With `to: mqtt`: whether messages keep their retain flag."
    )

    @field_validator("topic", "retain")
    @classmethod
    def _check_of_topics(cls, value: Any, info: ValidationInfo) -> Any:
        if value not in (TOPIC_AS_IT_WAS, False) and info.data.get("to", MQTT) != MQTT:
            raise ValueError(f"only a replay to {MQTT!r} publishes on topics")
        return value


class ReplayRange(TypedDict):
    """Offsets of a shard, ``start`` up to, not including, ``end``."""

    shard: int
    start: str
    end: str


class ReplaySample(TypedDict):
    """One of the first records, and what is sent for it: the topic and the row, null if none is sent."""

    shard: int
    offset: str
    at: str
    topic: str | None
    row: dict[str, Any] | None


class StreamReplayPlan(TypedDict):
    """Plan of a replay. ``records`` are in its ranges, ``matched`` of them have the topics, ``bytes`` are their
    payloads; both are estimates where ``is_estimate``. ``seconds`` is the shortest time that the rate permits, null
    without a rate. ``notes`` say what else the replay would lead to."""

    stream: str
    to: str
    ranges: list[ReplayRange]
    records: int
    matched: int
    bytes: int
    is_estimate: bool
    oldest: str | None
    newest: str | None
    rate: int | None
    seconds: float | None
    samples: list[ReplaySample]
    notes: list[str]


class ReplayProblem(TypedDict):
    """A record that was not sent, and why."""

    shard: int
    offset: str
    reason: str


class StreamReplayReport(TypedDict):
    """Results of a replay: ``records`` of its ranges are over, of which ``expired`` were removed by retention before
    they
    were read, ``skipped`` have other topics or gave no row, and ``errors`` made the rule fail. ``sent`` are messages or
    rows, ``refused`` those that a stage stopped, ``failed`` those that the action discarded; ``problems`` are the first
    of them. ``resumed`` is how often it was continued: where the broker was killed, records may have been sent twice.
    """

    stream: str
    to: str
    records: int
    expired: int
    skipped: int
    errors: int
    sent: int
    refused: int
    failed: int
    resumed: int
    problems: list[ReplayProblem]


ReplayState = Literal["running", "paused", "done", "failed", "cancelled"]
