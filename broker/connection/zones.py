"""Zones: what holds for the clients of some listeners, and where their sessions are kept.

A session goes by the zone of the listener that its client came through last. Where it is kept is settled when it
begins. Coming back through a zone that keeps sessions on disk, one in memory goes to disk with all it has. The other
way it stays on disk until it ends: what was promised to outlive a restart is not given up because a client took another
door.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from logging import getLogger
from typing import TYPE_CHECKING

from broker.codec.outgoing import Outgoing
from broker.connection.settings import MqttSettings
from broker.connection.zone_settings import ZoneSettings, ZonesSettings
from broker.routing.router import Target
from broker.session import in_log
from broker.session.delivery import Delivery
from broker.session.limits import QueueLimits
from broker.session.services import SessionServices
from broker.session.session import DEFAULT_ZONE, Session

if TYPE_CHECKING:
    from broker.connection.hub import Hub

_log = getLogger(__name__)


@dataclass(slots=True)
class Zone:
    """One zone in force; ``services`` carry its limits to its sessions, also when they change."""

    name: str
    keeps_on_disk: bool
    settings: MqttSettings
    services: SessionServices


class Zones:
    """The zones of a node. ``services`` become those of the default zone."""

    def __init__(self, zones: ZonesSettings | None, settings: MqttSettings, services: SessionServices) -> None:
        self._own: Mapping[str, ZoneSettings] = (zones or ZonesSettings.model_validate({})).by_name
        self._of_listener: dict[str, str] = {}
        self.default = Zone(DEFAULT_ZONE, keeps_on_disk=True, settings=settings, services=services)
        self._by_name = {DEFAULT_ZONE: self.default}
        self.use(settings)

    def use(self, settings: MqttSettings, zones: ZonesSettings | None = None) -> None:
        """Have other general settings, and other zones where some are given."""
        if zones is not None:
            self._own = zones.by_name
        there_were, self._by_name = self._by_name, {}
        for name, own in self._own.items():
            zone = there_were.get(name)
            if zone is None:
                zone = Zone(name, keeps_on_disk=True, settings=settings, services=replace(self.default.services))
            zone.keeps_on_disk, zone.settings = own.sessions == "disk", own.mqtt.over(settings)
            limit_queues(zone.services, zone.settings)
            self._by_name[name] = zone

    def place(self, listener: str, zone: str) -> None:
        """Clients of this listener are in that zone."""
        self._of_listener[listener] = zone

    def of_listener(self, listener: str) -> Zone:
        """The zone of clients that come through a listener."""
        return self.named(self._of_listener.get(listener, DEFAULT_ZONE))

    def named(self, name: str) -> Zone:
        """The zone of that name, or the default one where there is none any more."""
        return self._by_name.get(name, self.default)


def limit_queues(services: SessionServices, settings: MqttSettings) -> None:
    """Have these limits for all sessions with these services."""
    services.max_queue, services.max_queue_bytes = settings.max_queued_messages, settings.max_queued_bytes
    services.max_late_bytes, services.window = settings.max_unsent_bytes, settings.max_inflight
    services.limits = QueueLimits(
        settings.queue_full,
        settings.max_unsent_messages,
        settings.max_stored_messages,
        settings.max_stored_bytes,
        settings.queue_qos0,
    )


def settle(hub: Hub, session: Session, zone: Zone, *, is_to_last: bool) -> None:
    """A session goes on with a connection in this zone; one in memory that ``is_to_last`` goes to disk with it where
    the zone keeps its sessions there."""
    session.enter_zone(zone.name, zone.services)
    if zone.keeps_on_disk and is_to_last and not session.is_durable and hub.shares.may_be_durable(session):
        _to_disk(hub, session)


def _to_disk(hub: Hub, session: Session) -> None:
    """Write all of a session in memory with the commit group at hand; when that fails it is in memory as before."""
    backlog = hub.backlog
    log = "session.moved_to_disk client_id=%s zone=%s inflight=%d queued=%d"
    _log.info(log, session.client_id, session.zone, len(session.window.inflight), len(session.queue))
    hub.shares.part_with(session)
    flying, waiting = in_log.enter(session, backlog.since_offset)
    for delivery in [*flying, *waiting]:
        backlog.keep(_addressed(delivery), [_target(session, delivery)], True)

    def stored(error: BaseException | None) -> None:
        if error is not None and not session.is_ended:
            in_log.leave(session, waiting)

    hub.writer.when_committed(stored)
    hub.shares.member_is_durable(session)
    hub.records.subscriptions_changed(session)
    if session.inbound is not None:
        hub.records.inbound_changed(session.client_id, session.inbound)


def _addressed(delivery: Delivery) -> Outgoing:
    """As the session is to get it, since a record with an addressee is sent as it stands."""
    assert delivery.outgoing is not None
    message = delivery.outgoing.message
    return Outgoing(message.changed(message.topic, message.payload, delivery.qos, delivery.retain, message.properties))


def _target(session: Session, delivery: Delivery) -> Target[Session]:
    return Target(session, delivery.qos, delivery.retain, delivery.identifiers)
