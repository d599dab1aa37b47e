"""Headers of records and requests: their names in settings, and those that carry the properties of a message."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from broker.core.message import Properties

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def header_name(own: Collection[str] = (), own_prefix: str = "\0") -> Callable[[str], str]:
    """A validator of HTTP header names (RFC 9110, section 5.1); the connector itself sets the headers in ``own``, and
    those that begin with ``own_prefix``."""

    def check(name: str) -> str:
        if not _TOKEN.fullmatch(name):
            raise ValueError(
                f"{name!r} is not the name of a header; names are letters, digits and '-'"
            )
        if name.lower() in own or name.lower().startswith(own_prefix):
            raise ValueError(f"the header {name!r} is set by the connector; leave it out")
        return name

    return check


def property_headers(
    properties: Properties,
    received_ns: int,
    names: Mapping[str, str],
    name_of: Callable[[str], str],
) -> list[tuple[str, Any]]:
    """The headers of a message's properties, with a string or bytes each.

    ``names`` has the header of each property, ``name_of`` gives that of a user property. The expiry becomes a time, in
    milliseconds since 1970.
    """
    headers: list[tuple[str, Any]] = []
    for name, value in properties.items():
        if name == "User-Property":
            headers += [(name_of(key), text) for key, text in value]
        elif header := names.get(name):
            if name == "Message-Expiry-Interval":
                value = str(received_ns // 1_000_000 + value * 1000)
            elif name == "Payload-Format-Indicator":
                value = "1" if value else "0"
            headers.append((header, value))
    return headers
