"""What waits in the session log for sessions that are away or behind: counted when somebody asks.

The log is read once for all sessions that are asked for, a part in each turn of the loop, from the place of the one
that stands furthest back. Who gets a record is asked of the routing, as when it was appended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from broker.codec.outgoing import Outgoing
from broker.connection.hub import Hub
from broker.core.message import Message
from broker.session.session import Session

_FEW: Final = 16
"""So many sessions are asked one by one; the routing is asked for more."""


@dataclass(slots=True)
class Waiting:
    """Messages in the log for one session, and bytes of their topics and payloads."""

    messages: int = 0
    bytes: int = 0


class Backlogs:
    """See the module."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def count_all(self) -> dict[Session, Waiting]:
        """Of every session that something waits for in the log."""
        return await self.count(list(self._hub.sessions))

    async def count(self, sessions: Sequence[Session]) -> dict[Session, Waiting]:
        """Of those of these sessions that something waits for in the log."""
        behind = {session.client_id: session for session in sessions if session.is_durable and session.is_behind}
        found: dict[Session, Waiting] = {}
        position = min((session.next_offset for session in behind.values()), default=self._hub.backlog.log_next)
        end = self._hub.backlog.log_next
        while position < end and behind:
            part = self._hub.backlog.part(position)
            if not part:
                break
            for offset, message, addressee in part:
                for session in self._asked(behind, message, addressee):
                    if offset >= session.next_offset and session.match_logged(offset, message, addressee) is not None:
                        waiting = found.setdefault(session, Waiting())
                        waiting.messages += 1
                        waiting.bytes += Outgoing(message).size_bytes
            position = part[-1][0] + 1
            await asyncio.sleep(0)
        return found

    def _asked(self, behind: dict[str, Session], message: Message, addressee: str | None) -> Iterable[Session]:
        if addressee is not None:
            session = behind.get(addressee)
            return () if session is None else (session,)
        if len(behind) <= _FEW:
            return behind.values()
        entries = self._hub.router.routes(message.topic).entries
        return [entry.subscriber for entry in entries if entry.subscriber.client_id in behind]
