"""Rules with jq programs that never end, take all memory or crash: each costs its own message, and nobody else."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import psutil
import pyarrow as pa
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.node import Node, eventually, running

PIECEWISE = """
if .n < 0 then last(range(infinite))
elif .n > 1000000 then reduce range(20) as $i (. | tojson; . + . + .)
else {n} end"""
"""Ends for most messages: no analysis can tell which."""


class Publisher:
    """A client whose publishes of QoS 1 are awaited."""

    def __init__(self, node: Node, client_id: str) -> None:
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id=client_id)
        self._client.connect(*node.mqtt)
        self._client.loop_start()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.loop_stop()
        self._client.disconnect()

    def publish(self, topic: str, payload: str, qos: int = 1) -> None:
        self._client.publish(topic, payload, qos).wait_for_publish(60)

    def publish_all(self, topic: str, payloads: list[str]) -> None:
        for info in [self._client.publish(topic, payload, 1) for payload in payloads]:
            info.wait_for_publish(60)


def define(node: Node, sql: str, name: str = "odd") -> None:
    node.call("POST", "/streams", {"name": f"{name}-rows"})
    node.call(
        "POST",
        "/rules",
        {"name": name, "sql": sql, "actions": [{"type": "stream", "stream": f"{name}-rows"}]},
    )


def values(node: Node, name: str = "odd") -> list[int]:
    end = int(node.call("GET", f"/streams/{name}-rows/positions")["shards"][0]["next_offset"])
    if not end:
        return []
    with node.client(follow_redirects=True) as client:
        answer = client.get(f"/streams/{name}-rows/records", params={"from": 0, "to": end})
    assert answer.status_code == 200, answer.text
    return [
        json.loads(row)["n"]
        for row in pa.ipc.open_stream(answer.content).read_all()["payload"].to_pylist()
    ]


def metrics(node: Node, name: str = "odd") -> dict[str, Any]:
    found: dict[str, Any] = node.call("GET", f"/rules/{name}")["metrics"]
    return found


def sql(program: str, timeout_ms: int = 3_000) -> str:
    return f"SELECT jq('{program}', payload, {timeout_ms})[1].n AS n FROM \"odd/#\""


@pytest.fixture
def node(tmp_path: Path) -> Any:
    with running(tmp_path / "node") as started:
        yield started


def test_endless_and_memory_eating_programs_cost_their_own_message(node: Node) -> None:
    define(node, sql(PIECEWISE))
    define(node, 'SELECT payload.n AS n FROM "odd/#"', "even")
    with Publisher(node, "p") as publisher:
        numbers = [-1, *range(50), 2_000_000, *range(50, 100)]
        publisher.publish_all("odd/a", [f'{{"n":{number}}}' for number in numbers])
        assert values(node, "even") == numbers, "the other rule waits for nothing"
        eventually(
            lambda: metrics(node)["passed"] == 100, what="100 good messages behind two bad ones"
        )
    assert values(node) == list(range(100))
    counted = metrics(node)
    assert counted["matched"] == 102
    assert counted["failed.exception"] == 2
    assert "more memory" in node.call("GET", "/rules/odd")["last_error"]["text"]


def test_the_text_of_an_endless_program_says_so(node: Node) -> None:
    define(node, sql("last(range(infinite))", 500))
    with Publisher(node, "p") as publisher:
        publisher.publish("odd/a", "1")
        found = eventually(lambda: node.call("GET", "/rules/odd")["last_error"])
    assert found["text"].endswith("jq: the program ran longer than 0.5 s and was ended")


def test_a_crash_inside_jq_costs_its_own_message(node: Node) -> None:
    """A worker that dies takes its message with it; ``kill -9`` stands for whatever makes the library die."""
    define(
        node,
        sql("(if .n == 7 then last(range(infinite)) else . end) | {n}", 30_000),
    )
    with Publisher(node, "p") as publisher:
        publisher.publish_all("odd/a", [f'{{"n":{number}}}' for number in range(10)])
        worker = busy_worker(node)
        worker.kill()
        eventually(lambda: metrics(node)["passed"] == 9)
    assert values(node) == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    assert metrics(node)["failed.exception"] == 1


def busy_worker(node: Node) -> psutil.Process:
    """The one on the endless program: it works for longer than it takes to start."""
    seen: dict[int, float] = {}

    def look() -> psutil.Process | None:
        for process in workers(node):
            with suppress(psutil.NoSuchProcess):
                worked_s = process.cpu_times().user
                if worked_s - seen.setdefault(process.pid, worked_s) > 1.5:
                    return process
        return None

    found = eventually(look, what="a worker on the endless program")
    assert found is not None
    return found


def workers(node: Node) -> list[psutil.Process]:
    return [
        process for process in node.children() if "rules.jq.worker" in " ".join(process.cmdline())
    ]


def test_others_are_served_while_a_program_runs(node: Node) -> None:
    """A round trip of another client ends while the endless program still has its worker."""
    define(node, sql("last(range(infinite))", 60_000))
    arrived = threading.Event()
    subscriber = paho.Client(CallbackAPIVersion.VERSION2, client_id="s")
    subscriber.on_message = lambda *_: arrived.set()
    subscriber.connect(*node.mqtt)
    subscribed = threading.Event()
    subscriber.on_subscribe = lambda *_: subscribed.set()
    subscriber.subscribe("other/#", 1)
    subscriber.loop_start()
    with Publisher(node, "p") as publisher:
        assert subscribed.wait(60)
        publisher.publish("odd/a", "1")
        worker = busy_worker(node)
        for _ in range(20):
            arrived.clear()
            publisher.publish("other/b", "x")
            assert arrived.wait(30)
        assert worker.is_running()
        assert metrics(node)["failed.exception"] == 0
    subscriber.loop_stop()


def test_kill_nine_with_a_backlog_gives_each_row_once(node: Node) -> None:
    define(node, sql(PIECEWISE))
    expected = []
    for start in range(0, 900, 300):
        numbers = [*range(start, start + 150), -1, *range(start + 150, start + 300)]
        with Publisher(node, "p") as publisher:
            publisher.publish_all("odd/a", [f'{{"n":{number}}}' for number in numbers])
        expected += [number for number in numbers if number >= 0]
        _kill(node)
        node.start()
    eventually(lambda: len(values(node)) >= 900, 120, what="all rows of the backlog")
    assert values(node) == expected


def _kill(node: Node) -> None:
    family = node.children()
    node.kill()
    eventually(lambda: not any(map(_lives, family)), what="workers gone with the broker")


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_disabled_rule_keeps_its_backlog_and_a_deleted_one_loses_it(node: Node) -> None:
    define(node, sql(PIECEWISE))
    with Publisher(node, "p") as publisher:
        publisher.publish_all("odd/a", ['{"n":-1}', '{"n":-1}', '{"n":-1}', '{"n":1}', '{"n":2}'])
        spec = node.call("GET", "/rules/odd")
        node.call("PUT", "/rules/odd", {**spec, "enable": False})
        assert values(node) == []
        node.call("PUT", "/rules/odd", {**spec, "enable": True})
        eventually(lambda: values(node) == [1, 2])
        node.call("PUT", "/rules/odd", {**spec, "sql": sql(PIECEWISE, 60_000)})
        publisher.publish_all("odd/a", ['{"n":-1}', '{"n":3}'])
    node.call("DELETE", "/rules/odd")
    with node.client() as client:
        text = client.get(f"{node.url}/metrics").text
    [line] = [
        line
        for line in text.splitlines()
        if "rule_deferred_dropped" in line and not line.startswith("#")
    ]
    assert 'reason="rule_deleted"' in line
    assert float(line.split()[-1]) >= 1


def test_stopping_takes_no_longer_for_a_program_that_runs(node: Node) -> None:
    define(node, sql("last(range(infinite))", 60_000))
    with Publisher(node, "p") as publisher:
        publisher.publish("odd/a", "1")
        busy_worker(node)
    family = node.children()
    assert node.stop(30) == 0
    eventually(lambda: not any(map(_lives, family)))


def test_trying_an_endless_program_answers_in_time(node: Node) -> None:
    answer = node.call(
        "POST",
        "/rules:test",
        {"sql": sql("last(range(infinite))", 60_000), "event": {"topic": "odd/a", "payload": "1"}},
        422,
    )
    # the program's deadline, or that of the request where the processor is busy
    assert "ran longer than" in answer["errors"][0]["message"]


def test_a_rule_in_jq_makes_rows_of_columns_and_payload(node: Node) -> None:
    node.call("POST", "/streams", {"name": "odd-rows"})
    rule = {
        "name": "odd",
        "language": "jq",
        "jq": ".qos as $q | .payload.values[] | {n: (. + $q)}",
        "from": ["odd/#"],
    }
    node.call("POST", "/rules", {**rule, "actions": [{"type": "stream", "stream": "odd-rows"}]})
    with Publisher(node, "p") as publisher:
        publisher.publish("odd/a", '{"values":[1,2,3]}')
    eventually(lambda: values(node) == [2, 3, 4])
    _kill(node)
    node.start()
    shown = node.call("GET", "/rules/odd")
    assert (shown["language"], shown["jq"], shown["from"]) == ("jq", rule["jq"], ["odd/#"])
    with Publisher(node, "p") as publisher:
        publisher.publish("odd/a", '{"values":[5]}')
    eventually(lambda: values(node) == [2, 3, 4, 6])
