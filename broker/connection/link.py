"""The byte stream under a connection, and a connection as its collaborators see it."""

from __future__ import annotations

from collections.abc import Callable
from sys import getsizeof
from typing import Any, Final, NamedTuple, Protocol

from broker.auth.attempt import Certificate
from broker.codec.packets import Connect
from broker.core.client import Client


class LinkIdentity(Protocol):
    """The peer of a link, as it is known before its CONNECT."""

    @property
    def peer_host(self) -> str | None:
        """Address of the client."""

    @property
    def peer_port(self) -> int | None:
        """Port of the client."""

    @property
    def listener(self) -> str:
        """The listener that it is connected to."""

    @property
    def server_name(self) -> str | None:
        """Server name that it asked for in the TLS handshake (SNI)."""

    @property
    def certificate(self) -> Certificate | None:
        """Certificate that it presented there and that was verified."""


class Link(Protocol):
    """The byte stream under a connection (``broker.net.tcp``)."""

    peer_host: str | None
    peer_port: int | None
    listener: str
    server_name: str | None
    """Server name that the client asked for in the TLS handshake (SNI)."""
    tls_version: str | None
    """TLS version of the connection, None without TLS."""
    certificate: Certificate | None
    """Certificate that it presented there and that was verified."""
    refusal: int
    """Reason code to refuse its CONNECT with, 0 when its listener takes it."""

    def admit(self) -> int:
        """Take a place among the clients of the listener; returns the reason code of the refusal, 0 when there was a
        place."""

    @property
    def sock_name(self) -> str | None:
        """``address:port`` of our end, None when it has none."""

    def write(self, data: bytes) -> None:
        """Send; never waits."""

    def close(self, *, lingers: bool = False) -> None:
        """Send what waits, then close; cut off when the peer does not take it within a deadline.

        ``lingers``: what the peer is still sending is read and thrown away for a while, since closing on it would
        reset the connection, and the peer might not see the last packets.
        """

    def pause_reading(self) -> None:
        """Read no more until ``resume_reading``."""

    def resume_reading(self) -> None:
        """Read again."""

    def unsent_bytes(self) -> int:
        """Bytes that the system has not taken yet."""


class Peer(Protocol):
    """A client's connection for those that make it wait or end: limits, turns of the loop, logins."""

    client: Client
    link: Link
    is_connected: bool
    is_closed: bool
    is_parked: bool
    """True if its bytes are kept until ``go_on``."""

    def hold(self, cause: object) -> None:
        """Read nothing until ``let_go`` was called for every cause."""

    def let_go(self, cause: object) -> None:
        """A cause to hold back is over."""

    def go_on(self, finish: Callable[[], None]) -> None:
        """The question that this was parked for is decided: finish it, then take what was read behind it."""

    def disconnect(self, code: int, why: str, *, text: str = "", is_will_due: bool = True) -> None:
        """DISCONNECT with a reason code to version 5 clients, then the end."""

    def refuse_connect(
        self, code: int, text: str = "", client_id: str = "", *, detail: str = ""
    ) -> None:
        """CONNACK with the reason, then the end."""


_PAIR_BYTES: Final = 64


def memory_of(properties: dict[str, Any] | None) -> int:
    """Bytes of memory that the user properties of a packet take."""
    if not properties or "User-Property" not in properties:
        return 0
    return sum(
        _PAIR_BYTES + getsizeof(name) + getsizeof(value)
        for name, value in properties["User-Property"]
    )


_CREDENTIALS: Final = "Authentication-Data"


class Greeting(NamedTuple):
    """The fields of a CONNECT that later events repeat; ``properties`` is None when there were none."""

    clean_start: bool
    keep_alive_s: int
    expiry_s: int
    properties: dict[str, Any] | None
    connected_ns: int

    @classmethod
    def of(cls, packet: Connect, expiry_s: int, connected_ns: int) -> Greeting:
        """Without the credentials among its properties: tokens, and what SCRAM exchanges."""
        shown = {name: value for name, value in packet.properties.items() if name != _CREDENTIALS}
        return cls(packet.clean_start, packet.keep_alive_s, expiry_s, shown or None, connected_ns)
