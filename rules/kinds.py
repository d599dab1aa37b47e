"""Rules and their back-tests."""

from __future__ import annotations

from broker.core.kinds import ENABLE, Abilities, Kind
from broker.core.resources import Parameter, Resource, Verb

KINDS = (
    Kind(
        name="rule",
        path="rules",
        section="rule_engine.rules",
        models=("rules.spec:RuleSpec",),
        about="SQL over messages and events, and what to do with the rows. Saved only when its test cases pass.",
        tag="Rules",
        columns={
            "name": "name",
            "enabled": "enable",
            "version": "version",
            "matched": "metrics/matched",
            "passed": "metrics/passed",
            "no result": "metrics/failed.no_result",
            "failed": "metrics/failed.exception",
            "per second": "metrics/matched.rate",
            "sql": "sql",
        },
        read_only="rules.service:RuleReadOnly",
        abilities=Abilities(can_patch=True, can_reorder=True, metrics="rules.metrics:RuleMetricsView", switches=ENABLE),
    ),
)

_BACKTEST = Parameter(name="id", text="The identifier of a back-test.", is_required=True, longest=64)
RESOURCES = (
    Resource(
        name="back-test",
        path="/backtests",
        tag="Rules",
        service="services.rules",
        commands="",
        page="Backtest",
        verbs=(
            Verb(
                id="listBacktests",
                text="List back-tests. Returns running back-tests and those that ended, newest first.",
                call="backtests",
                row="rules.trials.backtest:BacktestView",
                page_text="Back-tests, newest first, without their results.",
            ),
            Verb(
                id="getBacktest",
                text="Show a back-test. Returns the state, the progress and, once it ended, the result.",
                call="backtest_of",
                path="/{id}",
                takes=(_BACKTEST,),
                answer="rules.trials.backtest:BacktestView",
            ),
            Verb(
                id="cancelBacktest",
                text="Cancel a back-test. Stops the job. Results so far are kept.",
                call="cancel_backtest",
                path="/{id}:cancel",
                takes=(_BACKTEST,),
                answer="rules.trials.backtest:BacktestView",
                does="change",
            ),
        ),
    ),
)
