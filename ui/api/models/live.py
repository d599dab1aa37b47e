"""The frames of the live channel, and what its channels show."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, Field, RootModel

from broker.admin.tails import MAX_MESSAGES, TailedMessage
from broker.observe.alarms import Severity
from ui.api.models.jobs import Job
from ui.api.models.shapes import Body

# Per second; a frame has those of half a second.
MAX_TAIL_BYTES: Final = 256 * 1024
# Maximum rows of a window of a list.
MAX_ROWS: Final = 200
Id = Annotated[str, Field(min_length=1, max_length=200)]


class LiveSubscribe(Body):
    """A client subscribes to a channel. ``id`` is its own name for the subscription, ``ch`` of the frames. ``after`` is
    the last ``seq`` that it has from before a disconnect: it gets what it missed, or a snapshot."""

    kind: Literal["subscribe"]
    id: Id
    channel: str
    parameters: dict[str, Any] = Field(default_factory=dict)
    after: int | None = None


class LiveUnsubscribe(Body):
    """A client ends a subscription."""

    kind: Literal["unsubscribe"]
    id: Id


class LiveFrame(BaseModel):
    """A frame that the server sends. ``ch`` is the ``id`` of the subscription, null for an error that belongs to none;
    ``t`` is RFC 3339 in UTC.

    ``data`` of a snapshot is all that the channel shows. Of a delta it is the members that changed since the frame
    with the previous ``seq``: each with its new value, null for one that is gone. Of ``skipped`` it is ``LiveSkipped``,
    and a snapshot follows; of ``error`` it is ``LiveError``.
    """

    ch: str | None
    seq: int
    t: str
    kind: Literal["snapshot", "delta", "skipped", "error"]
    data: dict[str, Any]


class LiveSkipped(BaseModel):
    """``count`` deltas were left out, since the client read too slowly."""

    count: int


class LiveError(BaseModel):
    """``detail`` is a sentence; ``code`` is stable, as in problem documents. The subscription ends, the connection
    does not."""

    code: str
    detail: str


class NoParameters(Body):
    """A channel without parameters."""


class MetricsParameters(Body):
    """``names`` of metrics; all of the history if empty."""

    names: Annotated[
        list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
    ] = Field(default_factory=list)


class LiveValue(BaseModel):
    """A series in the last second: a counter per second, a gauge as it is."""

    labels: dict[str, str]
    value: float


class LiveMetrics(RootModel[dict[str, list[LiveValue]]]):
    """The series of each metric, by its name."""


class LiveAlarm(BaseModel):
    """An active alarm: ``message`` in a sentence, ``details`` in numbers. ``page`` is the page of the dashboard about
    it."""

    severity: Severity
    message: str
    advice: str
    page: str | None
    details: dict[str, Any]
    activated_at: str
    acknowledged_by: str | None
    note: str


class LiveAlarms(RootModel[dict[str, LiveAlarm]]):
    """The active alarms, by name."""


class ListParameters(Body):
    """``kind`` is the path of a kind of objects below ``/api/v1/``, such as ``rules`` or ``lake/tables``. ``filters``
    are query parameters of its list, as ``{"like_name": "hot"}``. There are ``limit`` rows from ``position`` on."""

    kind: str
    filters: dict[str, Any] = Field(default_factory=dict)
    position: int = Field(default=0, ge=0, strict=False)
    limit: int = Field(default=100, ge=1, le=MAX_ROWS, strict=False)


class LiveRow(BaseModel):
    """An object of a list. ``position`` counts from 0. ``etag`` changes whenever the saved object changes. ``state``
    and ``reason`` are null if the kind has none. ``fixed_by`` is the configuration file that defines the object, which
    the API cannot change; else null. ``object`` is as ``GET`` lists it; null in rows after the first 1 MiB."""

    position: int
    state: str | None
    reason: str | None
    etag: str
    fixed_by: str | None
    object: dict[str, Any] | None


class LiveList(BaseModel):
    """The rows of a window, by name; of a delta those that changed, null for one that is gone. ``total`` counts all
    objects that pass the filters; while a long list is searched for the first time, those found so far."""

    total: int
    total_is_estimate: bool
    rows: dict[str, LiveRow | None]


class ObjectParameters(Body):
    """An object by ``kind``, a path as in ``ListParameters``, and ``name``."""

    kind: str
    name: str


class LiveObject(BaseModel):
    """An object as ``GET`` shows it, its ``etag``, and the file that fixes it; all are null when there is none."""

    object: dict[str, Any] | None
    etag: str | None
    fixed_by: str | None


class LiveJobs(RootModel[dict[str, Job]]):
    """The jobs that are known, by their identifiers."""


class TailParameters(Body):
    """A topic ``filter``, and the maximum messages and bytes of payloads per second. ``clientid`` is the client
    identifier of the publisher, or a pattern with ``*``, ``?`` and ``[abc]``; ``address`` its address, or a network."""

    filter: str
    clientid: str | None = Field(default=None, max_length=65_535)
    address: str | None = Field(default=None, max_length=64)
    messages_per_s: int = Field(default=50, ge=1, le=MAX_MESSAGES, strict=False)
    bytes_per_s: int = Field(default=MAX_TAIL_BYTES, ge=1024, le=MAX_TAIL_BYTES, strict=False)


class LiveTail(BaseModel):
    """``messages`` since the frame before; since the first frame ``matched`` messages were published on the topics, of
    which ``shown`` were shown and ``skipped`` were not."""

    messages: list[TailedMessage]
    matched: int
    shown: int
    skipped: int
