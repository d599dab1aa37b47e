"""The log of published messages: one value for a commit group, with an entry for each message it holds.

A client's whole state (``broker.session.inbound``) is 700 bytes for a message of 128, an entry is the client identifier
and 11 bytes. A *mark* says that the state was stored whole, or removed, and that earlier entries of the client are in
it or count no more. Stored whole without a mark, it only repeats what later entries say.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

from broker.session.inbound import ENTRY_BYTES

# Marker in place of an entry: packet identifier 0 is never used.
MARK: Final = bytes(ENTRY_BYTES)

_HEAD: Final = Struct("!BQ")
_VERSION: Final = 1
_CLIENT: Final = Struct("!H")


def named(client_id: str) -> bytes:
    """Prefix of this client's entries."""
    encoded = client_id.encode()
    return _CLIENT.pack(len(encoded)) + encoded


def encode_group(touched_ns: int, entries: list[bytes]) -> bytes:
    """A group's value; each entry is ``named`` followed by the entry as ``Inbound.recent`` has it, or by ``MARK``."""
    return b"".join((_HEAD.pack(_VERSION, touched_ns), *entries))


def decode_group(value: bytes) -> tuple[int, Iterator[tuple[str, bytes]]]:
    """When the group was made, and its entries by client identifier, in order."""
    _, touched_ns = _HEAD.unpack_from(value)
    return touched_ns, _entries(value)


def _entries(value: bytes) -> Iterator[tuple[str, bytes]]:
    position = _HEAD.size
    while position < len(value):
        (size,) = _CLIENT.unpack_from(value, position)
        at = position + _CLIENT.size + size
        position_after = at + ENTRY_BYTES
        yield value[at - size : at].decode(), value[at:position_after]
        position = position_after
