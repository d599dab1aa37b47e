"""Names of HTTP headers in the settings of connectors (RFC 9110, section 5.1)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Final

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def header_name(own: Collection[str] = (), own_prefix: str = "\0") -> Callable[[str], str]:
    """A validator; the headers in ``own``, and those that begin with ``own_prefix``, are set by the connector."""

    def check(name: str) -> str:
        if not _TOKEN.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a header; names are letters, digits and '-'")
        if name.lower() in own or name.lower().startswith(own_prefix):
            raise ValueError(f"the header {name!r} is set by the connector; leave it out")
        return name

    return check
