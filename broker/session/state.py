"""State of one client, and the services that its messages need on their way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, Protocol

from broker.codec.outgoing import Outgoing
from broker.core.client import Client
from broker.core.clock import Clock
from broker.core.events import Events
from broker.core.memory import NOTHING, MemoryUse
from broker.core.message import Message, Properties
from broker.core.receipt import Receipt, Withheld
from broker.observe.metrics import Counter
from broker.session.delivery import Deliveries, Delivery, Holder, MayHave
from broker.session.inbound import Inbound
from broker.session.log_queue import LogQueue
from broker.session.outbox import Outbox
from broker.session.prediction import IdPrediction
from broker.session.qos0_queue import Qos0Queue
from broker.session.subscriptions import Subscriptions
from broker.session.will import Will
from broker.session.window import Window

NEVER_S: Final = 0xFFFFFFFF
UNLIMITED_BYTES: Final = 1 << 32
# The zone of listeners that name none.
DEFAULT_ZONE: Final = "default"


WhenFull = Literal["drop_oldest", "drop_newest", "disconnect"]
SlowSubscriber = Literal["slow_publishers", "drop"]


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """The limits of the sessions of a zone, under the names of their settings in section ``mqtt``. A copy, since they
    are read for each message that is queued, and attributes of a settings model take several times as long to read."""

    max_inflight: int
    max_queued_messages: int
    max_queued_bytes: int
    queue_full: WhenFull
    max_unsent_messages: int
    max_unsent_bytes: int
    max_stored_messages: int
    max_stored_bytes: int
    queue_qos0: bool
    slow_subscriber: SlowSubscriber
    subscriber_ack_timeout: float
    max_withheld_bytes: int

    @classmethod
    def of(cls, settings: object) -> SessionLimits:
        """The limits in settings."""
        return cls(*(getattr(settings, limit.name) for limit in fields(cls)))


class Owner(Protocol):
    """The connection that a session is attached to."""

    @property
    def is_unread(self) -> bool:
        """True if the broker does not read from the client now, so that it sees no acknowledgements."""

    def fail(self, error: BaseException) -> None:
        """Close: what the session must send cannot be stored."""

    def overrun(self) -> None:
        """Close, soon: more waits than may, and the settings say so."""


# Receives a delivery's event by name, with a reason or the properties of the client's answer.
OnEvent = Callable[[str, "SessionState", Message, str, Properties | None], None]


@dataclass(slots=True)
class SessionServices:
    """Services shared by all sessions of a node on the way of a message to a client.

    ``changed`` gets a durable session whose record has to be written, ``moved`` one for whose record there is time,
    since the one on disk predicts what is sent. ``defer`` runs a callable in another turn of the loop. ``crowded`` gets
    a session whose queue or connection fills up, ``relieved`` gets it when it has room again. ``queue_in_full`` gets
    one with no room for more that is acknowledged to publishers, before a message of that size and with that receipt
    waits there; it returns whether the message's publisher waits. ``drained`` gets it when something has left.
    ``on_event`` gets events that have listeners. ``resends`` is true where 3.1.1 clients are sent on a timer what they
    do not acknowledge. ``shed`` gets messages in the log that a session passes over: why, the offset from which it
    would have read, how many of its messages after that to leave out of account, and how many follow that it passes
    over. ``on_dropped`` gets every other message that a session does not get, and why. ``note_dropped`` gets the client
    identifier of one that does not get some messages, why, and how many.
    """

    clock: Clock
    refill: Callable[[Any], None]
    """Called with a session that has room and is behind in the session log."""
    changed: Callable[[SessionState], None]
    moved: Callable[[SessionState], None]
    defer: Callable[[Callable[[], None]], object]
    crowded: Callable[[SessionState], None]
    relieved: Callable[[SessionState], None]
    queue_in_full: Callable[[Any, int, Receipt | None], bool]
    drained: Callable[[Any], None]
    on_event: OnEvent
    events: Events
    sent: tuple[Counter, Counter, Counter]
    dropped: Callable[[str], Counter]
    limits: SessionLimits
    resends: bool = False
    deliveries: Deliveries = field(default_factory=Deliveries)
    subscribed: MemoryUse = field(default_factory=MemoryUse)
    """Memory of the subscriptions of all sessions."""
    shed: Callable[[SessionState, str, int, int, int], None] | None = None
    on_dropped: Callable[[SessionState, Message, str], None] | None = None
    note_dropped: Callable[[str, str, int], None] = lambda client_id, why, count: None


class SessionState:
    """State of one client. ``box`` is None while away; ``fast`` is ``box`` unless something of each
    message must be checked: the connection is slow, older messages or retained ones go before, the client limits
    the size of packets or takes topic aliases. ``log`` and ``prediction`` are there when it is durable."""

    __slots__ = (
        "away_since_ns", "box", "client", "client_id", "connected_ns", "dropped", "ends_at_ns", "expiry_s",
        "fast", "inbound", "is_acknowledging", "is_blocked", "is_crowded", "is_durable", "is_ended", "is_slow",
        "is_v5", "is_waited_for", "log", "max_packet_bytes", "may_have", "maybe_sent_below", "memberships",
        "owner", "prediction", "pushed", "qos0_queue", "queue", "queue_bytes", "retained_queue", "services",
        "subscriptions", "will", "will_at_ns", "window", "withheld", "zone",
    )  # fmt: skip

    def __init__(
        self, client_id: str, services: SessionServices, *, is_durable: bool, next_offset: int = 0
    ) -> None:
        self.client_id = client_id
        self.services = services
        self.is_durable = is_durable
        self.client = Client(client_id)
        self.is_v5 = False
        self.is_ended = False
        self.zone = DEFAULT_ZONE
        self.expiry_s = 0
        self.ends_at_ns = 0
        self.connected_ns = self.away_since_ns = 0
        self.dropped: dict[str, int] | None = None
        """Messages that it did not get, by reason; None when there were none."""
        self.subscriptions = Subscriptions(services.subscribed)
        self.memberships: dict[str, Holder] = {}
        self.inbound: Inbound | None = None
        self.will: Will | None = None
        self.will_at_ns = 0
        self.owner: Owner | None = None
        self.box: Outbox | None = None
        self.fast: Outbox | None = None
        self.is_slow = self.is_blocked = False
        self.is_waited_for = True
        self.is_crowded = False
        self.is_acknowledging = True
        self.withheld: Withheld | None = None
        """Messages of its queue that are not acknowledged to publishers, while the queue is full."""
        self.max_packet_bytes = UNLIMITED_BYTES
        self.may_have: MayHave | None = None
        """Filter of messages that it may have, by QoS of the subscription; None for all. While it is away, by the
        earlier rules; waiting messages are checked once more when it is back."""
        self.window = Window(services.limits.max_inflight)
        self.queue: deque[Delivery] = NOTHING
        self.queue_bytes = 0
        """Topics and payloads of the messages that wait in memory."""
        self.pushed = 0
        """Messages added to the queue so far."""
        self.qos0_queue = Qos0Queue()
        self.retained_queue: object | None = None
        self.log = LogQueue(next_offset) if is_durable else None
        self.prediction = IdPrediction(self.window) if is_durable else None
        self.maybe_sent_below = 0
        """Below this offset of the log a broker that crashed may have sent what no record contains."""

    @property
    def is_away(self) -> bool:
        """True if it has no connection."""
        return self.box is None

    @property
    def outlives(self) -> bool:
        """True if it lasts without a connection: on disk when it is durable, else in memory."""
        return self.is_durable or self.expiry_s > 0

    @property
    def keeps_qos0(self) -> bool:
        """True if QoS 0 messages wait for it while it is away."""
        return self.outlives and self.services.limits.queue_qos0

    @property
    def is_behind(self) -> bool:
        """True if messages wait for it in the log that are not in its queue."""
        return self.log is not None and self.log.is_behind

    @property
    def next_offset(self) -> int:
        """Next offset to read in the log; 0 for a session in memory."""
        return self.log.next_offset if self.log is not None else 0

    @property
    def waiting_messages(self) -> int:
        """Number of messages that wait for it: in memory, in the log, and QoS 0 ones for a slow connection."""
        return (
            len(self.queue)
            + self.qos0_queue.messages
            + (self.log.messages if self.log is not None else 0)
        )

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the messages that wait for it, topics and payloads, wherever they wait."""
        return (
            self.queue_bytes
            + self.qos0_queue.size_bytes
            + (self.log.size_bytes if self.log is not None else 0)
        )

    @property
    def slows_publishers(self) -> bool:
        """True if publishers wait when its queue is full: it is connected and acknowledges messages."""
        is_here = self.box is not None and self.is_acknowledging
        return is_here and self.services.limits.slow_subscriber == "slow_publishers"

    @property
    def has_to_wait(self) -> bool:
        """True if QoS 0 messages must wait while it is connected."""
        return self.is_slow or self.is_blocked or self.retained_queue is not None

    def push(self, delivery: Delivery, size_bytes: int) -> None:
        """Add to the queue, whatever is in it."""
        if self.queue is NOTHING:
            self.queue = deque()
        self.queue.append(delivery)
        self.pushed += 1
        self.queue_bytes += size_bytes

    def drop(self, outgoing: Outgoing, why: str) -> None:
        """Count a message that this session does not get, by reason, and report it to events and dead letters."""
        services = self.services
        self.count_dropped(why, 1)
        if "delivery.dropped" in services.events.wanted:
            services.on_event("delivery.dropped", self, outgoing.message, why, None)
        if services.on_dropped is not None:
            services.on_dropped(self, outgoing.message, why)

    def drop_delivery(self, delivery: Delivery, why: str) -> None:
        """Drop a delivery, also one whose message is not known."""
        if delivery.outgoing is not None:
            self.drop(delivery.outgoing, why)
        else:
            self.count_dropped(why, 1)

    def drop_deliveries(self, deliveries: Collection[Delivery], why: str) -> None:
        """Drop deliveries: a million take less than a second if no one asks for their messages."""
        services = self.services
        if services.on_dropped is None and "delivery.dropped" not in services.events.wanted:
            if deliveries:
                self.count_dropped(why, len(deliveries))
            return
        for delivery in deliveries:
            self.drop_delivery(delivery, why)

    def count_dropped(self, why: str, count: int) -> None:
        """Count messages that this session does not get, by reason."""
        self.services.dropped(why).value += count
        self.services.note_dropped(self.client_id, why, count)
        if self.prediction is not None:
            self.prediction.upset()  # what is passed over gets no identifier
        if self.dropped is None:
            self.dropped = {}
        self.dropped[why] = self.dropped.get(why, 0) + count
