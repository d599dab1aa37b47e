"""The contract for authors of connectors. Everything else is the framework's: see the list at the end.

A connector type is one module of ``bridges/<type>``: two or three settings models, a ``Connector`` and what it offers,
a ``Sink``, a ``Source`` or both, and a ``ConnectorType`` that names them (``bridges.resource.registry``)::

    class FileSink(Sink):
        def record(self, row: Row, message: Message) -> bytes:
            return self._line(row)                               # one row, rendered; called just before sending

        async def send(self, records: Sequence[bytes]) -> Answers:
            await asyncio.to_thread(self._append, records)       # a whole batch
            return ALL_DONE

*Connector*: one connection, or one pool, to one outside system. *Sink*: where the rows of an action go. *Source*: what
brings records in. One ``Connector`` makes many sinks and sources; all share its connection.

**Rows are rendered late.** A buffer holds rows, not records: ``record`` is called when a batch is formed, with the
settings of that moment. So fixing a template also fixes rows that are still buffered.

**Batches and order.** ``send`` is given up to ``batch_size`` records at once. Records of one key
(``ConnectorType.key_of``, by default the client) go through one *lane*, and a lane has one batch on the way at a time,
so that they arrive in the order published; what must be tried again is tried before later ones are sent. A type that
keeps the order of batches itself says so with ``ConnectorType.is_pipelined``, and then gets up to ``inflight_window``
batches of a lane at once.

**Answers.** ``send`` returns ``ALL_DONE``, or a list with None or an error for each record; or raises one error for
all. The errors of ``bridges.resource.errors`` tell the framework what to do. ``OSError`` and ``TimeoutError`` count as
``ReconnectFirst``, other exceptions as ``NeverAgain`` with a log line: they are bugs. A sink never waits or retries on
its own account beyond what one request takes, and never drops a record silently.

**Health** comes from real traffic: what ``send`` raises is the state and its reason at once, and so is that it went
well. ``check`` is called when nothing was sent for ``health_check_interval``, and whenever something is wrong. A
connector that notices a broken connection calls ``Context.lost``. ``check`` and ``close`` never touch what
waits in buffers: the framework owns those, and they outlive sinks, connectors and changes of either.

The framework does: states and reconnecting with back-off; buffers in memory or on disk, expiry, overflow; batches,
lanes, retries; counters; fallbacks and dead letters; the step-by-step test; pause, drain, edit; API, CLI and
configuration; hiding secrets. The author must see to: time-outs of own requests (``Context.request_timeout_s`` is the
last resort, after which the connection is dropped), no blocking call on the event loop, and cancellation at any await.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from bridges.resource.errors import BridgeError
from broker.config.ssrf import AddressGuard
from broker.core.action import Row
from broker.core.feature import Services
from broker.core.message import Message, Properties

# The outcome of each record of a batch; ``ALL_DONE`` when all are confirmed.
Answers = Sequence[BridgeError | None] | None
ALL_DONE: Final[Answers] = None


@dataclass(frozen=True, slots=True)
class BufferPlace:
    """Position of an action's rows on disk: for sinks that keep a cursor of their own in the outside system.

    Each row has a position, which grows. A position means something only together with ``id``.
    """

    id: str
    """Identifier of this buffer; an action of the same name that is created again has another."""
    run: str
    """Another each time the broker starts."""
    begin: int
    """Rows below were there when the broker started; a cursor of another run that is ahead of it is not of this store,
    or of a time after the copy that it was restored from."""
    settled: Callable[[], int]
    """Rows below are done: sent or discarded, their dead letters committed."""


@dataclass(frozen=True, slots=True)
class Context:
    """The framework's part of a connector's arguments, in addition to its settings."""

    name: str
    """``<type>:<name>``, for log lines and client identifiers."""
    services: Services
    """The node's: clock, schemas, metrics, where to keep files."""
    guard: AddressGuard
    """Says which hosts must not be called; the helpers of ``bridges.resource.probe`` ask it."""
    request_timeout_s: float
    """Seconds that one batch may be on the way before the connection counts as dead."""
    lost: Callable[[str], None] = lambda _reason: None
    """To be called, on the event loop, when the connection is found broken while nothing is being sent."""
    place: BufferPlace | None = None
    """Position of the rows of an action whose buffer is on disk."""
    memory: dict[str, Any] = field(default_factory=dict)
    """Values that a connector keeps from one connection to the next, while the process lasts; empty for a test."""


@dataclass(frozen=True, slots=True)
class ProbeStep:
    """One step of a test: ``run`` says in a few words what was found, or raises what is wrong.

    The usual names are ``resolve``, ``connect``, ``tls``, ``authenticate`` and ``metadata``; those of an action have
    ``target`` and ``permission`` behind them.
    """

    name: str
    run: Callable[[], Awaitable[str]]


class Connector(ABC):
    """One connection to an outside system. Used on the event loop. ``open`` comes first and ``close`` last; in between
    both may be called again, to reconnect."""

    @abstractmethod
    async def open(self) -> None:
        """Connect. Ends, well or with an error, within the settings' ``start_timeout``; leaves nothing when it fails.

        Raises:
            BadSettings: credentials or certificates are wrong.
            ReconnectFirst: no answer, or anything else that may resolve itself.
        """

    @abstractmethod
    async def close(self) -> None:
        """Give up the connection; also after an ``open`` that failed. Does not raise, and ends within seconds."""

    async def check(self) -> None:  # noqa: B027 - not all have something to ask
        """Ask the outside system for something cheap; raises what is wrong."""

    def probe(self) -> Sequence[ProbeStep]:
        """The steps of a test, each building on the one before. ``open`` was not called; ``close`` will be.

        By default one step that opens and one that checks.
        """

        async def connect() -> str:
            await self.open()
            return "connected"

        async def check() -> str:
            await self.check()
            return "answers"

        return [ProbeStep("connect", connect), ProbeStep("check", check)]

    def sink(self, settings: Any, context: Context) -> Sink:
        """A sink with the parameters of an action, an instance of the type's ``action`` model. Connects nothing."""
        raise NotImplementedError(f"{type(self).__name__} has no sinks")

    def source(self, settings: Any, context: Context) -> Source:
        """A source with the parameters of a source, an instance of the type's ``source`` model. Connects nothing."""
        raise NotImplementedError(f"{type(self).__name__} has no sources")


class Sink(ABC):
    """Target of one action's rows. ``open`` is called after the connector's, ``close`` before it."""

    held_up: str = ""
    """The obstacle to an answer, if the sink found one while a batch waits; shown as the reason
    of the state ``connecting`` until it is empty again."""

    @abstractmethod
    def record(self, row: Row, message: Message) -> Any:
        """The record of a row; plain and quick, it runs for each. The row must not be changed.

        ``message`` is what the rule ran on, with its client, properties and times, also after a restart.

        Raises:
            NeverAgain: this row has no record. So does any other exception.
        """

    @abstractmethod
    async def send(self, records: Sequence[Any]) -> Answers:
        """Hand a batch over; returns when the outside system has confirmed it. Records are in order of arrival."""

    async def send_at(self, records: Sequence[Any], positions: Sequence[int]) -> Answers:
        """The same where ``ConnectorType.positions`` asks for it: where each row lies in ``Context.place``.

        With ``Positions.in_order`` batches come one at a time and in order; rows to try again come before the rows
        is behind it, and everything again that was on the way when the broker ended. A row that the sink knows to be
        sent it confirms.
        """
        return await self.send(records)

    async def open(self) -> None:  # noqa: B027 - the connection may be all there is
        """Get ready; the connector is connected. May look whether the target is there (raises ``TargetMissing``,
        ``TargetUnusable``)."""

    async def close(self) -> None:  # noqa: B027 - likewise
        """Give up what ``open`` made. No ``send`` runs then. Does not raise."""

    async def check(self) -> None:  # noqa: B027 - likewise
        """Check that the target exists and, where that costs little, may be written to; raises an error if not."""

    async def permission(self) -> str:
        """For the test of an action, open and checked: whether it may write, without writing anything, in a few words.

        Raises what is wrong; says so where it cannot be known.
        """
        return "the target may be written to"


@dataclass(slots=True)
class Incoming:
    """One record that a source brought in.

    ``columns`` are what rules read with ``FROM "$bridges/<type>:<name>"``; they may be left empty while
    ``Feed.is_read`` is false. Where ``topic`` is not empty a message with the members below it is published, through
    all stages. ``shard`` and ``position`` say where the record stood in the outside system, so that it is taken once
    although it comes again: positions of a shard grow.
    """

    columns: dict[str, Any]
    topic: str = ""
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: Properties | None = None
    shard: str = ""
    position: int | None = None
    refused: str = ""
    """The reason why a stage of the pipeline refused the message: set by ``Feed.hand_over``, or later if ``is_waiting``
    is true."""
    is_waiting: bool = False
    """Set by ``Feed.hand_over``: a stage asks another process about the message."""


class Feed(ABC):
    """Receiver of a source's records. The framework provides it; used on the event loop."""

    @property
    @abstractmethod
    def is_read(self) -> bool:
        """True if rules read this source, so that ``Incoming.columns`` are used."""

    @abstractmethod
    def hand_over(
        self, records: Sequence[Incoming], done: Callable[[BaseException | None], None]
    ) -> None:
        """Take records, in order. Never waits.

        ``done`` is called once, on the event loop, when everything they led to is committed, so that the outside system
        may be told to forget them; or with the error that prevented it, and then they must be handed over
        again.
        """

    @abstractmethod
    async def deliver(self, records: Sequence[Incoming]) -> None:
        """The same, waiting. Raises ``Unavailable`` when the store could not be written."""

    @abstractmethod
    async def ready(self) -> None:
        """Wait while the source is paused, or more waits for the disk than the settings allow. Ask before each read."""

    @abstractmethod
    def position_of(self, shard: str) -> int | None:
        """The position of the last committed record of a shard, or None."""

    @abstractmethod
    def begin_anew(self, shard: str) -> None:
        """Forget the position of a shard, since what is there now began to count from the start again."""


class Lag(NamedTuple):
    """Number of records that waited in the outside system, and when."""

    records: int
    as_of_ns: int


class Source(ABC):
    """A reader of records."""

    @abstractmethod
    async def run(self, feed: Feed) -> None:
        """Read until cancelled. Raising, or returning, makes the framework reconnect and call it again.

        Acknowledges towards the outside system only what ``feed`` has said is done. Cancelled at any await; what it
        opened it gives up in ``finally``.
        """

    async def check(self) -> None:  # noqa: B027 - the connection may be all there is
        """Check that the records' origin exists; raises an error if not."""

    @property
    def lag(self) -> Lag | None:
        """The records that wait in the outside system; None if unknown."""
        return None


class Positions(NamedTuple):
    """That a sink is told where rows lie."""

    asked_by: str
    """The parameter that needs it."""
    in_order: bool
    """True if rows go in the order of their positions, one batch at a time."""


@dataclass(frozen=True, slots=True)
class ConnectorType:
    """One kind of connector, as the registry knows it.

    ``connector``, ``action`` and ``source`` are settings models (``broker.config.model.Settings``; secrets are
    ``bridges.resource.settings.secret.SecretText``); ``action`` or ``source`` is None where there is no such direction.
    """

    name: str
    """Name of the type, such as ``kafka`` in ``kafka:orders``."""
    title: str
    summary: str
    """One or two sentences for users who choose."""
    connector: type[Any]
    make: Callable[[Any, Context], Connector]
    """Makes the connector of settings; connects nothing. Raises ``MissingDependency``, which says how to install it."""
    action: type[Any] | None = None
    source: type[Any] | None = None
    batch_size: int = 1
    """``resource_opts.batch_size`` where the user gives none; likewise the next ones."""
    batch_time_s: float = 0.0
    lanes: int = 16
    """``resource_opts.worker_pool_size``."""
    is_pipelined: bool = False
    """True if batches that follow each other arrive in that order although none is waited for, and one that
    fails makes those behind it fail as well."""
    reads_secrets_again: bool = False
    """True if each request has the secrets as they are then; others connect again where one changed."""
    key_of: Callable[[Any], Callable[[Row, Message], Hashable]] | None = None
    """Gives for the parameters of an action what its rows' order is kept by: a plain and quick function, the same for
    rows that must stay in order. None for the client."""
    positions: Callable[[Any], Positions | None] | None = None
    """The positions for an action with these parameters if its rows are sent by ``Sink.send_at``: they come
    from a buffer on disk then."""
    is_at_front: bool = False
    """True if it takes requests: its sources run in the cell that has the API."""
    requires: Sequence[str] = field(default=())
    """Modules that must be installed, as ``aiokafka``."""
    extra: str = ""
    """The extra that installs them: ``pip install 'sluicemq[<extra>]'``."""
