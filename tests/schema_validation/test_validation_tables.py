"""Validations as tables: what is accepted when they are saved, what passes, what is done with what fails."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from broker.core import reason
from broker.core.client import Client
from broker.core.errors import Invalid
from broker.core.message import Message
from broker.core.stage import Refusal
from schema_validation.feature import SchemaValidationFeature
from tests.support.features import make_services, through

SQL_PASSES = {"type": "sql", "sql": "SELECT 1 AS one"}
SQL_FAILS = {"type": "sql", "sql": "SELECT 1 AS one WHERE 1 = 2"}
SQL_BREAKS = {"type": "sql", "sql": "SELECT payload.a.b AS x WHERE payload.a > 5"}
JSON = {"type": "json", "schema": "reading"}
AVRO = {"type": "avro", "schema": "record"}
PROTO = {"type": "protobuf", "schema": "person", "message_type": "Person"}
READING = {"type": "object", "required": ["t"], "properties": {"t": {"type": "number"}}}
RECORD = {"type": "record", "name": "r", "fields": [{"name": "i", "type": "int"}]}
PERSON = 'syntax = "proto3"; message Person { string name = 1; message Inner { int32 n = 1; } } message Other {}'


class Bench:
    """The feature with three schemas, and the validations given."""

    def __init__(self, *specs: dict[str, Any]) -> None:
        self.services = make_services()
        self.feature = SchemaValidationFeature(self.services)
        self.feature.start()
        for name, kind, source in (
            ("reading", "json", READING),
            ("record", "avro", RECORD),
            ("person", "protobuf", PERSON),
        ):
            self.feature.schemas.create({"name": name, "type": kind, "source": source})
        self.service = self.feature.validations
        for one in specs:
            self.service.create(one)

    def publish(
        self, payload: bytes = b"{}", topic: str = "t/1", **members: Any
    ) -> Message | Refusal:
        sent = Message(
            topic,
            payload,
            1,
            False,
            Client("c1", username="u"),
            1_700_000_000_000_000_000,
            **members,
        )
        return through(self.feature.gates[-1], sent)

    def told(self) -> list[dict[str, Any]]:
        """The columns of the events from now on."""
        columns: list[dict[str, Any]] = []
        self.services.messaging.events.want(frozenset({"schema.validation_failed"}))
        self.services.messaging.events.listen(lambda name, told, about: columns.append(told))
        return columns

    def counts(self, name: str) -> tuple[int, int, int]:
        found = self.service.metrics(name)
        return found["matched"], found["succeeded"], found["failed"]


def validation(name: str, *checks: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {
        "name": name,
        "topics": ["t/#"],
        "strategy": "all_pass",
        "failure_action": "drop",
        "checks": list(checks) or [SQL_PASSES],
        **members,
    }


def without(spec: dict[str, Any], member: str) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key != member}


@pytest.mark.parametrize(
    ("spec", "pointer", "said"),
    [
        (without(validation("v"), "strategy"), "/strategy", "required"),
        (without(validation("v"), "failure_action"), "/failure_action", "required"),
        (without(validation("v"), "topics"), "/topics", "required"),
        (without(validation("v"), "checks"), "/checks", "required"),
        (validation("v", strategy="any"), "/strategy", "all_pass"),
        (validation("v", failure_action="log"), "/failure_action", "drop"),
        (validation("v", topics=[]), "/topics", "at least one topic filter"),
        (
            validation("v", topics=["t/1", "t/2", "t/1", "t/2"]),
            "/topics",
            "duplicated topics: t/1, t/2",
        ),
        (validation("v", topics=["a/#/b"]), "/topics", "#"),
        (validation("v", topics=["$share/g/a"]), "/topics", "shared"),
        (validation("v", topics=[""]), "/topics", ""),
        (validation("v", checks=[]), "/checks", ""),
        (validation("v", JSON, JSON), "/checks", "duplicated schema checks: json:reading"),
        (
            validation("v", PROTO, PROTO),
            "/checks",
            "duplicated schema checks: protobuf:person:Person",
        ),
        (validation("v", log_failure={"level": "loud"}), "/log_failure/level", "warning"),
        (validation("v", {"type": "xml"}), "/checks/0", "protobuf"),
        (validation("v", {"type": "json"}), "/checks/0/schema", "required"),
        (validation("v", without(PROTO, "message_type")), "/checks/0/message_type", "required"),
        (
            validation("v", {"type": "json", "schema": "reading", "message_type": "x"}),
            "/checks/0/message_type",
            "",
        ),
        (validation("v", {"type": "json", "schema": "gone"}), "/checks/0/schema", "gone"),
        (
            validation("v", {"type": "avro", "schema": "reading"}),
            "/checks/0/schema",
            "of type json",
        ),
        (validation("v", {**PROTO, "message_type": "Nobody"}), "/checks/0/message_type", "Nobody"),
        (validation("v", {"type": "sql", "sql": "SELECT * FROM 't'"}), "/checks/0/sql", "no FROM"),
        (
            validation("v", {"type": "sql", "sql": "FOREACH payload.a"}),
            "/checks/0/sql",
            "no FOREACH",
        ),
        (validation("v", {"type": "sql", "sql": "SELEC 1"}), "/checks/0/sql", ""),
        (validation("v", {"type": "sql", "sql": ""}), "/checks/0/sql", ""),
        (
            validation("v", {"type": "sql", "sql": "SELECT uper(payload.a) AS x"}),
            "/checks/0/sql",
            "upper",
        ),
        (validation("v-", enable="maybe"), "/enable", ""),
        (validation("-v"), "/name", "begins with a letter or a digit"),
        (validation("v" * 255), "/name", "at most 254 bytes"),
        (validation("v", colour="red"), "/colour", ""),
        (validation("v", mode="quiet"), "/mode", "shadow"),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, str) else "",
)
def test_what_cannot_be_saved_is_refused_with_its_place(
    spec: dict[str, Any], pointer: str, said: str
) -> None:
    with pytest.raises(Invalid) as caught:
        Bench(spec)
    told = {problem.pointer: str(problem) for problem in caught.value.problems}
    assert pointer in told, told
    assert said in told[pointer]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"topics": "t/1"}, {"topics": ["t/1"]}),
        (
            {},
            {
                "log_failure": {"level": "info"},
                "enable": True,
                "description": "",
                "tags": [],
                "mode": "enforce",
            },
        ),
        ({"tags": ["a"], "description": "d"}, {"tags": ["a"], "description": "d"}),
        ({"checks": [SQL_PASSES, SQL_PASSES]}, {"checks": [SQL_PASSES, SQL_PASSES]}),
        (
            {
                "checks": [
                    PROTO,
                    {**PROTO, "message_type": "Other"},
                    {**PROTO, "message_type": "Person.Inner"},
                ]
            },
            {"strategy": "all_pass"},
        ),
        ({"topics": ["#", "+/a", "$SYS/#"]}, {"topics": ["#", "+/a", "$SYS/#"]}),
    ],
)
def test_what_can_be_saved_is_shown_with_defaults(
    given: dict[str, Any], shown: dict[str, Any]
) -> None:
    assert shown.items() <= Bench().service.create(validation("v") | given).items()


@pytest.mark.parametrize(
    ("strategy", "checks", "passes", "failed_check"),
    [
        ("all_pass", [SQL_PASSES, SQL_PASSES], True, None),
        ("all_pass", [SQL_PASSES, SQL_FAILS], False, 1),
        ("all_pass", [SQL_FAILS, SQL_PASSES], False, 0),
        ("all_pass", [SQL_FAILS, SQL_BREAKS], False, 0),
        ("any_pass", [SQL_PASSES, SQL_FAILS], True, None),
        ("any_pass", [SQL_FAILS, SQL_PASSES], True, None),
        ("any_pass", [SQL_BREAKS, SQL_PASSES], True, None),
        ("any_pass", [SQL_FAILS, SQL_FAILS], False, 0),
        ("any_pass", [SQL_FAILS, SQL_BREAKS], False, 0),
    ],
)
def test_strategies(
    strategy: str, checks: list[dict[str, Any]], passes: bool, failed_check: int | None
) -> None:
    bench = Bench(validation("v", *checks, strategy=strategy))
    told = bench.told()
    assert isinstance(bench.publish(b"no json"), Message) is passes
    assert [one["check"]["index"] for one in told] == (
        [] if failed_check is None else [failed_check]
    )


@pytest.mark.parametrize(
    ("condition", "payload", "passes"),
    [
        ("", b"no json", True),
        ("WHERE payload.v > 5", b'{"v": 6}', True),
        ("WHERE payload.v > 5", b'{"v": 5}', False),
        ("WHERE payload.v > 5", b"no json", False),
        ("WHERE payload.v > 5", b"\xff", False),
        ("WHERE payload.v > 5", b'{"v": "abc"}', False),
        ("WHERE payload.v > 5", b"{}", False),
        ("WHERE payload.v != 5", b"{}", False),
        ("WHERE payload.v < 5", b"{}", False),
        ("WHERE payload.v = payload.w", b"{}", True),
        ("WHERE one = 1", b"", True),
        ("WHERE topic = 't/1' AND qos = 1 AND clientid = 'c1' AND username = 'u'", b"", True),
        ("WHERE event = 'message.publish' AND is_not_null(id) AND node = 'n1'", b"", True),
        (
            "WHERE publish_received_at = 1700000000000 AND timestamp > publish_received_at",
            b"",
            True,
        ),
        ("WHERE flags.retain = false AND is_map(pub_props) AND is_map(client_attrs)", b"", True),
        ("WHERE payload = 'x'", b"x", True),
        ("WHERE map_get('a', json_decode(payload)) = 1", b'{"a":1}', True),
        ("WHERE schema_check('reading', payload)", b'{"t":1}', True),
    ],
)
def test_conditions(condition: str, payload: bytes, passes: bool) -> None:
    bench = Bench(validation("v", {"type": "sql", "sql": f"SELECT 1 AS one {condition}"}))
    assert isinstance(bench.publish(payload), Message) is passes


@pytest.mark.parametrize(
    ("check", "payload", "passes"),
    [
        (JSON, b'{"t": 1}', True),
        (JSON, b'{"t": "1"}', False),
        (JSON, b"no json", False),
        (JSON, b'{"t": NaN}', False),
        (JSON, b"\xef\xbb\xbf{}", False),
        (JSON, b"", False),
        (AVRO, b"\x02", True),
        (AVRO, b"\x02\x00", False),
        (AVRO, b"", False),
        (PROTO, b"\n\x01a", True),
        (PROTO, b"", True),
        (PROTO, b"\n\x05a", False),
        ({**PROTO, "message_type": "Person.Inner"}, b"\x08\x01", True),
    ],
)
def test_one_good_and_one_bad_payload_of_each_type(
    check: dict[str, Any], payload: bytes, passes: bool
) -> None:
    outcome = Bench(validation("v", check)).publish(payload)
    assert isinstance(outcome, Message) is passes
    if isinstance(outcome, Refusal):
        assert outcome.reason_code == reason.PAYLOAD_FORMAT_INVALID


@pytest.mark.parametrize(
    ("actions", "ran", "outcome"),
    [
        (["drop", "drop"], 1, "drop"),
        (["disconnect", "drop"], 1, "disconnect"),
        (["ignore", "drop"], 2, "drop"),
        (["ignore", "disconnect", "drop"], 2, "disconnect"),
        (["ignore", "ignore", "ignore"], 3, "pass"),
    ],
)
def test_failure_actions(actions: Sequence[str], ran: int, outcome: str) -> None:
    bench = Bench(
        *(validation(f"v{n}", SQL_FAILS, failure_action=action) for n, action in enumerate(actions))
    )
    told = bench.told()
    got = bench.publish()
    assert (
        "pass" if isinstance(got, Message) else "disconnect" if got.disconnect else "drop"
    ) == outcome
    assert [one["validation"] for one in told] == [f"v{n}" for n in range(ran)]
    assert [bench.counts(f"v{n}") for n in range(len(actions))] == [(1, 0, 1)] * ran + [
        (0, 0, 0)
    ] * (len(actions) - ran)
    metrics = bench.services.monitoring.metrics
    passed = outcome == "pass"
    assert metrics.value("messages_validation_succeeded") == passed
    assert metrics.value("messages_validation_failed") == (not passed)


def test_nothing_is_counted_where_none_matches() -> None:
    bench = Bench(
        validation("v", SQL_FAILS), validation("off", SQL_FAILS, topics=["u/#"], enable=False)
    )
    for topic in ("u/1", "$t/1"):
        assert isinstance(bench.publish(topic=topic), Message)
    assert bench.services.monitoring.metrics.value("messages_validation_succeeded") == 0


@pytest.mark.parametrize(
    ("topics", "topic", "matched"),
    [
        (["t/#", "t/1", "+/1"], "t/1", 1),
        (["#"], "t/1", 1),
        (["#"], "$SYS/a", 0),
        (["+/a"], "$SYS/a", 0),
        (["$SYS/#"], "$SYS/a", 1),
        (["t/+"], "t", 0),
        (["t/#"], "t", 1),
        (["t/+"], "t/", 1),
        (["T/#"], "t/1", 0),
    ],
)
def test_matching(topics: list[str], topic: str, matched: int) -> None:
    bench = Bench(validation("v", topics=topics))
    bench.publish(topic=topic)
    assert bench.counts("v") == (matched, matched, 0)


@pytest.mark.parametrize(
    ("level", "written"),
    [
        ({"level": "error"}, logging.ERROR),
        ({"level": "warning"}, logging.WARNING),
        ({"level": "notice"}, logging.INFO),
        ({"level": "info"}, logging.INFO),
        ({}, logging.INFO),
        ({"level": "debug"}, logging.DEBUG),
        ({"level": "none"}, None),
    ],
)
def test_log_levels(
    level: dict[str, str], written: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(validation("v", SQL_FAILS, log_failure=level))
    with caplog.at_level(logging.DEBUG):
        bench.publish()
    lines = [
        record.levelno for record in caplog.records if record.getMessage() == "validation.failed"
    ]
    assert lines == ([] if written is None else [written])


def test_failures_are_one_line_a_minute_that_counts_those_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench(validation("v", SQL_FAILS))
    for number in range(180):
        at_ns = 1_700_000_000_000_000_000 + number * 1_000_000_000
        through(bench.feature.gates[-1], Message("t/1", b"{}", 1, False, Client("c1"), at_ns))
    lines = [
        vars(record)["fields"]
        for record in caplog.records
        if record.getMessage() == "validation.failed"
    ]
    assert [line.get("repeated") for line in lines if line["validation"] == "v"] == [None, 59, 59]


def test_sixty_run_in_their_order_and_disabled_ones_stay_out_after_changes() -> None:
    names = [f"v{n}" for n in range(60)]
    specs = (
        validation(name, SQL_FAILS, failure_action="ignore", enable=name != "v7") for name in names
    )
    bench = Bench(*specs)
    told = bench.told()

    def ran() -> list[str]:
        told.clear()
        bench.publish()
        return [one["validation"] for one in told]

    expected = [name for name in names if name != "v7"]
    assert ran() == expected
    bench.service.reorder(names[::-1])
    assert ran() == expected[::-1]
    bench.service.delete("v30")
    expected.remove("v30")
    assert ran() == expected[::-1]
    bench.service.replace(
        "v31", validation("v31", SQL_FAILS, failure_action="ignore", description="new")
    )
    assert ran() == expected[::-1]
    bench.service.enable("v7", True)
    assert "v7" in ran()
    bench.service.enable("v7", False)
    assert ran() == expected[::-1]


@pytest.mark.parametrize(
    ("order", "wrong"),
    [
        (["a"], {"not_found": [], "not_reordered": ["b"], "duplicated": []}),
        (["a", "b", "c"], {"not_found": ["c"], "not_reordered": [], "duplicated": []}),
        (["a", "b", "a"], {"not_found": [], "not_reordered": [], "duplicated": ["a"]}),
        (["x", "x", "a"], {"not_found": ["x"], "not_reordered": ["b"], "duplicated": ["x"]}),
        ([], {"not_found": [], "not_reordered": ["a", "b"], "duplicated": []}),
    ],
)
def test_an_order_that_is_none_says_why_and_changes_nothing(
    order: list[str], wrong: dict[str, list[str]]
) -> None:
    bench = Bench(validation("a"), validation("b"))
    with pytest.raises(Invalid) as caught:
        bench.service.reorder(order)
    assert caught.value.members == wrong
    assert [spec["name"] for spec in bench.service.list()] == ["a", "b"]


def test_an_empty_order_of_none_is_one() -> None:
    Bench().service.reorder([])


def test_counters_and_rates_begin_anew_and_global_ones_go_on() -> None:
    bench = Bench(validation("v"))
    metrics = bench.services.monitoring.metrics
    list(bench.service.tick())
    for _ in range(10):
        bench.publish()
    list(bench.service.tick())
    assert bench.service.metrics("v")["rate"] > 0
    assert bench.service.metrics("v")["rate_max"] >= bench.service.metrics("v")["rate_last5m"] > 0
    bench.service.reset_metrics("v")
    assert {value for name, value in bench.service.metrics("v").items() if name != "since"} == {0}
    assert metrics.value("messages_validation_succeeded") == 10
    bench.publish()
    bench.service.replace("v", validation("v"))
    assert bench.counts("v") == (0, 0, 0)
    assert metrics.value("schema_validation_enable", validation_name="v") == 1
    bench.publish()
    bench.service.enable("v", False)
    assert bench.counts("v") == (1, 1, 0)
    assert metrics.value("schema_validation_enable", validation_name="v") == 0
    bench.service.delete("v")
    assert not [metric for metric in metrics if metric.labels.get("validation_name")]


def test_the_message_is_what_it_was() -> None:
    bench = Bench(validation("v", JSON))
    properties = {"User-Property": [("traceparent", "00-a-b-01"), ("x", "2"), ("x", "1")]}
    got = bench.publish(b'{ "t" : 1.0 }', properties=properties)
    assert isinstance(got, Message)
    assert (got.payload, got.properties) == (b'{ "t" : 1.0 }', properties)


def test_an_event_has_the_columns_of_the_message() -> None:
    bench = Bench(validation("v", JSON, failure_action="disconnect"))
    told = bench.told()
    bench.publish(b'{"t": "x"}')
    [event] = told
    wanted = {
        "validation": "v",
        "clientid": "c1",
        "username": "u",
        "topic": "t/1",
        "qos": 1,
        "payload": '{"t": "x"}',
    }
    assert {name: event.get(name) for name in wanted} == wanted
    assert {
        "id",
        "peerhost",
        "peername",
        "flags",
        "pub_props",
        "publish_received_at",
    } <= event.keys()
    assert event["check"] == {"index": 0, "type": "json", "schema": "reading"}
    assert (event["path"], event["action"]) == ("payload.t", "disconnect")
