"""Rules."""

from __future__ import annotations

from broker.core.kinds import ENABLE, Abilities, Kind

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
        abilities=Abilities(
            can_patch=True, can_reorder=True, has_etag=True, metrics="rules.metrics:RuleMetricsView", switches=ENABLE
        ),
    ),
)
