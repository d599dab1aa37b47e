"""Verified identity of a client, for access rules.

Certain is what the broker sees for itself (address, listener, certificate), what an authenticator says, and names that
an authenticator verified. A client that was not authenticated has none of the latter. Client attributes count when all
they were worked out from is certain.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from broker.auth.attempt import ConnectAttempt
from broker.auth.decision import NOBODY, Decision
from broker.core.client import Proof, Standing

if TYPE_CHECKING:
    from broker.auth.rules import BoundRule, Rule
    from broker.auth.users import User

# Variables of variform expressions over clients that the broker sees for itself.
_SEEN: Final = frozenset(
    ("peerhost", "peername", "listener", "protocol", "proto_ver", "zone", "peersni", "cert_common_name", "cn",
     "cert_subject", "dn", "cert_san")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Subject:
    """``facts`` by the names that rules have for them: ``username``, ``clientid``, ``peerhost``, ``listener``,
    ``cert_common_name``, ``cert_subject``, ``client_attrs.NAME``. What is not certain is not there."""

    facts: Mapping[str, str]
    is_superuser: bool = False
    rules: Sequence[Rule | BoundRule] | None = None
    """Its own, as ``Decision.rules``."""
    account: User | None = None
    """The broker's own user that it logged in as."""
    claimed: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Names and attributes that the client gives of itself, where a source of rules believes them."""
    outside: dict[Any, Any] = field(default_factory=dict, compare=False)
    """Rules and answers of outside sources, by the source."""

    def standing(self) -> Standing:
        """The same in the form that is stored."""
        account = self.account
        rules = None
        if self.rules is not None:
            bound = [
                rule
                for rule_of_token in self.rules
                if (rule := rule_of_token.bind(self.facts)) is not None
            ]
            rules = [rule.stored() for rule in bound]
        identity = None if account is None else (account.name, account.created_at)
        return Standing(dict(self.facts), identity, self.is_superuser, rules)


def proven_names(attempt: ConnectAttempt, decision: Decision) -> frozenset[str]:
    """Names (``username``, ``clientid``) that are the client's own, by an authenticator or by its certificate;
    names that are believed where there are no authenticators are not."""
    verified: frozenset[str] = decision.verified if decision.mechanism != NOBODY else frozenset()
    certificate = attempt.certificate
    if certificate is None:
        return verified
    names = {"username": attempt.username, "clientid": attempt.client_id}
    shown = (certificate.common_name, certificate.subject)
    return verified | {name for name in attempt.by_certificate if names[name] in shown}


def proof_of(attempt: ConnectAttempt, decision: Decision) -> Proof:
    """Strongest proof of a client's identity."""
    proven = proven_names(attempt, decision)
    if "username" in proven:
        return Proof.USERNAME
    if "clientid" in proven:
        return Proof.CLIENT_ID
    return Proof.LOGIN if decision.mechanism != NOBODY else Proof.NOTHING


def subject_of(
    attempt: ConnectAttempt,
    decision: Decision,
    *,
    roots: Callable[[str], Collection[str]] = lambda name: (),
    trusted: Collection[str] = (),
    keeps_claims: bool = False,
) -> Subject:
    """Verified facts about a client after the decision.

    Args:
        attempt: the client.
        decision: of the authenticator, whose attributes are in the attempt already.
        roots: the variables that the client attribute of a name is worked out from.
        trusted: names that are believed without verification.
        keeps_claims: whether the names that are not verified are kept too.
    """
    names = {"username": attempt.username, "clientid": attempt.client_id}
    certain = decision.verified | proven_names(attempt, decision) | set(trusted)
    facts = {name: text for name, text in names.items() if text is not None and name in certain}
    certificate = attempt.certificate
    if certificate is not None:
        facts |= {"cert_common_name": certificate.common_name, "cert_subject": certificate.subject}
    if attempt.peer_host is not None:
        facts["peerhost"] = attempt.peer_host
    facts["listener"] = attempt.listener
    for name, text in attempt.attributes.items():
        is_certain = name in decision.attributes or f"client_attrs.{name}" in certain
        if is_certain or _are_certain(roots(name), facts):
            facts[f"client_attrs.{name}"] = text
    claimed = (
        {name: text for name, text in attempt.facts().items() if text is not None}
        if keeps_claims
        else {}
    )
    outside = {} if decision.outside is None else decision.outside
    return Subject(facts, decision.is_superuser, decision.rules, decision.account, claimed, outside)


def _are_certain(roots: Collection[str], facts: Mapping[str, str]) -> bool:
    return bool(roots) and all(root in _SEEN or root in facts for root in roots)
