"""Connectors, actions and sources as a feature of the broker."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from bridges.resource import specs
from bridges.resource.registry import Registry
from bridges.resource.resources import Resources
from bridges.resource.services import ActionService, ConnectorService, SourceService
from bridges.resource.watch import LOOK_S, BridgeWatch
from broker.config.ssrf import AddressGuard, SsrfSettings
from broker.core.errors import ConfigError
from broker.core.feature import Feature, Services
from broker.observe.counter_rates import Ticks

# Where each type of connectors is; it is loaded when somebody makes one.
BUILT_IN: Final = {
    "file": "bridges.file.connector:FILE",
    "http": "bridges.http.connector:HTTP",
    "http_server": "bridges.http_server.connector:HTTP_SERVER",
    "kafka": "bridges.kafka.connector:KAFKA",
    "mqtt": "bridges.mqtt.connector:MQTT",
    "postgresql": "bridges.postgresql.connector:POSTGRESQL",
}


connector_models: Final = partial(specs.connector_models, Registry(BUILT_IN))
action_models: Final = partial(specs.member_models, specs.ActionSpec, Registry(BUILT_IN))
# The specs of each built-in type.
source_models: Final = partial(specs.member_models, specs.SourceSpec, Registry(BUILT_IN))


class BridgesFeature(Feature):
    """Connectors, actions and sources."""

    name = "bridges"

    def __init__(self, services: Services, ssrf: SsrfSettings | None = None) -> None:
        self.registry = Registry(BUILT_IN)
        self._services = services
        self.resources = Resources(services, self.registry, AddressGuard(ssrf or SsrfSettings()))
        self.connectors = ConnectorService(services.storage.section("connectors"), self.resources)
        self.actions = ActionService(services.storage.section("actions"), self.resources)
        self.sources = SourceService(services.storage.section("sources"), self.resources)
        self.services = (self.connectors, self.actions, self.sources)
        services.contributors.extend((self.actions, self.sources))
        self._watch = BridgeWatch(
            self.resources.actions,
            self.resources.sources,
            services.monitoring.alarms,
            services.node.clock,
        )
        self.ticks = Ticks(self._tick), Ticks(self._watch.look, LOOK_S)

    def start(self) -> None:
        """Load the objects of the configuration; rows wait in their buffers until ``connect``."""
        refused = []
        loading: dict[str, Any] = {
            "connectors": self.connectors,
            "actions": self.actions,
            "sources": self.sources,
        }
        for section, service in loading.items():
            refused += service.load(self._services.storage.section(section).load())
        if refused:
            raise ConfigError(refused)
        for ticks in self.ticks:
            ticks.start()

    async def connect(self, api_url: str, token: str) -> None:
        """Connect everything."""
        self.resources.begin()

    async def disconnect(self) -> None:
        """Stop the sources."""
        await self.resources.end_sources()

    async def close(self) -> None:
        """Send what can be sent in a few seconds, and disconnect."""
        await self.resources.end()
        for ticks in self.ticks:
            ticks.stop()

    def lost_rows(self) -> dict[str, int]:
        """Rows that actions gave up and that no fallback or dead letter holds, by reason; since start."""
        return self.resources.lost_rows()

    def _tick(self) -> None:
        now_s = self._services.node.clock.monotonic_s()
        self.actions.tick(now_s)
        self.sources.tick(now_s)
