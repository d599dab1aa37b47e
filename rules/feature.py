"""Rules as a feature of the broker."""

from __future__ import annotations

from broker.core.errors import ConfigError
from broker.core.feature import Feature, Services
from broker.core.schema import SchemaLookup
from broker.observe.counter_rates import Ticks
from broker.observe.log import get_logger
from rules import event_catalogue
from rules.deferred import Bounds, Deferrals
from rules.engine import RuleEngine, RulesTap
from rules.functions.library import standard
from rules.functions.plugin_loading import installed, load_plugins
from rules.functions.registry import Function
from rules.functions.schemas import external_schema_functions, schema_functions
from rules.functions.sparkplug import Births, SparkplugTap, sparkplug_functions
from rules.jq.evaluation import Counts, JqDefaults
from rules.jq.pool import WorkerPool
from rules.jq.program import program_of
from rules.service import RuleService
from rules.settings import RulesSettings
from rules.trials.backtest import Backtests

SECTION = "rule_engine.rules"
SCHEMAS = "schema_registry.schemas"

_log = get_logger(__name__)


class RulesFeature(Feature):
    """Rules. Start it after the feature that sets ``services.schemas``."""

    name = "rules"
    events = staticmethod(event_catalogue.catalogue)

    def __init__(self, services: Services, settings: RulesSettings | None = None) -> None:
        self.settings = settings or RulesSettings()
        self.functions = standard()
        births = Births()
        for function in _of_schemas(services, births):
            self.functions.add(function)
        self.functions.when_tried(lambda: _of_schemas(services, births.copy()))
        self.plugins = load_plugins(self.functions, installed())
        for problem in (problem for plugin in self.plugins for problem in plugin.problems):
            _log.error("functions.plugin", problem=problem)
        self._deferrals = _deferrals(services, self.settings)
        engine = RuleEngine(
            services.node.name,
            services.messaging.events,
            services.node.clock.now_ns,
            ignores_sys_messages=self.settings.ignore_sys_message,
            deferrals=self._deferrals,
        )
        self._section = services.storage.section(SECTION)
        self.service = RuleService(services, self._section, engine, self.functions, self.settings)
        self._ticks = Ticks(self.service.tick)
        self.taps = (SparkplugTap(births, lambda: services.schemas), RulesTap(engine))
        self.services = (self.service,)
        services.contributors.append(self.service)
        if services.node.backtest:
            self.service.jobs = Backtests(
                services, self.settings, services.storage.section(SCHEMAS).load
            )

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
        for name, problem in self.service.mistyped().items():
            _log.warning("rule.mistyped", rule=name, problem=problem)
        self._ticks.start()

    def open(self) -> None:
        """Resume the deferred work of rules."""
        self._deferrals.begin()

    async def close(self) -> None:
        """Stop deferred work with its worker processes, the sampling of rates, and back-tests."""
        await self._deferrals.end()
        if self.service.jobs is not None:
            await self.service.jobs.stop()
        self._ticks.stop()


def _of_schemas(services: Services, births: Births) -> list[Function]:
    """The functions over schemas; the lookup is set when all features are made, so it is asked for at each call."""

    def schemas() -> SchemaLookup:
        return services.schemas

    return [
        *schema_functions(schemas),
        *external_schema_functions(schemas),
        *sparkplug_functions(schemas, births),
    ]


def _deferrals(services: Services, settings: RulesSettings) -> Deferrals:
    """The evaluation of rules off the publish path, and the use of jq in this process, by the settings."""
    metrics = services.monitoring.metrics
    JqDefaults.timeout_s = settings.jq_function_default_timeout
    metrics.gauge(
        "jq_inline_evaluations", lambda: Counts.inline, "jq programs run on the publish path"
    )
    metrics.gauge(
        "jq_programs_cached", lambda: program_of.cache_info().currsize, "compiled jq programs kept"
    )
    pool = WorkerPool(settings.jq_workers, settings.jq_worker_memory, metrics)
    bounds = Bounds(settings.jq_queue_records, settings.jq_queue_bytes)
    return Deferrals(services.node.name, services.storage.queues, pool, bounds, metrics)
