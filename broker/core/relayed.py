"""Clients of the API whose connections another machine relays to the first cell."""

from __future__ import annotations

from typing import Final

import msgspec

FRONT_SOCKET: Final = "front.sock"
"""The socket of the first cell's API for other machines, in the run directory."""
TAKEN: Final = b"\1"
"""Answer of the first cell to the line."""


class Relayed(msgspec.Struct, frozen=True):
    """First line of such a connection, in JSON: the address of the client, and whether TLS ended at the machine."""

    host: str
    port: int
    is_tls: bool
