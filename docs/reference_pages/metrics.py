"""The page of metrics."""

from __future__ import annotations

import logging
import re
from typing import Final

from bridges.resource.contract import Lag
from bridges.resource.figures import ActionFigures, SourceFigures, Waiting
from bridges.resource.resources import BUFFERS
from bridges.resource.sending.dead_letters import PREFIX
from broker.app.build import Node
from broker.core.client import Client
from broker.core.message import Message
from broker.core.stage import GateCall
from broker.net.limits import show_expiry
from broker.observe.prometheus import exposition
from docs.reference_pages.markdown import page, table
from docs.reference_pages.metrics_in_code import Named, named_in_code
from schema_validation.external_http.caller import ExternalCalls

_UNITS: Final = {
    "_seconds": "seconds",
    "_bytes": "bytes",
    "_ms": "milliseconds",
    "_us": "microseconds",
    "_rate": "per second",
    "_enable": "0 or 1",
    "_overloaded": "0 or 1",
    "_bytes_received": "bytes",
    "_bytes_sent": "bytes",
}
"""By the end of the name; other metrics count things."""
_LABELS: Final = {
    "action": "An action, as `kafka:orders`.",
    "by": "What limited a login: `user` or `address`.",
    "cause": "Why a message or row was lost: of `dead_letter.causes`, or of an action's `dead_letters`.",
    "connector": "A connector, as `mqtt:plant`.",
    "le": "Of a histogram: what took at most so long.",
    "limit": "The setting in section `mqtt` that limits it.",
    "peer": "Number of another cell.",
    "listener": "A listener, as `tcp:default`.",
    "outcome": "How a call ended: `ok`, or what went wrong.",
    "qos": "0, 1 or 2.",
    "queue": f"A durable queue: `{BUFFERS}kafka:orders` is the buffer of an action, `{PREFIX}kafka:orders` "
    "holds its dead letters. `sluice_dead_letters_total` counts dead letters of clients; there it is always `session`.",
    "reason": "Why, in a word; of disconnections and refusals the name of the reason code.",
    "rule": "A rule's name.",
    "scope": "Whose bound it was: `client` or `listener`.",
    "source": "A source, as `kafka:orders`.",
    "stage": "The stage that raised, by its name.",
    "strategy": "What becomes of the message: `at_least_once`, `at_most_once` or `disabled`.",
    "table": "A table of the lakehouse.",
    "transformation_name": "A transformation's name.",
    "type": "A type of packet, as `PUBLISH`.",
    "validation_name": "A validation's name.",
    "version": "A version of MQTT.",
}
"""What each label holds; a new one has to be told here."""


class _FailingGate:
    """Counts what is counted only when a stage breaks."""

    name = "failing"

    def plan(self, topic: str) -> GateCall | None:
        def fail(message: Message) -> Message:
            raise ValueError("on purpose")

        return fail


def metrics(node: Node) -> str:
    """Every metric that a node which is not started can be made to have."""
    _use(node)
    families = _families(exposition(node.metrics))
    rows = [(f"`{name}`", kind, _unit(name), ", ".join(f"`{label}`" for label in labels), text)
            for name, kind, labels, text in families]  # fmt: skip
    named = sorted({label for _, _, labels, _ in families for label in labels})
    return page(
        "Metrics",
        "`GET /metrics` of the management API, without a token, in Prometheus' text format. Counters count since the "
        "broker started. The books balance: `sluice_messages_received_total` + `sluice_messages_internal_total` = "
        "`sluice_messages_passed_total` + `sluice_messages_refused_total` + "
        "`sluice_messages_resent_already_taken_total`.",
        table(("metric", "kind", "unit", "labels", "meaning"), rows),
        "## Labels\n\n"
        + table(("label", "what it holds"), [(f"`{label}`", _LABELS[label]) for label in named]),
    )


def _use(node: Node) -> None:
    """Make the metrics appear that exist only once something has happened."""
    services = node.object_services
    services["schemas"].create({"name": "s", "type": "json", "source": '{"type": "object"}'})
    check = {"type": "json", "schema": "s"}
    stage = {"name": "s", "topics": ["#"], "failure_action": "drop"}
    services["validations"].create({**stage, "strategy": "all_pass", "checks": [check]})
    services["transforms"].create(stage)
    services["rules"].create({"name": "s", "sql": 'SELECT * FROM "#"'})
    ExternalCalls.count("ok")
    ActionFigures(node.metrics, "kafka:s", lambda: Waiting(0, 0, 0, 0.0))
    SourceFigures(node.metrics, "kafka:s", lambda: Lag(0, 0))
    node.services.storage.queues.open("s", max_records=1, max_bytes=1)
    publisher = node.server.publisher
    for payload in (b"{}", b"broken"):
        publisher.publish(Message("t", payload, 0, False, Client("c"), 0))
    node.server.hub.context.figures.delivery_dropped("queue_full")
    node.server.hub.context.figures.refused_connection("not_authorized")
    node.server.hub.context.figures.refused_subscription("quota_exceeded")
    node.server.hub.context.figures.disconnected("normal")
    show_expiry(node.metrics, "ssl:default", lambda: 0)
    node.server.set_stages([_FailingGate()], [])
    logging.disable(logging.CRITICAL)  # what is about to fail is logged
    publisher.publish(Message("u", b"", 0, False, Client("c"), 0))
    logging.disable(logging.NOTSET)


def _families(text: str) -> list[Named]:
    lines = text.splitlines()
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.M))
    found: dict[str, Named] = {named[0]: named for named in named_in_code()}
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M):
        samples = [line for line in lines if line.startswith((f"{name}{{", f"{name}_bucket{{"))]
        labels = sorted({label for line in samples for label in re.findall(r'(\w+)="', line)})
        found[name] = name, kind, labels, helps.get(name, "")
    return [found[name] for name in sorted(found)]


def _unit(name: str) -> str:
    bare = name.removesuffix("_total")
    return next((unit for ending, unit in _UNITS.items() if bare.endswith(ending)), "number")
