"""Gates and taps: how features take part in the path of a publish.

A *gate* returns a message or refuses it; a *tap* looks, and may refuse it too where its settings say so. Both are asked
once per topic for a callable (``plan``), which is kept in the topic's plan and called for every message until
``Plans.invalidate`` is called. The callables run on the event loop: they never block, never wait. A gate that must ask
another process gives a ``WaitingGateCall`` for the topics where it does: the publisher of such a message is not read
from until it is decided, and nothing else waits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import msgspec

from broker.core.message import Message
from broker.core.receipt import FullQueue


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason why a gate stopped a message.

    ``reason`` is the name under which the drop is counted (``validation_failed``, ``transformation_failed``);
    ``reason_code`` goes into PUBACK or PUBREC of MQTT 5, ``text`` into its reason string; ``disconnect`` closes the
    publisher's connection (MQTT 5: DISCONNECT 0x83).
    """

    stage: str
    name: str
    reason: str
    reason_code: int
    text: str
    disconnect: bool = False


GateCall = Callable[[Message], "Message | Refusal"]


@dataclass(frozen=True, slots=True)
class WaitingGateCall:
    """A gate's call that may wait for another process, within a time of its own.

    Messages of one publisher are handed to it one after another. A call is cancelled when its publisher is gone.
    """

    call: Callable[[Message], Awaitable[Message | Refusal]]


# Returns None, except for a tap that stops messages (the action ``drop`` of a rule).
TapCall = Callable[[Message], Refusal | None]


class Gate(Protocol):
    """A stage that may stop or replace messages: schema validation, transformations."""

    @property
    def name(self) -> str:
        """Name of the stage in logs and explanations."""

    def plan(self, topic: str) -> GateCall | WaitingGateCall | None:
        """Function for messages on this topic, or None if the stage does nothing there."""


class Tap(Protocol):
    """A stage that looks at messages: rules, raw stream capture."""

    @property
    def name(self) -> str:
        """Name of the stage in logs and explanations."""

    def plan(self, topic: str) -> TapCall | None:
        """Function for messages on this topic, or None if the stage does nothing there."""


# A tap's part for a message that is recorded: hands each row it makes to the function, and returns the refusal, if any,
# and why it failed.
RecordedTap = Callable[[Message, Callable[[dict[str, Any]], None]], "tuple[Refusal | None, str]"]


@runtime_checkable
class HasParts(Protocol):
    """A tap that consists of objects which act one after another, such as rules."""

    def parts(self, topic: str) -> Sequence[tuple[str, RecordedTap]]:
        """The objects that act on a topic, by name, in order: together they do what the tap's call does."""


@runtime_checkable
class ActsByObjects(Protocol):
    """A gate or tap whose call depends on a topic only by which of its objects act there."""

    def acting(self, topic: str) -> tuple[object, ...] | None:
        """Objects that act: topics with the same objects share a call until plans are invalidated. None if a topic
        needs a call of its own."""


class Plans(Protocol):
    """The cache of topic plans."""

    def invalidate(self) -> None:
        """Forget all plans; they are made again when their topics are next published to. Cheap, may be called often."""


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The result of a message handed to ``Publisher.publish``: who took it, and what an acknowledgement waits for.

    ``refusal`` is None when the pipeline let it through; ``receivers`` counts subscribers, streams and rules that took
    it. ``is_waiting`` means that a gate waits for another process, so that nothing else is known yet. ``is_stored``
    means that the message left something in the store's current commit group; ``full_queues`` are those that took it
    without having room.
    """

    receivers: int
    refusal: Refusal | None = None
    is_waiting: bool = False
    is_stored: bool = False
    full_queues: Sequence[FullQueue] = ()


class Publisher(Protocol):
    """The way into the pipeline for messages that no MQTT client sent: rules, the API, bridges."""

    def publish(self, message: Message) -> Outcome:
        """Validate, transform, run rules, retain and route. Runs on the event loop; does not wait for the store.

        Where a gate must wait the message takes its place in a lane of its topic (``Outcome.is_waiting``), in order.
        """

    def dispatch(self, message: Message) -> Outcome:
        """Route only: straight to the subscribers, past all gates, rules, captures and the retained store."""

    def decided(self, topic: str) -> Awaitable[Outcome]:
        """Outcome of the message that was published last to a topic.

        To be called right after ``publish``, when that returned ``Outcome.is_waiting``; waits for the gates.
        """


@runtime_checkable
class Refusable(Protocol):
    """An acknowledgement that waits and may yet become a refusal."""

    def refuse(self, refusal: Refusal) -> None:
        """Answer with this, once nothing else is waited for."""


# Waits until all subscribers of a message have room for it; gives the refusal of the message where another cell of the
# broker, which has to retain it, could not.
Room = Awaitable[Refusal | None]


# Publishes a message by a function for a caller that can wait until slow subscribers have room. Returns the outcome,
# and the room to wait for before the message counts as delivered.
WithRoom = Callable[[Callable[[Message], Outcome], Message], tuple[Outcome, Room | None]]


def without_waiting(
    publish: Callable[[Message], Outcome], message: Message
) -> tuple[Outcome, Room | None]:
    """A ``WithRoom`` where there are no subscribers."""
    return publish(message), None


class WaitingPublisher(Protocol):
    """Entry to the pipeline for callers that can wait for the outcome of a message."""

    async def publish_and_wait(self, message: Message) -> Outcome:
        """Publish and return the outcome, after gates that wait and once slow subscribers have room."""
