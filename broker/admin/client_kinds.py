"""Clients, their sessions and subscriptions, and share groups."""

from __future__ import annotations

from dataclasses import replace

from broker.core.kinds import EVERY_VERB, Abilities, Kind
from broker.core.resources import (
    LONG_S,
    PATTERN,
    Command,
    Parameter,
    Resource,
    Verb,
    limit,
    ordering,
)

# Clients, and filters, in one request; a packet of MQTT has no such limit.
_MOST_CLIENTS = 10_000
_MOST_FILTERS = 10_000

KINDS = (
    Kind(
        name="share group",
        topics="named",
        area="operations",
        path="groups",
        section=None,
        models=("broker.admin.groups:GroupSpec",),
        view="broker.admin.groups:GroupView",
        row="broker.admin.groups:GroupRow",
        about="Subscribers of one `$share/NAME/FILTER`. One that was created keeps messages while it has no members.",
        tag="Share groups",
        columns=(
            "group",
            "strategy",
            "durable",
            "members",
            "connected",
            "waiting",
            "inflight",
            "redelivered",
        ),
        abilities=Abilities(verbs=EVERY_VERB - {"put"}),
        named_by="group",
        at="each",
        is_summed=True,
        has_any_name=True,
        word="group",
        deletion="Messages that wait for it are discarded. A group with members ends with the last of them.",
        menu="Traffic",
    ),
)

_CLIENT = Parameter(
    name="clientid", keyword="client_id", text="The client identifier, percent-encoded.", help="The client identifier.",
    is_required=True, is_argument=True,
)  # fmt: skip
_MEMBER = replace(_CLIENT, text="")
_SESSION_FILTERS = (
    Parameter(
        name="clientid", keyword="client_id", text=PATTERN, type="pattern", option="--client",
        old="--id",
        help="An identifier, or a pattern with * ? [abc].",
    ),
    Parameter(name="username", text=PATTERN, type="pattern", option="--user", help="A user name, or a pattern."),
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
        name="min_inflight", text="The minimum number of messages that are sent and not acknowledged.", type=int,
        least=0,
    ),
    Parameter(name="min_subscriptions", text="The minimum number of subscriptions.", type=int, least=0),
    Parameter(
        name="min_dropped", text="The minimum number of messages that the client did not receive.", type=int, least=0,
    ),
    Parameter(name="keep_alive_s", text="The keep alive of CONNECT, in seconds.", type=int, least=0, most=65_535),
    Parameter(name="connected_since", text="Connected at this time or later.", type="time"),
    Parameter(name="connected_until", text="Connected at this time or earlier, and still.", type="time"),
    ordering(
        "clientid", "clientid", "connected_at", "queued", "queue_bytes", "inflight", "subscriptions", "dropped",
    ),
)  # fmt: skip
_DRY = Parameter(name="dry_run", type=bool, default=False, help="Only show what would be deleted.")
_CLIENT_IDS = Parameter(
    name="clientids",
    keyword="client_ids",
    many=True,
    longest=_MOST_CLIENTS,
    is_required=True,
    is_argument=True,
    help="The client identifiers.",
)
_OF_CLIENT = ("filter", "qos", "no_local", "retain_as_published", "identifier")
_SUBSCRIPTION = (
    "clientid", "filter", "qos", "durable", "connected", "share_group", "no_local", "retain_as_published",
    "identifier",
)  # fmt: skip
_SHOW_SUBSCRIPTIONS = "broker.cli.traffic:print_with_subscriptions"

RESOURCES = (
    Resource(
        name="client",
        topics="named",
        area="operations",
        path="/clients",
        menu="Traffic",
        tag="Clients",
        service="traffic.clients",
        at="client",
        commands="clients",
        alias="client",
        about="Clients: list, show, disconnect, subscribe for them.",
        named_by="clientid",
        verbs=(
            Verb(
                id="listClients",
                text="List clients. Returns clients that are connected or have a session. Filters combine.",
                call="page",
                takes=_SESSION_FILTERS,
                row="broker.admin.clients:ClientRow",
                after=(int, str),
                at="list",
                command=Command(
                    help="List clients that are connected, or have a session that waits for them.",
                    columns=(
                        "clientid",
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
                path=":kick",
                body=(_CLIENT_IDS,),
                body_text="The identifiers of the clients to disconnect.",
                answer="broker.admin.clients:Kicked",
                does="change",
                offered="connected",
                effect="client",
                done="disconnected",
                command=Command(
                    help="Disconnect clients (0x98). Their sessions stay until they expire.",
                    question="Disconnect {count}?",
                    done="disconnected: {kicked}",
                    check="broker.cli.traffic:check_kicked",
                ),
            ),
            Verb(
                id="clearClients",
                text="Clear the sessions of clients. Deletes the sessions with their subscriptions and queued "
                "messages, and disconnects clients that are connected with reason code 0x98.",
                call="clear",
                path=":clear",
                body=(_CLIENT_IDS,),
                body_text="The identifiers of the clients whose sessions are deleted.",
                answer="broker.admin.clients:ClearedSessions",
                does="change",
                effect="session",
                done="cleared",
                command=Command(
                    help="Delete the sessions of clients; those that are connected are disconnected (0x98).",
                    question="Delete the sessions of {count}?",
                    done="cleared: {cleared}",
                    check="broker.cli.traffic:check_cleared",
                ),
            ),
            Verb(
                id="subscribeClient",
                text="Subscribe a client. Adds subscriptions to a connected client, as if it had sent SUBSCRIBE.",
                call="subscribe",
                path=":subscribe",
                body=(
                    _MEMBER,
                    Parameter(
                        name="subscriptions",
                        type="ui.api.models.clients:SubscriptionOptions",
                        many=True,
                        shortest=1,
                        longest=_MOST_FILTERS,
                        is_required=True,
                    ),
                    Parameter(
                        name="check_acl",
                        text="Whether the client's access rules apply.",
                        type=bool,
                        default=True,
                    ),
                ),
                body_text="The client, and the filters to subscribe it to.",
                answer="broker.admin.clients:Subscribed",
                problems=(404, 409),
                does="change",
                offered="connected",
            ),
            Verb(
                id="unsubscribeClient",
                text="Unsubscribe a client. Removes subscriptions of a connected client, as if it had sent "
                "UNSUBSCRIBE.",
                call="unsubscribe",
                path=":unsubscribe",
                body=(
                    _MEMBER,
                    Parameter(
                        name="filters",
                        many=True,
                        longest=_MOST_FILTERS,
                        is_required=True,
                        is_argument=True,
                        help="Topic filters.",
                    ),
                ),
                body_text="Which subscriptions of which client to end, by their filters.",
                answer="broker.admin.clients:Unsubscribed",
                problems=(404, 409),
                does="change",
                offered="connected",
                command=Command(
                    help="End subscriptions of a connected client. Filters are as it subscribed to them.",
                    columns=_OF_CLIENT,
                    rows="subscriptions",
                    known="sluice clients ls",
                ),
            ),
            Verb(
                id="listClientEvents",
                text="List the events of a client. Returns its time line, newest first: connected, refused, "
                "subscribed, throttled, slow, messages not delivered, taken over, disconnected, each with the reason "
                "in words. It is kept over reconnects, in memory: at most 50 events of a client, and 8 MiB of all.",
                call="events",
                path="/{clientid:path}/events",
                takes=(_CLIENT,),
                row="broker.admin.client_events:ClientEventRow",
                model="ClientEvents",
                page_text="The time line of a client, newest first.",
                command=Command(
                    name="events",
                    help="Show the time line of a client, newest first.",
                    columns=("at", "event", "count", "text"),
                    limit=None,
                    known="sluice clients ls",
                ),
            ),
            Verb(
                id="peekClientMessages",
                topics="any",
                text="Peek at the messages of a client. Returns the messages in flight to it and the first that wait "
                "for it, decoded by the schemas of their topics. They stay where they are.",
                call="messages",
                path="/{clientid:path}/messages",
                takes=(_CLIENT, limit(100)),
                row="broker.admin.clients:PeekedMessage",
                model="PeekedMessages",
                page_text="Messages for a client, those in flight first.",
                command=Command(
                    name="messages",
                    help="Show the messages in flight to a client and the first that wait for it.",
                    columns=(
                        "place",
                        "packet_id",
                        "received_at",
                        "topic",
                        "qos",
                        "clientid",
                        "payload",
                    ),
                    limit=None,
                    known="sluice clients ls",
                ),
            ),
            Verb(
                id="getClient",
                text="Show a client. Returns the connection, its properties and its session.",
                call="show",
                path="/{clientid:path}",
                takes=(_CLIENT,),
                answer="broker.admin.clients:ClientView",
                command=Command(
                    help="Show everything that is known of a client.", show=_SHOW_SUBSCRIPTIONS
                ),
            ),
        ),
    ),
    Resource(
        name="session",
        topics="none",
        area="operations",
        path="/sessions",
        menu="Traffic",
        tag="Sessions",
        service="traffic.sessions",
        at="list",
        commands="sessions",
        alias="session",
        about="Sessions: list, show, purge, those with the longest queues.",
        named_by="clientid",
        verbs=(
            Verb(
                id="listSessions",
                text="List sessions. Returns sessions of connected and disconnected clients. Filters combine.",
                call="page",
                takes=_SESSION_FILTERS,
                row="broker.admin.session_rows:SessionRow",
                after=(int, str),
                command=Command(
                    help="List sessions, of clients that are connected or away.",
                    columns=(
                        "clientid",
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
                    Parameter(
                        name="count", text="How many.", type=int, default=10, least=1, most=1000
                    ),
                    Parameter(
                        name="by",
                        text="What makes a queue long.",
                        type=("messages", "bytes"),
                        default="messages",
                    ),
                ),
                row="broker.admin.sessions:LongQueue",
                model="LongQueues",
                page_text="The sessions with the longest queues, longest first.",
                merged_by={"messages": "-queued", "bytes": "-queued_bytes"},
            ),
            Verb(
                id="purgeSessions",
                text="Purge sessions. Deletes all sessions that match, with their queued messages. `dry_run` of the "
                "body only counts them.",
                call="purge",
                path=":purge",
                body=(
                    Parameter(
                        name="clientid",
                        keyword="client_id",
                        text="An identifier, or a pattern with `*`, `?` and `[abc]`.",
                        type="pattern",
                        option="--client",
                        old="--id",
                    ),
                    Parameter(
                        name="username",
                        text="A user name, or a pattern.",
                        type="pattern",
                        option="--user",
                    ),
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
                    Parameter(
                        name="min_queued",
                        type=int,
                        least=0,
                        help="Minimum number of queued messages.",
                    ),
                    Parameter(
                        name="min_queue_bytes",
                        type=int,
                        least=0,
                        help="Minimum bytes of queued messages.",
                    ),
                    _DRY,
                ),
                body_text="Which sessions to delete. Without ``connected`` those whose client is away; what is left "
                "out does not matter.",
                answer="broker.admin.sessions:Purged",
                does="change",
                at="sum",
                effect="session",
                command=Command(
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
                path="/{clientid:path}",
                takes=(_CLIENT,),
                answer="broker.admin.sessions:SessionView",
                at="client",
                command=Command(
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
                path="/{clientid:path}",
                takes=(_CLIENT,),
                does="change",
                at="client",
                effect="session",
                exists="show",
                command=Command(
                    help="Delete one session; its client is disconnected (0x98).",
                    question="Delete the session of {clientid}?",
                ),
            ),
        ),
    ),
    Resource(
        name="subscription",
        topics="required",
        area="operations",
        path="/subscriptions",
        menu="Traffic",
        tag="Subscriptions",
        service="traffic.subscriptions",
        at="list",
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
                        name="clientid",
                        keyword="client_id",
                        text="The client identifier.",
                        option="--client",
                        help="Of this client.",
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
                command=Command(
                    help="List subscriptions in the order of clients and filters.",
                    columns=_SUBSCRIPTION,
                ),
            ),
        ),
    ),
)
