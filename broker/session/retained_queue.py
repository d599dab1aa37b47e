"""Retained messages of new subscriptions, which a client is sent before waiting and new messages.

There may be as many as the broker retains, so they are drawn a part in each turn of the loop, as the client takes them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

from broker.session import qos0, sending
from broker.session.delivery import Delivery
from broker.session.state import SessionState

# Sent in one turn of the loop; the end of those of a subscription counts as ``_LOOK_UP`` of them, since the next one's
# must be searched.
_AT_ONCE: Final = 256
_LOOK_UP: Final = 16
# Time after which no more of them are begun.
_LOOK_UPS_S: Final = 0.002
# Drawn where another cell is waited for, which ``pump`` is called for.
NOT_YET: Final = Delivery(None, 0, False, ())


class RetainedQueue:
    """The retained messages that one session is still to be sent, by topic filter, the oldest first.

    A turn of the loop is awaited at most once, however many subscriptions, acknowledgements and connections that take
    more there are before it.
    """

    __slots__ = ("_is_awaited", "_pump", "_session", "_sources")

    def __init__(self, session: SessionState, pump: Callable[[], None]) -> None:
        self._session = session
        self._pump = pump
        self._is_awaited = False
        self._sources: OrderedDict[str, Iterator[Delivery]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sources)

    def add(self, topic_filter: str, deliveries: Iterator[Delivery]) -> None:
        """Add the messages of one more subscription, in place of the rest for an earlier one to the same filter; one
        without a message in it ends the turn's part."""
        self._sources.pop(topic_filter, None)
        self._sources[topic_filter] = deliveries

    def remove(self, topic_filter: str) -> None:
        """Drop the rest of the messages of this subscription."""
        self._sources.pop(topic_filter, None)

    def await_turn(self) -> None:
        """Continue in another turn of the loop."""
        if not self._is_awaited:
            self._is_awaited = True
            self._session.services.defer(self._go_on)

    def _go_on(self) -> None:
        self._is_awaited = False
        if self._session.retained_queue is self:
            self._pump()

    def send_some(self) -> bool:
        """Send a turn's part, in which the session is connected; whether that was the last of it. Else ``pump`` is
        called again: by an acknowledgement, a connection that takes more, or the next turn."""
        session = self._session
        sources = self._sources
        clock = session.services.clock
        now_ns = clock.now_ns()
        until_s = clock.monotonic_s() + _LOOK_UPS_S
        left = _AT_ONCE
        not_yet = 0
        while left > 0:
            if not sources:
                return True
            if not_yet == len(sources):
                return False
            left -= 1
            if session.is_slow or session.window.quota <= 0:
                return False
            try:
                delivery = next(next(iter(sources.values())), None)
            except Exception as error:  # noqa: BLE001  the store cannot be read: this client's trouble alone
                assert session.owner is not None
                session.owner.fail(error)
                return False
            if delivery is NOT_YET:
                not_yet += 1
                sources.move_to_end(next(iter(sources)))
                continue
            not_yet = 0
            if delivery is None:
                sources.popitem(last=False)
                left -= _LOOK_UP
                if clock.monotonic_s() > until_s:
                    break
            elif delivery.outgoing is None:
                break
            elif delivery.qos:
                sending.send(session, delivery, now_ns)
            else:
                qos0.send(session, delivery.outgoing, delivery.retain, delivery.identifiers)
        self.await_turn()
        return False
