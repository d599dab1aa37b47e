"""Claims that a token must have, and what is taken from others: a name, client attributes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from broker.auth.attempt import ConnectAttempt
from broker.auth.client_attributes import MAX_BYTES
from broker.auth.decision import ClientName
from broker.auth.jwt_token import Refused
from broker.auth.matching import filled, placeholders

_ATTRIBUTE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9\-_]{0,254}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")

Expected = bool | int | str | list[str]


class ExpectedClaim:
    """One claim and what it must be: this, or a list that has this. Texts may name facts of the client.

    Raises ``ValueError`` for an unknown placeholder.
    """

    def __init__(self, name: str, expected: Expected) -> None:
        self.name = name
        self._expected = expected if isinstance(expected, list) else [expected]
        try:
            self.placeholders = [
                name for text in self._expected if isinstance(text, str) for name in placeholders(text)
            ]
        except ValueError as error:
            raise ValueError(f"verify_claims, {name}: {error}") from None

    @property
    def proves(self) -> frozenset[ClientName]:
        """The names of a client that the token proves when this holds."""
        if len(self._expected) != 1 or len(self.placeholders) != 1:
            return frozenset()
        names: Sequence[ClientName] = ("username", "clientid")
        return frozenset(name for name in names if name in self.placeholders)

    def check(self, claims: Mapping[str, Any], attempt: ConnectAttempt) -> None:
        """Raise ``Refused`` unless the token has it."""
        claim = claims.get(self.name)
        if claim is None:
            raise Refused("claim", f"the token has no claim {self.name!r}")
        values = claim if isinstance(claim, list) else [claim]
        facts = attempt.facts() if self.placeholders else {}
        wanted = [filled(item, facts) if isinstance(item, str) else item for item in self._expected]
        if not any(_same(value, expected_value) for value in values for expected_value in wanted):
            expected = wanted[0] if len(wanted) == 1 else wanted
            raise Refused("claim", f"the token's claim {self.name!r} is not {expected!r}")


def _same(value: Any, wanted: bool | int | str | None) -> bool:
    return wanted is not None and type(value) is type(wanted) and value == wanted


def name_in(claims: Mapping[str, Any], claim: str) -> str:
    """The user name in a claim; raises ``Refused``."""
    value = claims.get(claim)
    if not is_text(value):
        raise Refused("claim", f"the token's claim {claim!r}, which must be the user name, is not a valid string")
    return str(value)


def attributes_of(claims: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """The client attributes in the claim ``client_attrs``, and the names of those that cannot be any."""
    attributes = claims.get("client_attrs")
    if attributes is None:
        return {}, []
    if not isinstance(attributes, Mapping):
        return {}, ["client_attrs"]
    good = {name: text for name, text in attributes.items() if _ATTRIBUTE.fullmatch(name) and is_text(text)}
    return good, [name for name in attributes if name not in good]


def is_text(value: Any) -> bool:
    """True if it can be the name of a client: a string, not empty, not too long, without control characters."""
    if not isinstance(value, str) or not value or _CONTROL.search(value):
        return False
    try:
        return len(value.encode()) <= MAX_BYTES
    except UnicodeEncodeError:
        return False
