"""Sign-in to the dashboard: one-time codes, and the sessions of the administrator's token and of accounts.

The server prints a code in its link; it works once, within ten minutes. A session lives twelve hours, also across
restarts of the broker; that of an account ends with its password. Only digests are kept, so that the timing of a
look-up reveals nothing, and neither a memory dump nor the store gives access. They are keyed with the token: with
another token, all sessions are over.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from broker.core import jsontext
from broker.core.clock import Clock, SystemClock
from broker.core.values import Values

CODE_LIFE_S = 600.0
SESSION_LIFE_S = 12 * 3600.0
MAX_CODES = 64
MAX_SESSIONS = 1_000
# Sessions of one account; the oldest makes room.
MAX_SESSIONS_OF_ONE = 32
_SESSIONS = "api/sessions"
_SECRET_BYTES = 24


class Session(NamedTuple):
    """A session: its end in monotonic seconds, the account, empty for the administrator's token, and the digest of its
    password at sign-in; of a sign-in by OpenID Connect, the role instead."""

    until_s: float
    account: str = ""
    stamp: str = ""
    role: str = ""


@dataclass(slots=True)
class SignIn:
    """Codes and sessions; the oldest makes room when there are too many."""

    clock: Clock = field(default_factory=SystemClock)
    values: Values = field(default_factory=Values, repr=False)
    token: str = field(default="", repr=False)
    on_closed: Callable[[], None] = lambda: None
    """Called when sessions have ended before their time."""
    _codes: dict[bytes, float] = field(default_factory=dict, repr=False)
    _sessions: dict[bytes, Session] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        now_s = self.clock.monotonic_s()
        now_ns = self.clock.now_ns()
        for digest, kept in jsontext.decode(self.values.get(_SESSIONS) or b"{}").items():
            # a number: of an older version
            until_ns, *owner = kept if isinstance(kept, list) else [kept]
            # the system's clock may have been set back
            left_s = min((until_ns - now_ns) / 1e9, SESSION_LIFE_S)
            self._sessions[bytes.fromhex(digest)] = Session(now_s + left_s, *owner)

    def new_code(self) -> str:
        """A code that opens one session within ``CODE_LIFE_S``."""
        while len(self._codes) >= MAX_CODES:
            del self._codes[next(iter(self._codes))]
        code = secrets.token_urlsafe(_SECRET_BYTES)
        self._codes[self._digest(code)] = self.clock.monotonic_s() + CODE_LIFE_S
        return code

    def redeem(self, code: str) -> str | None:
        """A new session for a code, or None when the code is wrong, used or too old."""
        expires_s = self._codes.pop(self._digest(code), None)
        if expires_s is None or expires_s <= self.clock.monotonic_s():
            return None
        return self.open_session()

    def open_session(self, account: str = "", stamp: str = "", role: str = "") -> str:
        """A new session's secret, for a client that has shown the token, or the password of an account."""
        own = [
            digest
            for digest, session in self._sessions.items()
            if account and session.account == account
        ]
        for digest in own[: max(0, len(own) - MAX_SESSIONS_OF_ONE + 1)]:
            del self._sessions[digest]
        while len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        self._sessions[self._digest(secret)] = Session(
            self.clock.monotonic_s() + SESSION_LIFE_S, account, stamp, role
        )
        self._keep()
        self.on_closed()  # of the oldest, where there were too many
        return secret

    def session(self, secret: str) -> Session | None:
        """The session with this secret, or None if there is none or it has expired."""
        session = self._sessions.get(self._digest(secret))
        return None if session is None or session.until_s <= self.clock.monotonic_s() else session

    def is_open(self, session: str) -> bool:
        """Return whether this is the secret of a session that has not expired."""
        return self.session(session) is not None

    def close_session(self, session: str) -> None:
        """Forget a session; no error when there is none."""
        self._sessions.pop(self._digest(session), None)
        self._keep()
        self.on_closed()

    def _keep(self) -> None:
        now_s = self.clock.monotonic_s()
        now_ns = self.clock.now_ns()
        kept = {
            digest.hex(): [now_ns + int((session.until_s - now_s) * 1e9), *session[1:]]
            for digest, session in self._sessions.items()
            if session.until_s > now_s
        }
        self.values.put(_SESSIONS, jsontext.encode(kept))

    def _digest(self, secret: str) -> bytes:
        return hmac.digest(self.token.encode(), secret.encode("utf-8", "surrogatepass"), "sha256")
