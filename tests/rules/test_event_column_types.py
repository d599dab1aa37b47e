"""The columns and types that the type checker knows of events are those that the broker gives."""

from __future__ import annotations

import json
from typing import Any

from broker.codec.packets import Disconnect, PubAck, Publish, SubscriptionRequest, Unsubscribe
from broker.core.client import Client
from broker.core.events import EVENT_TYPES
from broker.core.message import Message
from rules.engine import as_values
from rules.sql.compiler.columns import MESSAGE_COLUMNS, all_columns
from rules.sql.type_checker.inputs import COMMON, EVENT_COLUMNS
from rules.sql.values import UNDEFINED
from schema_validation.feature import SchemaValidationFeature
from tests.rules.test_types_hold import holds
from tests.support.features import make_services, through
from tests.support.mqtt_server import on_loop, running
from transforms.feature import TransformsFeature


def check(event: str, columns: dict[str, Any]) -> None:
    """Hold the columns of an event, as rules see them, against what is known of them."""
    known, found = EVENT_COLUMNS[event], as_values(columns)
    assert found.keys() <= known.keys(), f"{event} has {found.keys() - known.keys()}"
    for name, kind in known.items():
        if name not in COMMON:
            assert holds(kind, found.get(name, UNDEFINED)), (event, name, kind, found.get(name))


def test_every_event_is_known() -> None:
    assert EVENT_COLUMNS.keys() == {"message.publish", *EVENT_TYPES}
    assert EVENT_COLUMNS["message.publish"].keys() == MESSAGE_COLUMNS.keys()


def test_columns_of_published_messages() -> None:
    pairs = [("site", "a"), ("site", "b")]
    properties = {"Content-Type": "text", "Correlation-Data": b"\xff", "User-Property": pairs}
    for client in (Client("c"), Client("c", "u", "10.0.0.1", 99)):
        for message in (
            Message("t", b"{}", 1, False, client, 5),
            Message("t", b"\xff", 0, True, client, 5, properties=properties),
        ):
            columns = all_columns(message, "n", {"rule_id": "r"}, lambda: 5)
            check("message.publish", columns)
            assert all(holds(kind, columns[name]) for name, kind in COMMON.items())


@on_loop
async def test_columns_of_events_of_clients_and_deliveries() -> None:
    async with running() as node:
        node.events.want(frozenset(EVENT_TYPES))
        client = await node.client("c", 5)
        await client.subscribe(SubscriptionRequest("t", 1))
        client.send(Publish("t", b"x", 1, packet_id=1), Publish("nobody", b""))
        packets = [await client.receive() for _ in range(2)]
        client.send(
            *[PubAck(packet.packet_id) for packet in packets if isinstance(packet, Publish)]
        )
        client.send(Unsubscribe(7, ["t"]))
        await client.receive()
        await client.silence()
        client.send(Disconnect())
        await client.closed()
        assert {
            "client.connected",
            "message.acked",
            "session.unsubscribed",
            "client.disconnected",
        } <= {name for name, _ in node.seen}
        for name, columns in node.seen:
            check(name, dict(columns))


def test_columns_of_what_gates_refuse() -> None:
    services = make_services()
    seen: list[tuple[str, dict[str, Any]]] = []
    services.messaging.events.listen(lambda name, columns, _: seen.append((name, dict(columns))))
    services.messaging.events.want(frozenset(EVENT_TYPES))
    schemas, transforms = SchemaValidationFeature(services), TransformsFeature(services)
    schemas.start()
    transforms.start()
    schemas.schemas.create(
        {"name": "s", "type": "json", "source": json.dumps({"required": ["t"], "type": "object"})}
    )
    shared = {"topics": ["m/#"], "failure_action": "drop"}
    check_spec = [{"type": "json", "schema": "s"}]
    schemas.validations.create(
        {"name": "v", **shared, "strategy": "all_pass", "checks": check_spec}
    )
    transforms.service.create(
        {"name": "x", **shared, "operations": [{"key": "qos", "value": "nothing_there"}]}
    )
    for gate in (*schemas.gates, *transforms.gates):
        through(gate, Message("m/1", b"{}", 1, False, Client("c"), 5))
    assert [name for name, _ in seen] == [
        "schema.validation_failed",
        "message.transformation_failed",
    ]
    for name, columns in seen:
        check(name, columns)
