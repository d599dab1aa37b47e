"""Captures: messages through every stage with values before and after, bounded, over reconnects and restarts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.client import MQTTv5, MQTTv311

from tests.end_to_end.clients import Client
from tests.end_to_end.test_telemetry import set_up_stages
from tests.support.local_node import Node, running, sluice
from tests.support.node import Reachable, eventually
from tests.support.node import running as running_process
from ui.api.parameters import encode_cursor


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("captures")
    with running(
        folder / "node", config="lake.run_spark = false\noverload.enable = false\n"
    ) as node:
        set_up_stages(node, folder)
        yield node
        assert "Traceback" not in node.log.read_text()


def start(node: Reachable, name: str, **body: Any) -> None:
    node.call("POST", "/captures", {"name": name, **body})


def records(node: Reachable, name: str, count: int) -> list[dict[str, Any]]:
    """The records of a capture, once there are so many."""

    def read() -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = node.call("GET", f"/captures/{name}/records")["items"]
        return items if len(items) >= count else []

    return eventually(read)


def test_a_capture_shows_every_stage_with_values_before_and_after(node: Node) -> None:
    start(node, "stages", filter="meters/#", max_records=2)
    with Client(node, "reader") as reader, Client(node, "meter") as meter:
        reader.subscribe("meters/#", 1)
        meter.publish("other", "not captured")
        meter.publish("meters/1", '{"temp": 21}')
        meter.publish("meters/2", "not an object")
        meter.publish("meters/3", '{"temp": 1}')  # beyond max_records
        passed, refused = records(node, "stages", 2)
        assert reader.take().topic == "meters/1"
    assert passed["message"]["topic"] == "meters/1"
    assert json.loads(passed["message"]["payload"]["data"]) == {"temp": 21}
    steps = {step["stage"]: step for step in passed["steps"]}
    assert json.loads(steps["transformation"]["after"]["payload"]["data"]) == {
        "temp": 21,
        "seen": True,
    }
    assert steps["rules"]["name"] == "warm"
    assert steps["rules"]["rows"] == [{"temp": 21}]
    assert (steps["delivery"]["name"], steps["delivery"]["state"]) == ("reader", "sent")
    assert "after" not in steps["validation"]
    assert "commit" in steps
    assert refused["outcome"] == "refused"
    assert "meters" in refused["error"]
    assert refused["steps"][-1]["stage"] == "validation"
    assert node.call("GET", "/captures/stages")["ended"] == "messages"


def test_a_capture_of_a_client_goes_on_over_reconnects_and_takes_no_other(node: Node) -> None:
    start(node, "client", clientid="wanderer", seconds=3600)
    for number in range(3):
        with Client(node, "wanderer") as wanderer, Client(node, "settled") as settled:
            for qos in (0, 1):
                settled.publish("plain", "x", qos)
                wanderer.publish("plain", str(number), qos)
    found = records(node, "client", 12)
    assert {record["clientid"] for record in found} == {"wanderer"}
    once = ["connected", "passed", "passed", "disconnected"]
    assert [record["outcome"] for record in found] == once * 3
    messages = [record["message"] for record in found if record["message"] is not None]
    assert [message["payload"]["data"] for message in messages] == ["0", "0", "1", "1", "2", "2"]
    assert [record["number"] for record in found] == [0, 1, 2, 2, 2, 3, 4, 4, 4, 5, 6, 6]
    assert found[0]["text"].startswith("Connected from 127.0.0.1")
    assert found[3]["text"] == "The client disconnected"
    shown = node.call("GET", "/captures/client")
    assert shown["records"] == 6
    assert node.call("POST", "/captures/client:stop")["ended"] == "stopped"
    with Client(node, "wanderer") as wanderer:
        wanderer.publish("plain", "late")
    assert len(records(node, "client", 12)) == 12


@pytest.mark.parametrize("version", [MQTTv311, MQTTv5])
def test_a_capture_of_a_client_has_what_it_is_sent(node: Node, version: int) -> None:
    name = f"receiver-{version:d}"
    start(node, name, clientid=name, seconds=3600)

    def connected() -> Client:
        return Client(
            node,
            name,
            version=version,
            is_clean=False,
            expiry_s=600,
            topic_aliases=version == MQTTv5,
        )

    with Client(node, "sender") as sender:
        with connected() as receiver:
            for topic_filter in ("to/#", f"$share/{name}/shared"):
                receiver.subscribe(topic_filter, 1)
            for qos in (0, 1):
                sender.publish("to/1", f"qos {qos}", qos)
            sender.publish("shared", "of a group", 1)
            for _ in range(3):
                receiver.take()
        sender.publish("to/1", "while it was away", 1)
        with connected() as receiver:
            receiver.take()
        sender.publish("to/1", "never sent", 0)
    sent = [record for record in records(node, name, 4) if record["outcome"] == "sent"]
    assert [(r["message"]["topic"], r["message"]["payload"]["data"]) for r in sent] == [
        ("to/1", "qos 0"),
        ("to/1", "qos 1"),
        ("shared", "of a group"),
        ("to/1", "while it was away"),
    ]
    assert [record["message"]["qos"] for record in sent] == [0, 1, 1, 1]
    assert [record["number"] for record in sent] == [1, 2, 3, 4]
    assert {record["clientid"] for record in sent} == {name}
    assert sent[0]["text"] == "Sent: QoS 0"
    assert sent[1]["text"].startswith("Sent: QoS 1, packet ")
    node.call("POST", f"/captures/{name}:stop")
    with Client(node, name, version=version) as receiver, Client(node, "sender") as sender:
        receiver.subscribe("to/#", 0)
        sender.publish("to/1", "after its end", 0)
        receiver.take()
    assert node.call("GET", f"/captures/{name}")["records"] == 4


def test_a_capture_of_a_client_that_is_connected_has_the_topics_of_its_aliases(node: Node) -> None:
    with (
        Client(node, "aliased", topic_aliases=5) as receiver,
        Client(node, "sender") as sender,
    ):
        receiver.subscribe("to/#", 0)
        sender.publish("to/known", "before", 0)
        receiver.take()
        start(node, "aliases", clientid="aliased", filter="to/known", max_records=2)
        for number in range(2):
            sender.publish("to/other", "not of the filter", 0)
            sender.publish("to/known", str(number), 0)
            for _ in range(2):
                receiver.take()
        found = records(node, "aliases", 2)
    shown = [(r["outcome"], r["message"]["topic"], r["message"]["payload"]["data"]) for r in found]
    assert shown == [("sent", "to/known", "0"), ("sent", "to/known", "1")]
    assert node.call("GET", "/captures/aliases")["ended"] == "messages"


def test_commands_start_list_download_and_delete(node: Node) -> None:
    assert (
        sluice(node, "captures", "start", "cli", "--filter", "plain", "--count", "1").returncode
        == 0
    )
    with Client(node, "meter") as meter:
        meter.publish("plain", "1")
    records(node, "cli", 1)
    assert "cli" in sluice(node, "captures", "ls").stdout
    (line,) = sluice(node, "captures", "download", "cli").stdout.splitlines()
    assert json.loads(line)["message"]["topic"] == "plain"
    removed = sluice(node, "captures", "rm", "cli", "--yes")
    assert removed.returncode == 0, removed.stderr
    node.call("GET", "/captures/cli", expect=404)
    assert not list((node.data_dir / "captures").glob("cli.*"))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"name": "../x"}, 422),
        ({"name": ".hidden"}, 422),
        ({"name": "x", "filter": "a/#/b"}, 422),
        ({"name": "x", "seconds": 1e9}, 422),
        ({"name": "x", "max_bytes": 1 << 40}, 422),
        ({"name": "x", "unknown": 1}, 422),
    ],
)
def test_what_cannot_be_captured_is_refused(node: Node, body: dict[str, Any], status: int) -> None:
    node.call("POST", "/captures", body, expect=status)
    node.call("GET", "/captures/..%2Fapi.token/file", expect=404)


def test_bytes_rate_and_time_are_bounds(node: Node) -> None:
    start(node, "small", filter="large", max_bytes=10_000)
    start(node, "slow", filter="large", max_records_per_s=1)
    start(node, "short", filter="large", seconds=1)
    with Client(node, "meter") as meter:
        for _ in range(10):
            meter.publish("large", "x" * 5000)
    assert eventually(lambda: node.call("GET", "/captures/small")["ended"]) == "bytes"
    assert node.call("GET", "/captures/small")["bytes"] <= 10_000
    slow = node.call("GET", "/captures/slow")
    assert slow["records"] + slow["skipped"] == 10
    assert slow["skipped"] > 0
    assert eventually(lambda: node.call("GET", "/captures/short")["ended"]) == "seconds"


def test_captures_are_listed_after_a_restart(tmp_path: Path) -> None:
    with running_process(tmp_path / "node", config="lake.run_spark = false\n") as node:
        start(node, "kept", filter="a")
        with Client(node, "meter") as meter:
            meter.publish("a", "1")
        records(node, "kept", 1)
        node.kill()
        node.start()
        assert node.call("GET", "/captures/kept")["ended"] == "broker stopped"
        assert len(records(node, "kept", 1)) == 1


def test_records_are_read_by_the_page_and_a_made_up_cursor_is_refused(node: Node) -> None:
    start(node, "paged", filter="paged/#")
    with Client(node, "many") as many:
        for number in range(30):
            many.publish(f"paged/{number}", "x")
        records(node, "paged", 30)
    numbers: list[int] = []
    query: str | None = ""
    while query is not None:
        page = node.call("GET", f"/captures/paged/records?limit=7{query}")
        assert len(page["items"]) <= 7
        numbers += [record["number"] for record in page["items"]]
        query = page["next"] and f"&cursor={page['next']}"
    assert numbers == list(range(1, 31))
    for place in (3, -1, 10**30):
        made_up = encode_cursor(place)
        problem = node.call("GET", f"/captures/paged/records?cursor={made_up}", expect=422)
        assert problem["errors"][0]["pointer"] == "/query/cursor"


def test_a_page_of_a_large_capture_is_small(node: Node) -> None:
    start(node, "large", filter="large/#", max_bytes=64 * 1024 * 1024, max_records_per_s=1000)
    with Client(node, "large") as large:
        for number in range(200):
            large.publish(f"large/{number}", "x" * 60_000)
        eventually(
            lambda: (
                (view := node.call("GET", "/captures/large"))["records"] + view["skipped"] == 200
            )
        )
    page = node.call("GET", "/captures/large/records?limit=1000")
    assert 0 < len(page["items"]) < 50
    assert page["total"] > 100
    assert page["next"]
