"""Messages that the broker keeps: retained and delayed ones."""

from __future__ import annotations

from broker.core.resources import LONG_S, Command, Parameter, Resource, Verb

_DRY = Parameter(name="dry_run", type=bool, default=False, help="Only show what would be deleted.")
_TOPIC = Parameter(name="topic", text="The topic.", is_required=True, is_argument=True)
_DELAYED_ID = Parameter(
    name="id", text="Its `id` in the list.", is_required=True, is_argument=True, shortest=1, longest=64,
    help="Its id, as 'sluice delayed ls' shows it.",
)  # fmt: skip

RESOURCES = (
    Resource(
        name="retained message",
        area="operations",
        path="/retained",
        menu="Traffic",
        tag="Retained",
        service="traffic.retained",
        at="all",
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
                command=Command(
                    help="List retained messages whose topics match a filter; long payloads are cut.",
                    columns=(
                        "topic",
                        "qos",
                        "payload_bytes",
                        "clientid",
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
                command=Command(help="Show how many retained messages there are, and their bytes."),
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
                effect="retained message",
                command=Command(
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
        area="operations",
        path="/delayed",
        menu="Traffic",
        tag="Delayed",
        service="delayed",
        at="all",
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
                command=Command(
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
                command=Command(help="Show a delayed message with its payload."),
            ),
            Verb(
                id="deleteDelayed",
                text="Delete a delayed message. The message will not be published.",
                call="delete",
                method="DELETE",
                path="/{id}",
                takes=(_DELAYED_ID,),
                does="change",
                effect="delayed message",
                command=Command(
                    help="Delete a delayed message: it is not published.",
                    question="Remove delayed message {id!r}?",
                ),
            ),
        ),
    ),
)
