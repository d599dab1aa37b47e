"""Rules as a feature of the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from broker.core.errors import ConfigError
from broker.core.feature import Services
from broker.core.objects import ObjectService
from broker.core.schema import SchemaLookup
from broker.core.stage import Gate, Tap
from broker.observe.log import get_logger
from rules.engine import RuleEngine
from rules.functions.external_schemas import external_schema_functions
from rules.functions.library import standard
from rules.functions.registry import Function
from rules.functions.schemas import schema_functions
from rules.functions.sparkplug import Aliases, SparkplugTap, sparkplug_functions
from rules.rates import STEP_S
from rules.service import RuleService
from rules.settings import RulesSettings
from rules.stage import RulesTap

SECTION = "rule_engine.rules"

_log = get_logger(__name__)


class RulesFeature:
    """A ``broker.core.feature.Feature``. Start it after the feature that gives ``services.schemas``."""

    name = "rules"

    def __init__(self, services: Services, settings: RulesSettings | None = None) -> None:
        self.settings = settings or RulesSettings()
        self.functions = standard()
        aliases = Aliases()
        for function in _of_schemas(services, aliases):
            self.functions.add(function)
        self.functions.when_tried(lambda: _of_schemas(services, aliases.copy()))
        engine = RuleEngine(
            services.node,
            services.events,
            services.clock.now_ns,
            ignores_sys_messages=self.settings.ignore_sys_message,
        )
        self._next_tick: asyncio.TimerHandle | None = None
        self._section = services.section(SECTION)
        self.service = RuleService(services, self._section, engine, self.functions, self.settings)
        self.gates: Sequence[Gate] = ()
        self.taps: Sequence[Tap] = (SparkplugTap(aliases, lambda: services.schemas), RulesTap(engine))
        self.services: Sequence[ObjectService] = (self.service,)
        services.users_of_stream.append(self.service.users_of_stream)
        services.users_of_schema.append(self.service.users_of_schema)

    def start(self) -> None:
        """Load the rules of the configuration.

        Raises:
            ConfigError: some have no name of their own; or some cannot be used, and the settings say to refuse that.
        """
        refused = self.service.load(self._section.load())
        failed = self.service.failures()
        if refused or (failed and self.settings.unusable_rules == "refuse"):
            raise ConfigError([*refused, *failed])
        for sentence in failed:
            _log.error("rule.unusable", problem=sentence)
        loop = _running_loop()
        if loop is not None:
            self._tick_on(loop)

    def stop(self) -> None:
        """End the sampling of rates."""
        if self._next_tick is not None:
            self._next_tick.cancel()

    def _tick_on(self, loop: asyncio.AbstractEventLoop) -> None:
        self.service.tick()
        self._next_tick = loop.call_later(STEP_S, self._tick_on, loop)


def _of_schemas(services: Services, aliases: Aliases) -> list[Function]:
    """The functions over schemas; the lookup is set when all features are made, so it is asked for at each call."""

    def schemas() -> SchemaLookup:
        return services.schemas

    return [
        *schema_functions(schemas),
        *external_schema_functions(schemas),
        *sparkplug_functions(schemas, aliases),
    ]


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that runs here; None where a feature is only looked at, which then has no rates."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
