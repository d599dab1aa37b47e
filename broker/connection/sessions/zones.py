"""Zones: what holds for the clients of some listeners, and where their sessions are kept.

A session goes by the zone of the listener that its client came through last. Where it is kept is settled when it
begins. Coming back through a zone that keeps sessions on disk, one in memory goes to disk with all it has. The other
way it stays on disk until it ends: what was promised to outlive a restart is not discarded because a client took
another door.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from logging import getLogger
from typing import ClassVar, Final, Literal

from pydantic import ConfigDict, Field

from broker.codec.outgoing import Outgoing
from broker.config.model import Settings
from broker.config.units import Duration, Size
from broker.connection.context import Context
from broker.connection.sessions.inbounds import StoredInbounds
from broker.connection.sessions.log import SessionLog
from broker.connection.sessions.records import SessionRecords
from broker.connection.settings import MqttSettings
from broker.connection.sharing.groups import ShareGroups
from broker.core.signals import Signal
from broker.routing.router import Target
from broker.session import backlog
from broker.session.delivery import Delivery
from broker.session.session import Session
from broker.session.state import (
    DEFAULT_ZONE,
    SessionLimits,
    SessionServices,
    SlowSubscriber,
    WhenFull,
)

_log = getLogger(__name__)


@dataclass(slots=True)
class Zone:
    """One active zone; ``services`` carry its limits to its sessions, also when they change."""

    name: str
    keeps_on_disk: bool
    settings: MqttSettings
    services: SessionServices
    trusted: Sequence[str] | None = None
    """Names of its clients that access rules believe without verification; None for those of the settings of access
    rules."""


class Zones:
    """The zones of a node. ``services`` become those of the default zone."""

    def __init__(
        self,
        context: Context,
        zones: ZonesSettings | None,
        services: SessionServices,
        session_log: SessionLog,
        share_groups: ShareGroups,
        records: SessionRecords,
        inbounds: StoredInbounds,
    ) -> None:
        self._writer = context.writer
        self._session_log = session_log
        self._share_groups = share_groups
        self._records = records
        self._inbounds = inbounds
        self.on_durable = Signal[Session]()
        """With a session that moved to the disk, or could not."""
        self._own: Mapping[str, ZoneSettings] = (zones or ZonesSettings.model_validate({})).by_name
        self._of_listener: dict[str, str] = {}
        self.default = Zone(
            DEFAULT_ZONE, keeps_on_disk=True, settings=context.settings, services=services
        )
        self._by_name = {DEFAULT_ZONE: self.default}
        self.use(context.settings)

    def use(self, settings: MqttSettings, zones: ZonesSettings | None = None) -> None:
        """Apply other general settings, and other zones where some are given."""
        if zones is not None:
            self._own = zones.by_name
        there_were = self._by_name
        self._by_name = {}
        for name, own in self._own.items():
            zone = there_were.get(name)
            if zone is None:
                zone = Zone(
                    name,
                    keeps_on_disk=True,
                    settings=settings,
                    services=replace(self.default.services),
                )
            zone.keeps_on_disk, zone.settings = own.sessions == "disk", own.mqtt.over(settings)
            zone.trusted = own.trusted_client_attributes
            zone.services.limits = SessionLimits.of(zone.settings)
            self._by_name[name] = zone

    def place(self, listener: str, zone: str) -> None:
        """Clients of this listener are in that zone."""
        self._of_listener[listener] = zone

    def of_listener(self, listener: str) -> Zone:
        """The zone of clients that come through a listener."""
        return self.named(self._of_listener.get(listener, DEFAULT_ZONE))

    def named(self, name: str) -> Zone:
        """The zone of that name, or the default one where it no longer exists."""
        return self._by_name.get(name, self.default)

    def enter(self, session: Session, zone: Zone, *, is_to_last: bool) -> None:
        """A session continues with a connection in this zone; one in memory that ``is_to_last`` goes to disk with it
        where the zone keeps its sessions there."""
        session.enter_zone(zone.name, zone.services)
        if (
            zone.keeps_on_disk
            and is_to_last
            and not session.is_durable
            and self._share_groups.may_be_durable(session)
        ):
            self._to_disk(session)

    def _to_disk(self, session: Session) -> None:
        """Write all of a session in memory with the current commit group; when that fails it is in memory as before."""
        session_log = self._session_log
        log = "session.moved_to_disk client_id=%s zone=%s inflight=%d queued=%d"
        _log.info(
            log, session.client_id, session.zone, len(session.window.inflight), len(session.queue)
        )
        self._share_groups.part_with(session)
        flying, waiting = backlog.enter(session, session_log.since_offset)
        self.on_durable(session)
        for delivery in [*flying, *waiting]:
            session_log.keep(_addressed(delivery), [_target(session, delivery)], True)

        def stored(error: BaseException | None) -> None:
            if error is not None and not session.is_ended:
                backlog.leave(session, waiting)
                self.on_durable(session)

        self._share_groups.member_is_durable(session)
        self._records.subscriptions_changed(session)
        self._inbounds.changed(session)
        self._writer.when_committed(stored)


def _addressed(delivery: Delivery) -> Outgoing:
    """The message as the session gets it, since a record with an addressee is sent unchanged."""
    assert delivery.outgoing is not None
    message = delivery.outgoing.message
    return Outgoing(
        message.changed(
            message.topic, message.payload, delivery.qos, delivery.retain, message.properties
        )
    )


def _target(session: Session, delivery: Delivery) -> Target[Session]:
    return Target(session, delivery.qos, delivery.retain, delivery.identifiers)


_AS: Final = "As in `mqtt`."


class ZoneMqttSettings(Settings):
    """The settings of section ``mqtt`` that may differ from zone to zone; what is not set is as there."""

    max_packet_size: Size | None = Field(default=None, ge=128, le=268_435_460, description=_AS)
    max_inflight: int | None = Field(default=None, ge=1, le=65_535, description=_AS)
    receive_maximum: int | None = Field(default=None, ge=1, le=65_535, description=_AS)
    max_queued_messages: int | None = Field(default=None, ge=1, description=_AS)
    max_queued_bytes: Size | None = Field(default=None, ge=1024, description=_AS)
    queue_full: WhenFull | None = Field(default=None, description=_AS)
    slow_subscriber: SlowSubscriber | None = Field(default=None, description=_AS)
    subscriber_ack_timeout: Duration | None = Field(default=None, gt=0, description=_AS)
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
        """The general settings, replaced by the settings of this zone."""
        own = {
            name: value
            for name in type(self).model_fields
            if (value := getattr(self, name)) is not None
        }
        return general.model_copy(update=own) if own else general


class ZoneSettings(Settings):
    """Settings of clients that connect to the listeners of one zone (`listeners.….zone`)."""

    sessions: Literal["disk", "memory"] = "disk"
    """Storage of sessions that outlive their connection: on `disk`, where they also survive a restart, or in `memory`
    with their queued messages, within `max_queued_messages` and `max_queued_bytes`; a restart ends these."""
    mqtt: ZoneMqttSettings = Field(default_factory=ZoneMqttSettings)
    """Settings of `mqtt` that differ in this zone."""
    trusted_client_attributes: list[str] | None = None
    """Names that access rules go by though no authenticator verified them, in place of
    `authorization.trusted_client_attributes`: `username`, `clientid`, `client_attrs.NAME`. Default: those."""


class ZonesSettings(Settings):
    """Zones by name. There always is `default`, the zone of listeners that name none."""

    model_config = ConfigDict(extra="allow")
    member: ClassVar[type[Settings]] = ZoneSettings
    __pydantic_extra__: dict[str, ZoneSettings]

    @property
    def by_name(self) -> dict[str, ZoneSettings]:
        """All zones, `default` first."""
        return {DEFAULT_ZONE: ZoneSettings()} | (self.__pydantic_extra__ or {})
