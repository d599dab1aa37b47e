"""Connectors, actions and sources as a feature of the broker."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from bridges.resource import specs
from bridges.resource.registry import Registry
from bridges.resource.resources import Resources
from bridges.resource.services import ActionService, ConnectorService, SourceService
from bridges.resource.watch import LOOK_S, BridgeWatch
from broker.config.ssrf import AddressGuard, SsrfSettings
from broker.core.errors import ConfigError
from broker.core.feature import Services
from broker.core.objects import ObjectService
from broker.core.stage import Gate, Tap
from broker.observe.counter_rates import Ticks

BUILT_IN: Final = {
    "file": "bridges.file.connector:FILE",
    "http": "bridges.http.connector:HTTP",
    "http_server": "bridges.http_server.connector:HTTP_SERVER",
    "kafka": "bridges.kafka.connector:KAFKA",
    "mqtt": "bridges.mqtt.connector:MQTT",
    "postgresql": "bridges.postgresql.connector:POSTGRESQL",
}
"""Where each type of connectors is; it is loaded when somebody makes one."""


connector_models: Final = partial(specs.connector_models, Registry(BUILT_IN))
action_models: Final = partial(specs.member_models, specs.ActionSpec, Registry(BUILT_IN))
source_models: Final = partial(specs.member_models, specs.SourceSpec, Registry(BUILT_IN))
"""The specs of each built-in type."""


class BridgesFeature:
    """A ``broker.core.feature.Feature``. ``begin`` when clients may come, ``end`` when none is there any more."""

    name = "bridges"

    def __init__(self, services: Services, ssrf: SsrfSettings | None = None) -> None:
        self.registry = Registry(BUILT_IN)
        self._services = services
        self.resources = Resources(services, self.registry, AddressGuard(ssrf or SsrfSettings()))
        self.connectors = ConnectorService(services.section("connectors"), self.resources)
        self.actions = ActionService(services.section("actions"), self.resources)
        self.sources = SourceService(services.section("sources"), self.resources)
        self.gates: Sequence[Gate] = ()
        self.taps: Sequence[Tap] = ()
        self.services: Sequence[ObjectService] = (self.connectors, self.actions, self.sources)
        self._watch = BridgeWatch(self.resources.actions, self.resources.sources, services.alarms, services.clock)
        self._ticks = Ticks(self._tick), Ticks(self._watch.look, LOOK_S)

    def start(self) -> None:
        """Take the objects of the configuration; rows wait in their buffers until ``begin``."""
        refused = []
        loading: dict[str, Any] = {"connectors": self.connectors, "actions": self.actions, "sources": self.sources}
        for section, service in loading.items():
            refused += service.load(self._services.section(section).load())
        if refused:
            raise ConfigError(refused)
        for ticks in self._ticks:
            ticks.start()

    def stop(self) -> None:
        """Sample rates and raise alarms no more."""
        for ticks in self._ticks:
            ticks.stop()

    def begin(self) -> None:
        """Connect everything."""
        self.resources.begin()

    async def end_sources(self) -> None:
        """Bring nothing in any more; before clients are sent away."""
        await self.resources.end_sources()

    async def end(self) -> None:
        """Send what can be sent in a few seconds, and disconnect."""
        await self.resources.end()

    def lost_rows(self) -> dict[str, int]:
        """Rows that actions gave up and that no fallback or dead letter holds, by reason; since start."""
        return self.resources.lost_rows()

    def _tick(self) -> None:
        now_s = self._services.clock.monotonic_s()
        self.actions.tick(now_s)
        self.sources.tick(now_s)
