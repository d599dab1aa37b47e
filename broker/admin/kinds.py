"""Share groups, listeners and tokens; clients and what is kept for them."""

from __future__ import annotations

from dataclasses import replace

from broker.core.kinds import EVERY_VERB, Abilities, Kind, Switch
from broker.core.resources import LONG_S, TAKE_AGAIN, Command, Job, Parameter, Resource, Verb

_NET = "broker.net.settings"
KINDS = (
    Kind(
        name="share group",
        path="groups",
        section=None,
        models=("broker.admin.groups:GroupSpec",),
        view="broker.admin.groups:GroupView",
        row="broker.admin.groups:GroupRow",
        about="Subscribers of one `$share/NAME/FILTER`. One that was created keeps messages while it has no members.",
        tag="Share groups",
        columns=("group", "strategy", "durable", "members", "connected", "waiting", "inflight", "redelivered"),
        abilities=Abilities(verbs=EVERY_VERB - {"put"}),
        named_by="group",
        has_any_name=True,
        word="group",
        deletion="Messages that wait for it are discarded. A group with members ends with the last of them.",
    ),
    Kind(
        name="listener",
        path="listeners",
        section=None,
        models=tuple(f"{_NET}:{name}ListenerSettings" for name in ("", "Ssl", "Ws", "Wss")),
        view="broker.admin.listeners:ListenerView",
        row="broker.admin.listeners:ListenerRow",
        about="An address that clients connect to.",
        tag="Listeners",
        columns=("id", "state", "address", "zone", "connections", "max_connections", "certificate_expires"),
        abilities=Abilities(
            verbs=frozenset(("delete",)),
            can_patch=True,
            switches=(
                Switch("start", "started", "Open {} that was stopped.", lambda service, name: service.start(name)),
                Switch(
                    "stop",
                    "stopped",
                    "Close {} until it is started again or the broker restarts.",
                    lambda service, name, **options: service.stop(name, **options),
                    drains=True,
                ),
                Switch(
                    "restart",
                    "restarted",
                    "Close {} and open it again, with its settings.",
                    lambda service, name, **options: service.restart(name, **options),
                    drains=True,
                ),
            ),
        ),
        named_by="id",
        has_any_name=True,
        deletion="Its connections are closed, unless they are to drain.",
    ),
    Kind(
        name="token",
        path="tokens",
        section="tokens",
        models=("broker.admin.tokens:TokenSpec",),
        view="broker.admin.tokens:TokenView",
        about="Lets a program read the records of some streams, and nothing else. It is in the answer that creates it "
        "only.",
        tag="Access",
        columns=("name", "streams", "expires_at", "is_expired", "description"),
        deletion="Programs that use it are refused from then on.",
    ),
)

_PATTERN = "As it is, or a pattern with `*`, `?` and `[abc]`."
_CLIENT = Parameter(
    name="client_id", text="The client identifier, percent-encoded.", help="The client identifier.", is_required=True,
    is_argument=True,
)  # fmt: skip
_MEMBER = replace(_CLIENT, text="")
_SESSION_FILTERS = (
    Parameter(
        name="client_id", text=_PATTERN, type="pattern", option="--client",
        old="--id",
        help="An identifier, or a pattern with * ? [abc].",
    ),
    Parameter(name="username", text=_PATTERN, type="pattern", option="--user", help="A user name, or a pattern."),
    Parameter(
        name="address", text="The client's address without port, or a pattern.", type="pattern",
        help="Without port, or a pattern.",
    ),
    Parameter(name="listener", text="The listener it came through, or a pattern.", type="pattern"),
    Parameter(
        name="zone", text="The zone of that listener, or a pattern.", type="pattern",
        help="Of clients in this zone, or a pattern.",
    ),
    Parameter(
        name="attribute", text="`NAME=VALUE` of a client attribute, maybe a pattern; repeatable.", type="pairs",
        many=True,
    ),
    Parameter(
        name="connected", text="Only those that are connected, or that are away.", type=bool,
        option="--connected/--away", help="Only those connected, or away.",
    ),
    Parameter(
        name="durable", text="Only those that are on disk, or in memory.", type=bool, option="--durable/--clean",
        help="Only sessions that are on disk, or in memory.",
    ),
    Parameter(name="protocol", text="The version of MQTT.", type=("3.1", "3.1.1", "5.0")),
    Parameter(
        name="min_queued", text="The minimum number of queued messages.", type=int, least=0,
        help="Minimum number of queued messages.",
    ),
    Parameter(
        name="min_queue_bytes", text="The minimum bytes of queued messages.", type=int, least=0,
        help="Minimum bytes of queued messages.",
    ),
    Parameter(
        name="sort", default="client_id",
        text="`client_id`, `connected_at`, `queued`, `queue_bytes`, `inflight` or `subscriptions`; with `-` in front, "
        "descending.",
        help="client_id, connected_at, queued, queue_bytes, inflight, subscriptions; with - in front, descending.",
    ),
)  # fmt: skip
_DRY = Parameter(name="dry_run", type=bool, default=False, help="Only show what would be deleted.")
_TOPIC = Parameter(name="topic", text="The topic.", is_required=True, is_argument=True)
_DELAYED_ID = Parameter(
    name="id", text="Its `id` in the list.", is_required=True, is_argument=True, shortest=1, longest=64,
    help="Its id, as 'sluice delayed ls' shows it.",
)  # fmt: skip
_JOB = Parameter(
    name="id", text="The identifier of a job.", is_required=True, is_argument=True, longest=64, option="ID",
    help="Its identifier.",
)  # fmt: skip
_AUDIT_ID = Parameter(
    name="id", text="Its `id` in the list.", is_required=True, is_argument=True, longest=64,
    help="Its id, as 'sluice audit-log ls' shows it.",
)  # fmt: skip
_QUARANTINE = Parameter(
    name="name", type="name", keyword="stream", is_required=True, is_argument=True,
    help="The stream in which they are kept.",
)  # fmt: skip
_OF_CLIENT = ("filter", "qos", "no_local", "retain_as_published", "identifier")
_SUBSCRIPTION = (
    "client_id", "filter", "qos", "durable", "connected", "share_group", "no_local", "retain_as_published",
    "identifier",
)  # fmt: skip
_SHOW_SUBSCRIPTIONS = "broker.cli.traffic:print_with_subscriptions"

RESOURCES = (
    Resource(
        name="client",
        path="/clients",
        tag="Clients",
        service="traffic.clients",
        commands="clients",
        alias="client",
        about="Clients: list, show, disconnect, subscribe for them.",
        named_by="client_id",
        verbs=(
            Verb(
                id="listClients",
                text="List clients. Returns clients that are connected or have a session. Filters combine.",
                call="page",
                takes=_SESSION_FILTERS,
                row="broker.admin.clients:ClientRow",
                after=(int, str),
                at="all",
                command=Command(
                    name="ls",
                    help="List clients that are connected, or have a session that waits for them.",
                    columns=(
                        "client_id",
                        "username",
                        "connected",
                        "address",
                        "listener",
                        "protocol",
                        "keep_alive_s",
                        "connected_at",
                        "subscriptions_count",
                        "inflight",
                        "queued",
                        "queue_bytes",
                        "dropped",
                    ),
                ),
            ),
            Verb(
                id="kickClients",
                text="Disconnect clients. Disconnects the clients with reason code 0x98. Their sessions expire as "
                "usual.",
                call="kick",
                method="POST",
                path=":kick",
                body=(
                    Parameter(
                        name="client_ids", many=True, is_required=True, is_argument=True, help="The client identifiers."
                    ),
                ),
                body_text="The identifiers of the clients to disconnect.",
                answer="broker.admin.clients:Kicked",
                does="change",
                at="owner",
                effect="client",
                done="disconnected",
                command=Command(
                    name="kick",
                    help="Disconnect clients (0x98). Their sessions stay until they expire.",
                    question="Disconnect {count}?",
                    done="disconnected: {kicked}",
                    check="broker.cli.traffic:check_kicked",
                ),
            ),
            Verb(
                id="subscribeClient",
                text="Subscribe a client. Adds subscriptions to a connected client, as if it had sent SUBSCRIBE.",
                call="subscribe",
                method="POST",
                path=":subscribe",
                body=(
                    _MEMBER,
                    Parameter(
                        name="subscriptions",
                        type="ui.api.models.clients:SubscriptionOptions",
                        many=True,
                        shortest=1,
                        is_required=True,
                    ),
                    Parameter(
                        name="check_acl", text="Whether the client's access rules apply.", type=bool, default=True
                    ),
                ),
                body_text="The client, and the filters to subscribe it to.",
                answer="broker.admin.clients:Subscribed",
                problems=(404, 409),
                does="change",
                at="owner",
            ),
            Verb(
                id="unsubscribeClient",
                text="Unsubscribe a client. Removes subscriptions of a connected client, as if it had sent "
                "UNSUBSCRIBE.",
                call="unsubscribe",
                method="POST",
                path=":unsubscribe",
                body=(
                    _MEMBER,
                    Parameter(name="filters", many=True, is_required=True, is_argument=True, help="Topic filters."),
                ),
                body_text="Which subscriptions of which client to end, by their filters.",
                answer="broker.admin.clients:Unsubscribed",
                problems=(404, 409),
                does="change",
                at="owner",
                command=Command(
                    name="unsubscribe",
                    help="End subscriptions of a connected client. Filters are as it subscribed to them.",
                    columns=_OF_CLIENT,
                    rows="subscriptions",
                    known="sluice clients ls",
                ),
            ),
            Verb(
                id="getClient",
                text="Show a client. Returns the connection, its properties and its session.",
                call="show",
                path="/{client_id:path}",
                takes=(_CLIENT,),
                answer="broker.admin.clients:ClientView",
                at="owner",
                command=Command(
                    name="show", help="Show everything that is known of a client.", show=_SHOW_SUBSCRIPTIONS
                ),
            ),
        ),
    ),
    Resource(
        name="session",
        path="/sessions",
        tag="Sessions",
        service="traffic.sessions",
        commands="sessions",
        alias="session",
        about="Sessions: list, show, purge, those with the longest queues.",
        named_by="client_id",
        verbs=(
            Verb(
                id="listSessions",
                text="List sessions. Returns sessions of connected and disconnected clients. Filters combine.",
                call="page",
                takes=_SESSION_FILTERS,
                row="broker.admin.session_rows:SessionRow",
                after=(int, str),
                at="all",
                command=Command(
                    name="ls",
                    help="List sessions, of clients that are connected or away.",
                    columns=(
                        "client_id",
                        "username",
                        "connected",
                        "zone",
                        "durable",
                        "disconnected_at",
                        "expires_at",
                        "subscriptions_count",
                        "inflight",
                        "queued",
                        "queue_bytes",
                        "position",
                    ),
                ),
            ),
            Verb(
                id="topSessions",
                text="List the sessions with the longest queues. Returns the sessions with the longest queues, in "
                "memory and on disk.",
                call="top",
                path=":top",
                takes=(
                    Parameter(name="count", text="How many.", type=int, default=10, least=1, most=1000),
                    Parameter(
                        name="by", text="What makes a queue long.", type=("messages", "bytes"), default="messages"
                    ),
                ),
                row="broker.admin.sessions:LongQueue",
                model="LongQueues",
                page_text="The sessions with the longest queues, longest first.",
                at="all",
            ),
            Verb(
                id="purgeSessions",
                text="Purge sessions. Deletes all sessions that match, with their queued messages. `dry_run` of the "
                "body only counts them.",
                call="purge",
                method="POST",
                path=":purge",
                body=(
                    Parameter(
                        name="client_id",
                        text="An identifier, or a pattern with `*`, `?` and `[abc]`.",
                        type="pattern",
                        option="--client",
                        old="--id",
                    ),
                    Parameter(name="username", text="A user name, or a pattern.", type="pattern", option="--user"),
                    Parameter(
                        name="zone",
                        text="A zone, or a pattern.",
                        type="pattern",
                        help="Of clients in this zone, or a pattern.",
                    ),
                    Parameter(
                        name="older_than_s",
                        text="Away for at least this many seconds.",
                        type="duration",
                        least=0,
                        most=1 << 40,
                        option="--older-than",
                        help="Away for at least this long, as 1d, 12h, 30m.",
                    ),
                    Parameter(
                        name="durable",
                        type=bool,
                        option="--durable/--clean",
                        help="Only sessions that are on disk, or in memory.",
                    ),
                    Parameter(
                        name="connected",
                        type=bool,
                        default=False,
                        text="Sessions of connected clients, which are disconnected (0x98).",
                        help="Sessions of connected clients, which are disconnected (0x98); else only away ones.",
                    ),
                    Parameter(name="min_queued", type=int, least=0, help="Minimum number of queued messages."),
                    Parameter(name="min_queue_bytes", type=int, least=0, help="Minimum bytes of queued messages."),
                    _DRY,
                ),
                body_text="Which sessions to delete. Without ``connected`` those whose client is away; what is left "
                "out does not matter.",
                answer="broker.admin.sessions:Purged",
                does="change",
                at="all",
                effect="session",
                command=Command(
                    name="purge",
                    help="Delete sessions and their queued messages.",
                    question="Delete {count}?",
                    counts="sessions",
                    needs="say which sessions: by --client, --user, --zone or --older-than",
                    timeout_s=LONG_S,
                ),
            ),
            Verb(
                id="getSession",
                text="Show a session. Returns the session with its subscriptions and the size of its queue.",
                call="show",
                path="/{client_id:path}",
                takes=(_CLIENT,),
                answer="broker.admin.sessions:SessionView",
                at="owner",
                command=Command(
                    name="show",
                    help="Show a session, its subscriptions, and how much waits for it in memory and in the log.",
                    show=_SHOW_SUBSCRIPTIONS,
                    timeout_s=LONG_S,
                ),
            ),
            Verb(
                id="deleteSession",
                text="Delete a session. Deletes the session with its queued messages, and disconnects the client with "
                "reason code 0x98.",
                call="delete",
                method="DELETE",
                path="/{client_id:path}",
                takes=(_CLIENT,),
                does="change",
                at="owner",
                effect="session",
                exists="show",
                command=Command(
                    name="rm",
                    help="Delete one session; its client is disconnected (0x98).",
                    question="Delete the session of {client_id}?",
                ),
            ),
        ),
    ),
    Resource(
        name="subscription",
        path="/subscriptions",
        tag="Subscriptions",
        service="traffic.subscriptions",
        commands="subscriptions",
        alias="subs",
        about="Subscriptions: by client, by filter, by a topic.",
        verbs=(
            Verb(
                id="listSubscriptions",
                text="List subscriptions. Returns subscriptions by client and filter. `match` finds those that "
                "receive a topic.",
                call="page",
                takes=(
                    Parameter(
                        name="client_id", text="The client identifier.", option="--client", help="Of this client."
                    ),
                    Parameter(
                        name="filter",
                        text="The filter, as it was subscribed.",
                        help="Of this filter, as it was subscribed.",
                    ),
                    Parameter(name="match", text="A topic: only subscriptions that match it."),
                    Parameter(name="share_group", text="The name of a share group."),
                    Parameter(
                        name="durable",
                        text="Only of sessions that are on disk.",
                        type=bool,
                        option="--durable/--clean",
                        help="Only sessions that are on disk, or in memory.",
                    ),
                    Parameter(name="qos", text="The granted QoS.", type=int, least=0, most=2),
                ),
                row="broker.admin.session_rows:SubscriptionRow",
                after=(str, str),
                at="all",
                command=Command(
                    name="ls",
                    help="List subscriptions in the order of clients and filters.",
                    columns=_SUBSCRIPTION,
                ),
            ),
        ),
    ),
    Resource(
        name="retained message",
        path="/retained",
        tag="Retained",
        service="traffic.retained",
        commands="retained",
        about="Retained messages: list, show, delete, clear, count.",
        page="Retained",
        named_by="topic",
        verbs=(
            Verb(
                id="listRetained",
                text="List retained messages. Returns retained messages by topic. Long payloads are cut.",
                call="page",
                takes=(Parameter(name="filter", text="A topic filter.", default="#", is_argument=True),),
                row="broker.admin.retained:RetainedView",
                after=(str,),
                at="all",
                command=Command(
                    name="ls",
                    help="List retained messages whose topics match a filter; long payloads are cut.",
                    columns=(
                        "topic",
                        "qos",
                        "payload_bytes",
                        "client_id",
                        "username",
                        "received_at",
                        "expires_at",
                        "payload",
                    ),
                ),
            ),
            Verb(
                id="countRetained",
                text="Count retained messages. Returns the number of retained messages and their size.",
                call="count",
                path=":count",
                answer="broker.admin.retained:RetainedCount",
                at="all",
                command=Command(name="count", help="Show how many retained messages there are, and their bytes."),
            ),
            Verb(
                id="getRetained",
                text="Show a retained message. Returns the retained message of one topic, with its whole payload.",
                call="get",
                path=":message",
                takes=(_TOPIC,),
                answer="broker.admin.retained:RetainedView",
                problems=(404,),
                at="owner",
                command=Command(
                    name="show",
                    help="Show the retained message of a topic, with its whole payload.",
                    known="sluice retained ls",
                ),
            ),
            Verb(
                id="deleteRetained",
                text="Delete a retained message. Deletes the retained message of one topic.",
                call="delete",
                method="DELETE",
                path=":message",
                takes=(_TOPIC,),
                problems=(404,),
                does="change",
                at="owner",
                effect="retained message",
                exists="get",
                command=Command(
                    name="rm",
                    help="Delete the retained message of a topic.",
                    question="Delete the retained message of {topic}?",
                ),
            ),
            Verb(
                id="clearRetained",
                text="Clear retained messages. Deletes the retained messages whose topics match a filter. `dry_run` "
                "of the body only counts them.",
                call="clear",
                method="POST",
                path=":clear",
                body=(
                    Parameter(name="filter", is_required=True, is_argument=True, help="A topic filter."),
                    Parameter(
                        name="only_expired", type=bool, default=False, option="--expired", help="Only what has expired."
                    ),
                    _DRY,
                ),
                body_text="Which retained messages to delete: those whose topics match.",
                answer="broker.admin.retained:Cleared",
                does="change",
                at="all",
                effect="retained message",
                command=Command(
                    name="clear",
                    help="Delete all retained messages whose topics match a filter.",
                    question="Delete {count}?",
                    counts="messages",
                    timeout_s=LONG_S,
                ),
            ),
        ),
    ),
    Resource(
        name="delayed message",
        path="/delayed",
        tag="Delayed",
        service="delayed",
        commands="delayed",
        about="Messages published to $delayed/SECONDS/TOPIC that wait until they are due.",
        page="Delayed",
        named_by="id",
        verbs=(
            Verb(
                id="listDelayed",
                text="List delayed messages. Returns delayed messages without payloads, those due first come first.",
                call="page",
                row="broker.admin.delayed:DelayedRow",
                after=(str,),
                at="all",
                command=Command(
                    name="ls",
                    help="List delayed messages in the order in which they are due.",
                    columns=("id", "topic", "clientid", "qos", "payload_bytes", "due_at"),
                ),
            ),
            Verb(
                id="getDelayed",
                text="Show a delayed message. Returns the message with its payload.",
                call="get",
                path="/{id}",
                takes=(_DELAYED_ID,),
                answer="broker.admin.delayed:DelayedView",
                at="all",
                command=Command(name="show", help="Show a delayed message with its payload."),
            ),
            Verb(
                id="deleteDelayed",
                text="Delete a delayed message. The message will not be published.",
                call="delete",
                method="DELETE",
                path="/{id}",
                takes=(_DELAYED_ID,),
                does="change",
                at="all",
                effect="delayed message",
                command=Command(
                    name="rm",
                    help="Delete a delayed message: it is not published.",
                    question="Remove delayed message {id!r}?",
                ),
            ),
        ),
    ),
    Resource(
        name="job",
        path="/jobs",
        tag="Jobs",
        service="jobs",
        commands="jobs",
        alias="job",
        about="List, watch, pause and cancel long work of the broker.",
        named_by="id",
        verbs=(
            Verb(
                id="listJobs",
                text="List jobs. Returns back-tests, replays and audits of tables, replays of streams, dead letters "
                "that are sent again and quarantined messages that are published again: those that run, and the last "
                "ones that ended. What ran when the broker stopped is listed as `interrupted`, but for replays and "
                "audits, which continue.",
                call="known",
                row="ui.api.models.jobs:Job",
                key="id",
                model="JobList",
                page_text="A page of the jobs that run and those that ended, newest first.",
                at="all",
                command=Command(
                    name="ls",
                    help="List jobs that run and those that ended, newest first.",
                    columns={
                        "id": "id",
                        "kind": "kind",
                        "name": "name",
                        "state": "state",
                        "done": "progress/done",
                        "of": "progress/total",
                        "unit": "progress/unit",
                        "per second": "rate",
                        "started": "started_at",
                    },
                    limit=None,
                ),
            ),
            Verb(
                id="getJob",
                text="Show a job. Returns the state, the progress and, once it ended, the result or where that is.",
                call="get",
                path="/{id}",
                takes=(_JOB,),
                answer="ui.api.models.jobs:JobWithResult",
                at="all",
                command=Command(name="show", help="Show a job, with its result once it ended."),
            ),
            Verb(
                id="cancelJob",
                text="Cancel a job. Ends the job after the piece that it works on. Completed work is kept. Canceling "
                "a job that is over is not an error.",
                call="cancel",
                method="POST",
                path="/{id}:cancel",
                takes=(_JOB,),
                answer="ui.api.models.jobs:JobWithResult",
                does="change",
                at="all",
                command=Command(
                    name="cancel",
                    help="End a job after the piece that it works on; what is done stays done.",
                    done="job {id} is to end",
                ),
            ),
            Verb(
                id="pauseJob",
                text="Pause a job. Has a replay of a stream or table, or an audit, wait, also across restarts of the "
                "broker. Other jobs cannot be paused.",
                call="pause",
                method="POST",
                path="/{id}:pause",
                takes=(_JOB,),
                answer="ui.api.models.jobs:JobWithResult",
                problems=(409,),
                does="change",
                at="all",
                command=Command(
                    name="pause",
                    help="Have a replay of a stream or table, or an audit, wait, until it is resumed.",
                    done="job {id} is paused",
                ),
            ),
            Verb(
                id="resumeJob",
                text="Resume a job. Has a replay or an audit continue that is paused, or a replay of a stream that "
                "failed.",
                call="resume",
                method="POST",
                path="/{id}:resume",
                takes=(_JOB,),
                answer="ui.api.models.jobs:JobWithResult",
                problems=(409,),
                does="change",
                at="all",
                command=Command(
                    name="resume",
                    help="Have a replay or an audit continue that is paused, or a replay of a stream that failed.",
                    done="job {id} continues",
                ),
            ),
        ),
    ),
    Resource(
        name="quarantine",
        path="/quarantine",
        tag="Quarantine",
        service="quarantine",
        commands="quarantine",
        about="Messages that gates stopped and kept: list and reprocess them.",
        named_by="stream",
        verbs=(
            Verb(
                id="listQuarantines",
                text="List quarantines. Returns the streams that keep messages stopped by validations and "
                "transformations.",
                call="overview",
                row="broker.admin.quarantine:QuarantineRow",
                key="stream",
                at="all",
                command=Command(
                    name="ls",
                    help="List all quarantines with how many messages wait.",
                    columns=("stream", "waiting"),
                    limit=None,
                ),
            ),
            Verb(
                id="getQuarantine",
                text="List the messages of a quarantine. Returns the stopped messages, oldest first, each with the "
                "reason.",
                call="get",
                path="/{name}",
                takes=(
                    _QUARANTINE,
                    Parameter(name="limit", type=int, default=20, least=1, most=1000, help="Maximum number of rows."),
                ),
                answer="broker.admin.quarantine:QuarantineView",
                at="all",
                command=Command(
                    name="show",
                    help="Show what waits in a quarantine, oldest first, and why it was stopped.",
                    columns=("shard", "offset", "topic", "clientid", "stage", "name", "path", "reason", "payload"),
                ),
            ),
            Verb(
                id="takeQuarantineAgain",
                text="Publish quarantined messages again. Publishes stopped messages again through all stages, oldest "
                "first, or each `record`. One that fails again is stopped again, with its new reason. It is a job: "
                "`Prefer: respond-async` does not wait for its end.",
                call="take_again",
                method="POST",
                path="/{name}:take-again",
                takes=(
                    _QUARANTINE,
                    Parameter(
                        name="record",
                        text="Only this record, as `SHARD/OFFSET`; may be repeated.",
                        type="record",
                        many=True,
                        longest=200,
                        keyword="records",
                        help="Only this record; may be repeated.",
                    ),
                ),
                body=TAKE_AGAIN,
                body_text="How many messages to take out of quarantine at most.",
                model="TakeAgain",
                answer="broker.admin.quarantine:TakenAgain",
                takes_key=True,
                does="change",
                job=Job(kind="quarantine", unit="messages", plan="to_take_again"),
                effect="quarantine",
                plan="take_again",
                done="reprocessed",
                command=Command(
                    name="take-again",
                    help="Publish what waits, or each --record, through all stages. What fails again goes to the end "
                    "with a new reason.",
                    show="broker.cli.gates:print_taken_again",
                    timeout_s=LONG_S,
                ),
            ),
        ),
    ),
    Resource(
        name="topic",
        path="/topics",
        tag="Topics",
        service="traffic.topics",
        commands="topics",
        alias="topic",
        about="Topics: what is published where, how often, and when last.",
        verbs=(
            Verb(
                id="listTopics",
                text="List topics by level. Returns the next levels of the topic tree with rates, sizes and times.\n\n"
                "The first request starts the counting, and five minutes after the last one it ends. Before that, it "
                "shows "
                "the topics that were published recently or have a retained message, with zero messages. At "
                "most 20,000 levels are counted: the topics with the fewest messages are then counted together, as "
                "the `rest` of the level above.",
                call="page",
                takes=(
                    Parameter(name="under", text="The level whose next levels are listed; else the root."),
                    Parameter(
                        name="search",
                        type="pattern",
                        text="A pattern with `*`, `?` and `[abc]`: list all matching topics below instead.",
                    ),
                    Parameter(
                        name="sort",
                        default="-rate",
                        text="`rate`, `messages`, `bytes`, `topics`, `last_at` or `name`; with `-` in front, "
                        "descending.",
                    ),
                ),
                answer="ui.api.models.topics:TopicPage",
                after=(int, str),
                at="all",
            ),
        ),
    ),
    Resource(
        name="message",
        path="/topics/latest",
        tag="Topics",
        service="tails",
        commands="",
        verbs=(
            Verb(
                id="listLatestMessages",
                text="List the latest messages. Returns the latest messages on a filter's topics, newest first: from "
                "streams and retained messages, else those that are published while it waits and reach rules.\n\n"
                "`event` is the message as validations and transformations left it, which `POST /rules:test` takes as "
                "its event. If every message that arrives while it waits is dropped before rules, the answer has "
                "the dropped message, and `refusal` says why. `message` is what `POST /transforms:preview`, "
                "`POST /validations:test` and `POST /pipeline:preview` take as their message.",
                call="latest",
                takes=(
                    Parameter(name="filter", text="A topic filter.", is_required=True),
                    Parameter(
                        name="limit",
                        text="Maximum number of items in the answer.",
                        type=int,
                        default=1,
                        least=1,
                        most=100,
                    ),
                    Parameter(
                        name="wait",
                        text="Maximum wait for a message where none is stored, in seconds.",
                        type=float,
                        default=0,
                        least=0,
                        most=30,
                    ),
                ),
                answer="ui.api.models.topics:LatestMessages",
                at="all",
            ),
        ),
    ),
    Resource(
        name="alarm",
        path="/alarms",
        tag="System",
        service="alarms",
        commands="",
        verbs=(
            Verb(
                id="listAlarms",
                text="List active alarms. Returns the alarms that are active, newest first.",
                call="active",
                row="broker.admin.alarms:Alarm",
                model="AlarmList",
                page_text="Alarms, newest first.",
                at="all",
            ),
            Verb(
                id="listPastAlarms",
                text="List past alarms. Returns alarms that ended, newest first, for as long as `alarms` settings "
                "keep them.",
                call="history",
                path="/history",
                row="broker.admin.alarms:Alarm",
                model="AlarmList",
                page_text="Alarms, newest first.",
                at="all",
            ),
            Verb(
                id="forgetPastAlarms",
                text="Delete past alarms. Deletes the history of alarms that ended. Active alarms stay.",
                call="forget_history",
                method="DELETE",
                path="/history",
                does="change",
                at="all",
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
                call="status",
                answer="ui.api.status:Status",
            ),
        ),
    ),
    Resource(
        name="setting",
        path="/config",
        tag="System",
        service="settings",
        commands="",
        verbs=(
            Verb(
                id="getConfig",
                text="Show the active settings. Returns every setting with its value and source, and the value in "
                "the files where that differs. Secrets are masked.",
                call="__call__",
                answer="broker.config.root:SettingsInForce",
            ),
        ),
    ),
    Resource(
        name="configuration",
        path="/config:reload",
        tag="System",
        service="reload",
        commands="",
        verbs=(
            Verb(
                id="reloadConfig",
                text="Reload the configuration. Reads the configuration files again and applies what changed. Nothing "
                "changes when any of it is wrong. `dry_run` returns the settings, listeners and objects that would "
                "change.",
                call="reload",
                method="POST",
                takes=(
                    Parameter(
                        name="drain", text="Whether its connections may stay until they end.", type=bool, default=False
                    ),
                ),
                answer="broker.config.root:ReloadedConfig",
                does="change",
                plan="plan",
                done="reloaded",
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
        name="decision",
        path="/access:check",
        tag="Access",
        service="access",
        commands="",
        verbs=(
            Verb(
                id="checkAccess",
                text="Check what a client may do. Explains whether a client may connect, publish or subscribe, and "
                "which authenticator or rule decides. Nothing is stored.",
                call="check",
                method="POST",
                body="broker.admin.access:AccessCheck",
                body_key="check",
                answer="broker.admin.access:AccessDecision",
                does="try",
            ),
        ),
    ),
    Resource(
        name="stage",
        path="/pipeline",
        tag="Pipeline",
        service="pipeline",
        commands="",
        verbs=(
            Verb(
                id="getPipeline",
                text="Show what acts on a topic. Returns validations, transformations, rules and streams that act on "
                "the topic, in order.",
                call="of_topic",
                takes=(Parameter(name="topic", text="A topic name, without wildcards.", is_required=True),),
                answer="broker.admin.pipeline:TopicPipeline",
            ),
        ),
    ),
    Resource(
        name="stream",
        path="/streams",
        tag="Streams",
        service="replays",
        commands="",
        verbs=(
            Verb(
                id="planStreamReplay",
                text="Show what a replay of a stream would send. Returns the records, their bytes and times, the time "
                "that the rate permits, what is sent for the first of them, and what else it would lead to. Nothing "
                "is sent.",
                call="plan",
                method="POST",
                path="/{name}:plan-replay",
                takes=(Parameter(name="name", type="name", is_required=True),),
                body="broker.admin.replays.request:StreamReplayRequest",
                body_key="request",
                answer="broker.admin.replays.request:StreamReplayPlan",
                does="try",
            ),
        ),
    ),
    Resource(
        name="audit entry",
        path="/audit-log",
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
                takes=(
                    Parameter(
                        name="actor",
                        text=f"Who sent the request. {_PATTERN}",
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
                        text=f"The client's address without port. {_PATTERN}",
                        type="pattern",
                        help="Address without port, or a pattern.",
                    ),
                    Parameter(
                        name="operation",
                        text=f"The operation, such as `putRule`. {_PATTERN}",
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
                        text=f"The name of an object that changed. {_PATTERN}",
                        type="pattern",
                        help="The name of an object that changed, or a pattern.",
                    ),
                    Parameter(name="outcome", text="How the request ended.", type=("done", "refused", "failed")),
                    Parameter(name="since", text="The earliest time, RFC 3339.", type="time", help="Earliest time."),
                    Parameter(
                        name="until",
                        text="The time before which entries are, RFC 3339.",
                        type="time",
                        help="Time before which entries are.",
                    ),
                    Parameter(name="search", text="Words that must all be in an entry.", longest=256),
                ),
                row="broker.admin.audit_log:AuditEntryRow",
                after=(str,),
                at="all",
                command=Command(
                    name="ls",
                    help="List who changed what, newest first.",
                    columns=("at", "actor", "origin", "address", "operation", "name", "outcome", "summary", "id"),
                ),
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
                at="all",
                command=Command(name="get"),
            ),
            Verb(
                id="revertAuditEntry",
                text="Take back what an entry changed. Takes back all changes of the entry or, on an error, none. "
                "Objects that were deleted within the last ten minutes come back as they were, with versions, test "
                "cases and secrets; later, with the values in the entry. Of objects that were changed, the members in "
                "the entry get their values from before: 409 where they have others by now.",
                call="revert",
                method="POST",
                path="/{id}:revert",
                takes=(_AUDIT_ID,),
                answer="broker.admin.audit_log:AuditEntryView",
                problems=(404, 409, 422),
                does="change",
                plan="plan",
                done="taken back",
                command=Command(name="revert", done="what {actor} did with {operation} is taken back"),
            ),
        ),
    ),
)
