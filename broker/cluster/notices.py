"""Names and notices that cells exchange about share groups, and how many of them a frame has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broker.cluster.frames import Notice

# Bytes of messages in one frame, unless one alone is larger, and of the names in a frame of notices or members.
FRAME_BYTES: Final = 256 * 1024
NOTICES: Final = 4096

# Of a grant: the group's key, and its number.
Key = tuple[str, int]
# Of a member: the group's key, and the client's identifier.
MemberKey = tuple[str, str]
# A notice: its kind, the group's key, the client's identifier, a number and a turn.
Told = tuple[Notice, str, str, int, int]


def is_logged(number: int) -> bool:
    """True if the number of a grant says where the message is in the session log."""
    return not number & 1


def in_frames(notices: list[Told]) -> Iterable[list[Told]]:
    """Notices in frames of bounded size."""
    part: list[Told] = []
    size = 0
    for notice in notices:
        if size >= FRAME_BYTES or len(part) >= NOTICES:
            yield part
            part = []
            size = 0
        part.append(notice)
        size += (len(notice[1]) + len(notice[2])) * 3 + 32
    if part:
        yield part
