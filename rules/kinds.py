"""Rules and their back-tests."""

from __future__ import annotations

from dataclasses import replace

from broker.core.kinds import ENABLE, Abilities, Kind
from broker.core.resources import Command, Parameter, Resource, Verb, trial

KINDS = (
    Kind(
        name="rule",
        topics="named",
        area="authoring",
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
        menu="Data",
        page_columns={
            "SQL or jq": "sql",
            "Actions": "actions",
            "Matched/s": "metrics/matched.rate",
            "Passed/s": "metrics/passed.rate",
            "Failed/s": "metrics/failed.exception.rate",
            "p99": "metrics/evaluation_s/p99",
            "Last error": "last_error",
        },
        reads_at="running",
        read_only="rules.service:RuleReadOnly",
        abilities=Abilities(
            can_patch=True,
            can_reorder=True,
            metrics="rules.metrics:RuleMetricsView",
            switches=ENABLE,
        ),
    ),
)

_RULE = Parameter(
    name="name", type="name", is_required=True, is_argument=True, help="The name of a rule."
)
_NUMBER = Parameter(
    name="number", text="The number of a version.", type=int, least=1, is_required=True
)
_KNOWN = "sluice rules ls"
_MODELS = "ui.api.models.rules"
_BACKTEST = Parameter(
    name="id", text="The identifier of a back-test.", is_required=True, longest=64
)
_TRIED = (
    trial("testRule", "/rules:test", "test", f"{_MODELS}:RuleTest", "rules.trials.tester:RuleOutcome",
          "Run SQL on one event. Returns the rows, `no_result` where FROM or WHERE does not match, or the "
          "error. The event is taken as the rule sees it: validations and transformations do not run before, "
          "nor actions after it. `POST /pipeline:preview` runs all stages on a message."),
    trial("testRuleOnEvents", "/rules:test-many", "test_many", f"{_MODELS}:RuleTests",
          "rules.trials.tester:RuleOutcomes",
          "Run SQL on several events. Returns an outcome for each, in order, and how many have rows. Events "
          "are taken as the rule sees them, as by `POST /rules:test`."),
    trial("testRuleCases", "/rules:test-cases", "test_cases", f"{_MODELS}:RuleCheck",
          "rules.trials.cases:CasesReport",
          "Run test cases on a rule. Returns for each case whether it passed, and else the difference."),
    trial("checkRule", "/rules:check", "check", f"{_MODELS}:RuleCheck", "rules.type_check:RuleTypes",
          "Check a rule. Returns the types of the rows, the event columns that each reads, and warnings."),
    trial("listRuleFields", "/rules:fields", "fields", f"{_MODELS}:RuleSources", "rules.type_check:InputFields",
          "List what a rule can read. Returns the columns of its sources, and the fields of payloads that have "
          "a schema, with their types."),
    trial("formatRule", "/rules:format", "format", f"{_MODELS}:SqlText", "rules.service:FormattedSql",
          "Format SQL. Returns the same statement in the usual layout, with its comments."),
    replace(
        trial("explainRule", "/rules:explain", "explain", f"{_MODELS}:RuleExplain", "rules.trials.explain:Explanation",
              "Run SQL or a rule on one event, step by step. Returns the value of every sub-expression. The event "
              "is taken as the rule sees it, as by `POST /rules:test`."),
        problems=(404,)),
    trial("runRuleTestCases", "/rules/{name}:test-cases", "run_cases", "", "rules.trials.cases:CasesReport",
          "Run the saved test cases of a rule. Runs each saved test case and reports what differs from the "
          "expectation.", _RULE),
    trial("renderTemplate", "/templates:render", "render", f"{_MODELS}:TemplateRender",
          "rules.trials.tester:RenderedTemplate",
          "Fill a template from a row. Placeholders are filled as actions fill them."),
)  # fmt: skip
RESOURCES = (
    Resource(
        name="rule",
        topics="named",
        path="/rules/{name}",
        tag="Rules",
        service="services.rules",
        commands="rules",
        verbs=(
            Verb(
                id="getRuleCode",
                text="Show the Python function that a rule was compiled to. The broker runs this function for every "
                "message that the rule reads.",
                call="code",
                path="/code",
                takes=(_RULE,),
                answer=f"{_MODELS}:RuleCode",
            ),
            Verb(
                id="getRuleLineage",
                text="Show what the columns of a rule's rows are made of. For each column its type, its expression "
                "and the event columns that it reads; and the conditions for a row.",
                call="lineage",
                path="/lineage",
                takes=(replace(_RULE, help="A rule."),),
                answer="rules.sql.type_checker.lineage:RuleLineage",
                command=Command(
                    name="lineage",
                    help="Show what the columns of a rule's rows are computed from.",
                    show="broker.cli.rule_tries:print_lineage",
                    known=_KNOWN,
                ),
            ),
            Verb(
                id="getRuleSparkSql",
                text="Show a rule as Spark SQL. Where no equal Spark SQL is known, the answer says why; Spark then "
                "runs the compiled rule.",
                call="spark_form",
                path="/spark",
                takes=(_RULE,),
                answer="rules.service:SparkForm",
            ),
            Verb(
                id="listRuleVersions",
                text="List the versions of a rule. Those that are kept, newest first, each with the time it was saved "
                "and what changed.",
                call="versions",
                path="/versions",
                takes=(_RULE,),
                row="rules.versions:VersionRow",
                model="VersionPage",
                page_text="The versions of a rule, newest first.",
                command=Command(
                    name="versions",
                    help="List the versions of a rule that are kept, newest first.",
                    columns={"version": "version", "saved at": "saved_at", "change": "change"},
                    known=_KNOWN,
                ),
            ),
            Verb(
                id="getRuleVersion",
                text="Show a version of a rule. Returns the rule as it was saved then.",
                call="version",
                path="/versions/{number}",
                takes=(_RULE, _NUMBER),
                answer="rules.versions:VersionView",
            ),
            Verb(
                id="compareRuleVersions",
                text="Compare two versions of a rule. Returns a unified diff of the two versions.",
                call="difference",
                path="/versions/{number}/diff",
                takes=(
                    _RULE,
                    replace(_NUMBER, keyword="before"),
                    replace(_NUMBER, name="to", text="The other version.", keyword="after"),
                ),
                answer="rules.versions:VersionDifference",
            ),
        ),
    ),
    Resource(
        name="rule",
        topics="named",
        path="",
        tag="Try",
        service="services.rules",
        commands="",
        verbs=_TRIED,
    ),
    Resource(
        name="back-test",
        topics="named",
        area="authoring",
        path="/backtests",
        tag="Rules",
        service="services.rules",
        scoped_by="backtest_of",
        commands="",
        named_by="id",
        page="Backtest",
        verbs=(
            Verb(
                id="listBacktests",
                text="List back-tests. Returns running back-tests and those that ended, newest first.",
                call="backtests",
                row="rules.trials.backtest:BacktestView",
                page_text="Back-tests, newest first, without their results.",
                columns={
                    "id": "id",
                    "state": "state",
                    "rule": "rule",
                    "stream": "stream",
                    "ranges": "ranges",
                    "progress": "progress",
                    "per second": "rate",
                    "time left": "eta_s",
                    "started": "started_at",
                    "ended": "ended_at",
                    "error": "error",
                },
            ),
            Verb(
                id="getBacktest",
                topics="named",
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
                does="try",
                offered="state=running",
            ),
        ),
    ),
)
