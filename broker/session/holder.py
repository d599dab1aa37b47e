"""What a session knows of the share groups that it is a member of."""

from __future__ import annotations

from typing import Any, Protocol


class Holder(Protocol):
    """A session's part in a share group; it stands on each message that the session has from there."""

    def settle(self, delivery: Any, /) -> None:
        """The client has acknowledged a message of the group, or refused it, or cannot take it."""
        ...

    def offer_room(self) -> None:
        """The session's window has room."""
        ...
