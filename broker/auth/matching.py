"""Patterns, networks, and texts with ``${FACT}``, by which access rules, bans and claims of tokens match clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import Any, Final

import re2

from broker.core.placeholders import CLIENT_PLACEHOLDER

MAX_PATTERN_BYTES: Final = 1000
_FACTS: Final = ("username", "clientid", "peerhost", "listener", "cert_common_name", "cert_subject")


def compiled_pattern(text: str) -> Any:
    """A regular expression (RE2), bounded in time and memory.

    Raises:
        ValueError: it is too long, or not an expression.
    """
    if len(text.encode()) > MAX_PATTERN_BYTES:
        raise ValueError(f"is longer than {MAX_PATTERN_BYTES} bytes")
    options = re2.Options()
    options.max_mem = 8 << 20
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        reason = (
            error.args[0].decode(errors="replace")
            if isinstance(error.args[0], bytes)
            else str(error)
        )
        raise ValueError(f"{text!r} is not a regular expression (RE2): {reason}") from None


def in_networks(texts: Sequence[str]) -> Callable[[str], bool]:
    """Test for an address in one of these networks; one that IPv6 maps from IPv4 counts as IPv4.

    Raises:
        ValueError: one is not a network.
    """
    networks = []
    for text in texts:
        try:
            networks.append(ip_network(text, strict=False))
        except ValueError:
            raise ValueError(
                f"{text!r} is not an address or network; write it as '10.0.0.0/8'"
            ) from None

    def holds(address: str) -> bool:
        try:
            parsed = ip_address(address)
        except ValueError:
            return False
        mapped = getattr(parsed, "ipv4_mapped", None)
        return any((mapped or parsed) in network for network in networks)

    return holds


def placeholders(text: str) -> list[str]:
    """The facts that a string has placeholders for.

    Raises:
        ValueError: there is no such fact.
    """
    names = CLIENT_PLACEHOLDER.findall(text)
    for name in names:
        if name not in _FACTS and not name.startswith("client_attrs."):
            raise ValueError(
                f"{text!r}: there is no ${{{name}}}; there are {', '.join(_FACTS)} and client_attrs.NAME"
            )
    return names


def without_placeholders(text: str, filling: str) -> str:
    """The text with the same filling in place of each placeholder."""
    return CLIENT_PLACEHOLDER.sub(filling, text)


def filled(text: str, facts: Mapping[str, str | None]) -> str | None:
    """The text with its placeholders filled; None where a fact is missing or empty."""
    if not all(facts.get(name) for name in CLIENT_PLACEHOLDER.findall(text)):
        return None
    return CLIENT_PLACEHOLDER.sub(lambda placeholder: str(facts[placeholder[1]]), text)
