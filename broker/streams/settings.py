"""Settings of streams (section ``stream_defaults``), and the specification of one stream."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from broker.config.model import Settings
from broker.config.units import Duration, Size
from broker.core.errors import PeerError
from broker.core.topic import TopicFilter

_NAME: Final = re.compile(r"[0-9A-Za-z][-0-9A-Za-z_.]*", re.ASCII)
MAX_NAME: Final = 200
MAX_SHARDS: Final = 64


def check_name(name: str) -> str:
    """A stream's name, unchanged.

    Raises:
        ValueError: it is not one; says what is.
    """
    if len(name) > MAX_NAME or _NAME.fullmatch(name) is None:
        raise ValueError(
            f"a stream's name has up to {MAX_NAME} letters, digits, '-', '_' and '.', and begins with a letter or digit"
        )
    return name


def _check_filter(text: str) -> str:
    try:
        parsed = TopicFilter.parse(text)
    except PeerError as error:
        raise ValueError(str(error)) from error
    if parsed.share_group is not None:
        raise ValueError(f"topic filter {text!r}: a stream captures every message, so it takes no $share/ filter")
    return text


class Retention(Settings):
    """How long records are kept: until they are older than ``age``, or the stream is larger than ``bytes``."""

    age: Duration = Field(
        default=7 * 86400.0,
        gt=0,
        description="Maximum age of records since they were published; 'infinity' keeps all.",
    )
    bytes: Size = Field(
        default=10 * 1024**3,
        ge=1024 * 1024,
        description="Maximum size of a stream before compression; the oldest frames are deleted.",
    )


class StreamSettings(Settings):
    """What streams have that do not say otherwise, and how the work on them is paced."""

    retention: Retention = Field(default=Retention(), description="How long records are kept.")
    retention_interval: Duration = Field(
        default=30.0, ge=0.1, description="Interval between checks for records that are too old or too many."
    )
    sealing_interval: Duration = Field(default=1.0, ge=0.05, description="Interval between merges of small frames.")


class StreamSpec(Settings):
    """A stream as people describe it."""

    name: Annotated[str, AfterValidator(check_name)]
    description: str = Field(default="", max_length=2000)
    topics: list[Annotated[str, AfterValidator(_check_filter)]] = Field(
        default=[],
        max_length=1000,
        description="Filters of the messages to capture; without any, the stream holds rows that rules write.",
    )
    retention: Retention = Field(default=Retention())
    shards: int = Field(
        default=1, ge=1, le=MAX_SHARDS, description="Number of shards; fixed once the stream is created."
    )

    @property
    def kind(self) -> str:
        """``topics`` or ``rows``."""
        return "topics" if self.topics else "rows"
