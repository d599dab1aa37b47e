"""Enhanced authentication by a token: the client sends it as authentication data, and a newer one while connected.

The method ``JWT`` takes the token as it is; ``OAUTHBEARER`` takes it as SASL carries it (RFC 7628, section 3.1)::

    n,a=user@example.org,^Aauth=Bearer TOKEN^A^A
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final, Literal

from broker.auth.decision import DENIED, Decision
from broker.auth.exchange import Continue, Finished
from broker.auth.scram import MALFORMED

BearerMethod = Literal["JWT", "OAUTHBEARER"]
_SCHEME: Final = "auth=bearer "

Judge = Callable[[str], Decision | Coroutine[Any, Any, Decision]]


class BearerExchange:
    """One login; ``judge`` decides over the token."""

    def __init__(self, method: str, judge: Judge) -> None:
        self._token_of = _sasl_token if method == "OAUTHBEARER" else bytes.decode
        self._judge = judge
        self._has_asked = False

    def step(self, data: bytes | None) -> Continue | Finished | Coroutine[Any, Any, Decision]:
        """See ``broker.auth.exchange.Exchange``."""
        if not data:
            if self._has_asked:
                return Finished(MALFORMED)
            self._has_asked = True
            return Continue(b"")
        try:
            text = self._token_of(data)
        except ValueError:
            return Finished(MALFORMED)
        decision = self._judge(text)
        if not isinstance(decision, Decision):
            return decision
        return Finished(DENIED if decision.verdict == "ignore" else decision)


def _sasl_token(data: bytes) -> str:
    """Raises ``ValueError``."""
    header, *pairs = data.decode().split("\x01")
    if not header.startswith(("n,", "y,")):
        raise ValueError("channel binding is not offered")
    pair_with_token = next((pair for pair in pairs if pair.lower().startswith(_SCHEME)), None)
    if pair_with_token is None:
        raise ValueError("there is no token")
    return pair_with_token[len(_SCHEME) :].strip()
