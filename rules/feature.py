"""Rules as a feature of the broker."""

from __future__ import annotations

from collections.abc import Sequence

from broker.core.errors import ConfigError
from broker.core.feature import Services
from broker.core.objects import ObjectService
from broker.core.stage import Gate, Tap
from rules.engine import RuleEngine
from rules.functions.library import standard
from rules.functions.schemas import schema_functions
from rules.service import RuleService
from rules.settings import RulesSettings
from rules.stage import RulesTap

SECTION = "rule_engine.rules"


class RulesFeature:
    """A ``broker.core.feature.Feature``. Start it after the feature that gives ``services.schemas``."""

    name = "rules"

    def __init__(self, services: Services, settings: RulesSettings | None = None) -> None:
        self.settings = settings or RulesSettings()
        self.functions = standard()
        for function in schema_functions(lambda: services.schemas):
            self.functions.add(function)
        engine = RuleEngine(
            services.node,
            services.events,
            services.clock.now_ns,
            ignores_sys_messages=self.settings.ignore_sys_message,
        )
        self._section = services.section(SECTION)
        self.service = RuleService(services, self._section, engine, self.functions, self.settings)
        self.gates: Sequence[Gate] = ()
        self.taps: Sequence[Tap] = (RulesTap(engine),)
        self.services: Sequence[ObjectService] = (self.service,)
        services.users_of_stream.append(self.service.users_of_stream)
        services.users_of_schema.append(self.service.users_of_schema)

    def start(self) -> None:
        """Load the rules of the configuration."""
        if problems := self.service.load(self._section.load()):
            raise ConfigError(problems)

    def stop(self) -> None:
        """There is nothing to give up."""
