"""What later events repeat of a CONNECT."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from broker.codec.packets import Connect

_CREDENTIALS: Final = "Authentication-Data"


class Greeting(NamedTuple):
    """What later events repeat of a CONNECT; ``properties`` is None when there were none."""

    clean_start: bool
    keep_alive_s: int
    expiry_s: int
    properties: dict[str, Any] | None

    @classmethod
    def of(cls, packet: Connect, expiry_s: int) -> Greeting:
        """Without the credentials among its properties: tokens, and what SCRAM exchanges."""
        shown = {name: value for name, value in packet.properties.items() if name != _CREDENTIALS}
        return cls(packet.clean_start, packet.keep_alive_s, expiry_s, shown or None)
