"""The path of a message as people ask for it: what acts on a topic, and what would become of a message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from broker.core.message import Message
from broker.core.objects import Spec


@dataclass(frozen=True, slots=True)
class Trial:
    """What a part of the path did with a message that nobody published.

    ``steps`` are objects, one for each that matched: at least ``stage``, ``name`` and ``outcome``. ``message`` is what
    goes on, None when the part stopped it.
    """

    steps: Sequence[Spec]
    message: Message | None


class PathPart(Protocol):
    """A feature's part of the path. Both calls count nothing and store nothing."""

    def on_topic(self, topic: str) -> Sequence[Spec]:
        """What acts on messages published on the topic, in order, with ``stage``, ``name``, ``enabled``, ``topics``."""
        ...

    def try_on(self, message: Message) -> Trial:
        """Run the part on a message."""
        ...
