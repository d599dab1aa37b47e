"""Jobs, quarantines, topics, and what acts on a client or topic."""

from __future__ import annotations

from broker.core.resources import (
    LONG_S,
    TAKE_AGAIN,
    Command,
    Job,
    Parameter,
    Resource,
    Verb,
    limit,
    ordering,
    trial,
)

_JOB = Parameter(
    name="id", text="The identifier of a job.", is_required=True, is_argument=True, longest=64, option="ID",
    help="Its identifier.",
)  # fmt: skip
_QUARANTINE = Parameter(
    name="name", type="name", keyword="stream", is_required=True, is_argument=True,
    help="The stream in which they are kept.",
)  # fmt: skip

RESOURCES = (
    Resource(
        name="job",
        topics="none",
        area="operations",
        path="/jobs",
        menu="Diagnose",
        tag="Jobs",
        service="jobs",
        at="jobs",
        scoped_by="scope_of",
        commands="jobs",
        alias="job",
        about="List, watch, pause and cancel long work of the broker.",
        named_by="id",
        verbs=(
            Verb(
                id="listJobs",
                text="List jobs. Returns back-tests, replays and audits of tables, replays of streams, dead letters "
                "that are sent again, quarantined messages that are published again and cells that move: those that "
                "run, and the last ones that ended. What ran when the broker stopped is listed as `interrupted`, but "
                "for replays, audits and moves, which continue.",
                call="known",
                row="ui.api.models.jobs:Job",
                key="id",
                model="JobList",
                page_text="A page of the jobs that run and those that ended, newest first.",
                command=Command(
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
                        "time left": "eta_s",
                        "started": "started_at",
                    },
                    limit=None,
                ),
            ),
            Verb(
                id="getJob",
                topics="named",
                text="Show a job. Returns the state, the progress and, once it ended, the result or where that is.",
                call="get",
                path="/{id}",
                takes=(_JOB,),
                answer="ui.api.models.jobs:JobWithResult",
                command=Command(help="Show a job, with its result once it ended."),
            ),
            Verb(
                id="cancelJob",
                text="Cancel a job. Ends the job after the piece that it works on. Completed work is kept. Canceling "
                "a job that is over is not an error.",
                call="cancel",
                path="/{id}:cancel",
                takes=(_JOB,),
                answer="ui.api.models.jobs:JobWithResult",
                does="job",
                offered="state=running|paused",
                command=Command(
                    help="End a job after the piece that it works on; what is done stays done.",
                    done="job {id} is to end",
                ),
            ),
            Verb(
                id="pauseJob",
                text="Pause a job. Has a replay of a stream or table, an audit, or the drain or rebalance of machines "
                "wait, also across restarts of the broker. Other jobs cannot be paused.",
                call="pause",
                path="/{id}:pause",
                takes=(_JOB,),
                answer="ui.api.models.jobs:JobWithResult",
                problems=(409,),
                does="job",
                offered="state=running",
                command=Command(
                    help="Have a replay, an audit, or the drain or rebalance of machines wait, until it is resumed.",
                    done="job {id} is paused",
                ),
            ),
            Verb(
                id="resumeJob",
                text="Resume a job. Has a job continue that is paused, or a replay of a stream that failed.",
                call="resume",
                path="/{id}:resume",
                takes=(_JOB,),
                answer="ui.api.models.jobs:JobWithResult",
                problems=(409,),
                does="job",
                offered="state=paused|failed",
                command=Command(
                    help="Have a job continue that is paused, or a replay of a stream that failed.",
                    done="job {id} continues",
                ),
            ),
        ),
    ),
    Resource(
        name="quarantine",
        topics="required",
        area="operations",
        path="/quarantine",
        tag="Quarantine",
        service="quarantine",
        at="sum",
        commands="quarantine",
        about="Messages that gates stopped and kept: list and reprocess them.",
        named_by="stream",
        verbs=(
            Verb(
                id="listQuarantines",
                at="list",
                text="List quarantines. Returns the streams that keep messages stopped by validations and "
                "transformations.",
                call="overview",
                row="broker.admin.quarantine:QuarantineRow",
                key="stream",
                command=Command(
                    help="List all quarantines with how many messages wait.",
                    columns=("stream", "waiting"),
                    limit=None,
                ),
            ),
            Verb(
                id="getQuarantine",
                sums=("waiting", "items"),
                text="List the messages of a quarantine. Returns the stopped messages, oldest first, each with the "
                "reason.",
                call="get",
                path="/{name}",
                takes=(_QUARANTINE, limit(20)),
                answer="broker.admin.quarantine:QuarantineView",
                command=Command(
                    help="Show what waits in a quarantine, oldest first, and why it was stopped.",
                    columns=(
                        "shard",
                        "offset",
                        "topic",
                        "clientid",
                        "stage",
                        "name",
                        "path",
                        "reason",
                        "payload",
                    ),
                ),
            ),
            Verb(
                id="takeQuarantineAgain",
                text="Publish quarantined messages again. Publishes stopped messages again through all stages, oldest "
                "first, or each `record`. One that fails again is stopped again, with its new reason. It is a job: "
                "`Prefer: respond-async` does not wait for its end.",
                at="jobs",
                call="take_again",
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
                does="job",
                job=Job(kind="quarantine", unit="messages", plan="to_take_again"),
                effect="quarantine",
                plan="take_again",
                done="reprocessed",
                command=Command(
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
        topics="required",
        area="operations",
        path="/topics",
        tag="Topics",
        service="traffic.topics",
        at="list",
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
                    Parameter(
                        name="under", text="The level whose next levels are listed; else the root."
                    ),
                    Parameter(
                        name="search",
                        type="pattern",
                        text="A pattern with `*`, `?` and `[abc]`: list all matching topics below instead.",
                    ),
                    ordering("-rate", "rate", "messages", "bytes", "topics", "last_at", "name"),
                ),
                answer="ui.api.models.topics:TopicPage",
                after=(int, str),
                join="broker.admin.topics:joined",
            ),
        ),
    ),
    Resource(
        name="message",
        topics="required",
        area="operations",
        path="/topics/latest",
        tag="Topics",
        service="tails",
        at="list",
        commands="topics",
        verbs=(
            Verb(
                id="listLatestMessages",
                text="List the latest messages. Returns the latest messages on a filter's topics, newest first: from "
                "streams and retained messages, else those that are published while it waits and reach rules.\n\n"
                "`event` is the message as validations and transformations left it, which `POST /rules:test` takes as "
                "its event. If every message that arrives while it waits is dropped before rules, the answer has "
                "the dropped message, and `refusal` says why. `message` is what `POST /transforms:preview`, "
                "`POST /validations:test` and `POST /pipeline:preview` take as their message.",
                merged_by="-at",
                call="latest",
                takes=(
                    Parameter(
                        name="filter",
                        text="A topic filter.",
                        is_required=True,
                        is_argument=True,
                        option="topic_filter",
                    ),
                    Parameter(
                        name="limit",
                        text="Maximum number of items in the answer.",
                        type=int,
                        default=1,
                        least=1,
                        most=100,
                        option="-n --count",
                        help="How many.",
                    ),
                    Parameter(
                        name="wait",
                        text="Maximum wait for a message where none is stored, in seconds.",
                        type=float,
                        default=0,
                        least=0,
                        most=30,
                        help="Seconds to wait where none is stored.",
                        offered=5,
                    ),
                ),
                answer="ui.api.models.topics:LatestMessages",
                command=Command(
                    name="latest",
                    help="Show the latest messages of a filter, newest first: of streams, retained ones, else the next "
                    "ones.",
                    show="broker.cli.topics:print_latest",
                ),
            ),
        ),
    ),
    Resource(
        name="decision",
        topics="none",
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
                body="broker.admin.access:AccessCheck",
                body_key="check",
                answer="broker.admin.access:AccessDecision",
                does="try",
            ),
        ),
    ),
    Resource(
        name="receiver",
        topics="required",
        path="/topics",
        tag="Topics",
        service="traffic.receivers",
        at="sum",
        commands="topics",
        verbs=(
            Verb(
                id="getTopicReceivers",
                text="Explain who gets a topic. Returns the stages that act on the topic, each subscription that "
                "matches it with the reason why a message is delivered or not, and each share group with the members "
                "that can be chosen. With `clientid`, also whether that client may publish there, and which rule "
                "decides.",
                at="sum",
                sums=("subscriptions", "subscriptions_total", "groups", "groups_total"),
                call="who",
                path=":who",
                takes=(
                    Parameter(
                        name="topic",
                        text="A topic name, without wildcards.",
                        is_required=True,
                        is_argument=True,
                    ),
                    Parameter(
                        name="clientid",
                        keyword="client_id",
                        text="The publisher.",
                        option="--client",
                        help="The publisher.",
                    ),
                    Parameter(
                        name="qos",
                        text="The QoS of the message.",
                        type=int,
                        default=0,
                        least=0,
                        most=2,
                    ),
                    Parameter(
                        name="retain", text="Whether it is retained.", type=bool, default=False
                    ),
                    limit(100, "Maximum number of subscriptions."),
                ),
                answer="broker.admin.topic_receivers:TopicReceivers",
                command=Command(
                    name="who",
                    help="Show who gets a topic, by which filter, and why others do not.",
                    show="broker.cli.topics:print_receivers",
                ),
            ),
        ),
    ),
    Resource(
        name="stage",
        topics="none",
        area="authoring",
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
                takes=(
                    Parameter(
                        name="topic", text="A topic name, without wildcards.", is_required=True
                    ),
                ),
                answer="broker.admin.pipeline:TopicPipeline",
            ),
        ),
    ),
    Resource(
        name="stage",
        topics="named",
        area="authoring",
        path="/pipeline",
        tag="Try",
        service="pipeline",
        commands="",
        verbs=(
            trial(
                "previewPipeline",
                ":preview",
                "preview",
                "ui.api.models.gates:PipelinePreview",
                "broker.admin.pipeline:PipelineTrial",
                "Run the whole pipeline on one message. Validations, transformations and rules as configured, with "
                "drafts in place of saved ones. Nothing is delivered, and no action runs.",
            ),
        ),
    ),
    Resource(
        name="stream",
        topics="named",
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
                at="sum",
                sums=(
                    "ranges",
                    "records",
                    "matched",
                    "bytes",
                    "is_estimate",
                    "oldest",
                    "newest",
                    "seconds",
                    "samples",
                    "notes",
                ),
                call="plan",
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
        name="applied object",
        topics="none",
        area="authoring",
        path="/applied",
        tag="System",
        service="applied",
        commands="",
        verbs=(
            Verb(
                id="listApplied",
                text="List the objects that `sluice apply` owns. Returns the kinds and names of objects of files that "
                "were applied; `--prune` deletes no others.",
                call="list",
                answer="broker.admin.applied:AppliedList",
                reads="thread",
            ),
            Verb(
                id="markApplied",
                text="Mark objects as owned by `sluice apply`. An object that is deleted loses its mark.",
                call="mark",
                path=":mark",
                body=(
                    Parameter(
                        name="add",
                        many=True,
                        default=(),
                        longest=1000,
                        text="Paths of kinds and names, as `rules/warm`.",
                    ),
                    Parameter(name="remove", many=True, default=(), longest=1000),
                ),
                body_text="The objects to mark, and those that lose their mark.",
                does="change",
            ),
        ),
    ),
)
