"""A client's attempt to connect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from broker.auth.decision import Decision

_NO_TEXTS: Mapping[str, str] = MappingProxyType({})
_NO_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Certificate:
    """The certificate a client showed: its subject, the common name in it, and its alternative names by kind."""

    subject: str
    common_name: str
    alternative_names: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _NO_NAMES)
    """``dns``, ``ip``, ``email``, ``uri``."""


@dataclass(frozen=True, slots=True)
class ConnectAttempt:
    """Identity and properties of a client that connects. ``password`` is never logged."""

    client_id: str
    username: str | None = None
    password: bytes | None = field(default=None, repr=False)
    peer_host: str | None = None
    peer_port: int | None = None
    protocol_version: int = 5
    listener: str = ""
    user_properties: tuple[tuple[str, str], ...] = ()
    server_name: str | None = None
    """The name asked for in the TLS handshake (SNI)."""
    certificate: Certificate | None = None
    attributes: Mapping[str, str] = field(default_factory=lambda: _NO_TEXTS)
    by_certificate: frozenset[str] = frozenset()
    """Names (``clientid``, ``username``) that were taken from the certificate."""
    zone: str = "default"
    """Zone of its listener."""

    @property
    def peer_name(self) -> str | None:
        """``address:port``, where it came over a socket."""
        return None if self.peer_host is None else f"{self.peer_host}:{self.peer_port}"

    def facts(self) -> dict[str, str | None]:
        """Values of the client by the names that ``${FACT}`` has for them."""
        certificate = self.certificate
        return {
            "username": self.username,
            "clientid": self.client_id,
            "peerhost": self.peer_host,
            "listener": self.listener,
            "cert_common_name": None if certificate is None else certificate.common_name,
            "cert_subject": None if certificate is None else certificate.subject,
            **{f"client_attrs.{name}": text for name, text in self.attributes.items()},
        }

    def after(self, decision: Decision) -> ConnectAttempt:
        """The client as it is known once it was decided over."""
        if decision.username in (None, self.username) and not decision.attributes:
            return self
        username = self.username if decision.username is None else decision.username
        return replace(
            self, username=username, attributes={**self.attributes, **decision.attributes}
        )

    def bindings(self) -> dict[str, Any]:
        """Variables of expressions over clients. Absent values are left out, so that ``coalesce`` can step in."""
        certificate = self.certificate
        names = certificate.alternative_names if certificate is not None else _NO_NAMES
        bindings: dict[str, Any] = {
            "clientid": self.client_id,
            "username": self.username or "",
            "protocol": "mqtt",
            "proto_ver": self.protocol_version,
            "listener": self.listener,
            "zone": self.zone,
            "user_property": dict(self.user_properties),
            "client_attrs": dict(self.attributes),
            "cert_san": {kind: list(names.get(kind, ())) for kind in ("dns", "ip", "email", "uri")},
        }
        if self.password is not None:
            bindings["password"] = self.password.decode(errors="replace")
        if self.peer_host is not None:
            bindings |= {
                "peerhost": self.peer_host,
                "peername": f"{self.peer_host}:{self.peer_port}",
            }
        if self.server_name is not None:
            bindings["peersni"] = self.server_name
        if certificate is not None:
            bindings |= {"cert_common_name": certificate.common_name, "cn": certificate.common_name}
            bindings |= {"cert_subject": certificate.subject, "dn": certificate.subject}
        return bindings
