"""Decision of an authenticator over a client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from broker.core import reason

if TYPE_CHECKING:
    from broker.auth.rules import Rule
    from broker.auth.users import User

Verdict = Literal["allow", "deny", "ignore"]
ClientName = Literal["username", "clientid"]

# Mechanism without authenticators.
NOBODY: Final = "none"
_NO_ATTRIBUTES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict, and what is known of the client from then on.

    ``verified`` are the names that the client has proven to be its own: only those are used where it is asked what the
    client may do. ``username`` is who it is, where the authenticator learnt that itself; ``attributes`` are added to
    the client's own, and may be relied on.
    """

    verdict: Verdict
    reason_code: int = reason.SUCCESS
    """The reason code for a client that is denied, or that every authenticator ignores: an outage is not a wrong
    password."""
    is_superuser: bool = False
    verified: frozenset[ClientName] = frozenset()
    username: str | None = None
    attributes: Mapping[str, str] = field(default_factory=lambda: _NO_ATTRIBUTES)
    mechanism: str = ""
    expires_s: float | None = None
    """Unix time until which it holds: a client that is connected then is disconnected. None for ever."""
    rules: Sequence[Rule] | None = None
    """Access rules that came with the proof of identity, asked before all others. None when there came none."""
    account: User | None = None
    """The broker's own user that the client logged in as."""
    outside: dict[Any, Any] | None = field(default=None, compare=False)
    """Rules of this client from outside sources, by the source, once they were read."""
    why: str = ""
    """Reason of a denial, for operators; never sent to the client."""

    @property
    def is_allowed(self) -> bool:
        """True if the client is accepted."""
        return self.verdict == "allow"


IGNORED: Final = Decision("ignore")
DENIED: Final = Decision("deny", reason.BAD_USER_NAME_OR_PASSWORD)
LIMITED: Final = Decision(
    "deny", reason.CONNECTION_RATE_EXCEEDED, why="too many logins have failed"
)
