"""One trace from PUBLISH to a bridge's target, at a real OTLP receiver over HTTP and gRPC that goes and comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.end_to_end.clients import Client
from tests.support.collector import Collector, ReceivedSpan, collecting
from tests.support.local_node import Node, running
from tests.support.node import eventually

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
_DROP = {"failure_action": "drop", "strategy": "all_pass"}
_BASE = "lake.run_spark = false\noverload.enable = false\n"


def config(collector: Collector, **settings: Any) -> str:
    """A configuration that exports to a collector."""
    defaults = {
        "enable": "true",
        "interval": "100ms",
        "timeout": "2s",
        "protocol": collector.protocol,
    }
    settings = {**defaults, "max_traces_per_s": 0, **settings}
    lines = [f"telemetry.{name.replace('__', '.')} = {value}" for name, value in settings.items()]
    return _BASE + f'telemetry.endpoint = "{collector.endpoint}"\n' + "\n".join(lines) + "\n"


@pytest.fixture(params=["http", "grpc"])
def collector(request: pytest.FixtureRequest) -> Iterator[Collector]:
    protocol: Literal["http", "grpc"] = request.param
    with collecting(protocol) as collector:
        yield collector


@pytest.fixture
def http_collector() -> Iterator[Collector]:
    with collecting("http") as collector:
        yield collector


def traced(
    collector: Collector, name: str, count: int = 1, timeout_s: float = 60
) -> list[ReceivedSpan]:
    """The spans of a name, once there are so many."""
    what = f"{count} spans {name}"
    eventually(lambda: len(collector.named(name)) >= count, timeout_s, what=what)
    return collector.named(name)


def set_up_stages(node: Node, folder: Path) -> None:
    """A validation, a transformation, a rule to a stream and a file, and a capture of topics."""
    node.call("POST", "/schemas", {"name": "meter", "type": "json", "source": '{"type": "object"}'})
    check = {"type": "json", "schema": "meter"}
    node.call(
        "POST",
        "/validations",
        {**_DROP, "name": "meters", "topics": ["meters/#"], "checks": [check]},
    )
    operation = {"key": "payload.seen", "value": "true"}
    body = {
        "failure_action": "drop",
        "name": "seen",
        "topics": ["meters/#"],
        "payload_decoder": {"type": "json"},
        "operations": [operation],
    }
    node.call("POST", "/transforms", {**body, "payload_encoder": {"type": "json"}})
    node.call("POST", "/streams", {"name": "rows"})
    node.call("POST", "/streams", {"name": "raw", "topics": ["meters/#"]})
    node.call(
        "POST",
        "/connectors",
        {"name": "disk", "type": "file", "filepath": str(folder / "rows.log")},
    )
    node.call(
        "POST", "/actions", {"name": "log", "type": "file", "connector": "disk", "parameters": {}}
    )
    actions = [
        {"type": "stream", "stream": "rows"},
        "file:log",
        {"type": "republish", "topic": "warm/x"},
    ]
    node.call(
        "POST",
        "/rules",
        {"name": "warm", "sql": 'SELECT payload.temp AS temp FROM "meters/#"', "actions": actions},
    )


def test_one_trace_shows_the_whole_way_of_a_message(tmp_path: Path, collector: Collector) -> None:
    with running(tmp_path / "node", config=config(collector)) as node:
        set_up_stages(node, tmp_path)
        with Client(node, "reader") as reader, Client(node, "meter") as meter:
            reader.subscribe("meters/#", 1)
            meter.publish(
                "meters/1",
                '{"temp": 21}',
                1,
                UserProperty=[("traceparent", f"00-{TRACE}-{PARENT}-01")],
            )
            received = reader.take()
            assert _user_properties(received) == [("traceparent", f"00-{TRACE}-{PARENT}-01")]
        write = traced(collector, "write file:log")[0]
        publish = traced(collector, "publish", 2)
        expected = (
            "publish", "validation", "transformation", "rule warm", "streams", "send", "commit",
            "buffer file:log", "write file:log",
        )  # fmt: skip
        for name in expected:
            assert {span.trace_id for span in traced(collector, name)} == {TRACE}, name
        roots = {span.parent_id: span for span in publish}
        root = roots[PARENT]
        assert root.attributes["messaging.destination.name"] == "meters/1"
        assert root.attributes["messaging.client.id"] == "meter"
        # of the rule's republish
        assert roots[root.span_id].attributes["messaging.destination.name"] == "warm/x"
        assert write.parent_id == root.span_id
        assert traced(collector, "send")[0].attributes["messaging.client.id"] == "reader"
        assert root.resource["service.name"] == "sluice"
        assert all(span.start_ns <= span.end_ns for span in collector.spans)


def test_a_trace_ends_with_the_commits_of_tables(tmp_path: Path, http_collector: Collector) -> None:
    with_spark = config(http_collector).replace("lake.run_spark = false\n", "")
    with running(tmp_path / "node", config=with_spark) as node:
        set_up_stages(node, tmp_path)
        for stream in ("raw", "rows"):
            table = {"name": stream, "stream": stream, "format": "delta", "commit_interval": 1}
            node.call("POST", "/lake/tables", table)
        with Client(node, "meter") as meter:
            for number in range(3):
                context = f"00-{number + 1:032x}-{PARENT}-01"
                meter.publish(
                    f"meters/{number}",
                    '{"temp": 21}',
                    1,
                    UserProperty=[("traceparent", context)],
                )
            meter.publish("meters/untraced", "{}", 1)
        for stream in ("raw", "rows"):
            spans = traced(http_collector, f"table {stream}", 3, timeout_s=180)
            assert [int(span.trace_id, 16) for span in spans] == [1, 2, 3]
        roots = {span.trace_id: span for span in http_collector.named("publish")}
        for span in spans:
            assert span.parent_id == roots[span.trace_id].span_id
            assert roots[span.trace_id].start_ns < span.start_ns < span.end_ns
            assert span.attributes["sluice.table_version"] is not None


def test_without_a_context_nothing_is_traced_unless_all_is(
    tmp_path: Path, http_collector: Collector
) -> None:
    with (
        running(tmp_path / "node", config=config(http_collector)) as node,
        Client(node, "meter") as meter,
    ):
        meter.publish("a", "1")
        meter.publish("a", "2", UserProperty=[("traceparent", f"00-{TRACE}-{PARENT}-00")])
        meter.publish("a", "3", UserProperty=[("traceparent", "nonsense")])
        meter.publish("a", "4", UserProperty=[("traceparent", f"00-{TRACE}-{PARENT}-01")])
        assert [span.trace_id for span in traced(http_collector, "publish")] == [TRACE]
    http_collector.spans.clear()
    all_traced = running(tmp_path / "all", config=config(http_collector, trace_all="true"))
    with all_traced as node, Client(node, "reader") as reader, Client(node, "meter") as meter:
        reader.subscribe("a", 1)
        for number in range(3):
            meter.publish("a", str(number), qos=number)
        assert len({span.trace_id for span in traced(http_collector, "publish", 3)}) == 3
        assert all(_user_properties(reader.take()) == [] for _ in range(3))


def test_the_ratio_is_that_of_the_traces(tmp_path: Path, http_collector: Collector) -> None:
    settings = config(http_collector, trace_all="true", ratio="0.1")
    with running(tmp_path / "node", config=settings) as node:
        with Client(node, "reader") as reader, Client(node, "meter") as meter:
            reader.subscribe("#", 0)
            for number in range(2000):
                meter.paho.publish("plain", str(number), number % 2)
            received = [int(reader.take().payload) for _ in range(2000)]
        for qos in (0, 1):  # the client sends those of QoS 0 before those of QoS 1 that must wait
            assert [number for number in received if number % 2 == qos] == list(range(qos, 2000, 2))
        eventually(
            lambda: node.call("GET", "/status") and len(http_collector.named("publish")) > 100
        )
    # 200 ± 4 standard deviations, and a little
    assert 140 < len(http_collector.named("publish")) < 270


def test_filters_and_the_tail_choose_traces(tmp_path: Path, http_collector: Collector) -> None:
    filtered = config(
        http_collector, trace_all="true", filter__topics='["in/#"]', filter__clients='["meter-*"]'
    )
    with running(tmp_path / "filtered", config=filtered) as node:
        with Client(node, "meter-1") as meter, Client(node, "other") as other:
            other.publish("in/1", "x")
            meter.publish("out/1", "x")
            meter.publish("in/2", "x")
        assert [
            span.attributes["messaging.destination.name"]
            for span in traced(http_collector, "publish")
        ] == ["in/2"]
    http_collector.spans.clear()
    with running(
        tmp_path / "tail", config=config(http_collector, trace_all="true", tail__errors="true")
    ) as node:
        set_up_stages(node, tmp_path)
        with Client(node, "meter") as meter:
            meter.publish("meters/1", '{"temp": 21}')
            meter.publish("meters/2", "not an object")
        (refused,) = traced(http_collector, "publish")
        assert refused.attributes["messaging.destination.name"] == "meters/2"
        assert refused.attributes["error.type"] == "validation_failed"
        assert "meters" in refused.error


def test_while_the_collector_is_away_spans_wait_and_an_alarm_says_so(
    tmp_path: Path, collector: Collector
) -> None:
    secret = 'telemetry.headers.authorization = "${secret:collector}"\n'
    settings = config(collector, trace_all="true", max_queue="64") + secret
    with running(tmp_path / "node", config=settings) as node, Client(node, "meter") as meter:
        node.call("POST", "/secrets", {"name": "collector", "value": "Bearer planted"})
        meter.publish("a", "1")
        traced(collector, "publish")
        assert collector.headers[-1]["authorization"] == "Bearer planted"
        collector.stop()
        collector.spans.clear()
        for number in range(200):
            meter.publish("a", str(number))
        eventually(
            lambda: (
                "telemetry_collector"
                in [alarm["name"] for alarm in node.call("GET", "/alarms")["items"]]
            )
        )
        eventually(lambda: metric(node, "sluice_telemetry_spans_dropped_total", "queue_full") > 0)
        collector.start()
        traced(collector, "publish")
        eventually(
            lambda: (
                not [
                    a
                    for a in node.call("GET", "/alarms")["items"]
                    if a["name"] == "telemetry_collector"
                ]
            )
        )
        assert "planted" not in node.log.read_text()


def _user_properties(message: Any) -> list[tuple[str, str]]:
    return list(getattr(message.properties, "UserProperty", []))


def metric(node: Node, name: str, reason: str) -> float:
    """The value of a metric with a reason."""
    with node.client() as client:
        lines = client.get(f"{node.url}/metrics").text.splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith(name) and f'"{reason}"' in line
    )


def test_an_address_that_is_denied_is_not_called(tmp_path: Path, http_collector: Collector) -> None:
    settings = config(http_collector, trace_all="true") + "rule_engine.ssrf.enable = true\n"
    with running(tmp_path / "node", config=settings) as node, Client(node, "meter") as meter:
        meter.publish("a", "1")
        alarm = eventually(
            lambda: [
                a
                for a in node.call("GET", "/alarms")["items"]
                if a["name"] == "telemetry_collector"
            ]
        )[0]
        assert "must not be called" in alarm["message"]
        assert not http_collector.spans
