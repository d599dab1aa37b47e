"""Claims that a token must have, and the values taken from others: a user name, client attributes, access rules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

from pydantic import ValidationError

from broker.auth.attempt import ConnectAttempt
from broker.auth.client_attributes import MAX_BYTES
from broker.auth.decision import ClientName
from broker.auth.jwt_token import Refused
from broker.auth.matching import filled, placeholders
from broker.auth.rules import Rule, RuleSettings

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
                name
                for text in self._expected
                if isinstance(text, str)
                for name in placeholders(text)
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
        raise Refused(
            "claim",
            f"the token's claim {claim!r}, which must be the user name, is not a valid string",
        )
    return str(value)


def attributes_of(claims: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """The client attributes in the claim ``client_attrs``, and the names of those that cannot be any."""
    attributes = claims.get("client_attrs")
    if attributes is None:
        return {}, []
    if not isinstance(attributes, Mapping):
        return {}, ["client_attrs"]
    good = {
        name: text
        for name, text in attributes.items()
        if _ATTRIBUTE.fullmatch(name) and is_text(text)
    }
    return good, [name for name in attributes if name not in good]


def is_text(value: Any) -> bool:
    """True if it can be the name of a client: a string, not empty, not too long, without control characters."""
    if not isinstance(value, str) or not value or _CONTROL.search(value):
        return False
    try:
        return len(value.encode()) <= MAX_BYTES
    except UnicodeEncodeError:
        return False


SOURCE: Final = "token"
_ACTIONS: Final = {"pub": "publish", "sub": "subscribe", "all": "all"}
_SCOPES: Final = {"read": "subscribe", "write": "publish"}
# Rules of one token: some milliseconds of the loop for each login.
MOST_RULES: Final = 256


def rules_of(
    claims: Mapping[str, Any], acl_claim: str, scope_prefix: str | None
) -> tuple[Rule, ...] | None:
    """The rules of a token in their order; None when it has no such claim, and so restricts nothing.

    ::

        "acl": [{"permission": "allow", "action": "publish", "topic": "meters/${clientid}/#", "qos": [0, 1]}]
        "acl": {"pub": ["a/#"], "sub": ["b/#"], "all": ["c/#"]}
        "scope": "read:b/# write:a/#"

    A rule that cannot be read refuses the token: it might be the one that denies.

    Raises:
        Refused: a claim with rules cannot be read.
    """
    written: list[Mapping[str, Any]] = []
    is_there = False
    if (acl := claims.get(acl_claim)) is not None:
        is_there = True
        written = list(_of_acl(acl, acl_claim))
    if scope_prefix is not None and (scope := claims.get("scope")) is not None:
        is_there = True
        written += _of_scope(scope, scope_prefix)
    if len(written) > MOST_RULES:
        raise Refused(
            "claim", f"the token has {len(written)} access rules; {MOST_RULES} is the most"
        )
    if not is_there:
        return None
    return tuple(_rule(entry, number) for number, entry in enumerate(written, 1))


def _rule(written: Mapping[str, Any], number: int) -> Rule:
    try:
        return Rule(RuleSettings.model_validate(written), f"rule {number}", SOURCE)
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, detail["loc"]))
        raise Refused(
            "claim", f"access rule {number} of the token: {place}: {detail['msg']}"
        ) from None


def _of_acl(acl: Any, claim: str) -> Iterator[Mapping[str, Any]]:
    if isinstance(acl, Mapping):
        for name, topics in acl.items():
            if name not in _ACTIONS:
                raise Refused(
                    "claim", f"the claim {claim!r} has {name[:40]!r}; it may have pub, sub and all"
                )
            if topics:
                yield {"permission": "allow", "action": _ACTIONS[name], "topics": topics}
    elif isinstance(acl, list):
        for number, entry in enumerate(acl, 1):
            if not isinstance(entry, Mapping):
                raise Refused("claim", f"access rule {number} of the token: expected an object")
            if "topic" in entry and "topics" in entry:
                raise Refused(
                    "claim",
                    f"access rule {number} of the token: expected topic or topics, got both",
                )
            yield {"topics" if name == "topic" else name: value for name, value in entry.items()}
    else:
        raise Refused(
            "claim",
            f"the claim {claim!r} is neither a list of rules nor an object with pub, sub and all",
        )


def _of_scope(scope: Any, prefix: str) -> Iterator[Mapping[str, Any]]:
    """Scopes with the prefix, ``PREFIXread:FILTER`` and ``PREFIXwrite:FILTER``; others are for other services."""
    parts = scope.split() if isinstance(scope, str) else scope
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise Refused("claim", "the claim 'scope': expected a string or a list of strings")
    for part in parts:
        verb, colon, topic = part.removeprefix(prefix).partition(":")
        if part.startswith(prefix) and colon and verb in _SCOPES:
            yield {"permission": "allow", "action": _SCOPES[verb], "topics": [unquote(topic)]}
