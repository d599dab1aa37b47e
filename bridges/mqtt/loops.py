"""Protection against messages that circle between brokers.

* *A copy does not go back to its broker.* A message that a source of the connector brought in, and whose
  payload no rule has changed, is not sent to a topic that the connector reads.
* *Marks.* With MQTT 5 each Sluice that passes a message on adds the user property ``sluice-bridge`` with its origin, a
  name that no other node has. Two of them exchange their origins when they connect. So a message is neither
  taken nor passed on where it has been. A rule that changes the payload makes a new message, with no marks but one.
* *No Local* keeps the other broker from sending back what came from here (MQTT 5).
* *Echoes.* Below MQTT 5 there is neither: what was sent to a topic that the connector reads comes back as often as it
  was sent, and that many copies of the topic and payload are left out.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from broker.core.origin import MARK

# An echo that takes longer is taken for a message.
_LONGEST_S: Final = 30.0
_MOST: Final = 20_000
_USER: Final = "User-Property"
Pairs = Sequence[tuple[str, str]]


def marks_of(properties: Mapping[str, Any] | None) -> list[str]:
    """The origins that a message has passed, in order."""
    if not properties or _USER not in properties:
        return []
    return [value for name, value in properties[_USER] if name == MARK]


def marked(
    properties: Mapping[str, Any] | None, origin: str, *, is_new: bool = False
) -> dict[str, Any]:
    """The properties with one more mark; ``is_new`` leaves the others out."""
    changed = dict(properties or ())
    pairs: Pairs = changed.get(_USER, ())
    kept = [pair for pair in pairs if not is_new or pair[0] != MARK]
    changed[_USER] = [*kept, (MARK, origin)]
    return changed


class Echoes:
    """Messages that were sent to where they come back from."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._expected: Counter[int] = Counter()
        self._sent: deque[tuple[float, int]] = deque()

    def expect(self, topic: str, payload: bytes) -> None:
        """It was sent; it will come back once."""
        digest = hash((topic, payload))
        self._forget_old()
        self._expected[digest] += 1
        self._sent.append((self._now_s(), digest))

    def is_echo(self, topic: str, payload: bytes) -> bool:
        """Return whether a message is an expected echo; the next one like it is not, unless it was sent as well."""
        if not self._expected:
            return False
        self._forget_old()
        digest = hash((topic, payload))
        if not self._expected[digest]:
            del self._expected[digest]
            return False
        self._less(digest)
        return True

    def _forget_old(self) -> None:
        eldest_s = self._now_s() - _LONGEST_S
        sent = self._sent
        while sent and (sent[0][0] < eldest_s or len(sent) > _MOST):
            self._less(sent.popleft()[1])

    def _less(self, digest: int) -> None:
        if self._expected[digest] > 1:
            self._expected[digest] -= 1
        else:
            del self._expected[digest]
