"""The processes and machines of a broker: cells, machines, and the table of slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from broker.core.resources import Command, Job, Parameter, Resource, Verb

_ABOUT = "The machines of a broker that runs on several."
_MACHINE = Parameter(
    name="name", text="Its `name` in the list.", is_required=True, is_argument=True, longest=63,
    help="Its name, as 'sluice cluster machines' shows it.",
)  # fmt: skip
_CELL = Parameter(
    name="cell",
    text="The number of the cell.",
    type=int,
    is_required=True,
    least=0,
    most=1023,
    help="Number of the cell.",
)
_WAIT = Parameter(
    name="wait_s", type="duration", default=0, least=0, most=86_400, option="--wait DURATION",
    text="Seconds before the first cell leaves. `/readyz` of the machine answers 503 from the start, so that load "
    "balancers send it no more clients.",
    help="Time before the first cell leaves, as 60s, in which /readyz answers 503.", offered="0s",
)  # fmt: skip
_PAUSE = Parameter(
    name="pause_s", type="duration", default=0, least=0, most=86_400, option="--pause DURATION",
    text="Seconds between two cells.", help="Time between two cells, as 30s.", offered="0s",
)  # fmt: skip
_ANSWER = "broker.admin.cluster:Moves"


def _job(kind: str, passes: Sequence[str] = ("id", "order", "advance", "is_paused")) -> Job:
    """Work that continues where the first cell comes to run."""
    return Job(
        kind=kind,
        unit="cells",
        plan=f"begin_{kind}",
        total="total",
        order=f"{kind}_order",
        passes=passes,
    )


def _order(
    id: str,
    word: str,
    text: str,
    offered: str,
    call: str = "",
    **more: Any,
) -> Verb:
    """An order to a machine, or about it."""
    return Verb(
        id=id,
        text=text,
        call=call or word,
        method="POST",
        path="/{name}:" + word,
        takes=(_MACHINE,),
        answer=_ANSWER if "job" in more else "broker.admin.cluster:MachineRow",
        problems=(404, 409, 503),
        does="job" if "job" in more else "change",
        offered=offered,
        **more,
    )


RESOURCES = (
    Resource(
        name="cell",
        path="/cells",
        menu="Diagnose",
        tag="System",
        service="cells",
        topics="none",
        at="list",
        commands="cells",
        page="Cell",
        about="The processes of a broker that runs with `--workers`.",
        named_by="number",
        verbs=(
            Verb(
                id="listCells",
                text="List cells. Returns the processes of the broker, each with the clients of its share of client "
                "identifiers. There is one, number 0, unless the broker runs with `--workers`.",
                call="rows",
                row="broker.admin.cells:CellRow",
                absent={"state": "away"},
                page_text="The cells of a broker, by number.",
                command=Command(
                    columns=(
                        "number",
                        "state",
                        "machine",
                        "copies",
                        "pid",
                        "since",
                        "clients",
                        "sessions",
                        "messages_per_s",
                        "memory_bytes",
                        "links",
                    ),
                    limit=None,
                ),
            ),
        ),
    ),
    Resource(
        name="machine",
        area="operations",
        path="/cluster/machines",
        menu="Diagnose",
        tag="System",
        service="cluster",
        topics="none",
        commands="cluster",
        page="Machine",
        about=_ABOUT,
        named_by="name",
        verbs=(
            Verb(
                id="listMachines",
                text="List machines. Returns the machines of the cluster in the order of their cells; none where the "
                "broker runs on one. While NATS has no majority they are not known.",
                call="machines",
                row="broker.admin.cluster:MachineRow",
                problems=(503,),
                page_text="The machines of a cluster.",
                command=Command(
                    name="machines",
                    columns=("name", "state", "version", "cells", "copies", "address", "mqtt"),
                    limit=None,
                ),
            ),
            Verb(
                id="rebalanceMachines",
                text="Rebalance the cells. Gives each to the machine that it belongs to by the section `cluster`, one "
                "after the other, as soon as its copy there is up to date. Orders to move cells are forgotten; cells "
                "of a machine that was forgotten are spread over the machines that have a copy of them. Canceling the "
                "job leaves the others where they are.",
                call="rebalance",
                method="POST",
                path=":rebalance",
                body=(_PAUSE,),
                body_text="How fast.",
                needs_body=False,
                answer=_ANSWER,
                problems=(409, 503),
                does="job",
                job=_job("rebalance"),
                command=Command(
                    name="rebalance",
                    help="Give each cell to its own machine again, one after the other.\n\nIt waits until they run "
                    "there. Cells of a machine that was forgotten are spread over the others. Ctrl-C stops waiting "
                    "only: it is a job of the broker.",
                    follows="rebalance",
                    show="broker.cli.cluster:moved",
                ),
            ),
            _order(
                "drainMachine",
                "drain",
                "Drain a machine. It gives its cells to the machines with the newest copies, one after the "
                "other, and gets none back until it is resumed, not even after a restart. Clients of a cell that moves "
                "are disconnected, and connect again. The job continues where the first cell comes to run. While it is "
                "paused, the other cells stay; where it is canceled, the machine is resumed.",
                "state=running",
                body=(_WAIT, _PAUSE),
                body_text="When, and how fast.",
                needs_body=False,
                job=_job("drain"),
                command=Command(
                    name="drain",
                    help="Give the cells of a machine to others, and wait until it runs none.\n\nIt gets none back "
                    "until 'sluice cluster resume'. Clients of a cell that moves are disconnected, and connect again. "
                    "Ctrl-C stops waiting only: it is a job of the broker, which 'sluice jobs' pauses, and cancels by "
                    "resuming the machine.",
                    follows="drain",
                    show="broker.cli.cluster:moved",
                    known="sluice cluster machines",
                ),
            ),
            _order(
                "resumeMachine",
                "resume",
                "Resume a machine that is drained, or was forgotten and is back. It gets its cells back, one after the "
                "other.",
                "state=draining|drained",
                command=Command(
                    name="resume",
                    done="machine {name} is {state}, and gets its cells back",
                    known="sluice cluster machines",
                ),
            ),
            _order(
                "moveCell",
                "take",
                "Move a cell to a machine, which has a copy of it. It stays there, and comes back there after a "
                "restart, until it is moved again or the cluster is rebalanced. Its clients are disconnected, and "
                "connect again. Canceling the job ends waiting only.",
                "state=running",
                call="move",
                job=_job("move", ("id", "order", "advance")),
                body=(_CELL,),
                body_text="Which cell.",
            ),
            _order(
                "forgetMachine",
                "forget",
                "Forget a machine that is away and does not come back. Its cells belong to machines that have a "
                "copy from now on, and no commit log waits for it. Where it does come back, it has no cells until it "
                "is resumed.",
                "state=away",
                command=Command(
                    name="forget",
                    question="Forget machine {name}?",
                    done="machine {name} is forgotten",
                    known="sluice cluster machines",
                ),
            ),
        ),
    ),
    Resource(
        name="slot",
        path="/cluster/slots",
        tag="System",
        service="cluster",
        topics="none",
        commands="cluster",
        page="Slot",
        about=_ABOUT,
        verbs=(
            Verb(
                id="listSlots",
                text="List slots. Returns the table by which clients are shared out: a load balancer that knows the "
                "client identifier finds the machine of its client in it.",
                call="slots",
                row="broker.admin.cluster:SlotRow",
                page_text="The slots of client identifiers, by their first one.",
                command=Command(
                    name="slots",
                    columns=("first", "last", "cell", "machine", "mqtt"),
                    limit=None,
                ),
            ),
        ),
    ),
)
