"""Settings of the store (section ``store``)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from broker.config.model import Settings
from broker.config.units import Size


class StoreSettings(Settings):
    """What an acknowledgement promises, and how much may wait for the disk."""

    durability: Literal["fsync", "os"] = Field(
        default="fsync",
        description="What a commit waits for: 'fsync' the disk, so that nothing acknowledged is lost when the power "
        "goes; 'os' the operating system, which survives the end of the process and is faster. Needs a restart.",
    )
    max_backlog_bytes: Size = Field(
        default=64 * 1024 * 1024,
        ge=1024 * 1024,
        description="Payload bytes that may wait for their commit; above it, publishers are slowed by not reading.",
    )
    max_backlog_records: int = Field(
        default=200_000,
        ge=1000,
        description="Records that may wait for their commit; above it, publishers are slowed by not reading.",
    )
