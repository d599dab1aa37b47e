"""The node itself: listeners, API tokens, alarms, status, configuration, metrics and the audit log."""

from __future__ import annotations

from broker.core.kinds import ENABLE, Abilities, Kind, Switch
from broker.core.resources import PATTERN, SLOW_S, Command, Parameter, Resource, Verb, limit

_NET = "broker.net.settings"
KINDS = (
    Kind(
        name="listener",
        path="listeners",
        section=None,
        models=tuple(f"{_NET}:{name}ListenerSettings" for name in ("", "Ssl", "Ws", "Wss")),
        view="broker.admin.listeners:ListenerView",
        row="broker.admin.listeners:ListenerRow",
        about="An address that clients connect to.",
        tag="Listeners",
        columns=(
            "id",
            "state",
            "address",
            "zone",
            "connections",
            "max_connections",
            "certificate_expires",
        ),
        abilities=Abilities(
            verbs=frozenset(("delete",)),
            can_patch=True,
            switches=(
                Switch(
                    "start",
                    "started",
                    "Open {} that was stopped.",
                    lambda service, name: service.start(name),
                    at="each",
                ),
                Switch(
                    "stop",
                    "stopped",
                    "Close {} until it is started again or the broker restarts.",
                    lambda service, name, **options: service.stop(name, **options),
                    drains=True,
                    at="each",
                ),
                Switch(
                    "restart",
                    "restarted",
                    "Close {} and open it again, with its settings.",
                    lambda service, name, **options: service.restart(name, **options),
                    drains=True,
                    at="each",
                ),
            ),
        ),
        named_by="id",
        has_any_name=True,
        deletion="Its connections are closed, unless they are to drain.",
        menu="Administration",
    ),
    Kind(
        name="alarm receiver",
        path="alarm-receivers",
        section="alarm_receivers",
        models=tuple(
            f"broker.admin.alarm_receivers:{name}Receiver" for name in ("Webhook", "Topic", "Email")
        ),
        read_only="broker.admin.alarm_receivers:ReceiverReadOnly",
        about="Where notifications of alarms go: a webhook, a topic or e-mail. A test sends a notification.",
        tag="System",
        columns=(
            "name",
            "type",
            "state",
            "alarms",
            "min_severity",
            "waiting",
            "sent",
            "failed",
            "dropped",
            "last_sent_at",
            "last_error",
        ),
        abilities=Abilities(has_probe=True, switches=ENABLE),
        deletion="Notifications that wait are dropped.",
        menu="Administration",
    ),
    Kind(
        name="account",
        area="identities",
        path="accounts",
        section="accounts",
        models=("broker.admin.accounts:AccountSpec",),
        view="broker.admin.accounts:AccountView",
        about="A person who signs in to the dashboard, with a role and a scope. A password that is generated is in the "
        "answer that creates it only.",
        tag="Access",
        columns=("name", "role", "kinds", "topics", "password_changed_at", "description"),
        deletion="Its sessions end at once.",
        menu="Administration",
        reloads=False,
        holds_secrets=True,
    ),
    Kind(
        name="setting",
        path="config",
        section=None,
        models=("broker.admin.settings:SettingSpec",),
        view="broker.admin.settings:SettingView",
        row="broker.admin.settings:SettingRow",
        about="A setting of the broker, by its key as in files: `mqtt.max_packet_size`, `mqtt.client_attrs_init[0]`.",
        tag="System",
        columns=("key", "value", "set_by", "needs_restart"),
        abilities=Abilities(verbs=frozenset(("put", "delete")), can_patch=True),
        named_by="key",
        has_any_name=True,
        command="config",
        deletion="Resets it to the value of the next weaker layer: `base.hocon`, else the default.",
        menu="Administration",
    ),
    Kind(
        name="token",
        area="identities",
        path="tokens",
        section="tokens",
        models=("broker.admin.tokens:TokenSpec",),
        view="broker.admin.tokens:TokenView",
        about="Lets a program use the API with a role and a scope, or read the records of some streams and nothing "
        "else. It is in the answer that creates it only.",
        tag="Access",
        columns=(
            "name",
            "role",
            "kinds",
            "topics",
            "streams",
            "expires_at",
            "is_expired",
            "last_used_at",
            "description",
        ),
        deletion="Programs that use it are refused from then on.",
        menu="Administration",
        holds_secrets=True,
    ),
    Kind(
        name="secret",
        path="secrets",
        section="secrets",
        models=("broker.admin.named_secrets:SecretSpec",),
        view="broker.admin.named_secrets:SecretView",
        about="A password, token or key that settings refer to as `${secret:NAME}`. Its value is never in an answer.",
        tag="Access",
        columns=("name", "updated_at", "used_by", "description"),
        put=("value", "description"),
        menu="Administration",
        reloads=False,
        holds_secrets=True,
    ),
)


_AUDIT_FILTERS = (
    Parameter(
        name="actor",
        text=f"Who sent the request. {PATTERN}",
        type="pattern",
        help="Who sent the request, or a pattern with * ? [abc].",
    ),
    Parameter(
        name="origin",
        text="Where it came from; `files` is a reload.",
        type=("dashboard", "cli", "api", "registry", "files"),
    ),
    Parameter(
        name="address",
        text=f"The client's address without port. {PATTERN}",
        type="pattern",
        help="Address without port, or a pattern.",
    ),
    Parameter(
        name="operation",
        text=f"The operation, such as `putRule`. {PATTERN}",
        type="pattern",
        help="The operation, as putRule, or a pattern.",
    ),
    Parameter(
        name="kind",
        text="The kind of an object that changed, such as `rule`.",
        type="pattern",
        help="The kind of an object that changed, as rule.",
    ),
    Parameter(
        name="name",
        text=f"The name of an object that changed. {PATTERN}",
        type="pattern",
        help="The name of an object that changed, or a pattern.",
    ),
    Parameter(name="outcome", text="How the request ended.", type=("done", "refused", "failed")),
    Parameter(
        name="since", text="The earliest time, RFC 3339.", type="time", help="Earliest time."
    ),
    Parameter(
        name="until",
        text="The time before which entries are, RFC 3339.",
        type="time",
        help="Time before which entries are.",
    ),
    Parameter(name="search", text="Words that must all be in an entry.", longest=256),
)
_AUDIT_ID = Parameter(
    name="id", text="Its `id` in the list.", is_required=True, is_argument=True, longest=64,
    help="Its id, as 'sluice audit-log ls' shows it.",
)  # fmt: skip
_SATURATION_ID = Parameter(
    name="id", text="Its `id` in the list.", is_required=True, is_argument=True, longest=64,
    help="Its id, as 'sluice saturation ls' shows it.",
)  # fmt: skip
_ALARM = Parameter(
    name="name", text="Its `name` in the list.", is_required=True, is_argument=True, longest=600,
    help="Its name, as 'sluice alarms ls' shows it.",
)  # fmt: skip
_ALARM_FILTERS = (
    Parameter(
        name="name",
        text=f"Name of the alarm. {PATTERN}",
        type="pattern",
        help="Name of the alarm, or a pattern with * ? [abc].",
    ),
    Parameter(
        name="severity",
        text="With `critical`, messages or rows are refused or lost.",
        type=("warning", "critical"),
    ),
)
_ALARM_SEARCH = Parameter(
    name="search", text="Words that must all be in its name, message, details or note.", longest=256
)
RESOURCES = (
    Resource(
        name="saturation log entry",
        path="/saturation",
        menu="Diagnose",
        tag="System",
        service="saturation",
        at="first",
        commands="saturation",
        page="Saturation",
        about="See what kept the broker busy when it was saturated.",
        named_by="id",
        verbs=(
            Verb(
                id="listSaturation",
                text="List the saturation log. Returns the newest entries, newest first: which thresholds of "
                "`saturation_log` were passed, and the task or callback that had the event loop then.",
                at="list",
                merged_by="-at",
                call="entries",
                row="broker.admin.saturation:SaturationRow",
                key="id",
                page_text="Entries, newest first.",
                command=Command(
                    columns=(
                        "id",
                        "at",
                        "reasons",
                        "loop_lag_s",
                        "memory_bytes",
                        "store_backlog_bytes",
                        "culprit",
                    )
                ),
            ),
            Verb(
                id="getSaturation",
                text="Show an entry of the saturation log. Returns tasks with their functions and stacks, connections "
                "with their queues and rates, shares by subsystem, and memory by part.",
                call="entry",
                path="/{id}",
                takes=(_SATURATION_ID,),
                answer="broker.admin.saturation:SaturationEntry",
                problems=(404,),
                command=Command(name="get"),
            ),
        ),
    ),
    Resource(
        name="alarm",
        area="operations",
        path="/alarms",
        menu="Diagnose",
        tag="System",
        service="alarms",
        at="list",
        commands="alarms",
        about="See active alarms, and acknowledge them.",
        named_by="name",
        verbs=(
            Verb(
                id="listAlarms",
                text="List active alarms. Returns the alarms that are active, newest first.",
                call="page",
                takes=(
                    *_ALARM_FILTERS,
                    Parameter(
                        name="acknowledged",
                        text="Whether someone acknowledged it.",
                        type=bool,
                        option="--acknowledged/--unacknowledged",
                    ),
                    _ALARM_SEARCH,
                ),
                row="broker.admin.alarms:Alarm",
                after=(int, str),
                model="AlarmList",
                page_text="Alarms, newest first.",
                command=Command(
                    columns=(
                        "activated_at",
                        "name",
                        "severity",
                        "lasted_s",
                        "message",
                        "advice",
                        "page",
                        "acknowledged_by",
                        "note",
                    )
                ),
            ),
            Verb(
                id="listPastAlarms",
                text="List past alarms. Returns alarms that ended, newest first, for as long as `alarms` settings "
                "keep them.",
                call="history",
                path="/history",
                takes=(
                    *_ALARM_FILTERS,
                    Parameter(
                        name="since",
                        keyword="since_us",
                        type="time",
                        text="Alarms that ended at this time or later, RFC 3339.",
                    ),
                    Parameter(
                        name="until",
                        keyword="until_us",
                        type="time",
                        text="Alarms that began before this time, RFC 3339.",
                    ),
                    _ALARM_SEARCH,
                ),
                row="broker.admin.alarms:Alarm",
                after=(int, str),
                model="AlarmList",
                page_text="Alarms, newest first.",
                command=Command(
                    name="history",
                    columns=(
                        "activated_at",
                        "deactivated_at",
                        "name",
                        "severity",
                        "lasted_s",
                        "message",
                        "page",
                        "acknowledged_by",
                        "note",
                    ),
                ),
            ),
            Verb(
                id="forgetPastAlarms",
                text="Delete past alarms. Deletes the history of alarms that ended. Active alarms stay.",
                at="each",
                call="forget_history",
                method="DELETE",
                path="/history",
                does="change",
                command=Command(
                    name="forget",
                    question="Delete all past alarms?",
                    done="past alarms are deleted",
                ),
            ),
            Verb(
                id="getAlarm",
                text="Show an active alarm. Returns it with its details and what to do.",
                at="first",
                call="get",
                path="/{name}",
                takes=(_ALARM,),
                answer="broker.admin.alarms:Alarm",
                problems=(404,),
                command=Command(name="show"),
            ),
            Verb(
                id="acknowledgeAlarm",
                text="Acknowledge an alarm. Receivers do not repeat it until it ends and is active again.",
                at="each",
                call="acknowledge",
                method="POST",
                path="/{name}:acknowledge",
                takes=(_ALARM,),
                body=(
                    Parameter(
                        name="note",
                        text="What is being done about it.",
                        default="",
                        longest=1000,
                    ),
                ),
                body_text="Acknowledgement of an alarm, in the name of the user who sends it.",
                answer="broker.admin.alarms:Alarm",
                problems=(404,),
                does="change",
                command=Command(
                    name="ack", done="alarm {name} is acknowledged by {acknowledged_by}"
                ),
            ),
            Verb(
                id="unacknowledgeAlarm",
                text="Take an acknowledgement back. Receivers repeat the alarm again.",
                at="each",
                call="unacknowledge",
                method="POST",
                path="/{name}:unacknowledge",
                takes=(_ALARM,),
                answer="broker.admin.alarms:Alarm",
                problems=(404,),
                does="change",
                command=Command(name="unack", done="alarm {name} is not acknowledged"),
            ),
        ),
    ),
    Resource(
        name="node",
        path="/status",
        tag="System",
        service="",
        commands="",
        verbs=(
            Verb(
                id="getStatus",
                text="Show the state of the node. Returns counters, rates, listeners, and the state of rules, streams, "
                "tables and bridges. `/metrics` has the same for Prometheus.",
                at="sum",
                sums=(
                    "counters",
                    "rates",
                    "dropped",
                    "lost_rows",
                    "connections",
                    "sessions",
                    "subscriptions",
                    "ledger",
                ),
                call="status",
                answer="ui.api.status:Status",
            ),
        ),
    ),
    Resource(
        name="setting",
        path="/config",
        tag="System",
        service="services.config",
        commands="",
        verbs=(
            Verb(
                id="getConfigTree",
                path=":tree",
                text="Show the active settings as one object. Returns them in the shape of the files. Secrets are "
                "masked.",
                call="tree",
                answer="broker.admin.settings:SettingsTree",
            ),
            Verb(
                id="getConfigStatus",
                path=":status",
                text="Show what the files would change. Returns the files that are read, their problems, and the keys "
                "that have other values in them or wait for a restart.",
                call="files",
                answer="broker.config.root:SettingsFiles",
            ),
        ),
    ),
    Resource(
        name="configuration",
        path="/config:reload",
        tag="System",
        service="reload",
        commands="config",
        verbs=(
            Verb(
                id="reloadConfig",
                text="Reload the configuration. Reads the configuration files again and applies what changed. Nothing "
                "changes when any of it is wrong. `dry_run` returns the settings, listeners and objects that would "
                "change.",
                at="each",
                call="reload",
                takes=(
                    Parameter(
                        name="drain",
                        text="Whether its connections may stay until they end.",
                        type=bool,
                        default=False,
                        option="--drain",
                        help="Let connections of removed listeners stay.",
                    ),
                ),
                answer="broker.config.root:ReloadedConfig",
                does="change",
                plan="plan",
                done="reloaded",
                command=Command(
                    name="reload",
                    help="Reload the configuration of a running broker. If any part of it is invalid, nothing changes.",
                    show="broker.cli.config:print_reloaded",
                    timeout_s=SLOW_S,
                ),
            ),
        ),
    ),
    Resource(
        name="metric",
        path="/metrics/history",
        tag="System",
        service="history",
        commands="",
        verbs=(
            Verb(
                id="getMetricsHistory",
                text="Show the history of metrics. Returns rates and gauges, kept for 15 minutes by second, 3 hours "
                "by 10 seconds, 24 hours by minute and 7 days by 10 minutes. The step is the finest that reaches back "
                "to `from` and gives at most 1,500 values per series, 20,000 in total.",
                at="sum",
                sums=("series",),
                call="read",
                takes=(
                    Parameter(
                        name="names",
                        text="Name of a metric; repeatable. All metrics if absent.",
                        many=True,
                        longest=100,
                    ),
                    Parameter(
                        name="labels",
                        text="`NAME=VALUE` of a label of the series; repeatable.",
                        type="pairs",
                        many=True,
                        longest=10,
                    ),
                    Parameter(
                        name="from",
                        keyword="from_us",
                        type="time",
                        text="Start: RFC 3339 or milliseconds since 1970. An hour before `to` if absent.",
                    ),
                    Parameter(
                        name="to",
                        keyword="to_us",
                        type="time",
                        text="End: RFC 3339 or milliseconds since 1970. The present if absent.",
                    ),
                    Parameter(
                        name="step",
                        keyword="step_s",
                        type=int,
                        default=1,
                        least=1,
                        most=7 * 86_400,
                        text="Minimum number of seconds per value; `step_s` is the number used.",
                    ),
                ),
                answer="ui.api.models.node:MetricsWindow",
            ),
        ),
    ),
    Resource(
        name="audit entry",
        path="/audit-log",
        menu="Diagnose",
        tag="System",
        service="audit_trail",
        commands="audit-log",
        page="AuditEntry",
        about="The audit log: who changed what, when and from where, and what was refused.",
        named_by="id",
        verbs=(
            Verb(
                id="listAuditEntries",
                text="List entries of the audit log. Returns requests that changed something or were refused, and "
                "reloads of files, newest first. Entries cannot be deleted; the oldest go at `audit_log.max_bytes` and "
                "`audit_log.max_age`. Filters combine. `next` is set until the whole log was searched.",
                call="page",
                takes=_AUDIT_FILTERS,
                row="broker.admin.audit_log:AuditEntryRow",
                after=(str,),
                command=Command(
                    help="List who changed what, newest first.",
                    columns=(
                        "at",
                        "actor",
                        "origin",
                        "address",
                        "operation",
                        "name",
                        "outcome",
                        "summary",
                        "id",
                    ),
                ),
            ),
            Verb(
                id="exportAuditLog",
                text="Export entries of the audit log. Streams whole entries, newest first, a JSON object per line.",
                call="export",
                path=":export",
                takes=_AUDIT_FILTERS,
                answer="broker.admin.audit_log:AuditEntryView",
                media="application/x-ndjson",
                outcome="Entries, a line each",
            ),
            Verb(
                id="getAuditEntry",
                text="Show an entry of the audit log. Returns the request and every object that it changed, with the "
                "values before and after. Secrets are stars.",
                call="get",
                path="/{id}",
                takes=(_AUDIT_ID,),
                answer="broker.admin.audit_log:AuditEntryView",
                problems=(404,),
                command=Command(name="get"),
            ),
            Verb(
                id="revertAuditEntry",
                text="Take back what an entry changed. Takes back all changes of the entry or, on an error, none. "
                "Objects that were deleted within the last ten minutes come back as they were, with versions, test "
                "cases and secrets; later, with the values in the entry. Of objects that were changed, the members in "
                "the entry get their values from before: 409 where they have others by now.",
                at="config",
                call="revert",
                path="/{id}:revert",
                takes=(_AUDIT_ID,),
                answer="broker.admin.audit_log:AuditEntryView",
                problems=(404, 409, 422),
                does="change",
                plan="plan",
                done="taken back",
                command=Command(done="what {actor} did with {operation} is taken back"),
            ),
            Verb(
                id="listObjectVersions",
                text="List the versions of an object. Returns the changes of an object, newest first, each with its "
                "actor, the differences, and the whole object after it, as far as the log reaches back.",
                call="history",
                path=":history",
                takes=(
                    Parameter(
                        name="kind",
                        text="The kind of the object, such as `rule`.",
                        is_required=True,
                        is_argument=True,
                        longest=64,
                        help="Its kind, as rule.",
                    ),
                    Parameter(
                        name="name",
                        text="The name of the object.",
                        is_required=True,
                        is_argument=True,
                        longest=65_600,
                        help="Its name.",
                    ),
                    limit(100, "Maximum number of versions."),
                ),
                row="broker.admin.audit_log:ObjectVersion",
                model="ObjectVersionList",
                page_text="Versions of an object, newest first.",
                command=Command(
                    name="history",
                    columns=("at", "actor", "origin", "operation", "change", "summary", "id"),
                ),
            ),
            Verb(
                id="restoreObject",
                text="Give an object the form that it had after an entry. The object is replaced as a whole, created "
                "or deleted. Secrets stay as they are. `kind` and `name` choose one of several objects.",
                at="config",
                call="restore",
                path="/{id}:restore",
                takes=(
                    _AUDIT_ID,
                    Parameter(
                        name="kind",
                        text="The kind of the object.",
                        longest=64,
                        help="Its kind, as rule.",
                    ),
                    Parameter(
                        name="name",
                        text="The name of the object.",
                        longest=65_600,
                        help="Its name.",
                    ),
                ),
                answer="broker.admin.audit_log:ObjectVersion",
                problems=(404, 409, 422),
                does="change",
                plan="plan_restore",
                done="restored",
                command=Command(done="restored as it was after {operation} at {at}"),
            ),
        ),
    ),
)
