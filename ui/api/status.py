"""The shape of ``GET /status``: what the dashboard shows, filled in by the server."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict

from broker.admin.session_rows import OldClientId


class ListenerStatus(TypedDict):
    """An address that the server listens on, as ``host:port``.

    ``protocol`` is ``mqtt``, ``mqtts`` (TLS), ``ws``, ``wss``, ``http`` or ``https``. Of listeners for MQTT:
    ``connections`` that are open, at most ``max_connections`` (0 is no limit), and the ``zone`` of their clients; with
    TLS: when the first certificate ends.
    """

    name: str
    protocol: str
    address: str
    connections: NotRequired[int]
    max_connections: NotRequired[int]
    zone: NotRequired[str]
    certificate_expires: NotRequired[str]


class RuleError(TypedDict):
    """The last failure of a rule: in words, and when, in milliseconds since 1970."""

    text: str
    time_ms: int


class RuleStatus(TypedDict):
    """A rule and its counts since start. ``state`` is ``running``, ``disabled`` or ``failed``; ``matched_per_s`` is of
    the last 5 s."""

    name: str
    state: str
    matched_per_s: float
    matched: int
    passed: int
    no_result: int
    failed: int
    sql: NotRequired[str]
    last_error: NotRequired[RuleError | None]


class ShardStatus(TypedDict):
    """Range of a shard: ``first_offset`` up to, not including, ``next_offset``. Offsets are strings: JavaScript loses
    precision above 2^53."""

    shard: int
    first_offset: str
    next_offset: str


class StreamStatus(TypedDict):
    """A stream. ``captures`` is ``topics`` or ``rows``."""

    name: str
    captures: NotRequired[str]
    shards: list[ShardStatus]
    size_bytes: NotRequired[int]


class TableStatus(TypedDict):
    """A table of the lakehouse as its job last reported it.

    ``state`` is ``starting``, ``running``, ``degraded``, ``failed`` or ``stopped``, and ``reason`` says why in one
    sentence when it is not good. ``lag_records`` counts what the stream holds and the table does not have yet.
    """

    name: str
    stream: str
    format: str
    state: str
    path: NotRequired[str]
    reason: NotRequired[str | None]
    rows: NotRequired[int | None]
    dead_letters: NotRequired[int | None]
    rows_per_s: NotRequired[float | None]
    lag_records: NotRequired[int | None]
    lag_s: NotRequired[float | None]
    last_commit_at: NotRequired[str | None]
    last_commit_rows: NotRequired[int | None]


class RefusalStatus(TypedDict):
    """A message that a stage stopped recently, and why. ``stage`` is the stage, ``name`` the object in it, ``id`` that
    of the refused message."""

    id: str
    at: str
    topic: str
    clientid: str
    client_id: OldClientId
    stage: str
    name: str
    reason: str
    text: str


class Health(TypedDict):
    """Health of the node. ``says`` is the answer of ``/readyz``, ``alarms`` the names of the active alarms,
    ``lost_rows`` the number of rows that actions have lost since start.

    The latest look at its load: by how much the event loop was late at the worst, memory of the process and its limit
    in bytes, runnable threads of the machine for each CPU, the process's part of its CPUs. ``overloaded_because`` has a
    clause for each limit that is passed. The disk is that of the data directory.
    """

    ready: bool
    says: str
    overloaded: bool
    overloaded_since: str | None
    overloaded_because: list[str]
    alarms: list[str]
    lost_rows: int
    loop_lag_s: float
    memory_bytes: int
    memory_limit_bytes: int
    run_queue: float
    cpu_share: float
    disk_free_bytes: int
    disk_total_bytes: int


class Ledger(TypedDict):
    """Account of every publish. ``residual`` = received - accepted - dropped, and must be 0.

    ``lost_rows`` counts rows of accepted messages that actions discarded and that no fallback or dead letter holds.
    """

    received: int
    accepted: int
    dropped: int
    residual: int
    lost_rows: int


class NextStep(TypedDict):
    """A command to try, and what it does in a few words."""

    label: str
    command: str


class Status(TypedDict):
    """Status of the node. Times are RFC 3339 in UTC; rates are per second over the last few seconds.

    ``counters`` grow since start: ``received``, ``delivered``, ``dropped``, ``bytes_received``, ``bytes_sent``,
    ``rules_matched``, ``rules_passed``, ``rules_failed``, ``rows``; ``rates`` has the same names, per second.
    ``received`` and ``dropped`` are those of the ledger. A name that is absent is unknown and shown as a dash.
    ``dropped`` counts messages by reason, ``lost_rows`` rows that actions lost. ``rules`` has at most 20: failed ones
    first, then those with errors, then the busiest; ``rule_states`` counts all. ``refusals`` come newest first.
    ``changes`` grows with each change of an object or of their order: what was read before may be out of date.
    """

    node: str
    version: str
    started_at: str
    uptime_s: float
    listeners: list[ListenerStatus]
    counters: dict[str, int]
    rates: dict[str, float]
    dropped: dict[str, int]
    lost_rows: dict[str, int]
    connections: int
    sessions: int
    subscriptions: int
    rules: list[RuleStatus]
    rule_states: dict[str, int]
    streams: list[StreamStatus]
    tables: list[TableStatus]
    refusals: list[RefusalStatus]
    health: NotRequired[Health]
    ledger: Ledger
    changes: int
    next_steps: list[NextStep]
