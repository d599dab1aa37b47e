"""What sessions ask of what is around them: the clock, the store, whoever wants to know, their connections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from broker.core.clock import Clock
from broker.core.events import Events
from broker.core.message import Message, Properties
from broker.core.tally import Tally
from broker.observe.metrics import Counter
from broker.session.limits import QueueLimits

if TYPE_CHECKING:
    from broker.session.session import Session


class OnEvent(Protocol):
    """Told of a delivery's event by name, with a reason or the properties of the client's answer."""

    def __call__(
        self, name: str, session: Session, message: Message, why: str, properties: Properties | None = None, /
    ) -> None: ...


@dataclass(slots=True)
class SessionServices:
    """What all sessions of a node share.

    ``changed`` is told of a durable session whose record has to be written, ``moved`` of one for whose record there is
    time, since the one on disk foretells what is sent; ``refill`` of one that has room and is behind, ``defer`` runs a
    callable in another turn of the loop, ``crowded`` is told of a session whose queue or connection fills up,
    ``relieved`` when it has room again. ``on_event`` is told of what somebody wants to know. ``max_late_bytes`` bounds
    what waits of QoS 0. ``resends`` tells that 3.1.1 clients are sent on a timer what they do not acknowledge. ``shed``
    is told of messages in the log that a session passes over: why, the offset from which it would have read, how many
    of its messages after that to leave out of account, and how many follow that it passes over. ``on_dropped`` is told
    of every other message that a session does not get, and why.
    """

    clock: Clock
    changed: Callable[[Session], None]
    moved: Callable[[Session], None]
    refill: Callable[[Session], None]
    defer: Callable[[Callable[[], None]], object]
    crowded: Callable[[Session], None]
    relieved: Callable[[Session], None]
    on_event: OnEvent
    events: Events
    sent: tuple[Counter, Counter, Counter]
    dropped: Callable[[str], Counter]
    max_queue: int
    max_queue_bytes: int
    max_late_bytes: int
    window: int
    resends: bool = False
    limits: QueueLimits = field(default_factory=QueueLimits)
    subscribed: Tally = field(default_factory=Tally)
    """Of the subscriptions of all sessions."""
    shed: Callable[[Session, str, int, int, int], None] | None = None
    on_dropped: Callable[[Session, Message, str], None] | None = None


class Owner(Protocol):
    """The connection that a session is attached to."""

    def fail(self, error: BaseException) -> None:
        """Close: what the session must send cannot be stored."""
        ...

    def overrun(self) -> None:
        """Close, soon: more waits than may, and the settings say so."""
        ...
