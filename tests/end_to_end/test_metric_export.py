"""The broker's metrics at a real OTLP receiver over HTTP and gRPC that goes and comes back."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.end_to_end.clients import Client
from tests.support.collector import Collector, ReceivedMetric, collecting
from tests.support.local_node import Node, running
from tests.support.node import eventually

RECEIVED = "sluice_messages_received"
COMMITS = "sluice_store_commit_seconds"
_BASE = "lake.run_spark = false\noverload.enable = false\n"


def config(collector: Collector, more: str = "") -> str:
    """A configuration that sends metrics, and no traces, to a collector."""
    return (
        f"{_BASE}telemetry {{\n"
        f'  protocol = {collector.protocol}\n  endpoint = "{collector.endpoint}"\n  timeout = 2s\n'
        f"  metrics {{ enable = true, interval = 1s }}\n}}\n{more}"
    )


@pytest.fixture(params=["http", "grpc"])
def collector(request: pytest.FixtureRequest) -> Iterator[Collector]:
    protocol: Literal["http", "grpc"] = request.param
    with collecting(protocol) as collector:
        yield collector


def latest(collector: Collector, name: str, least: float = 0, **labels: str) -> ReceivedMetric:
    """The last value of a metric, once it is at least so high."""

    def found() -> ReceivedMetric | None:
        metric = collector.latest(name, **labels)
        return None if metric is None or metric.value < least else metric

    metric = eventually(found, what=name)
    assert metric is not None
    return metric


def shown(node: Node) -> dict[str, float]:
    """What `/metrics` shows, by series."""
    with node.client() as client:
        lines = client.get(f"{node.url}/metrics").text.splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {series: float(value) for series, _, value in pairs}


def alarms(node: Node) -> list[Any]:
    """Active alarms about the collector of metrics."""
    items = node.call("GET", "/alarms")["items"]
    return [alarm for alarm in items if alarm["name"] == "telemetry_metrics_collector"]


def test_metrics_are_those_of_the_page_for_prometheus(tmp_path: Path, collector: Collector) -> None:
    with running(tmp_path / "node", config=config(collector)) as node:
        sql = 'SELECT payload.t AS t FROM "meters/#"'
        node.call("POST", "/rules", {"name": "warm", "sql": sql, "actions": []})
        with Client(node, "meter") as meter:
            for number in range(25):
                meter.publish("meters/1", f'{{"t": {number}}}', 1)
        received = latest(collector, RECEIVED, 25, qos="1")
        assert received.kind == "sum"
        assert received.start_ns < received.time_ns
        assert received.resource["service.name"] == "sluice"
        assert received.resource["sluice.node"]
        assert latest(collector, "sluice_rule_matched", 25, rule="warm").help
        memory = latest(collector, "sluice_memory_bytes", 1)
        assert (memory.kind, memory.unit, memory.start_ns) == ("gauge", "By", 0)
        commits = collector.latest(COMMITS)
        assert commits is not None
        assert (commits.kind, commits.unit) == ("histogram", "s")
        assert len(commits.value) == len(commits.bounds) + 1
        assert sum(commits.value) > 0
        page = shown(node)
        assert page['sluice_messages_received_total{qos="1"}'] == received.value
        names = {name.partition("{")[0].removesuffix("_total") for name in page}
        names = {COMMITS if name.startswith(f"{COMMITS}_") else name for name in names}
        of_prometheus = {name for name in names if not name.startswith("sluice_telemetry_metrics")}
        assert of_prometheus <= {metric.name for metric in collector.metrics}
        assert not collector.spans


def test_the_last_values_are_sent_when_the_broker_stops(
    tmp_path: Path, collector: Collector
) -> None:
    seldom = config(collector).replace("interval = 1s", "interval = 1h")
    with running(tmp_path / "node", config=seldom) as node:
        with Client(node, "meter") as meter:
            meter.publish("meters/1", "x", 1)
        assert collector.latest(RECEIVED, qos="1") is None
    received = collector.latest(RECEIVED, qos="1")
    assert received is not None
    assert received.value == 1


def test_while_the_collector_is_away_an_alarm_says_so_and_no_count_is_lost(
    tmp_path: Path, collector: Collector
) -> None:
    secret = 'telemetry.headers.authorization = "${secret:collector}"\n'
    with running(tmp_path / "node", config=config(collector, secret)) as node:
        assert "collector" in eventually(lambda: alarms(node))[0]["message"]  # no such secret
        node.call("POST", "/secrets", {"name": "collector", "value": "Bearer planted"})
        latest(collector, RECEIVED, qos="1")
        eventually(lambda: not alarms(node))
        assert collector.headers[-1]["authorization"] == "Bearer planted"
        collector.stop()
        with Client(node, "meter") as meter:
            meter.publish("meters/1", "x", 1)
        alarm = eventually(lambda: alarms(node))[0]
        assert "takes no metrics" in alarm["message"]
        assert alarm["severity"] == "warning"
        assert shown(node)["sluice_telemetry_metrics_failed_total"] > 0
        collector.start()
        latest(collector, RECEIVED, 1, qos="1")
        eventually(lambda: not alarms(node))
        assert shown(node)["sluice_telemetry_metrics_exported_total"] > 0
        assert "planted" not in node.log.read_text()


def test_metrics_can_be_switched_while_the_broker_runs(tmp_path: Path) -> None:
    with collecting("http") as collector, running(tmp_path / "node", config=_BASE) as node:
        metrics = {"enable": True, "interval": "1s", "endpoint": f"{collector.endpoint}/bad"}
        node.call("PUT", "/config/telemetry.metrics", {"value": metrics})
        eventually(lambda: alarms(node))
        endpoint = collector.endpoint.replace("traces", "metrics")
        node.call("PUT", "/config/telemetry.metrics.endpoint", {"value": endpoint})
        latest(collector, RECEIVED, qos="1")
        assert not alarms(node)
        node.call("PUT", "/config/telemetry.metrics.enable", {"value": False})
        count = len(collector.metrics)
        node.call("PUT", "/config/telemetry.metrics.interval", {"value": "0s"}, expect=422)
        assert len(collector.metrics) == count


def test_an_address_that_is_denied_is_not_called(tmp_path: Path) -> None:
    with collecting("http") as collector:
        settings = config(collector, "rule_engine.ssrf.enable = true\n")
        with running(tmp_path / "node", config=settings) as node:
            alarm = eventually(lambda: alarms(node))[0]
            assert "must not be called" in alarm["message"]
            assert not collector.metrics


@pytest.mark.parametrize(
    ("setting", "thread"),
    [("telemetry.metrics.enable", "telemetry metrics"), ("telemetry.enable", "telemetry exporter")],
)
def test_a_change_does_not_wait_for_a_collector_that_hangs(
    tmp_path: Path, setting: str, thread: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        settings = (
            f'telemetry {{ endpoint = "http://127.0.0.1:{hangs.getsockname()[1]}/v1/traces"\n'
            "timeout = 2s, interval = 100ms, trace_all = true, metrics.interval = 1s }\n"
        )
        with running(tmp_path / "node", config=_BASE + settings) as node:
            node.call("PUT", f"/config/{setting}", {"value": True})
            with Client(node, "meter") as meter:
                meter.publish("meters/1", "x", 1)
            asked, _ = hangs.accept()
            with asked:
                node.call("PUT", f"/config/{setting}", {"value": False})
                assert thread in {each.name for each in threading.enumerate()}
