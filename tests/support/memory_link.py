"""A link that is memory: connections in process."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.auth.attempt import Certificate


@dataclass
class MemoryLink:
    """The byte stream under a connection, without a socket."""

    peer_host: str | None = "127.0.0.1"
    peer_port: int | None = 1
    sock_name: str | None = None
    listener: str = "tcp:default"
    server_name: str | None = None
    tls_version: str | None = None
    certificate: Certificate | None = None
    refusal: int = 0
    is_closed: bool = False
    said: bytearray = field(default_factory=bytearray)

    def admit(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.said += data

    def close(self, *, lingers: bool = False) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        """Nothing is read from it anyway."""

    def resume_reading(self) -> None:
        """Nothing is read from it anyway."""

    def unsent_bytes(self) -> int:
        return 0
