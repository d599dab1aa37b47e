"""Messages that passed their stages one after another and go to the same subscribers, delivered at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from broker.core.message import Message
from broker.core.stage import Outcome
from broker.pipeline.plan import TopicPlan


class RunRoutes(Protocol):
    """Routes of messages of a topic that can be delivered many at once (``broker.routing.router.Routes``)."""

    plain_qos: int
    """The highest QoS of messages that all subscribers get alike, as QoS 0; -1 where there is no such."""

    @property
    def is_empty(self) -> bool:
        """True if there is no subscriber."""

    @property
    def watch(self) -> object:
        """Observer of each message, None where nothing does."""

    def deliver_run(self, run: Sequence[tuple[Message, bytes]], /) -> None:
        """Hand messages without properties, of QoS ``plain_qos`` at most, to every subscriber."""


PASSED_ON: Final = Outcome(1)
R = TypeVar("R", bound=RunRoutes)
P = TypeVar("P")
P_contra = TypeVar("P_contra", contravariant=True)


class Crowds(Protocol[P_contra]):
    """Holds publishers back for subscribers that have too much to take (``broker.connection.backpressure``)."""

    @property
    def fresh(self) -> Sequence[object]:
        """The subscribers that were crowded since the last call of ``hold``."""

    def hold(self, *publishers: P_contra) -> None:
        """Make these wait for them."""


class Together(Generic[R, P]):
    """Gathers messages for ``deliver``, which is called before any other message is delivered: the order is the one in
    which messages passed their stages. ``crowds`` holds back who published what crowds a subscriber."""

    __slots__ = ("_crowds", "_deliver_one", "_publishers", "_routes", "run")

    def __init__(self, deliver_one: Callable[[Message, TopicPlan[R]], Outcome], crowds: Crowds[P]) -> None:
        self._deliver_one = deliver_one
        self._crowds = crowds
        self._routes: R | None = None
        self._publishers: list[P] = []
        self.run: list[tuple[Message, bytes]] = []
        """Waiting messages, with the bytes of the topics."""

    def add(self, publisher: P, message: Message, plan: TopicPlan[R]) -> Outcome:
        """Deliver this with others; at once where subscribers must be checked one by one."""
        routes = plan.routes
        if routes is not self._routes or message.properties or message.qos > routes.plain_qos:
            if self.run:
                self.deliver()
            if message.properties or message.qos > routes.plain_qos or routes.is_empty or routes.watch is not None:
                outcome = self._deliver_one(message, plan)
                if self._crowds.fresh:
                    self._crowds.hold(publisher)
                return outcome
            self._routes = routes
        self.run.append((message, plan.topic_bytes))
        self._publishers.append(publisher)
        return PASSED_ON

    def deliver(self) -> None:
        """Deliver what waits."""
        routes = self._routes
        if routes is None:
            return
        run = self.run
        publishers = self._publishers
        crowds = self._crowds
        self._routes = None
        self.run = []
        self._publishers = []
        was_crowded = bool(crowds.fresh)  # by the current message, whose publisher is not among these
        routes.deliver_run(run)
        if crowds.fresh and not was_crowded:
            crowds.hold(*publishers)
