"""Settings of a listener."""

from __future__ import annotations

from ipaddress import ip_address

from pydantic import Field, field_validator

from broker.config.model import Settings


class ListenerSettings(Settings):
    """One TCP address on which MQTT clients are taken."""

    name: str = Field(default="tcp", min_length=1, description="Shown with its clients.")
    bind: str = Field(default="127.0.0.1:1883", description="Address and port; port 0 takes any free one.")
    max_connections: int = Field(default=0, ge=0, description="Most connections at a time; 0 is no limit.")
    backlog: int = Field(default=1024, ge=1, description="Connections the system keeps until they are accepted.")

    @field_validator("bind")
    @classmethod
    def _check_bind(cls, value: str) -> str:
        host, port = split_address(value)
        if not host or not 0 <= port <= 65_535:
            raise ValueError(f"{value!r} is not an address; write HOST:PORT, as '127.0.0.1:1883'")
        return value

    @property
    def host(self) -> str:
        """The host part, without brackets."""
        return split_address(self.bind)[0]

    @property
    def port(self) -> int:
        """The port part."""
        return split_address(self.bind)[1]

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


def split_address(text: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT`` or ``[IPV6]:PORT``; port -1 when there is none."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or not port.isascii():
        return text, -1
    return host.removeprefix("[").removesuffix("]"), int(port)
