"""Who a client is, as far as that is certain: what access rules go by.

Certain is what the broker sees for itself (address, listener, certificate), what an authenticator says, and names that
an authenticator verified. A client that nobody authenticated has none of the latter. Client attributes count when all
they were worked out from is certain.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker.auth.attempt import ConnectAttempt
from broker.auth.decision import Decision

if TYPE_CHECKING:
    from broker.auth.rules import Rule

_SEEN: Final = frozenset(
    ("peerhost", "peername", "listener", "protocol", "proto_ver", "zone", "peersni", "cert_common_name", "cn",
     "cert_subject", "dn", "cert_san")
)  # fmt: skip
"""What variform expressions over clients read that the broker sees for itself."""


@dataclass(frozen=True, slots=True)
class Subject:
    """``facts`` by the names that rules have for them: ``username``, ``clientid``, ``peerhost``, ``listener``,
    ``cert_common_name``, ``cert_subject``, ``client_attrs.NAME``. What is not certain is not there."""

    facts: Mapping[str, str]
    is_superuser: bool = False
    rules: Sequence[Rule] | None = None
    """Its own, as ``Decision.rules``."""


def subject_of(
    attempt: ConnectAttempt,
    decision: Decision,
    *,
    roots: Callable[[str], Collection[str]] = lambda name: (),
    trusted: Collection[str] = (),
) -> Subject:
    """What is certain of a client once it was decided over.

    Args:
        attempt: the client.
        decision: of the authenticator, whose attributes are in the attempt already.
        roots: the variables that the client attribute of a name is worked out from.
        trusted: names that are believed though nobody verified them.
    """
    names = {"username": attempt.username, "clientid": attempt.client_id}
    certain = decision.verified | set(trusted)
    facts = {name: text for name, text in names.items() if text is not None and name in certain}
    certificate = attempt.certificate
    if certificate is not None:
        facts |= {"cert_common_name": certificate.common_name, "cert_subject": certificate.subject}
        by_certificate = (certificate.common_name, certificate.subject)
        facts |= {
            name: text for name, text in names.items() if name in attempt.by_certificate and text in by_certificate
        }
    if attempt.peer_host is not None:
        facts["peerhost"] = attempt.peer_host
    facts["listener"] = attempt.listener
    for name, text in attempt.attributes.items():
        known = name in decision.attributes or f"client_attrs.{name}" in certain
        if known or _are_certain(roots(name), facts):
            facts[f"client_attrs.{name}"] = text
    return Subject(facts, decision.is_superuser, decision.rules)


def _are_certain(roots: Collection[str], facts: Mapping[str, str]) -> bool:
    return bool(roots) and all(root in _SEEN or root in facts for root in roots)
