"""Transformations in the path of a publish: order, atomicity, failure actions, bytes that stay as they are."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from broker.core import jsontext
from broker.core.client import Client
from broker.core.errors import AlreadyExists, Invalid, NotFound, ReadOnly
from broker.core.feature import Services
from broker.core.message import Message
from broker.core.objects import MemorySection
from broker.core.ordered import OrderedObjects
from broker.core.quarantine import message_of
from broker.core.stage import Refusal
from schema_validation.feature import SchemaValidationFeature
from tests.support.features import KeptRows, make_services, through
from tests.support.processor import takes_less_than
from transforms.feature import SECTION, TransformsFeature

JSON = {"type": "json"}
NONE = {"type": "none"}


def spec(name: str, *operations: tuple[str, str], **members: Any) -> dict[str, Any]:
    return {
        "name": name,
        "topics": ["t/#"],
        "failure_action": "drop",
        "payload_decoder": JSON,
        "payload_encoder": JSON,
        "operations": [{"key": key, "value": value} for key, value in operations],
        **members,
    }


class Bench:
    def __init__(
        self, *specs: dict[str, Any], sections: dict[str, MemorySection] | None = None
    ) -> None:
        self.services: Services = make_services(sections)
        self.schemas = SchemaValidationFeature(self.services)
        self.schemas.start()
        self.feature = TransformsFeature(self.services)
        self.feature.start()
        self.service = self.feature.service
        for one in specs:
            self.service.create(one)

    def publish(self, payload: bytes, topic: str = "t/1", **members: Any) -> Message | Refusal:
        return self.send(message(payload, topic, **members))

    def send(self, sent: Message) -> Message | Refusal:
        return through(self.feature.gates[0], sent)

    def metrics(self, name: str) -> dict[str, int]:
        counted: dict[str, int] = self.service.get(name)["metrics"]
        return {
            name: count for name, count in counted.items() if not name.startswith(("rate", "since"))
        }


def message(payload: bytes, topic: str = "t/1", **members: Any) -> Message:
    return Message(topic, payload, 0, False, Client("c1"), 1_700_000_000_000_000_000, **members)


def passed(outcome: Message | Refusal) -> Message:
    assert isinstance(outcome, Message), outcome
    return outcome


def refused(outcome: Message | Refusal) -> Refusal:
    assert isinstance(outcome, Refusal), outcome
    return outcome


def test_a_topic_without_transformations_has_no_plan() -> None:
    bench = Bench(spec("a", ("qos", "1")), spec("off", ("qos", "1"), topics=["x"], enable=False))
    assert bench.feature.gates[0].plan("other") is None
    assert bench.feature.gates[0].plan("x") is None


def test_the_incoming_message_and_its_decoded_payload_are_not_changed() -> None:
    bench = Bench(
        spec(
            "a",
            ("payload.a.b", "'x'"),
            ("payload.n", "1"),
            ("topic", "'t/2'"),
            ("user_property.p", "'v'"),
        ),
        spec("b", ("payload.copy", "payload.a"), ("payload.copy.b", "'y'"), ("payload.a.b", "'z'")),
    )
    sent = message(b'{"a":{"b":1,"c":[1]}}', properties={"User-Property": [("k", "1"), ("k", "2")]})
    before = copy.deepcopy((sent.json(), sent.properties, sent.topic))
    got = passed(bench.send(sent))
    assert (sent.json(), sent.properties, sent.topic) == before
    assert got.json() == {"a": {"b": "z", "c": [1]}, "n": 1, "copy": {"b": "y", "c": [1]}}
    assert got.payload == b'{"a":{"b":"z","c":[1]},"n":1,"copy":{"b":"y","c":[1]}}'
    assert got.user_properties == [("k", "2"), ("p", "v")]
    assert got.id == sent.id or sent.id


def test_bytes_stay_when_nothing_writes_the_payload() -> None:
    bench = Bench(spec("a", ("retain", "true")))
    got = passed(bench.publish(b'{ "a" : 1.0 }'))
    assert (got.payload, got.retain) == (b'{ "a" : 1.0 }', True)


def test_the_decoded_value_is_handed_on() -> None:
    bench = Bench(spec("a", ("payload.n", "1")))
    got = passed(bench.publish(b"{}"))
    assert got._value == {"n": 1}


def test_a_failed_operation_undoes_the_transformation_and_ignore_goes_on() -> None:
    bench = Bench(
        spec("a", ("topic", "'t/changed'"), ("qos", "'7'"), failure_action="ignore"),
        spec("b", ("payload.topic", "topic")),
    )
    got = passed(bench.publish(b"{}"))
    assert (got.topic, got.payload) == ("t/1", b'{"topic":"t/1"}')
    assert bench.metrics("a") == {"matched": 1, "succeeded": 0, "failed": 1, "quarantined": 0}
    assert bench.metrics("b") == {"matched": 1, "succeeded": 1, "failed": 0, "quarantined": 0}


@pytest.mark.parametrize(
    ("payload", "operations", "reason_code", "text"),
    [
        (b"{", [], 0x99, "transformation 'a': the payload is not JSON"),
        (
            b"{}",
            [("topic", "payload.missing")],
            0x83,
            "transformation 'a', operation 1: variable 'payload.missing'",
        ),
        (
            b"{}",
            [("retain", "true"), ("topic", "'a/#'")],
            0x83,
            "transformation 'a', operation 2: topic name 'a/#'",
        ),
        (
            b"[1]",
            [("payload.x", "1")],
            0x83,
            "transformation 'a', operation 1: payload.x: the payload is not a map",
        ),
    ],
)
def test_a_refusal_says_what_failed(
    payload: bytes, operations: list[tuple[str, str]], reason_code: int, text: str
) -> None:
    got = refused(Bench(spec("a", *operations)).publish(payload))
    assert (got.stage, got.reason, got.reason_code, got.disconnect) == (
        "transformation",
        "transformation_failed",
        reason_code,
        False,
    )
    assert got.text.startswith(text)


def test_disconnect_stops_the_pipeline_and_closes() -> None:
    bench = Bench(spec("a", ("qos", "9"), failure_action="disconnect"), spec("b", ("qos", "1")))
    assert refused(bench.publish(b"{}")).disconnect
    assert bench.metrics("b")["matched"] == 0


def test_matching_is_done_once_on_the_topic_as_published() -> None:
    bench = Bench(
        spec("a", ("topic", "'x/1'")),
        spec("b", ("qos", "1")),
        spec("c", ("qos", "2"), topics=["x/#"]),
    )
    got = passed(bench.publish(b"{}"))
    assert (got.topic, got.qos) == ("x/1", 1)


def test_what_the_last_one_leaves_decoded_is_its_failure() -> None:
    left = {"payload_encoder": NONE}
    got = refused(Bench(spec("a", **left)).publish(b'{"a":1}'))
    assert got.reason_code == 0x99
    assert (
        passed(Bench(spec("a", failure_action="ignore", **left)).publish(b'{"a":1}')).payload
        == b'{"a":1}'
    )
    assert passed(Bench(spec("a", **left)).publish(b'"text"')).payload == b"text"
    followed = Bench(spec("a", **left), spec("b", ("payload.b", "2"), payload_decoder=NONE))
    assert passed(followed.publish(b'{"a":1}')).payload == b'{"a":1,"b":2}'


def test_bytes_that_are_no_text_are_marked_in_json() -> None:
    bench = Bench(
        spec("a", ("payload.x", "base64_decode('/w==')"), ("payload.t", "base64_decode('YQ==')"))
    )
    assert passed(bench.publish(b"{}")).payload == b'{"x":{"$base64":"/w=="},"t":"a"}'


def test_a_payload_of_raw_bytes_passes_untouched_without_codecs() -> None:
    bench = Bench(
        spec("a", ("user_property.n", "node"), payload_decoder=NONE, payload_encoder=NONE)
    )
    assert passed(bench.publish(b"\xff\x00")).payload == b"\xff\x00"


def test_copies_of_copies_are_refused_before_they_fill_the_memory() -> None:
    bench = Bench(spec("a", *[(f"payload.k{i}", "payload") for i in range(60)]))
    refusal = refused(bench.publish(b'{"a":{}}'))
    assert re.search("more than 200000 values|longer than 50 ms", refusal.text), refusal.text


def test_events_are_built_only_when_wanted_and_carry_the_message_as_it_came() -> None:
    bench = Bench(spec("a", ("payload.x", "1")), spec("b", ("qos", "9")))
    seen: list[tuple[str, dict[str, Any]]] = []
    bench.services.messaging.events.listen(
        lambda name, columns, about: seen.append((name, columns))
    )
    bench.publish(b"{}")
    assert seen == []
    bench.services.messaging.events.want(frozenset({"message.transformation_failed"}))
    bench.publish(b"{}")
    name, columns = seen[0]
    assert (name, columns["transformation"], columns["payload"], columns["action"]) == (
        "message.transformation_failed",
        "b",
        "{}",
        "drop",
    )
    assert "peerhost" not in columns


def test_fifty_keep_their_order_and_reorder_keeps_disabled_ones_out() -> None:
    names = [f"t{n}" for n in range(50)]
    bench = Bench(*[spec(name, ("payload.s", f"concat([payload.s,'{name},'])")) for name in names])
    got = passed(bench.publish(b'{"s":""}'))
    assert got.json() == {"s": "".join(f"{name}," for name in names)}
    bench.service.enable("t0", False)
    bench.service.reorder(list(reversed(names)))
    got = passed(bench.publish(b'{"s":""}'))
    assert got.json() == {"s": "".join(f"{name}," for name in reversed(names[1:]))}


def test_objects_survive_a_restart_in_order() -> None:
    sections: dict[str, MemorySection] = {}
    Bench(spec("b", ("qos", "1")), spec("a", ("qos", "2")), sections=sections)
    again = Bench(sections=sections)
    assert [item["name"] for item in again.service.list()] == ["b", "a"]
    assert sections[SECTION].load()[0]["operations"] == [{"key": "qos", "value": "1"}]
    assert passed(again.publish(b"{}")).qos == 2


def test_verbs() -> None:
    bench = Bench(spec("a", ("qos", "1")))
    with pytest.raises(AlreadyExists):
        bench.service.create(spec("a"))
    with pytest.raises(NotFound, match="did you mean 'a'"):
        bench.service.get("aa")
    shown = bench.service.replace("a", {**bench.service.get("a"), "description": "new"})
    assert shown["description"] == "new"
    with pytest.raises(Invalid) as caught:
        bench.service.reorder(["b"])
    assert list(map(str, caught.value.problems)) == [
        "there is no transformation 'b'",
        "'a' is missing",
    ]
    bench.service.delete("a")
    assert not bench.service.list()


def test_an_order_that_would_not_survive_a_restart_is_refused() -> None:
    class FixedSection(MemorySection):
        def fixed_by(self, name: str) -> str | None:
            return "sluice.conf" if name == "fixed" else None

    section = FixedSection([{"name": name} for name in ("fixed", "a", "b")])
    made: OrderedObjects[dict[str, Any]] = OrderedObjects("thing", section, dict)
    for spec in section.load():
        made.adopt(spec["name"], spec)
    with pytest.raises(ReadOnly, match="begin with 'fixed', fixed by sluice"):
        made.reorder(["a", "fixed", "b"])
    made.reorder(["fixed", "b", "a"])
    assert made.names() == ["fixed", "b", "a"]


def test_all_problems_are_told_with_their_places() -> None:
    bench = Bench()
    bad = spec("a", ("clientid", "'x'"), ("topic", "concat([topic,\n uper(x)])"))
    with pytest.raises(Invalid) as caught:
        bench.service.create(bad)
    places = [(problem.pointer, problem.line, problem.column) for problem in caught.value.problems]
    assert places == [("/operations/0/key", None, None), ("/operations/1/value", 2, 2)]
    unknown = spec("a", payload_decoder={"type": "avro", "schema": "nope"})
    with pytest.raises(Invalid, match="there is no schema 'nope'"):
        bench.service.create(unknown)
    assert not bench.service.list()


def test_avro_in_json_out() -> None:
    bench = Bench()
    record = {"type": "record", "name": "r", "fields": [{"name": "i", "type": "int"}]}
    bench.schemas.schemas.create({"name": "av", "type": "avro", "source": record})
    bench.service.create(
        spec("a", ("payload.site", "'b'"), payload_decoder={"type": "avro", "schema": "av"})
    )
    assert passed(bench.publish(b"\x14")).payload == b'{"i":10,"site":"b"}'
    assert refused(bench.publish(b"\x14\x00")).reason_code == 0x99
    assert bench.services.contributors.users_of("schema", "av") == [("transformation", "a")]


def test_preview_tells_each_step_and_stores_nothing() -> None:
    bench = Bench()
    answer = bench.service.preview(
        {
            "transformations": [
                spec("a", ("payload.x", "1"), ("topic", "'n'")),
                spec("b", ("qos", "nope")),
            ],
            "message": {"topic": "t/1", "payload": "{}"},
        }
    )
    assert answer["outcome"] == "drop"
    assert [(step["key"], step["value"]) for step in answer["steps"]] == [
        ("payload.x", 1),
        ("topic", "n"),
    ]
    assert answer["failures"][0]["name"] == "b"
    assert not bench.service.list()


def test_the_type_that_rules_find_follows_what_transformations_write() -> None:
    bench = Bench()
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
    bench.schemas.schemas.create(
        {"name": "s", "type": "json", "source": {**schema, "additionalProperties": False}}
    )
    checks = [{"type": "json", "schema": "s"}]
    bench.schemas.validations.create(
        {
            "name": "v",
            "topics": ["t/#"],
            "strategy": "all_pass",
            "failure_action": "drop",
            "checks": checks,
        }
    )
    bench.service.create(spec("a", ("payload.a", "'x'"), ("payload.new.x", "1"), topics=["t/+"]))
    found = bench.services.schemas.payload_type("t/#")
    assert found is not None
    assert {name: kind.name for name, kind in found.fields.items()} == {
        "a": "unknown",
        "b": "string",
        "new": "unknown",
    }
    assert not found.open
    bench.service.create(spec("b", ("payload", "payload.b"), topics=["t/1"]))
    assert bench.services.schemas.payload_type("t/#") is None
    assert bench.services.schemas.payload_type("t/2") is not None


def test_in_shadow_mode_a_transformation_is_tried_and_changes_nothing() -> None:
    bench = Bench(
        spec("a", ("payload.x", "1"), mode="shadow"),
        spec("b", ("payload.y", "payload.missing"), mode="shadow"),
        spec("c", ("payload.z", "3")),
    )
    got = passed(bench.publish(b"{}"))
    assert got.payload == b'{"z":3}'
    assert bench.metrics("a") == {"matched": 1, "succeeded": 1, "failed": 0, "quarantined": 0}
    assert bench.metrics("b") == {"matched": 1, "succeeded": 0, "failed": 1, "quarantined": 0}
    (failure,) = bench.service.get("b")["recent_failures"]
    assert (failure["action"], failure["operation"], failure["path"]) == ("shadow", 0, "payload.y")


def test_what_a_transformation_stops_is_kept_as_it_entered() -> None:
    bench = Bench()
    rows = bench.services.storage.streams = KeptRows("kept")
    bench.service.create(spec("a", ("payload.x", "1")))
    bench.service.create(spec("b", ("qos", "'7'"), quarantine="kept"))
    refused(bench.publish(b'{"n":1}'))
    (record,) = rows.records
    again = message_of(record)
    assert again is not None
    assert again.payload == b'{"n":1}'
    assert jsontext.decode(record.payload)["reason"] == "QoS is 0, 1 or 2, not '7'"


@pytest.mark.parametrize(
    ("key", "value", "name", "expected"),
    [
        ("content_type", "'application/json'", "Content-Type", "application/json"),
        ("response_topic", "topic_join([clientid,'answers'])", "Response-Topic", "c1/answers"),
        ("correlation_data", "clientid", "Correlation-Data", b"c1"),
        ("message_expiry_interval", "60", "Message-Expiry-Interval", 60),
        ("message_expiry_interval", "payload.ttl", "Message-Expiry-Interval", 30),
        ("content_type", "''", "Content-Type", None),
    ],
)
def test_properties_are_written(key: str, value: str, name: str, expected: object) -> None:
    bench = Bench(spec("a", (key, value)))
    got = passed(
        bench.publish(
            b'{"ttl":30}', properties={"Content-Type": "text/plain", "User-Property": [("a", "1")]}
        )
    )
    assert got.user_properties == [("a", "1")]
    assert (got.properties or {}).get(name) == expected


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("response_topic", "'a/#'", "Response-Topic is a topic name"),
        ("message_expiry_interval", "'-1'", "Message-Expiry-Interval is a number of seconds"),
        (
            "message_expiry_interval",
            "'4294967296'",
            "Message-Expiry-Interval is a number of seconds",
        ),
        ("message_expiry_interval", "1.5", "Message-Expiry-Interval is a number of seconds"),
    ],
)
def test_a_property_that_cannot_be_is_a_failure(key: str, value: str, text: str) -> None:
    assert text in refused(Bench(spec("a", (key, value))).publish(b"{}")).text


@pytest.mark.parametrize(
    ("operations", "payload", "why"),
    [
        (
            [(f"payload.r{n}", f"strlen(reverse(concat([payload.x, '{n}'])))") for n in range(100)],
            {"x": "é" * 40_000},
            "takes? longer than 50 ms",
        ),
        (
            [(f"payload.h{n}", f"hash('sha512', concat([payload.x, '{n}']))") for n in range(16)] * 4,
            {"x": "x" * 900_000},
            "takes? longer than 50 ms",
        ),
        ([(f"payload.c{n}", "payload.x") for n in range(100)], {"x": "x" * 900_000}, "more than 16777216 characters"),
        (
            [(f"payload.c{n}", "payload.x") for n in range(100)],
            {"x": ["x" * 90_000] * 10},
            "more than 16777216 characters",
        ),
    ],
)  # fmt: skip
def test_operations_that_would_take_long_or_much_memory_fail(
    operations: list[tuple[str, str]], payload: Any, why: str
) -> None:
    bench = Bench(spec("a", *operations))
    sent = message(jsontext.encode(payload))
    with takes_less_than(0.1):
        refusal = refused(bench.send(sent))
    assert re.search(why, refusal.text), refusal.text
    assert passed(bench.publish(b'{"x":"y"}')).json()["x"] == "y"
