"""Settings of zones, section ``zones``: what holds for the clients of some listeners instead of what holds for all."""

from __future__ import annotations

from typing import ClassVar, Final, Literal

from pydantic import ConfigDict, Field

from broker.config.model import Settings
from broker.config.units import Duration, Size
from broker.connection.settings import MqttSettings
from broker.session.limits import WhenFull
from broker.session.state import DEFAULT_ZONE

_AS: Final = "As in `mqtt`."


class ZoneMqttSettings(Settings):
    """Those settings of section ``mqtt`` that may differ from zone to zone; what is not set is as there."""

    max_packet_size: Size | None = Field(default=None, ge=128, le=268_435_460, description=_AS)
    max_inflight: int | None = Field(default=None, ge=1, le=65_535, description=_AS)
    receive_maximum: int | None = Field(default=None, ge=1, le=65_535, description=_AS)
    max_queued_messages: int | None = Field(default=None, ge=1, description=_AS)
    max_queued_bytes: Size | None = Field(default=None, ge=1024, description=_AS)
    queue_full: WhenFull | None = Field(default=None, description=_AS)
    max_stored_messages: int | None = Field(default=None, ge=1, description=_AS)
    max_stored_bytes: Size | None = Field(default=None, ge=1024, description=_AS)
    queue_qos0: bool | None = Field(default=None, description=_AS)
    max_unsent_messages: int | None = Field(default=None, ge=1, description=_AS)
    max_session_expiry: Duration | None = Field(default=None, ge=0, description=_AS)
    keep_alive_factor: float | None = Field(default=None, ge=1, le=10, description=_AS)
    max_keep_alive: int | None = Field(default=None, ge=0, le=65_535, description=_AS)
    keep_alive_above_max: Literal["refuse", "shorten"] | None = Field(default=None, description=_AS)
    topic_alias_maximum: int | None = Field(default=None, ge=0, le=65_535, description=_AS)
    topic_alias_maximum_out: int | None = Field(default=None, ge=0, le=65_535, description=_AS)
    wildcard_subscription_available: bool | None = Field(default=None, description=_AS)
    subscription_identifier_available: bool | None = Field(default=None, description=_AS)
    shared_subscription_available: bool | None = Field(default=None, description=_AS)

    def over(self, general: MqttSettings) -> MqttSettings:
        """The general settings with what is set here in their place."""
        own = {name: value for name in type(self).model_fields if (value := getattr(self, name)) is not None}
        return general.model_copy(update=own) if own else general


class ZoneSettings(Settings):
    """What holds for clients that come through the listeners of one zone (`listeners.….zone`)."""

    sessions: Literal["disk", "memory"] = Field(
        default="disk", description="Where sessions are kept that outlive their connection: on `disk`, so that they "
        "outlive a restart too, or in `memory` with all that waits for them, within `max_queued_messages` and "
        "`max_queued_bytes`; a restart ends those."
    )  # fmt: skip
    mqtt: ZoneMqttSettings = Field(
        default_factory=ZoneMqttSettings, description="Settings of `mqtt` that differ in this zone."
    )


class ZonesSettings(Settings):
    """Zones by name. There always is `default`, the zone of listeners that name none."""

    model_config = ConfigDict(extra="allow")
    member: ClassVar[type[Settings]] = ZoneSettings
    __pydantic_extra__: dict[str, ZoneSettings]

    @property
    def by_name(self) -> dict[str, ZoneSettings]:
        """All zones, `default` first."""
        return {DEFAULT_ZONE: ZoneSettings()} | (self.__pydantic_extra__ or {})
