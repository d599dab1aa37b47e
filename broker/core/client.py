"""Identity of a client, for the pipeline and features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Final

import msgspec

_NO_ATTRIBUTES: Mapping[str, str] = MappingProxyType({})


class Proof(IntEnum):
    """Strength of the proof of a client's identity. Stored with sessions: the numbers must not change."""

    NOTHING = 0
    """No one authenticates clients."""
    LOGIN = 1
    """The client was authenticated under its user name."""
    USERNAME = 2
    CLIENT_ID = 3
    """Its client identifier, and not its user name."""


class Standing(msgspec.Struct, array_like=True, frozen=True):
    """Verified facts about a client at login, stored with its will, delayed messages
    and session. Its rights are checked against them when a message is due."""

    facts: dict[str, str]
    """Same members as ``broker.auth.subject.Subject``."""
    account: tuple[str, str] | None = None
    """Name of the broker's own user that it logged in as, and when that user was created."""
    is_superuser: bool = False
    rules: list[tuple[str, str, bool, int, list[str]]] | None = None
    """Access rules of its token: the members of ``broker.auth.rules.BoundRule``, filters as text."""


@dataclass(frozen=True, slots=True)
class Client:
    """Client of one connection, created once and shared by all its messages.

    ``protocol_version`` is 3 (3.1), 4 (3.1.1) or 5; 0 for messages that no MQTT client sent (rules, the API, bridges).
    ``is_bridge``: it connected as a bridge of mosquitto.
    """

    client_id: str
    username: str | None = None
    peer_host: str | None = None
    peer_port: int | None = None
    listener: str = ""
    protocol_version: int = 0
    attributes: Mapping[str, str] = field(default_factory=lambda: _NO_ATTRIBUTES)
    proof: Proof = Proof.NOTHING
    standing: Standing | None = field(default=None, compare=False, repr=False)
    """None where nothing is known of it: a record of an earlier release, or a message that no client sent."""
    is_bridge: bool = False
    authenticator: str = field(default="", compare=False)
    """Authenticator that let it in; "none" if none decides, empty if not known."""

    def may_resume(self, other: Client) -> bool:
        """True if this client may resume a session that another client with the same identifier left."""
        if other.proof in (Proof.NOTHING, Proof.CLIENT_ID):
            return self.proof >= other.proof
        return other.proof <= self.proof <= Proof.USERNAME and self.username == other.username

    @property
    def peer_name(self) -> str | None:
        """``address:port``, or None if the client did not connect over a socket."""
        return None if self.peer_host is None else f"{self.peer_host}:{self.peer_port}"


# The broker as publisher to reserved topics. Compared by identity, so that no client can take its place by name.
BROKER: Final = Client("$SYS")
