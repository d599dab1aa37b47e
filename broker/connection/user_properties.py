"""The bounds on user properties: a packet of the size limit could hold a hundred thousand of them."""

from __future__ import annotations

from sys import getsizeof
from typing import Any, Final

from broker.connection.figures import Figures
from broker.connection.settings import MqttSettings
from broker.core import reason
from broker.core.errors import PeerError

_PAIR_BYTES: Final = 64


def memory_of(properties: dict[str, Any]) -> int:
    """Bytes of memory that the user properties of a packet take."""
    pairs = properties.get("User-Property", ())
    return sum(_PAIR_BYTES + getsizeof(name) + getsizeof(value) for name, value in pairs)


def check_user_properties(settings: MqttSettings, figures: Figures, *properties: dict[str, Any]) -> None:
    """Refuse a packet with more user properties than the settings allow, those of all its parts together.

    Raises:
        PeerError: 0x97 with a sentence that says how many there may be.
    """
    count = 0
    for part in properties:
        if "User-Property" in part:
            count += len(part["User-Property"])
    if not count:
        return
    if count > (most := settings.max_user_properties):
        figures.limit_reached("max_user_properties")
        raise PeerError(reason.QUOTA_EXCEEDED, f"a packet may have {most} user properties, this one has {count}")
    size = sum(
        len(name.encode()) + len(value.encode()) for part in properties for name, value in part.get("User-Property", ())
    )
    if size > (most := settings.max_user_property_bytes):
        figures.limit_reached("max_user_property_bytes")
        raise PeerError(
            reason.QUOTA_EXCEEDED, f"user properties may have {most} bytes, those of this packet have {size}"
        )
