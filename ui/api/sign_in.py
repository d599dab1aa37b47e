"""Sign-in to the dashboard: one-time codes, and the sessions they are exchanged for.

The server prints a code in its link; it works once, within ten minutes. A session lives twelve hours, also across
restarts of the broker. Only digests are kept, so that the timing of a look-up reveals nothing, and neither a memory
dump nor the store gives access. They are keyed with the token: with another token, all sessions are over.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from broker.core import jsontext
from broker.core.clock import Clock, SystemClock
from broker.core.values import Values

CODE_LIFE_S = 600.0
SESSION_LIFE_S = 12 * 3600.0
MAX_CODES = 64
MAX_SESSIONS = 256
_SESSIONS = "api/sessions"


@dataclass(slots=True)
class SignIn:
    """Codes and sessions; the oldest makes room when there are too many."""

    clock: Clock = field(default_factory=SystemClock)
    values: Values = field(default_factory=Values, repr=False)
    token: str = field(default="", repr=False)
    on_closed: Callable[[], None] = lambda: None
    """Called when sessions have ended before their time."""
    _codes: dict[bytes, float] = field(default_factory=dict, repr=False)
    _sessions: dict[bytes, float] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        now_s = self.clock.monotonic_s()
        now_ns = self.clock.now_ns()
        for digest, until_ns in jsontext.decode(self.values.get(_SESSIONS) or b"{}").items():
            left_s = min((until_ns - now_ns) / 1e9, SESSION_LIFE_S)  # the system's clock may have been set back
            self._sessions[bytes.fromhex(digest)] = now_s + left_s

    def new_code(self) -> str:
        """A code that opens one session within ``CODE_LIFE_S``."""
        return self._remember(self._codes, CODE_LIFE_S, MAX_CODES)

    def redeem(self, code: str) -> str | None:
        """A new session for a code, or None when the code is wrong, used or too old."""
        expires_s = self._codes.pop(self._digest(code), None)
        if expires_s is None or expires_s <= self.clock.monotonic_s():
            return None
        return self.open_session()

    def open_session(self) -> str:
        """A new session's secret, for a client that has shown the token."""
        opened = self._remember(self._sessions, SESSION_LIFE_S, MAX_SESSIONS)
        self._keep()
        self.on_closed()  # of the oldest, where there were too many
        return opened

    def is_open(self, session: str) -> bool:
        """Return whether this is the secret of a session that has not expired."""
        expires_s = self._sessions.get(self._digest(session))
        return expires_s is not None and expires_s > self.clock.monotonic_s()

    def close_session(self, session: str) -> None:
        """Forget a session; no error when there is none."""
        self._sessions.pop(self._digest(session), None)
        self._keep()
        self.on_closed()

    def _remember(self, place: dict[bytes, float], life_s: float, bound: int) -> str:
        while len(place) >= bound:
            del place[next(iter(place))]
        secret = secrets.token_urlsafe(24)
        place[self._digest(secret)] = self.clock.monotonic_s() + life_s
        return secret

    def _keep(self) -> None:
        now_s = self.clock.monotonic_s()
        now_ns = self.clock.now_ns()
        left = {digest.hex(): until_s - now_s for digest, until_s in self._sessions.items() if until_s > now_s}
        self.values.put(_SESSIONS, jsontext.encode({key: now_ns + int(s * 1e9) for key, s in left.items()}))

    def _digest(self, secret: str) -> bytes:
        return hmac.digest(self.token.encode(), secret.encode("utf-8", "surrogatepass"), "sha256")
