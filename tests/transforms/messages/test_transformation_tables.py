"""Transformations as tables: what may be saved, what expressions read, what keys take, which bytes come out."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from broker.core import reason
from broker.core.client import Client
from broker.core.errors import Invalid
from broker.core.message import Message
from broker.core.schema import Serde
from broker.core.stage import Refusal
from schema_validation.feature import SchemaValidationFeature
from schema_validation.serdes.avro import AvroSerde
from schema_validation.serdes.protobuf import ProtobufSerde
from tests.support.features import make_services, through
from transforms.feature import TransformsFeature

JSON, NONE = {"type": "json"}, {"type": "none"}
AVRO = {"type": "avro", "schema": "record"}
PROTO = {"type": "protobuf", "schema": "person", "message_type": "Person"}
RECORD = {"type": "record", "name": "r", "fields": [{"name": "i", "type": "int"}]}
PERSON = 'syntax = "proto3"; message Person { string name = 1; } message Other {}'
FAILED = Refusal


class Bench:
    """The features with two schemas, and the transformations given."""

    def __init__(self, *specs: dict[str, Any]) -> None:
        self.services = make_services()
        self.schemas = SchemaValidationFeature(self.services)
        self.schemas.start()
        for name, kind, source in (("record", "avro", RECORD), ("person", "protobuf", PERSON)):
            self.schemas.schemas.create({"name": name, "type": kind, "source": source})
        self.feature = TransformsFeature(self.services)
        self.feature.start()
        self.service = self.feature.service
        for one in specs:
            self.service.create(one)

    def send(self, sent: Message) -> Message | Refusal:
        return through(self.feature.gates[0], sent)

    def told(self) -> list[dict[str, Any]]:
        """The columns of the events from now on."""
        columns: list[dict[str, Any]] = []
        self.services.messaging.events.want(frozenset({"message.transformation_failed"}))
        self.services.messaging.events.listen(lambda name, told, about: columns.append(told))
        return columns

    def counts(self, name: str) -> tuple[int, int, int]:
        found = self.service.metrics(name)
        return found["matched"], found["succeeded"], found["failed"]


def message(payload: bytes = b"{}", topic: str = "t/1", **members: Any) -> Message:
    client = Client(
        "c1", username="u", peer_host="10.0.0.9", peer_port=4711, attributes={"site": "b"}
    )
    given: dict[str, Any] = {"qos": 0, "retain": False, **members}
    return Message(
        topic,
        payload,
        given.pop("qos"),
        given.pop("retain"),
        client,
        1_700_000_000_123_000_000,
        **given,
    )


def spec(name: str = "a", *operations: tuple[str, str], **members: Any) -> dict[str, Any]:
    return {
        "name": name,
        "topics": ["t/#"],
        "failure_action": "drop",
        "payload_decoder": JSON,
        "payload_encoder": JSON,
        "operations": [{"key": key, "value": value} for key, value in operations],
        **members,
    }


@pytest.mark.parametrize(
    ("key", "accepted"),
    [
        ("topic", True),
        ("qos", True),
        ("retain", True),
        ("payload", True),
        ("payload.a", True),
        ("payload.a.b.c", True),
        ("user_property.x", True),
        ("content_type", True),
        ("response_topic", True),
        ("correlation_data", True),
        ("message_expiry_interval", True),
        ("", False),
        ("payload..x", False),
        ("payload.", False),
        (".payload", False),
        ("user_property", False),
        ("user_property.a.b", False),
        ("user_property.", False),
        ("clientid", False),
        ("username", False),
        ("pub_props.X", False),
        ("mqtt_property.X", False),
        ("qos.x", False),
        ("retain.x", False),
        ("Topic", False),
        ("topic.x", False),
        ("content_type.x", False),
    ],
)
def test_keys(key: str, accepted: bool) -> None:
    if accepted:
        Bench(spec("a", (key, "'1'")))
        return
    with pytest.raises(Invalid) as caught:
        Bench(spec("a", (key, "'1'")))
    assert [problem.pointer for problem in caught.value.problems] == ["/operations/0/key"]


@pytest.mark.parametrize(
    ("members", "pointer", "said"),
    [
        (
            {"operations": [{"key": "qos", "value": "uper('1')"}]},
            "/operations/0/value",
            "did you mean 'upper'?",
        ),
        (
            {"operations": [{"key": "qos", "value": "upper()"}]},
            "/operations/0/value",
            "takes 1 argument, not 0",
        ),
        (
            {"operations": [{"key": "qos", "value": "1 +"}]},
            "/operations/0/value",
            "line 1, column 3",
        ),
        ({"operations": [{"key": "qos", "value": ""}]}, "/operations/0/value", "must not be empty"),
        ({"operations": [{"key": "qos"}]}, "/operations/0/value", "required"),
        ({"operations": [{"key": "qos", "value": 1}]}, "/operations/0/value", ""),
        (
            {"payload_decoder": {"type": "avro", "schema": "gone"}},
            "/payload_decoder/schema",
            "gone",
        ),
        (
            {"payload_encoder": {"type": "avro", "schema": "person"}},
            "/payload_encoder/schema",
            "of type protobuf",
        ),
        (
            {"payload_encoder": {**PROTO, "message_type": "No"}},
            "/payload_encoder/message_type",
            "No",
        ),
        (
            {"payload_decoder": {"type": "protobuf", "schema": "person"}},
            "/payload_decoder/message_type",
            "required",
        ),
        ({"payload_decoder": {"type": "avro"}}, "/payload_decoder/schema", "required"),
        ({"payload_decoder": {"type": "xml"}}, "/payload_decoder", "protobuf"),
        ({"topics": []}, "/topics", "at least one"),
        ({"topics": ["t", "t"]}, "/topics", "duplicated topics: t"),
        ({"failure_action": "stop"}, "/failure_action", "ignore"),
        ({"log_failure": {"level": "x"}}, "/log_failure/level", "warning"),
    ],
)
def test_what_cannot_be_saved_is_refused_with_its_place(
    members: dict[str, Any], pointer: str, said: str
) -> None:
    with pytest.raises(Invalid) as caught:
        Bench(spec() | members)
    told = {problem.pointer: str(problem) for problem in caught.value.problems}
    assert pointer in told, told
    assert said in told[pointer]


def test_defaults() -> None:
    shown = Bench().service.create({"name": "a", "topics": "t", "failure_action": "ignore"})
    wanted = {
        "payload_decoder": NONE,
        "payload_encoder": NONE,
        "operations": [],
        "topics": ["t"],
        "enable": True,
    }
    assert {key: shown[key] for key in wanted} == wanted
    assert shown["log_failure"] == {"level": "info"}


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("payload.a", "1"),
        ("payload.m.k", "v"),
        ("topic", "t/1"),
        ("qos", "1"),
        ("retain", "true"),
        ("user_property.x", "last"),
        ("clientid", "c1"),
        ("username", "u"),
        ("peername", "10.0.0.9:4711"),
        ("peerhost", "10.0.0.9"),
        ("client_attrs.site", "b"),
        ("node", "n1"),
        ("publish_received_at", "1700000000123"),
        ("num_gt(timestamp, publish_received_at)", "true"),
        ("num_gt(strlen(id), 0)", "true"),
        ("flags.retain", "true"),
        ("flags.dup", "false"),
        ("pub_props.Content-Type", "text/plain"),
        ("pub_props.Message-Expiry-Interval", "60"),
        ("pub_props.User-Property.x", "last"),
        ("coalesce(payload.nothing, 'd')", "d"),
        ("coalesce(client_attrs.nothing, 'd')", "d"),
        ("coalesce(user_property.nothing, 'd')", "d"),
        ("json_encode(payload.m)", '{"k":"v"}'),
        ("nth(1, tokens(topic, '/'))", "t"),
    ],
)
def test_what_expressions_read(expression: str, text: str) -> None:
    properties = {
        "Content-Type": "text/plain",
        "Message-Expiry-Interval": 60,
        "User-Property": [("x", "first"), ("y", "2"), ("x", "last")],
    }
    got = Bench(spec("a", ("user_property.got", expression))).send(
        message(b'{"a":1,"m":{"k":"v"}}', qos=1, retain=True, properties=properties)
    )
    assert isinstance(got, Message), got
    assert dict((got.properties or {})["User-Property"])["got"] == text


def test_a_client_without_user_name_has_an_empty_one() -> None:
    got = Bench(spec("a", ("payload.u", "username"))).send(
        Message("t/1", b"{}", 0, False, Client("c1"), 1)
    )
    assert isinstance(got, Message)
    assert got.payload == b'{"u":""}'


@pytest.mark.parametrize(
    "expression", ["payload.a", "payload.a.b", "nothing", "user_property.x", "pub_props.X"]
)
def test_what_is_unbound_fails(expression: str) -> None:
    bench = Bench(
        spec("a", ("user_property.got", expression), payload_decoder=NONE, payload_encoder=NONE)
    )
    outcome = bench.send(message(b"text"))
    assert isinstance(outcome, Refusal)
    assert outcome.reason_code == reason.IMPLEMENTATION_SPECIFIC_ERROR


@pytest.mark.parametrize(
    ("operations", "seen"),
    [
        ([("topic", "'t/2'"), ("payload.s", "topic")], "t/2"),
        ([("qos", "2"), ("payload.s", "any_to_str(qos)")], "2"),
        ([("retain", "true"), ("payload.s", "any_to_str(retain)")], "true"),
        ([("retain", "true"), ("payload.s", "any_to_str(flags.retain)")], "false"),
        ([("user_property.x", "'new'"), ("payload.s", "user_property.x")], "new"),
        ([("user_property.x", "'new'"), ("payload.s", "pub_props.User-Property.x")], "old"),
        ([("payload.a", "'new'"), ("payload.s", "payload.a")], "new"),
        ([("payload", "payload.in"), ("payload.s", "payload.k")], "v"),
    ],
)
def test_earlier_operations_are_seen(operations: list[tuple[str, str]], seen: str) -> None:
    got = Bench(spec("a", *operations)).send(
        message(b'{"a":"old","in":{"k":"v"}}', properties={"User-Property": [("x", "old")]})
    )
    assert isinstance(got, Message), got
    assert got.json()["s"] == seen


@pytest.mark.parametrize(
    ("key", "value", "member", "expected"),
    [
        ("topic", "'a/b'", "topic", "a/b"),
        ("topic", "5", "topic", "5"),
        ("topic", "payload.list", "topic", FAILED),
        ("topic", "payload.map", "topic", FAILED),
        ("topic", "''", "topic", FAILED),
        ("topic", "'a/#'", "topic", FAILED),
        ("topic", "'a/+'", "topic", FAILED),
        ("topic", "unescape('a\\x0')", "topic", FAILED),
        ("topic", "pad('a', 70000, 'trailing', 'b')", "topic", FAILED),
        ("qos", "'0'", "qos", 0),
        ("qos", "'1'", "qos", 1),
        ("qos", "2", "qos", 2),
        ("qos", "payload.int", "qos", 1),
        ("qos", "1.0", "qos", FAILED),
        ("qos", "true", "qos", FAILED),
        ("qos", "''", "qos", FAILED),
        ("qos", "3", "qos", FAILED),
        ("qos", "-1", "qos", FAILED),
        ("qos", "' 1'", "qos", FAILED),
        ("retain", "true", "retain", True),
        ("retain", "'true'", "retain", True),
        ("retain", "'false'", "retain", False),
        ("retain", "payload.true", "retain", True),
        ("retain", "1", "retain", FAILED),
        ("retain", "'yes'", "retain", FAILED),
        ("retain", "'TRUE'", "retain", FAILED),
        ("retain", "''", "retain", FAILED),
        ("user_property.x", "'a'", "user", "a"),
        ("user_property.x", "5", "user", "5"),
        ("user_property.x", "2.0", "user", "2.0"),
        ("user_property.x", "true", "user", "true"),
        ("user_property.x", "payload.null", "user", ""),
        ("user_property.x", "payload.list", "user", FAILED),
        ("user_property.x", "payload.map", "user", FAILED),
        ("payload.x", "payload.int", "json", 1),
        ("payload.x", "payload.float", "json", 2.0),
        ("payload.x", "payload.list", "json", [1, None]),
        ("payload.x", "payload.empty", "json", []),
        ("payload.x", "payload.map", "json", {"k": None}),
        ("payload.x", "payload.null", "json", ""),
        ("payload.x", "json_decode('null')", "json", None),
        ("payload.x", "true", "json", True),
        ("payload.x", "num_gt(2, 1)", "json", True),
        ("payload.x", "payload.big", "json", 123456789012345678901234567890),
        ("payload.x", "5", "json", 5),
        ("payload.x", "1.5", "json", 1.5),
        ("payload.x", "'5'", "json", "5"),
        ("payload.new.deep.x", "1", "deep", 1),
        ("payload.map.x", "1", "map", {"k": None, "x": 1}),
        ("payload.int.x", "1", "json", FAILED),
        ("payload.list.x", "1", "json", FAILED),
        ("payload.null.x", "1", "json", FAILED),
        ("payload.text.x", "1", "json", FAILED),
    ],
)
def test_what_keys_take(key: str, value: str, member: str, expected: Any) -> None:
    payload = (
        b'{"int":1,"float":2.0,"list":[1,null],"empty":[],"map":{"k":null},"null":null,"true":true,"text":"t",'
        b'"big":123456789012345678901234567890}'
    )
    outcome = Bench(spec("a", (key, value))).send(message(payload))
    if expected is FAILED:
        assert isinstance(outcome, Refusal)
        return
    assert isinstance(outcome, Message), outcome
    got = _member(outcome, member)
    assert (got, type(got)) == (expected, type(expected))


def _member(got: Message, member: str) -> Any:
    if member in ("topic", "qos", "retain"):
        return getattr(got, member)
    if member == "user":
        return dict((got.properties or {})["User-Property"])["x"]
    value = got.json()
    return {
        "json": value.get("x"),
        "map": value.get("map"),
        "deep": value.get("new", {}).get("deep", {}).get("x"),
    }[member]


def test_a_raw_payload_has_no_members_to_write() -> None:
    outcome = Bench(spec("a", ("payload.x", "1"), payload_decoder=NONE, payload_encoder=NONE)).send(
        message(b"{}")
    )
    assert isinstance(outcome, Refusal)


@pytest.mark.parametrize(
    ("operations", "before", "after"),
    [
        (
            [("qos", "1")],
            [("b", "2"), ("a", "1"), ("b", "1")],
            [("b", "2"), ("a", "1"), ("b", "1")],
        ),
        (
            [("user_property.c", "'3'")],
            [("b", "2"), ("a", "1"), ("b", "1")],
            [("a", "1"), ("b", "1"), ("c", "3")],
        ),
        (
            [("user_property.b", "'3'")],
            [("b", "2"), ("a", "1"), ("b", "1")],
            [("a", "1"), ("b", "3")],
        ),
        (
            [("user_property.traceparent", "user_property.traceparent")],
            [("traceparent", "00-a")],
            [("traceparent", "00-a")],
        ),
    ],
)
def test_user_properties(
    operations: list[tuple[str, str]], before: list[tuple[str, str]], after: list[tuple[str, str]]
) -> None:
    got = Bench(spec("a", *operations)).send(
        message(properties={"User-Property": before, "Content-Type": "x"})
    )
    assert isinstance(got, Message)
    assert got.properties == {"User-Property": after, "Content-Type": "x"}


@pytest.mark.parametrize(
    ("decoder", "encoder", "operations", "payload", "expected"),
    [
        (JSON, JSON, [("qos", "1")], b'{ "a" : 1 }', b'{ "a" : 1 }'),
        (JSON, JSON, [], b" [1] ", b" [1] "),
        (JSON, JSON, [("payload.b", "2")], b'{ "a" : 1 }', b'{"a":1,"b":2}'),
        (JSON, JSON, [("payload", "payload.in")], b'{"in":{"x":1}}', b'{"x":1}'),
        (JSON, JSON, [("payload", "payload.in")], b'{"in":"text"}', b'"text"'),
        (JSON, JSON, [("qos", "1")], b"no json", FAILED),
        (NONE, NONE, [("qos", "1")], b"\xff\x00", b"\xff\x00"),
        (NONE, NONE, [("payload", "concat([payload, '!'])")], b"hi", b"hi!"),
        (NONE, NONE, [("payload", "5")], b"hi", FAILED),
        (NONE, NONE, [("payload", "any_to_str(5)")], b"hi", b"5"),
        (NONE, JSON, [], b'{"a":1}', b'"{\\"a\\":1}"'),
        (NONE, JSON, [("payload", "json_decode(payload)")], b'{"a": 1}', b'{"a":1}'),
        (JSON, NONE, [("payload", "json_encode(payload)")], b'{ "a" : 1 }', b'{"a":1}'),
        (JSON, NONE, [], b'"text"', b"text"),
        (JSON, NONE, [], b'{"a":1}', FAILED),
        (JSON, NONE, [], b"5", FAILED),
        (JSON, AVRO, [], b'{"i":1}', b"\x02"),
        (AVRO, JSON, [], b"\x02", b'{"i":1}'),
        (AVRO, AVRO, [("qos", "1")], b"\x02", b"\x02"),
        (AVRO, AVRO, [("payload.i", "2")], b"\x02", b"\x04"),
        (AVRO, AVRO, [("payload.i", "'x'")], b"\x02", FAILED),
        (AVRO, JSON, [], b"\x02\x00", FAILED),
        (JSON, AVRO, [], b'{"i":"x"}', FAILED),
        (JSON, PROTO, [], b'{"name":"a"}', b"\n\x01a"),
        (PROTO, JSON, [], b"\n\x01a", b'{"name":"a"}'),
        (PROTO, PROTO, [("payload.name", "'b'")], b"\n\x01a", b"\n\x01b"),
        (PROTO, AVRO, [("payload", "json_decode('{\"i\":3}')")], b"\n\x01a", b"\x06"),
        (AVRO, PROTO, [("payload", 'json_decode(\'{"name":"z"}\')')], b"\x02", b"\n\x01z"),
        (PROTO, {**PROTO, "message_type": "Other"}, [], b"\n\x01a", FAILED),
        (NONE, AVRO, [], b"x", FAILED),
        (NONE, PROTO, [("payload", "json_decode(payload)")], b'{"name":"a"}', b"\n\x01a"),
        (AVRO, NONE, [("payload", "any_to_str(payload.i)")], b"\x02", b"1"),
    ],
)
def test_decoders_and_encoders(
    decoder: dict[str, Any],
    encoder: dict[str, Any],
    operations: list[tuple[str, str]],
    payload: bytes,
    expected: Any,
) -> None:
    outcome = Bench(spec("a", *operations, payload_decoder=decoder, payload_encoder=encoder)).send(
        message(payload)
    )
    assert (FAILED if isinstance(outcome, Refusal) else outcome.payload) == expected


@pytest.mark.parametrize(
    ("first", "second", "payload", "expected"),
    [
        ((JSON, NONE), (NONE, JSON), b'{ "a" : 1 }', b'{"a":1}'),
        ((JSON, NONE), (NONE, AVRO), b'{"i":1}', b"\x02"),
        ((AVRO, NONE), (NONE, JSON), b"\x02", b'{"i":1}'),
        ((JSON, NONE), (JSON, JSON), b'{"a":1}', FAILED),
        ((JSON, NONE), (JSON, JSON), b'"5"', b"5"),
        ((NONE, JSON), (JSON, NONE), b"text", b"text"),
        ((JSON, JSON), (NONE, NONE), b'{ "a" : 1 }', b'{ "a" : 1 }'),
        ((NONE, NONE), (NONE, NONE), b"\xff", b"\xff"),
        ((NONE, JSON), (JSON, AVRO), b"text", FAILED),
    ],
)
def test_what_one_leaves_the_next_takes(
    first: Any, second: Any, payload: bytes, expected: Any
) -> None:
    bench = Bench(
        spec("a", payload_decoder=first[0], payload_encoder=first[1]),
        spec("b", payload_decoder=second[0], payload_encoder=second[1]),
    )
    outcome = bench.send(message(payload))
    assert (FAILED if isinstance(outcome, Refusal) else outcome.payload) == expected


BYTES_AVRO = """{"type": "record", "name": "B", "fields": [
  {"name": "b", "type": "bytes"}, {"name": "d", "type": "double"}]}"""
BYTES_PROTO = 'syntax = "proto3"; message B { bytes b = 1; double d = 2; }'


@pytest.mark.parametrize("data", [b"\x99\xff", b"ab"])
@pytest.mark.parametrize("kind", ["avro", "protobuf"])
def test_bytes_and_infinities_of_a_schema_are_marked_in_json_and_come_back(
    kind: str, data: bytes
) -> None:
    source, codec = BYTES_AVRO, {"type": "avro", "schema": "bytes"}
    serde: Serde = AvroSerde(BYTES_AVRO)
    if kind == "protobuf":
        source, codec = BYTES_PROTO, {"type": "protobuf", "schema": "bytes", "message_type": "B"}
        serde = ProtobufSerde(BYTES_PROTO)
    payload = serde.encode({"b": data, "d": float("-inf")}, codec.get("message_type"))
    bench = Bench()
    bench.schemas.schemas.create({"name": "bytes", "type": kind, "source": source})
    bench.service.create(spec(payload_decoder=codec))
    shown = bench.send(message(payload))
    assert isinstance(shown, Message)
    marks = {"b": {"$base64": base64.b64encode(data).decode()}, "d": {"$double": "-Infinity"}}
    assert json.loads(shown.payload) == marks
    bench.service.delete("a")
    bench.service.create(spec(payload_encoder=codec))
    back = bench.send(shown)
    assert isinstance(back, Message)
    assert back.payload == payload


@pytest.mark.parametrize(
    ("members", "payload", "kind", "code"),
    [
        ({}, b"no json", "payload_decode_failed", 0x99),
        ({"payload_decoder": AVRO}, b"\xff", "payload_decode_schema_failure", 0x99),
        ({"payload_decoder": PROTO}, b"\xff", "payload_decode_schema_failure", 0x99),
        ({"payload_encoder": AVRO}, b"{}", "payload_encode_schema_failure", 0x99),
        ({"payload_encoder": NONE}, b"{}", "transformation_bad_encoding", 0x99),
        (
            {"operations": [{"key": "qos", "value": "7"}]},
            b"{}",
            "transformation_eval_operation_failure",
            0x83,
        ),
        (
            {"operations": [{"key": "topic", "value": "nothing"}]},
            b"{}",
            "transformation_eval_operation_failure",
            0x83,
        ),
    ],
)
@pytest.mark.parametrize("action", ["drop", "disconnect", "ignore"])
def test_failures(
    members: dict[str, Any], payload: bytes, kind: str, code: int, action: str
) -> None:
    bench = Bench(spec(failure_action=action) | members)
    told = bench.told()
    sent = message(payload)
    outcome = bench.send(sent)
    if action == "ignore":
        assert isinstance(outcome, Message)
        assert (outcome.topic, outcome.payload) == (sent.topic, sent.payload)
    else:
        assert isinstance(outcome, Refusal)
        assert (outcome.reason_code, outcome.disconnect) == (code, action == "disconnect")
        assert outcome.text.startswith("transformation 'a'")
    [event] = told
    assert (event["transformation"], event["kind"], event["action"], event["topic"]) == (
        "a",
        kind,
        action,
        "t/1",
    )
    assert "peerhost" not in event
    assert bench.counts("a") == (1, 0, 1)
    metrics = bench.services.monitoring.metrics
    assert metrics.value("messages_transformation_failed") == (action != "ignore")
    assert metrics.value("messages_transformation_succeeded") == (action == "ignore")


@pytest.mark.parametrize("codec", ["payload_decoder", "payload_encoder"])
def test_a_schema_that_went_away_is_a_failure(codec: str) -> None:
    spec_ = spec("a", **{codec: {"type": "avro", "schema": "gone"}})
    body = {
        "transformations": [spec_],
        "message": {"topic": "t/1", "payload": "{}"},
        "check_references": False,
    }
    told = Bench().service.preview(body)
    assert told["failures"][0]["kind"] == f"{codec.removesuffix('r')[:14]}_schema_not_found"


def test_the_event_carries_the_message_as_it_entered() -> None:
    bench = Bench(
        spec("a", ("topic", "'t/new'"), ("payload.x", "1")),
        spec("b", ("qos", "7"), failure_action="ignore"),
    )
    told = bench.told()
    got = bench.send(message(b"{ }"))
    assert isinstance(got, Message)
    assert (got.topic, got.payload) == ("t/new", b'{"x":1}')
    assert [(event["topic"], event["payload"]) for event in told] == [("t/1", "{ }")]


def test_a_new_topic_neither_selects_nor_deselects() -> None:
    bench = Bench(
        spec("a", ("topic", "'u/1'")),
        spec("b", ("payload.b", "topic")),
        spec("c", ("payload.c", "1"), topics=["u/#"]),
    )
    got = bench.send(message())
    assert isinstance(got, Message)
    assert got.payload == b'{"b":"u/1"}'
    assert [bench.counts(name) for name in "abc"] == [(1, 1, 0), (1, 1, 0), (0, 0, 0)]


def test_sixty_run_in_their_order() -> None:
    names = [f"n{n}" for n in range(60)]
    bench = Bench(
        *(
            spec(name, ("payload.s", f"concat([payload.s, ',{name}'])"), enable=name != "n9")
            for name in names
        )
    )

    def ran() -> list[str]:
        got = bench.send(message(b'{"s":""}'))
        assert isinstance(got, Message)
        ran: list[str] = got.json()["s"].split(",")[1:]
        return ran

    expected = [name for name in names if name != "n9"]
    assert ran() == expected
    bench.service.reorder(names[::-1])
    assert ran() == expected[::-1]
    bench.service.delete("n30")
    expected.remove("n30")
    assert ran() == expected[::-1]
