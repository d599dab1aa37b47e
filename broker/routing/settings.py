"""Settings of the retained store, section ``retained``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from broker.config.model import Settings
from broker.config.units import Size

Storage = Literal["disk", "memory"]


class RetainedBackend(Settings):
    """One of several backends that are declared; the one that is enabled is used."""

    storage: Storage = "disk"
    """Same as `retained.storage`."""
    enable: bool = True
    """Use this backend."""


class RetainedSettings(Settings):
    """Limits of retained messages, and the medium they are read from."""

    max_messages: int = Field(default=0, ge=0)
    """Maximum topics with a retained message; 0 is no limit. Above it a retained publish on a further topic is refused
    with 0x97."""
    max_bytes: Size = Field(default=4 * 1024 * 1024 * 1024, ge=0)
    """All retained messages, with topics and properties, in bytes; 0 is no limit. A retained publish above it is
    refused with 0x97."""
    max_bytes_per_client: Size = Field(default=1024 * 1024 * 1024, ge=0)
    """Retained messages that one client has published since the broker started, in bytes, without those that were
    replaced, deleted or have expired; 0 is no limit. A retained publish above it is refused with 0x97."""
    max_payload: Size = Field(default=0, ge=0)
    """Maximum payload of a retained message, in bytes; 0 is no limit of its own."""
    storage: Storage = "disk"
    """`disk` reads them from the store, so that memory does not grow with them; `memory` keeps a copy in memory. Both
    are in the store as well, and there after a restart. Needs a restart."""
    backends: list[RetainedBackend] = Field(default_factory=list)
    """Instead of `retained.storage`: several backends, of which one is enabled."""

    @model_validator(mode="after")
    def _one_backend(self) -> RetainedSettings:
        if self.backends and len([backend for backend in self.backends if backend.enable]) != 1:
            raise ValueError(
                "backends: one of them must be enabled, and the others not; set 'enable = false' there"
            )
        return self

    @property
    def used_storage(self) -> Storage:
        """Medium that retained messages are read from."""
        return next((backend.storage for backend in self.backends if backend.enable), self.storage)
