"""Retained messages of new subscriptions, which a client is sent before what waits and what comes.

There may be as many as the broker retains, so they are drawn a part in each turn of the loop, as the client takes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from broker.session import qos0, sending
from broker.session.delivery import Delivery
from broker.session.state import SessionState

_AT_ONCE: Final = 256
"""Sent in one turn of the loop; the end of those of a subscription counts as ``_LOOK_UP`` of them, since the next one's
have to be looked for."""
_LOOK_UP: Final = 16
_LOOK_UPS_S: Final = 0.002
"""After so long no more of them are begun."""


class Ahead:
    """Those of one session that have not been sent, by subscription, the oldest first."""

    __slots__ = ("_sources",)

    def __init__(self) -> None:
        self._sources: deque[Iterator[Delivery]] = deque()

    def add(self, deliveries: Iterator[Delivery]) -> None:
        """Those of one more subscription; one without a message in it ends the turn's part."""
        self._sources.append(deliveries)

    def send_some(self, session: SessionState, later: Callable[[], object]) -> bool:
        """Send a turn's part, in which the session is connected; whether that was the last of it. Else ``pump`` is
        called again: by an acknowledgement, a connection that takes more, or, by ``later``, in the next turn."""
        services, sources = session.services, self._sources
        clock = services.clock
        now_ns, until_s, left = clock.now_ns(), clock.monotonic_s() + _LOOK_UPS_S, _AT_ONCE
        while left > 0:
            left -= 1
            if session.is_slow or session.window.quota <= 0:
                return False
            try:
                delivery = next(sources[0], None)
            except Exception as error:  # noqa: BLE001  the store cannot be read: this client's trouble alone
                assert session.owner is not None
                session.owner.fail(error)
                return False
            if delivery is None:
                sources.popleft()
                if not sources:
                    return True
                left -= _LOOK_UP
                if clock.monotonic_s() > until_s:
                    break
            elif delivery.outgoing is None:
                break
            elif delivery.qos:
                sending.send(session, delivery, now_ns)
            else:
                qos0.send(session, delivery.outgoing, delivery.retain, delivery.identifiers)
        later()
        return False
