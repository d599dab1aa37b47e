"""Who may use the dashboard: one-time codes, and the sessions they are exchanged for. All in memory.

A code is what the server prints in its link; it works once, within ten minutes. A session lives twelve hours. Only
hashes are kept, so that a look-up tells nothing by its timing and a dump of the memory opens no door.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from broker.core.clock import Clock, SystemClock

CODE_LIFE_S = 600.0
SESSION_LIFE_S = 12 * 3600.0
MAX_CODES = 64
MAX_SESSIONS = 256


@dataclass(slots=True)
class SignIn:
    """Codes and sessions; the oldest makes room when there are too many."""

    clock: Clock = field(default_factory=SystemClock)
    on_closed: Callable[[], None] = lambda: None
    """Called when sessions have ended before their time."""
    _codes: dict[bytes, float] = field(default_factory=dict, repr=False)
    _sessions: dict[bytes, float] = field(default_factory=dict, repr=False)

    def new_code(self) -> str:
        """A code that opens one session within ``CODE_LIFE_S``."""
        return self._remember(self._codes, CODE_LIFE_S, MAX_CODES)

    def redeem(self, code: str) -> str | None:
        """A new session for a code, or None when the code is wrong, used or too old."""
        expires_s = self._codes.pop(_hash(code), None)
        if expires_s is None or expires_s <= self.clock.monotonic_s():
            return None
        return self.open_session()

    def open_session(self) -> str:
        """A new session's secret, for a client that has shown the token."""
        opened = self._remember(self._sessions, SESSION_LIFE_S, MAX_SESSIONS)
        self.on_closed()  # of the oldest, where there were too many
        return opened

    def is_open(self, session: str) -> bool:
        """Whether this is the secret of a session that has not expired."""
        expires_s = self._sessions.get(_hash(session))
        return expires_s is not None and expires_s > self.clock.monotonic_s()

    def close_session(self, session: str) -> None:
        """Forget a session; no error when there is none."""
        self._sessions.pop(_hash(session), None)
        self.on_closed()

    def _remember(self, place: dict[bytes, float], life_s: float, bound: int) -> str:
        while len(place) >= bound:
            del place[next(iter(place))]
        secret = secrets.token_urlsafe(24)
        place[_hash(secret)] = self.clock.monotonic_s() + life_s
        return secret


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
