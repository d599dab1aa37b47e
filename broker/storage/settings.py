"""Settings of the store (section ``store``)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from broker.config.model import Settings
from broker.config.units import Size


class StoreSettings(Settings):
    """Promise of an acknowledgement, and limits of the data that waits for the disk."""

    durability: Literal["fsync", "os"] = "fsync"
    """Condition of a commit: 'fsync' waits for the disk, so that a power loss loses no acknowledged data; 'os' waits
    for the operating system, which survives the end of the process and is faster. Needs a restart."""
    max_backlog_bytes: Size = Field(default=64 * 1024 * 1024, ge=1024 * 1024)
    """Payload bytes that may wait for their commit; above it, publishers are slowed by not reading."""
    max_backlog_records: int = Field(default=200_000, ge=1000)
    """Records that may wait for their commit; above it, publishers are slowed by not reading."""
    write_buffer: Size = Field(default=32 * 1024 * 1024, ge=1024 * 1024, le=1024 * 1024 * 1024)
    """Memory in which RocksDB collects what it writes as a table; up to four are in use where the disk is behind.
    Larger ones write less often what is deleted soon. Needs a restart."""
    block_cache: Size = Field(default=64 * 1024 * 1024, ge=1024 * 1024)
    """Memory for blocks of tables that were read: retained messages, backlogs. Needs a restart."""
