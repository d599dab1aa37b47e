"""The schema registry and validations as a feature of the broker."""

from __future__ import annotations

from broker.config.ssrf import AddressGuard, SsrfSettings
from broker.core.errors import ConfigError
from broker.core.feature import Feature, Services
from schema_validation.external_http.caller import ExternalCalls
from schema_validation.external_service import ExternalService
from schema_validation.modes import Modes
from schema_validation.recent import Recent, Sampler
from schema_validation.service import SchemaService
from schema_validation.settings import SchemaRegistrySettings
from schema_validation.stage import ValidationGate
from schema_validation.validation_service import ValidationService

SCHEMAS = "schema_registry.schemas"
EXTERNAL = "schema_registry.external"
MODES = "schema_registry.modes"
VALIDATIONS = "schema_validation.validations"


class SchemaValidationFeature(Feature):
    """Schemas, validations and external registries. Making it sets ``services.schemas``."""

    name = "schema_validation"

    def __init__(
        self,
        services: Services,
        settings: SchemaRegistrySettings | None = None,
        *,
        ssrf: SsrfSettings | None = None,
    ) -> None:
        registry = settings or SchemaRegistrySettings()
        guard = AddressGuard(ssrf or SsrfSettings())
        ExternalCalls.guard = guard
        ExternalCalls.metrics = services.monitoring.metrics
        self._schema_section = services.storage.section(SCHEMAS)
        self._validation_section = services.storage.section(VALIDATIONS)
        gate = ValidationGate(services.messaging.events, services.monitoring.metrics)
        sampler = Sampler(
            lambda: self.validations.bound_filters(),
            registry.sample_messages,
            registry.sample_bytes,
        )
        recent = Recent(services, sampler, lambda schema: self.validations.bindings(schema))
        modes = Modes(services.storage.section(MODES), registry.compatibility)
        self.schemas = SchemaService(services, self._schema_section, modes, recent)
        services.schemas = self.schemas.registry
        self._external_section = services.storage.section(EXTERNAL)
        self.external = ExternalService(
            self._external_section, self.schemas, guard, services.contributors
        )
        self.schemas.registry.externals = self.external.registries
        self.validations = ValidationService(services, self._validation_section, gate)
        self.schemas.registry.payload_type_of = self.validations.payload_type
        self.gates = (sampler, gate)
        self.services = (self.schemas, self.validations, self.external)
        services.contributors.extend((self.schemas, self.validations))

    def start(self) -> None:
        """Load schemas, then validations, of the configuration."""
        problems = self.external.load(self._external_section.load())
        problems += self.schemas.load(self._schema_section.load())
        problems += self.validations.load(self._validation_section.load())
        if problems:
            raise ConfigError(problems)
        self.validations.ticks.start()

    async def close(self) -> None:
        """Close the connections to external registries, and stop the sampling of rates."""
        self.validations.ticks.stop()
        self.external.close()
