"""The registry and validations in the path of a publish."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.core.client import Client
from broker.core.errors import ConfigError, InUse, Invalid, NotFound
from broker.core.message import Message
from broker.core.objects import MemorySection
from broker.core.quarantine import message_of
from broker.core.reason import PAYLOAD_FORMAT_INVALID
from broker.core.schema import FieldType
from broker.core.stage import Refusal
from broker.observe.gate_counters import EXPLAINED
from schema_validation.feature import SCHEMAS, SchemaValidationFeature
from tests.support.features import KeptRows, make_services, through

ROOT = Path(__file__).parents[2]
METER = {
    "type": "object",
    "required": ["temp"],
    "properties": {"temp": {"type": "number"}, "id": {"type": "string"}},
    "additionalProperties": False,
}
RECORD = {"type": "record", "name": "r", "fields": [{"name": "i", "type": "int"}]}


def validation(name: str, *checks: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {
        "name": name,
        "topics": ["t/#"],
        "strategy": "all_pass",
        "failure_action": "drop",
        "checks": list(checks) or [{"type": "json", "schema": "meter"}],
        **members,
    }


class Bench:
    def __init__(
        self, *specs: dict[str, Any], sections: dict[str, MemorySection] | None = None
    ) -> None:
        self.services = make_services(sections)
        self.feature = SchemaValidationFeature(self.services)
        self.feature.start()
        self.schemas, self.validations = self.feature.schemas, self.feature.validations
        if not self.schemas.list():
            self.schemas.create({"name": "meter", "type": "json", "source": METER})
            self.schemas.create({"name": "record", "type": "avro", "source": RECORD})
        for spec in specs:
            self.validations.create(spec)

    def publish(
        self, payload: bytes, topic: str = "t/1", *, version: int = 4, at_s: int = 1
    ) -> Message | Refusal:
        client = Client("c1", protocol_version=version)
        sent = Message(
            topic, payload, 1 if version == 5 else 0, False, client, at_s * 1_000_000_000
        )
        return through(self.feature.gates[-1], sent)

    def metrics(self, name: str) -> dict[str, int]:
        counted: dict[str, int] = self.validations.get(name)["metrics"]
        return {
            name: count for name, count in counted.items() if not name.startswith(("rate", "since"))
        }


def refused(outcome: Message | Refusal) -> Refusal:
    assert isinstance(outcome, Refusal), outcome
    return outcome


def test_a_message_that_fits_passes_as_it_is() -> None:
    bench = Bench(validation("v"))
    assert isinstance(bench.publish(b'{"temp":1.5}'), Message)
    assert bench.metrics("v") == {"matched": 1, "succeeded": 1, "failed": 0, "quarantined": 0}
    assert bench.services.monitoring.metrics.value("messages_validation_succeeded") == 1


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b'{"temp":"hot"}', "validation 'v': payload.temp: 'hot' is not of type \"number\""),
        (b"{}", "validation 'v': payload: \"temp\" is a required property"),
        (b"{", "validation 'v': payload: not JSON"),
        (b"\xff", "validation 'v': payload: not JSON"),
    ],
)
def test_a_refusal_says_where_and_why(payload: bytes, text: str) -> None:
    got = refused(Bench(validation("v")).publish(payload))
    assert got.text.startswith(text)
    assert (got.reason, got.reason_code, got.disconnect) == ("validation_failed", 0x99, False)


def test_a_condition_has_its_own_reason_code() -> None:
    bench = Bench(validation("v", {"type": "sql", "sql": "SELECT * WHERE payload.temp > 10"}))
    assert isinstance(bench.publish(b'{"temp":11}'), Message)
    assert refused(bench.publish(b'{"temp":9}')).reason_code == 0x83
    assert refused(bench.publish(b"no json")).reason_code == 0x83


def test_a_row_of_a_condition_means_valid_as_its_page_says() -> None:
    page = (
        (ROOT / "docs" / "schemas.md")
        .read_text()
        .partition("## Checks with SQL")[2]
        .partition("\n## ")[0]
    )
    table = [
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in page.split("\n")
        if line[:1] == "|"
    ]
    (_, *payloads), _, *checks = table
    assert (len(payloads), len(checks)) == (3, 4)
    for sql, *outcomes in checks:
        bench = Bench(validation("v", {"type": "sql", "sql": sql}))
        passed = [isinstance(bench.publish(payload.encode()), Message) for payload in payloads]
        assert passed == [outcome == "valid" for outcome in outcomes], sql


def test_sql_that_cannot_be_used_is_refused_with_its_place() -> None:
    bench = Bench()
    for sql, column in (
        ("SELECT * FROM t", 10),
        ("SELECT * WHERE nosuch(1)", 16),
        ("SELECT * WHERE", None),
    ):
        with pytest.raises(Invalid) as caught:
            bench.validations.create(validation("v", {"type": "sql", "sql": sql}))
        problem = caught.value.problems[0]
        assert problem.pointer == "/checks/0/sql"
        assert problem.line == 1
        assert column in (None, problem.column)


def test_ignore_goes_on_in_order_and_drop_stops() -> None:
    bench = Bench(
        validation("a", failure_action="ignore"),
        validation("b", failure_action="disconnect"),
        validation("c"),
    )
    got = refused(bench.publish(b'{"temp":""}'))
    assert (got.name, got.disconnect) == ("b", True)
    assert [bench.metrics(name)["matched"] for name in "abc"] == [1, 1, 0]


def test_any_pass_goes_on_after_an_unknown_schema() -> None:
    bench = Bench()
    checks = [{"type": "avro", "schema": "gone"}, {"type": "json", "schema": "meter"}]
    answer = bench.validations.test(
        {
            "validations": [validation("v", *checks, strategy="any_pass")],
            "message": {"topic": "t/1", "payload": '{"temp":1}'},
            "check_references": False,
        }
    )
    assert answer["outcome"] == "pass"


def test_every_missing_schema_is_told() -> None:
    bench = Bench()
    with pytest.raises(Invalid) as caught:
        bench.validations.create(
            validation(
                "v", {"type": "json", "schema": "metre"}, {"type": "json", "schema": "record"}
            )
        )
    assert [str(problem) for problem in caught.value.problems] == [
        "there is no schema 'metre'; did you mean 'meter'?",
        "schema 'record' is of type avro, not json",
    ]


def test_events_carry_check_reason_path_and_action() -> None:
    bench = Bench(validation("v", failure_action="ignore"))
    seen: list[dict[str, Any]] = []
    bench.services.messaging.events.listen(lambda name, columns, about: seen.append(columns))
    bench.services.messaging.events.want(frozenset({"schema.validation_failed"}))
    bench.publish(b'{"temp":"x"}')
    assert seen[0]["check"] == {"index": 0, "type": "json", "schema": "meter"}
    assert (seen[0]["validation"], seen[0]["path"], seen[0]["action"]) == (
        "v",
        "payload.temp",
        "ignore",
    )


def test_a_new_text_is_a_new_version_and_the_same_is_not() -> None:
    sections: dict[str, MemorySection] = {}
    bench = Bench(validation("v"), sections=sections)
    assert bench.schemas.replace("meter", {"type": "json", "source": METER})["version"] == 1
    open_meter = {**METER, "additionalProperties": True}
    assert bench.schemas.replace("meter", {"type": "json", "source": open_meter})["version"] == 2
    assert isinstance(bench.publish(b'{"temp":1,"x":1}'), Message)
    assert bench.schemas.use("meter", 1)["version"] == 1
    assert refused(bench.publish(b'{"temp":1,"x":1}'))
    with pytest.raises(NotFound):
        bench.schemas.use("meter", 3)

    again = Bench(sections=sections)
    shown = again.schemas.get("meter")
    assert (shown["version"], [version["version"] for version in shown["versions"]]) == (1, [1, 2])
    assert again.schemas.replace("meter", {"type": "json", "source": "{}"})["version"] == 3


def test_a_schema_in_use_is_not_deleted() -> None:
    bench = Bench(validation("v"))
    with pytest.raises(InUse, match="validation 'v'"):
        bench.schemas.delete("meter")
    bench.validations.delete("v")
    bench.schemas.delete("meter")
    with pytest.raises(NotFound):
        bench.schemas.get("meter")


@pytest.mark.parametrize(
    "source", ["[", "[]", '{"type":123}', '{"$schema":"http://json-schema.org/draft-02/schema#"}']
)
def test_a_faulty_schema_changes_nothing(source: str) -> None:
    bench = Bench(validation("v"))
    with pytest.raises(Invalid):
        bench.schemas.replace("meter", {"type": "json", "source": source})
    assert bench.schemas.get("meter")["version"] == 1


def test_a_configuration_that_cannot_be_used_is_refused_with_every_problem() -> None:
    sections = {
        SCHEMAS: MemorySection(
            [{"name": "a", "type": "json", "source": "["}, {"name": "b", "type": "xml"}]
        )
    }
    with pytest.raises(ConfigError) as caught:
        Bench(sections=sections)
    assert [problem.split(":")[1] for problem in caught.value.problems] == [
        " schema 'a' cannot be used",
        " schema 'b' cannot be used",
    ]


def test_payloads_have_a_type_where_a_validation_guards_the_topics() -> None:
    bench = Bench(validation("v"))
    found = bench.services.schemas.payload_type("t/+")
    assert found == FieldType(
        "struct",
        nullable=False,
        fields={
            "temp": FieldType("double", nullable=False),
            "id": FieldType("string", nullable=True),
        },
        open=False,
    )
    assert bench.services.schemas.payload_type("#") is None
    bench.validations.enable("v", False)
    assert bench.services.schemas.payload_type("t/+") is None


def test_in_shadow_mode_failures_are_counted_and_told_and_the_message_passes() -> None:
    bench = Bench(validation("v", mode="shadow", failure_action="disconnect"))
    events: list[dict[str, Any]] = []
    bench.services.messaging.events.want(frozenset({"schema.validation_failed"}))
    bench.services.messaging.events.listen(lambda name, columns, about: events.append(columns))
    assert isinstance(bench.publish(b'{"temp":"hot"}'), Message)
    shown = bench.validations.get("v")
    assert bench.metrics("v") == {"matched": 1, "succeeded": 0, "failed": 1, "quarantined": 0}
    assert [failure["action"] for failure in shown["recent_failures"]] == ["shadow"]
    assert shown["recent_failures"][0]["path"] == "payload.temp"
    assert [event["action"] for event in events] == ["shadow"]
    # what is not enforced guarantees nothing
    assert bench.services.schemas.payload_type("t/1") is None


def test_the_last_failures_are_bounded_and_begin_anew_with_the_validation() -> None:
    bench = Bench(validation("v"))
    for number in range(50):
        bench.publish(b"{}", f"t/{number}")
    recent = bench.validations.get("v")["recent_failures"]
    assert [failure["topic"] for failure in recent] == [f"t/{number}" for number in range(30, 50)]
    bench.validations.replace("v", validation("v"))
    assert bench.validations.get("v")["recent_failures"] == []


def test_failures_are_counted_by_check_and_path() -> None:
    checks = [
        {"type": "json", "schema": "meter"},
        {"type": "sql", "sql": "SELECT * WHERE payload.temp < 50"},
    ]
    bench = Bench(validation("v", mode="shadow", checks=checks))
    for payload in (
        b'{"temp":"a"}',
        b'{"temp":60}',
        b'{"temp":"b"}',
        b'{"temp":1}',
        b'{"temp":"c"}',
        b"{}",
    ):
        bench.publish(payload)
    shown = bench.validations.get("v")
    assert [
        (shape["count"], shape["last"]["check"]["index"]) for shape in shown["failure_shapes"]
    ] == [
        (3, 0),
        (1, 1),
        (1, 0),
    ]
    assert shown["failure_shapes"][0]["last"]["path"] == "payload.temp"
    assert shown["metrics"]["since"].endswith("Z")
    bench.validations.reset_metrics("v")
    assert bench.validations.get("v")["failure_shapes"] == []


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({"quarantine": "nowhere"}, "there is no stream 'nowhere'"),
        ({"quarantine": "raw"}, "stream 'raw' captures topics and takes no rows"),
        ({"quarantine": "kept", "failure_action": "ignore"}, "failure_action 'ignore' stops none"),
    ],
)
def test_a_quarantine_that_could_keep_nothing_is_refused(
    members: dict[str, Any], text: str
) -> None:
    bench = Bench()
    bench.services.storage.streams = KeptRows("kept", captures=["raw"])
    with pytest.raises(Invalid, match=text):
        bench.validations.create(validation("v", **members))


def test_what_is_stopped_is_kept_whole_and_what_is_taken_again_is_not_kept_twice() -> None:
    bench = Bench()
    rows = bench.services.storage.streams = KeptRows("kept")
    bench.validations.create(validation("v", quarantine="kept"))
    client = Client("c1", "u", "10.0.0.1", 4711, attributes={"site": "7"})
    properties = {
        "User-Property": [("a", "1"), ("a", "2")],
        "Correlation-Data": b"\xff",
        "Content-Type": "x",
    }
    sent = Message("t/1", b"\xfe\x00", 1, True, client, 5_000_000, properties)
    gate = bench.feature.gates[-1]
    refused(through(gate, sent))
    (record,) = rows.records
    again = message_of(record)
    assert again is not None
    assert (again.topic, again.payload, again.qos, again.retain, again.client) == (
        "t/1",
        b"\xfe\x00",
        1,
        True,
        client,
    )
    assert (again.received_ns, again.properties) == (5_000_000, properties)
    refused(through(gate, again))
    assert len(rows.records) == 1
    assert bench.metrics("v") == {"matched": 2, "succeeded": 0, "failed": 2, "quarantined": 1}
    assert bench.services.contributors.users_of("stream", "kept") == [("validation", "v")]


def test_a_condition_in_jq_must_be_known_to_end() -> None:
    bench = Bench(
        validation(
            "v", {"type": "sql", "sql": "SELECT jq('.temp > 10', payload)[1] AS ok WHERE ok"}
        )
    )
    assert isinstance(bench.publish(b'{"temp":11}'), Message)
    assert refused(bench.publish(b'{"temp":9}')).reason_code == 0x83
    assert (
        "runs in a worker process only, since it may take longer than 10 ms on more than"
        in refused(bench.publish(b'{"temp":"%s"}' % (b"x" * 100_000))).text
    )
    with pytest.raises(
        Invalid, match="a message waits for its checks, and this program may not end"
    ):
        bench.validations.create(
            validation("w", {"type": "sql", "sql": "SELECT jq('last(repeat(.))', payload) AS a"})
        )


def test_of_a_flood_of_failures_all_are_counted_and_some_are_explained() -> None:
    bench = Bench(validation("v"))
    why = "payload.temp: 'hot' is not of type \"number\""
    texts = [refused(bench.publish(b'{"temp":"hot"}')).text for _ in range(EXPLAINED + 1)]
    assert texts[:EXPLAINED] == [f"validation 'v': {why}"] * EXPLAINED
    other = refused(bench.publish(b"{", at_s=1))
    assert (
        texts[-1]
        == other.text
        == "validation 'v': the message does not pass; of more than 50 failures a second only some are explained"
    )
    assert other.reason_code == PAYLOAD_FORMAT_INVALID
    assert bench.metrics("v")["failed"] == EXPLAINED + 2
    assert len(bench.validations.get("v")["recent_failures"]) == 20
    assert refused(bench.publish(b'{"temp":"hot"}', at_s=2)).text == f"validation 'v': {why}"
    assert [shape["count"] for shape in bench.validations.get("v")["failure_shapes"]] == [
        EXPLAINED + 3
    ]
    assert bench.services.monitoring.metrics.value("messages_validation_failed") == EXPLAINED + 3


def test_who_is_told_the_reason_is_told_the_reason_of_this_message() -> None:
    bench = Bench(validation("v"))
    for _ in range(2 * EXPLAINED):
        bench.publish(b"{")
    told = refused(bench.publish(b'{"temp":"hot"}', version=5))
    assert told.text == "validation 'v': payload.temp: 'hot' is not of type \"number\""
    assert bench.metrics("v")["failed"] == 2 * EXPLAINED + 1


def test_rules_that_ask_for_failures_get_the_reason_of_each() -> None:
    bench = Bench(validation("v"))
    seen: list[str] = []
    bench.services.messaging.events.listen(
        lambda name, columns, about: seen.append(columns["path"])
    )
    bench.services.messaging.events.want(frozenset({"schema.validation_failed"}))
    for _ in range(2 * EXPLAINED):
        bench.publish(b'{"temp":"hot"}')
    assert seen == ["payload.temp"] * 2 * EXPLAINED
