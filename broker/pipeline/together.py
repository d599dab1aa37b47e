"""Messages that passed their stages one after another and go to the same subscribers, delivered at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from broker.core.message import Message
from broker.core.stage import Outcome
from broker.pipeline.plan import SessionRoutes, TopicPlan

PASSED_ON: Final = Outcome(1)


class Crowds(Protocol):
    """Holds publishers back for subscribers that have too much to take (``broker.connection.backpressure``)."""

    @property
    def fresh(self) -> Sequence[object]:
        """The subscribers that were crowded since the last call of ``hold``."""

    def hold(self, *publishers: Any) -> None:
        """Make these wait for them."""


class Together:
    """Gathers messages for ``deliver``, which is called before any other message is delivered: the order is the one in
    which messages passed their stages. ``crowds`` holds back who published what crowds a subscriber."""

    __slots__ = ("_crowds", "_deliver_one", "_publishers", "_routes", "run")

    def __init__(self, deliver_one: Callable[[Message, TopicPlan], Outcome], crowds: Crowds) -> None:
        self._deliver_one = deliver_one
        self._crowds = crowds
        self._routes: SessionRoutes | None = None
        self._publishers: list[object] = []
        self.run: list[tuple[Message, bytes]] = []
        """Waiting messages, with the bytes of the topics."""

    def add(self, publisher: object, message: Message, plan: TopicPlan) -> Outcome:
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
