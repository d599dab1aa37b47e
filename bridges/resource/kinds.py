"""Connectors, actions and sources, and dead letters of actions."""

from __future__ import annotations

from collections.abc import Mapping

from broker.core.kinds import ENABLE, Abilities, At, Kind, Switch, Topics
from broker.core.resources import SLOW_S, TAKE_AGAIN, Command, Job, Parameter, Resource, Verb, limit

_STATUS = {"name": "name", "type": "type", "status": "status", "reason": "status_reason"}


def _switch(verb: str, done: str, text: str) -> Switch:
    return Switch(verb, done, text, lambda service, name: getattr(service, verb)(name), at="each")


_RUNNING = (
    *ENABLE,
    _switch("start", "started", "Start {} that was stopped."),
    _switch("stop", "stopped", "Stop {} until it is started again or the broker restarts."),
    _switch("restart", "restarted", "Stop and start {}."),
)
_PAUSING = (
    _switch(
        "pause", "paused", "Pause {}: rows of an action wait in its buffer, a source reads nothing."
    ),
    _switch("resume", "resumed", "Resume {} that was paused."),
)


def _with_connector(
    name: str, topics: Topics, about: str, page_columns: Mapping[str, str], at: At = "config"
) -> Kind:
    return Kind(
        name=name,
        topics=topics,
        area="authoring",
        path=f"{name}s",
        section=f"{name}s",
        models=(f"bridges.feature:{name}_models",),
        about=f"{about} The members of `parameters` depend on its type.",
        tag="Bridges",
        columns={**_STATUS, "connector": "connector", "rules": "rules"},
        menu="Delivery",
        page_columns={
            "Connector": "connector",
            "Rate": "metrics/rate",
            **page_columns,
            "Rules": "rules",
        },
        at=at,
        reads_at="running" if at == "config" else None,
        read_only=f"bridges.resource.services:{name.capitalize()}ReadOnly",
        abilities=Abilities(
            can_patch=True,
            metrics=f"bridges.resource.figures:{name.capitalize()}Metrics",
            has_probe=True,
            switches=(*_RUNNING, *_PAUSING),
        ),
    )


KINDS = (
    Kind(
        name="connector",
        topics="none",
        area="authoring",
        path="connectors",
        section="connectors",
        models=("bridges.feature:connector_models",),
        about="A connection to an outside system. The members depend on its type.",
        tag="Bridges",
        columns={**_STATUS, "actions": "actions", "sources": "sources"},
        menu="Delivery",
        page_columns={"Type": "type", "Actions": "actions", "Sources": "sources"},
        reads_at="running",
        read_only="bridges.resource.services:ConnectorReadOnly",
        abilities=Abilities(can_patch=True, has_probe=True, switches=_RUNNING),
    ),
    _with_connector(
        "action",
        "none",
        "Where rules send rows, as `<type>:<name>`.",
        {
            "Waiting": "metrics/queuing",
            "Confirmed": "metrics/success",
            "Failed": "metrics/failed",
            "Dropped": "metrics/dropped",
            "Dead letters": "dead_letters_waiting",
        },
    ),
    _with_connector(
        "source",
        "named",
        'What rules read with `FROM "$bridges/<type>:<name>"`.',
        {
            "Not read yet": "metrics/lag_records",
            "Read": "metrics/received",
            "Refused": "metrics/refused",
        },
        at="home",
    ),
)

_ACTION = Parameter(name="name", type="name", is_required=True, is_argument=True, help="Its name.")
_OFFSETS = Parameter(
    name="offset", text="Only those with this `offset`; may be repeated.", type=int, many=True, longest=200,
    keyword="offsets", help="Only the row with this offset in ls; may be repeated.",
)  # fmt: skip
RESOURCES = (
    Resource(
        name="type of connector",
        topics="none",
        path="/connector-types",
        tag="Bridges",
        service="services.connectors",
        commands="connectors",
        verbs=(
            Verb(
                id="listConnectorTypes",
                text="List the types of connectors. Returns each type with the JSON Schemas of its settings, and what "
                "is missing where it cannot be used here.",
                call="types",
                row="bridges.resource.registry:ConnectorTypeView",
                model="ConnectorTypes",
                page_text="The types of connectors.",
                command=Command(
                    name="types",
                    help="List the types of connectors, and what each needs.",
                    show="broker.cli.bridges:print_types",
                ),
            ),
        ),
    ),
    Resource(
        name="action",
        topics="none",
        path="/actions",
        tag="Bridges",
        service="services.actions",
        commands="actions",
        verbs=(
            Verb(
                id="drainAction",
                text="Drain an action. Accepts no more rows, sends those in the buffer, then stops. Returns when the "
                "buffer is empty or `timeout_s` is over.",
                at="each",
                call="drain",
                path="/{name}:drain",
                takes=(_ACTION,),
                body=(Parameter(name="timeout_s", type=float, default=30, least=0, most=3600),),
                body_text="How long to wait for the rows that are left to be sent, in seconds.",
                model="Drain",
                answer="bridges.resource.services:DrainedAction",
                does="change",
                effect="action",
                plan="drain",
                done="drained",
            ),
        ),
    ),
    Resource(
        name="dead letter",
        topics="required",
        area="operations",
        path="/actions/{name}/dead-letters",
        tag="Bridges",
        service="services.actions",
        commands="actions dead-letters",
        about="Rows that an action could not write and kept.",
        verbs=(
            Verb(
                id="listDeadLetters",
                text="List the dead letters of an action. Returns rows that the action could not write, oldest first, "
                "each with its `offset`, the reason and its attempts.",
                at="sum",
                sums=("waiting", "items"),
                call="dead_letters",
                takes=(_ACTION, limit(20, "Maximum number of items."), _OFFSETS),
                answer="bridges.resource.services:DeadLetterList",
                command=Command(
                    name="ls",
                    help="Show the oldest dead letters, and why each was not written.",
                    columns=("offset", "cause", "reason", "attempts", "topic", "clientid", "row"),
                    known="sluice actions ls",
                ),
            ),
            Verb(
                id="redriveDeadLetters",
                text="Send dead letters again. Sends dead letters again, oldest first. One that fails again becomes a "
                "new dead letter. It is a job: `Prefer: respond-async` does not wait for its end.",
                at="jobs",
                call="redrive",
                path=":redrive",
                takes=(_ACTION, _OFFSETS),
                body=TAKE_AGAIN,
                body_text="How many messages to take out of quarantine at most.",
                model="TakeAgain",
                answer="bridges.resource.services:RedrivenLetters",
                takes_key=True,
                does="job",
                job=Job(kind="redrive", unit="dead letters", plan="to_redrive"),
                command=Command(
                    help="Send dead letters to the action once more, oldest first. One that fails again becomes a new "
                    "one.",
                    show="broker.cli.bridges:print_redriven",
                    known="sluice actions ls",
                    timeout_s=SLOW_S,
                ),
            ),
            Verb(
                id="purgeDeadLetters",
                text="Delete the dead letters of an action. Deletes all dead letters of the action, or those with an "
                "`offset`. This cannot be undone.",
                at="sum",
                sums=("purged",),
                call="purge",
                path=":purge",
                takes=(_ACTION, _OFFSETS),
                answer="bridges.resource.services:PurgedLetters",
                does="change",
                effect="action",
                command=Command(
                    help="Delete all dead letters of an action, or those with an --offset.",
                    question="Delete {count} of action {name!r}?",
                    show="broker.cli.bridges:print_purged",
                    known="sluice actions ls",
                ),
            ),
        ),
    ),
)
