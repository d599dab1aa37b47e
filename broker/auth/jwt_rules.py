"""Access rules that a token brings along: the claim with rules, and OAuth scopes.

::

    "acl": [{"permission": "allow", "action": "publish", "topic": "meters/${clientid}/#", "qos": [0, 1]}]
    "acl": {"pub": ["a/#"], "sub": ["b/#"], "all": ["c/#"]}
    "scope": "read:b/# write:a/#"

What cannot be read refuses the token: a rule that is left out might be the one that denies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

from pydantic import ValidationError

from broker.auth.jwt_token import Refused
from broker.auth.rules import Rule, RuleSettings

SOURCE: Final = "token"
_ACTIONS: Final = {"pub": "publish", "sub": "subscribe", "all": "all"}
_SCOPES: Final = {"read": "subscribe", "write": "publish"}
# Rules of one token: some milliseconds of the loop for each login.
MOST_RULES: Final = 256


def rules_of(claims: Mapping[str, Any], acl_claim: str, scope_prefix: str | None) -> tuple[Rule, ...] | None:
    """The rules of a token in their order; None when it has no such claim, and so restricts nothing.

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
        raise Refused("claim", f"the token has {len(written)} access rules; {MOST_RULES} is the most")
    if not is_there:
        return None
    return tuple(_rule(entry, number) for number, entry in enumerate(written, 1))


def _rule(written: Mapping[str, Any], number: int) -> Rule:
    try:
        return Rule(RuleSettings.model_validate(written), f"rule {number}", SOURCE)
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, detail["loc"]))
        raise Refused("claim", f"access rule {number} of the token: {place}: {detail['msg']}") from None


def _of_acl(acl: Any, claim: str) -> Iterator[Mapping[str, Any]]:
    if isinstance(acl, Mapping):
        for name, topics in acl.items():
            if name not in _ACTIONS:
                raise Refused("claim", f"the claim {claim!r} has {name[:40]!r}; it may have pub, sub and all")
            if topics:
                yield {"permission": "allow", "action": _ACTIONS[name], "topics": topics}
    elif isinstance(acl, list):
        for number, entry in enumerate(acl, 1):
            if not isinstance(entry, Mapping):
                raise Refused("claim", f"access rule {number} of the token: expected an object")
            if "topic" in entry and "topics" in entry:
                raise Refused("claim", f"access rule {number} of the token: expected topic or topics, got both")
            yield {"topics" if name == "topic" else name: value for name, value in entry.items()}
    else:
        raise Refused("claim", f"the claim {claim!r} is neither a list of rules nor an object with pub, sub and all")


def _of_scope(scope: Any, prefix: str) -> Iterator[Mapping[str, Any]]:
    """Scopes with the prefix, ``PREFIXread:FILTER`` and ``PREFIXwrite:FILTER``; others are for other services."""
    parts = scope.split() if isinstance(scope, str) else scope
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise Refused("claim", "the claim 'scope': expected a string or a list of strings")
    for part in parts:
        verb, colon, topic = part.removeprefix(prefix).partition(":")
        if part.startswith(prefix) and colon and verb in _SCOPES:
            yield {"permission": "allow", "action": _SCOPES[verb], "topics": [unquote(topic)]}
