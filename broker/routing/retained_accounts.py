"""How many bytes of retained messages each client published, counted since the broker started.

The count takes the same memory for any number of clients: an account is one of 65,536 numbers, found by a hash of the
client identifier that differs in each process. Clients of one account share its limit. A message that was there before
the start is on none.
"""

from __future__ import annotations

from array import array
from typing import Final

from broker.routing.retained_record import client_id_of, stamp_of

_ACCOUNTS: Final = 65_536


def account_of(client_id: str) -> int:
    """The account of a client."""
    return hash(client_id) % _ACCOUNTS


class Accounts:
    """Bytes of retained messages that each client published. Messages with a stamp above ``since`` are counted."""

    __slots__ = ("_bytes", "since")

    def __init__(self) -> None:
        self._bytes = array("q", bytes(8 * _ACCOUNTS))
        self.since = 0

    def of(self, value: bytes) -> int | None:
        """The account that a stored message is on, None for one that is on none."""
        return account_of(client_id_of(value)) if stamp_of(value) > self.since else None

    def bytes_on(self, account: int) -> int:
        """What is on an account."""
        return self._bytes[account]

    def add(self, account: int, size: int) -> None:
        """Bytes that came to an account, or went if negative."""
        self._bytes[account] += size
