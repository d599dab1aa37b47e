"""Host names and addresses of HTTP requests and listeners: how they are written, which are loopback, and which a
listener accepts.

A web page can give its own host name the address 127.0.0.1 (DNS rebinding). The browser then lets the page talk to
this machine as if it were the page's own server; only the ``Host`` header still shows the name.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final

ANY: Final = "*"


def is_loopback(host: str) -> bool:
    """True if a host, without port and brackets, is this machine under an address or name that no DNS can redirect."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def address_text(host: str, port: int) -> str:
    """``HOST:PORT``, IPv6 addresses in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def checked_address(text: str, example: str) -> str:
    """The text, where it is HOST:PORT.

    Raises:
        ValueError: with the example.
    """
    host, port = split_address(text)
    if not host or not 0 <= port <= 65_535:
        raise ValueError(f"{text!r} is not an address; write HOST:PORT, as {example!r}")
    return text


def split_address(text: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT`` or ``[IPV6]:PORT``; port -1 when there is none."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or not port.isascii():
        return text, -1
    return host.removeprefix("[").removesuffix("]"), int(port)


def checked_hosts(hosts: Iterable[str]) -> list[str]:
    """Host names of a setting, in lower case.

    Raises:
        ValueError: one has a scheme, a path or a port.
    """
    names = [host.lower() for host in hosts]
    for host in names:
        if not host or "/" in host or (host != ANY and _name(host) != host):
            raise ValueError(
                f"expected a host name without scheme and port, got {host!r}. Try: 'broker.example'"
            )
    return names


class AllowedHosts:
    """The values of ``Host`` that a listener accepts.

    On loopback: loopback hosts and those allowed. Elsewhere: the same where hosts are allowed by name, else any.
    """

    def __init__(self, allowed: Iterable[str] = (), *, loopback: bool = True) -> None:
        self._allowed = frozenset(allowed)
        self._takes_any = ANY in self._allowed or not (loopback or self._allowed)

    def has(self, header: str | None) -> bool:
        """True if a request with this ``Host`` header may pass; every browser sends one."""
        if self._takes_any or header is None:
            return True
        name = _name(header.strip().lower())
        return name in self._allowed or is_loopback(name)


def _name(header: str) -> str:
    """The host of ``HOST``, ``HOST:PORT`` or ``[IPV6]:PORT``."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].removesuffix(".")


def is_this_machine(peer_host: str | None) -> bool:
    """True if a client's address is a loopback address; False if the address is unknown."""
    try:
        address = ip_address(peer_host or "")
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
