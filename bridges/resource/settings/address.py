"""Addresses of outside systems in settings: ``host:port``, ``host``, ``[::1]:port``, several with commas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker.config.secrets import without_user

# Maximum addresses of one system.
MOST_ADDRESSES: Final = 100


def parse_address(text: str, default_port: int) -> tuple[str, int]:
    """Host and port.

    Raises:
        ValueError: the address is not valid; names the expected form.
    """
    text = text.strip()
    shown = without_user(text)
    if "@" in text:
        raise ValueError(
            f"expected 'host:port' without a user, got {shown!r}. Try: 'username' and 'password'"
        )
    host = text
    port = ""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"{shown!r} is not an address; write '[::1]:{default_port}'")
        port = rest[1:]
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if not host or any(character.isspace() or character in "/?#" for character in host):
        raise ValueError(f"{shown!r} is not an address; write 'host' or 'host:{default_port}'")
    if not port:
        return host, default_port
    if not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ValueError(f"{host!r} has no port from 1 to 65535; write '{host}:{default_port}'")
    return host, int(port)


def parse_addresses(text: str, default_port: int) -> Sequence[tuple[str, int]]:
    """Hosts and ports of a list with commas.

    Raises:
        ValueError: there are more than ``MOST_ADDRESSES``; see ``parse_address``.
    """
    if (count := text.count(",") + 1) > MOST_ADDRESSES:
        raise ValueError(f"expected at most {MOST_ADDRESSES} addresses, got {count:,}")
    return [parse_address(part, default_port) for part in text.split(",")]
