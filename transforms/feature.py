"""Message transformations as a feature of the broker."""

from __future__ import annotations

from broker.core.errors import ConfigError
from broker.core.feature import Feature, Services
from transforms.messages.stage import TransformationGate
from transforms.service import TransformService
from transforms.variform.functions import catalogue

SECTION = "message_transformation.transformations"


class TransformsFeature(Feature):
    """Transformations. Start it after the feature that sets ``services.schemas``."""

    name = "transforms"
    functions = staticmethod(catalogue)

    def __init__(self, services: Services) -> None:
        self._section = services.storage.section(SECTION)
        gate = TransformationGate(
            services.node.name,
            services.node.clock,
            services.messaging.events,
            services.monitoring.metrics,
        )
        self.service = TransformService(services, self._section, gate)
        self.gates = (gate,)
        self.services = (self.service,)
        services.contributors.append(self.service)

    def start(self) -> None:
        """Load the transformations of the configuration."""
        if problems := self.service.load(self._section.load()):
            raise ConfigError(problems)
        self.service.ticks.start()

    async def close(self) -> None:
        """Stop the sampling of rates."""
        self.service.ticks.stop()
