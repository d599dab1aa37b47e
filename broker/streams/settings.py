"""Settings of streams (section ``stream_defaults``) and of the range server, and the specification of one stream."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator, model_validator

from broker.config.model import Settings
from broker.config.units import Duration, Size
from broker.core.errors import PeerError
from broker.core.hosts import address_text, checked_address, is_loopback, split_address
from broker.core.topic import TopicFilter

_NAME: Final = re.compile(r"[0-9A-Za-z][-0-9A-Za-z_.]*", re.ASCII)
MAX_NAME: Final = 200
MAX_SHARDS: Final = 64
# Part of its limit that what is kept for readers takes when an alarm is raised.
UNREAD_ALARM: Final = 0.8


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
        raise ValueError(
            f"topic filter {text!r}: a stream captures every message, so it takes no $share/ filter"
        )
    return text


class Retention(Settings):
    """Retention of records in the data directory: until they are older than ``age``, or the stream is larger than
    ``bytes``. Records that wait for their tier, or for a table to read them, are not deleted for their age."""

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


class TierSettings(Settings):
    """Object store that keeps the records of a stream besides the data directory, as segments."""

    url: str = Field(
        default="",
        description="Where segments are: `s3://BUCKET/...`, `gs://...` or `abfss://...` in one of `lake.stores`, or an "
        "absolute path of a directory. It cannot change while segments are there.",
    )
    after: Duration = Field(
        default=600.0,
        ge=1.0,
        description="Maximum time that records wait to be uploaded; 16 MiB of records are uploaded at once.",
    )
    retention: Duration = Field(
        default=float("inf"),
        gt=0,
        description="Maximum age of records in the tier; 'infinity' keeps all. `retention` of the stream is for the "
        "data directory.",
    )
    unread_bytes: Size = Field(
        default=10 * 1024**3,
        ge=1024 * 1024,
        description="Maximum size of older segments that are kept because a table has not read them; the oldest are "
        "deleted.",
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        if "://" not in value and not value.startswith("/"):
            raise ValueError(
                f"expected s3://..., gs://..., abfss://... or an absolute path, got {value!r}"
            )
        return value.rstrip("/")


class StreamSettings(Settings):
    """Defaults of streams, and the pace of background work on them."""

    retention: Retention = Field(default=Retention(), description="How long records are kept.")
    retention_interval: Duration = Field(
        default=30.0,
        ge=0.1,
        description="Interval between checks for records that are too old or too many.",
    )
    sealing_interval: Duration = Field(
        default=1.0, ge=0.05, description="Interval between merges of small frames."
    )


class RangeServerSettings(Settings):
    """Section ``range_server``: the process that serves records of streams to Spark and other readers."""

    bind: str = Field(
        default="127.0.0.1:0", description="Address and port of the range server; port 0 takes any."
    )
    advertised_url: str | None = Field(
        default=None,
        pattern="^https?://[^/?#]+/?$",
        description="URL at which readers reach it, as `https://broker.example:18084`. Default: `bind`.",
    )
    certfile: str | None = Field(
        default=None,
        description="Server certificate and its chain, PEM; with it, the range server speaks HTTPS.",
    )
    keyfile: str | None = Field(default=None, description="Private key of `certfile`, PEM.")
    allow_clear_text: bool = Field(
        default=False,
        description="Whether `bind` may be an address that other machines reach without `certfile`. Records and "
        "tickets then travel unencrypted.",
    )

    index_delay: Duration = Field(
        default=60.0,
        gt=0,
        description="Maximum time that records of streams with `index = topic` wait to be indexed; many records are "
        "indexed at once.",
    )

    @field_validator("bind")
    @classmethod
    def _check_bind(cls, value: str) -> str:
        return checked_address(value, "127.0.0.1:18084")

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        host, _ = self.address
        if (self.certfile is None) is not (self.keyfile is None):
            raise ValueError("expected certfile and keyfile, or neither")
        if not (is_loopback(host) or self.certfile or self.allow_clear_text):
            raise ValueError(
                f"expected certfile and keyfile for bind = {self.bind!r}, which other machines reach. Try: add them, "
                "or set range_server.allow_clear_text = true"
            )
        if host in ("0.0.0.0", "::") and self.advertised_url is None:
            raise ValueError(
                f"expected advertised_url with bind = {self.bind!r}, which is not an address to connect to"
            )
        return self

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return split_address(self.bind)

    def for_guest(self) -> Self:
        """The settings of a cell of another machine, whose range server takes any port, since the one here is that of a
        cell at home. Readers reach it at the same host: the port 0 of ``advertised_url`` is the one that it takes."""
        update: dict[str, Any] = {"bind": address_text(self.address[0], 0)}
        if self.advertised_url is not None:
            url = urlsplit(self.advertised_url)
            update["advertised_url"] = f"{url.scheme}://{address_text(url.hostname or '', 0)}"
        return self.model_copy(update=update)


class StreamSpec(Settings):
    """A stream in the configuration."""

    name: Annotated[str, AfterValidator(check_name)]
    description: str = Field(default="", max_length=2000)
    topics: list[Annotated[str, AfterValidator(_check_filter)]] = Field(
        default=[],
        max_length=1000,
        description="Filters of the messages to capture; without any, the stream holds rows that rules write.",
    )
    retention: Retention = Field(default=Retention())
    shards: int = Field(
        default=1,
        ge=1,
        le=MAX_SHARDS,
        description="Number of shards; fixed once the stream is created.",
    )

    index: Literal["none", "topic"] = Field(
        default="none",
        description="`topic` keeps a second copy of the records that is arranged by topic, so that reads with a topic "
        "filter read only about the records that match.",
    )

    tier: TierSettings | None = Field(
        default=None,
        description="An object store that segments of the stream are uploaded to and read from, for longer retention.",
    )

    @property
    def kind(self) -> str:
        """``topics`` or ``rows``."""
        return "topics" if self.topics else "rows"
