"""The address of another broker in settings: ``host:port``, or that behind ``mqtt://``, ``mqtts://``, ``ws://`` or
``wss://``, and for WebSocket a path."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from bridges.resource.settings.address import parse_address
from broker.config.secrets import without_user

PATH: Final = "/mqtt"
_PORTS: Final[Mapping[tuple[bool, bool], int]] = {
    (False, False): 1883,
    (False, True): 8883,
    (True, False): 80,
    (True, True): 443,
}
_SCHEMES: Final[Mapping[str, tuple[bool, bool]]] = {
    "mqtt": (False, False),
    "mqtts": (False, True),
    "ws": (True, False),
    "wss": (True, True),
}
_PATH: Final = re.compile(r"/[!-~]*")


class Server(NamedTuple):
    """An address of another broker. ``path`` is empty where the address names none."""

    host: str
    port: int
    is_websocket: bool = False
    is_encrypted: bool = False
    path: str = ""

    @property
    def authority(self) -> str:
        """``host:port``, with brackets around an address of IPv6."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def shown(self) -> str:
        """The address in messages, without the query."""
        if not self.is_websocket:
            return f"{self.host}:{self.port}"
        return f"{'wss' if self.is_encrypted else 'ws'}://{self.authority}{self.path.partition('?')[0]}"


def parse_server(text: str, *, is_encrypted: bool = False) -> Server:
    """An address; ``is_encrypted`` says that there is TLS although the address does not.

    Raises:
        ValueError: the address is not valid; names the expected form.
    """
    scheme, separator, rest = text.strip().partition("://")
    if not separator:
        scheme = "mqtt"
        rest = text
    if scheme.lower() not in _SCHEMES:
        shown = without_user(text)
        raise ValueError(
            f"{shown!r} begins with {scheme}://, which is not known; write mqtt, mqtts, ws or wss"
        )
    is_websocket, says_tls = _SCHEMES[scheme.lower()]
    is_encrypted = is_encrypted or says_tls
    where, slash, path = rest.partition("/") if is_websocket else (rest.removesuffix("/"), "", "")
    host, port = parse_address(where, _PORTS[is_websocket, is_encrypted])
    return Server(host, port, is_websocket, is_encrypted, check_path(slash + path) if slash else "")


def check_path(path: str) -> str:
    """The path of a WebSocket.

    Raises:
        ValueError: it is none.
    """
    if not _PATH.fullmatch(path):
        shown = path.partition("?")[0]
        raise ValueError(
            f"{shown!r} is not the path of a WebSocket; write '{PATH}', other characters as %XX"
        )
    return path
