"""Message transformations as a feature of the broker."""

from __future__ import annotations

from collections.abc import Sequence

from broker.core.errors import ConfigError
from broker.core.feature import Services
from broker.core.objects import ObjectService
from broker.core.stage import Gate, Tap
from transforms.messages.stage import TransformationGate
from transforms.service import TransformService
from transforms.settings import TransformsSettings

SECTION = "message_transformation.transformations"


class TransformsFeature:
    """A ``broker.core.feature.Feature``. Start it after the feature that gives ``services.schemas``."""

    name = "transforms"

    def __init__(self, services: Services, settings: TransformsSettings | None = None) -> None:
        self.settings = settings or TransformsSettings()
        self._section = services.section(SECTION)
        gate = TransformationGate(services.node, services.clock, services.events, services.metrics)
        self.service = TransformService(services, self._section, gate)
        self.gates: Sequence[Gate] = (gate,)
        self.taps: Sequence[Tap] = ()
        self.services: Sequence[ObjectService] = (self.service,)
        services.path.append(self.service)
        services.users_of_schema.append(self.service.users_of_schema)
        services.effects_of_schema.append(self.service.effects_of_schema)
        services.users_of_stream.append(self.service.users_of_stream)
        services.payload_changes.append(self.service.payload_type_after)

    def start(self) -> None:
        """Load the transformations of the configuration."""
        if problems := self.service.load(self._section.load()):
            raise ConfigError(problems)
        self.service.ticks.start()

    def stop(self) -> None:
        """End the sampling of rates."""
        self.service.ticks.stop()
