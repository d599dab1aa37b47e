"""Replays of streams: to topics, streams and actions, through the real broker, across kills and restarts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.clients import Client
from tests.end_to_end.test_bridge_buffers import arrived, publish
from tests.support.kafka_server import Kafka
from tests.support.kafka_topic import Topic
from tests.support.local_node import Node, command, running
from tests.support.node import TOKEN, Reachable, eventually
from tests.support.node import Node as NodeProcess
from tests.support.node import running as running_process

ASYNC = {"Prefer": "respond-async"}
MESSAGES = 3_000
SLOW = 600
"""A rate at which the replay of all messages takes some seconds."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker with a stream of messages in two shards."""
    with running(
        tmp_path_factory.mktemp("replays") / "data", config="overload.enable = false"
    ) as node:
        _fill(node)
        yield node


def _fill(node: Reachable) -> None:
    node.call("POST", "/streams", {"name": "kept", "topics": ["n/#"], "shards": 2})
    publish(node, range(MESSAGES))
    eventually(lambda: node.call("GET", "/streams/kept")["records"] == MESSAGES)


def start(node: Reachable, **body: Any) -> str:
    """Start a replay of the stream; the identifier of the job."""
    with node.client() as client:
        answer = client.post("/streams/kept:replay", json=body, headers=ASYNC)
        assert answer.status_code == 202, answer.text
        id: str = answer.json()["id"]
        assert answer.headers["location"] == f"/api/v1/jobs/{id}"
        return id


def job(node: Reachable, id: str) -> dict[str, Any]:
    found: dict[str, Any] = node.call("GET", f"/jobs/{id}")
    return found


def over(node: Reachable, id: str) -> dict[str, Any]:
    eventually(lambda: job(node, id)["state"] not in ("running", "paused"))
    return job(node, id)


def records(node: Reachable, stream: str, query: str) -> dict[str, Any]:
    """A page of records."""
    found: dict[str, Any] = node.call("GET", f"/streams/{stream}/records?{query}")
    return found


def numbers(node: Reachable, stream: str) -> list[int]:
    """What the messages of a stream of one shard have as ``n``, in the order of their offsets."""
    found: list[int] = []
    page: dict[str, Any] = {"next": "0"}
    while page["next"] is not None:
        page = records(node, stream, f"limit=1000&cursor={page['next']}")
        found += [row["payload"]["data"]["n"] for row in page["items"]]
    return found


def marks_of(message: Any) -> dict[str, str]:
    """The user properties of a message."""
    return dict(message.properties.UserProperty)


def shard_of(node: Reachable) -> int:
    """The shard that has the messages."""
    found: int = next(
        one["shard"]
        for one in node.call("GET", "/streams/kept")["positions"]
        if one["next_offset"] != "0"
    )
    return found


def underway(node: Reachable, id: str, done: int = 300) -> dict[str, Any]:
    eventually(lambda: job(node, id)["progress"]["done"] >= done, every_s=0.01)
    return job(node, id)


def test_the_plan_says_what_would_be_sent_and_sends_nothing(node: Node) -> None:
    with Client(node) as client:
        client.subscribe("again/#")
        plan = node.call(
            "POST", "/streams/kept:plan-replay",
            {"to": "mqtt", "topic": "again/${topic}", "filter": "n/1", "until": 100, "rate": 10},
        )  # fmt: skip
        assert (plan["records"], plan["matched"], plan["is_estimate"]) == (100, 33, False)
        assert plan["bytes"] == sum(len(json.dumps({"n": n})) for n in range(100) if n % 3 == 1)
        assert plan["seconds"] == 3.3
        assert [one["topic"] for one in plan["samples"]] == ["again/n/1"] * 5
        assert plan["notes"] == [
            "The messages go through all stages of their topics: to 1 subscription."
        ]
        assert plan["oldest"] <= plan["samples"][0]["at"] <= plan["newest"]
        client.publish("again/last", b"")
        assert client.take().topic == "again/last"


def test_topics_get_the_messages_with_marks_in_order(node: Node) -> None:
    with Client(node) as client:
        client.subscribe("n/#", 1)
        id = start(node, to="mqtt", until=500, rate=None)
        found = [client.take() for _ in range(500)]
        report = over(node, id)["result"]
    assert [json.loads(message.payload)["n"] for message in found] == list(range(500))
    shard = shard_of(node)
    marks = [marks_of(message) for message in found]
    assert [mark["sluice-replay-record"] for mark in marks] == [
        f"kept/{shard}/{offset}" for offset in range(500)
    ]
    assert {mark["sluice-replay"] for mark in marks} == {id}
    first = records(node, "kept", f"shard={shard}&limit=1")["items"][0]
    assert marks[0]["sluice-replay-time"] == first["at"]
    assert (report["records"], report["sent"], report["problems"]) == (500, 500, [])
    # it does not capture what came out of it
    assert node.call("GET", "/streams/kept")["records"] == MESSAGES


def test_the_rate_is_kept(node: Node) -> None:
    id = start(node, to="mqtt", topic="again/${topic}", until=900, rate=SLOW)
    shown = over(node, id)
    assert shown["result"]["sent"] == 900
    assert SLOW * 0.5 < shown["rate"] < SLOW * 1.1


def test_replays_survive_a_kill_and_lose_nothing(tmp_path: Path) -> None:
    """One kill for all targets: a start of the broker takes longer than the rest."""
    with running_process(tmp_path / "data", config="overload.enable = false") as node:
        _fill(node)
        _survive_a_kill(node, tmp_path)


def _survive_a_kill(node: NodeProcess, tmp_path: Path) -> None:
    for name in ("copy", "paused", "part"):
        node.call("POST", "/streams", {"name": name, "topics": ["never/#"]})
    with Client(node, "durable", expiry_s=3600) as session:
        session.subscribe("durable/#", 1)
    client = Client(node)
    client.subscribe("again/#", 1)
    with Kafka(tmp_path / "kafka") as kafka:
        topic = asyncio.run(Topic(kafka).make())
        node.call(
            "POST",
            "/connectors",
            {"name": "plant", "type": "kafka", "bootstrap_hosts": kafka.bootstrap},
        )
        action = {
            "name": "plant",
            "type": "kafka",
            "connector": "plant",
            "parameters": {"topic": topic.name},
        }
        node.call("POST", "/actions", action)
        paused, part = (
            start(node, to="stream:paused", rate=SLOW),
            start(node, to="stream:part", rate=SLOW),
        )
        underway(node, paused)
        assert node.call("POST", f"/jobs/{paused}:pause")["state"] == "paused"
        node.call("POST", f"/jobs/{part}:cancel")
        cancelled = over(node, part)
        running = {
            "copy": start(node, to="stream:copy", rate=SLOW),
            "topics": start(node, to="mqtt", topic="again/${topic}", rate=SLOW),
            "session": start(node, to="mqtt", topic="durable/${topic}", until=900, rate=SLOW // 3),
            "kafka": start(node, to="kafka:plant", rate=SLOW),
        }
        for id in running.values():
            underway(node, id)
        held = job(node, paused)
        node.kill()
        client.close()
        node.start()
        assert job(node, part) == cancelled
        assert job(node, paused) == {**held, "result": {**held["result"], "resumed": 1}}
        shown = {name: over(node, id) for name, id in running.items()}
        rows = [json.loads(record.value or b"") for record in asyncio.run(topic.records())]
        node.call("DELETE", "/actions/plant")
    for one in shown.values():
        assert (one["state"], one["progress"]["done"]) == ("done", one["progress"]["total"])
        assert (one["result"]["sent"], one["result"]["resumed"]) == (one["progress"]["total"], 1)
    assert cancelled["state"] == "cancelled"
    assert cancelled["result"]["sent"] == node.call("GET", "/streams/part")["records"] < MESSAGES

    assert numbers(node, "copy") == list(range(MESSAGES))  # each once
    shard = shard_of(node)
    before = records(node, "kept", f"shard={shard}&limit=1000")["items"]
    after = records(node, "copy", "limit=1000")["items"]
    assert [
        {**row, "shard": 0} for row in before
    ] == after  # time, topic, payload, client, properties

    with Client(node, "durable", is_clean=False) as session:
        got = [json.loads(session.take().payload)["n"] for _ in range(900)]
        session.subscribe("last")
        session.publish("last", b"")
        assert session.take().topic == "last"
    assert got == list(range(900))  # each once

    marks = [marks_of(client.take()) for _ in range(client.messages.qsize())]
    assert {mark["sluice-replay"] for mark in marks} == {running["topics"]}
    assert len({mark["sluice-replay-record"] for mark in marks}) == len(marks) >= 300

    places = [(row["replay"]["shard"], row["replay"]["offset"]) for row in rows]
    assert {row["replay"]["id"] for row in rows} == {running["kafka"]}
    # some may be there twice, with these marks
    assert set(places) == {(shard, offset) for offset in range(MESSAGES)}
    assert {json.loads(row["payload"])["n"] for row in rows} == set(range(MESSAGES))

    node.call("POST", f"/jobs/{paused}:resume")
    assert over(node, paused)["state"] == "done"
    assert numbers(node, "paused") == list(range(MESSAGES))
    for verb in ("pause", "resume"):
        assert node.call("POST", f"/jobs/{paused}:{verb}", expect=409)["code"] == "conflict"


def test_a_rule_makes_the_rows_and_its_failures_are_counted(node: Node) -> None:
    node.call("POST", "/streams", {"name": "rows"})
    node.call(
        "POST",
        "/rules",
        {
            "name": "even",
            "sql": 'SELECT payload.n AS n FROM "n/#" WHERE payload.n mod 2 = 0',
            "actions": [],
        },
    )
    plan = node.call("POST", "/streams/kept:plan-replay", {"to": "stream:rows", "rule": "even"})
    assert [one["row"] for one in plan["samples"][:3]] == [{"n": 0}, None, {"n": 2}]
    report = over(node, start(node, to="stream:rows", rule="even", rate=None))["result"]
    assert (report["sent"], report["skipped"], report["errors"]) == (
        MESSAGES // 2,
        MESSAGES // 2,
        0,
    )
    assert numbers(node, "rows") == list(range(0, MESSAGES, 2))
    node.call(
        "POST",
        "/rules",
        {"name": "wrong", "sql": 'SELECT 1 / (payload.n - 7) AS q FROM "n/#"', "actions": []},
    )
    report = over(node, start(node, to="mqtt", topic="q/${q}", rule="wrong", until=10))["result"]
    assert (report["sent"], report["errors"]) == (9, 1)
    assert [one["offset"] for one in report["problems"]] == ["7"]


def test_messages_that_a_stage_stops_are_counted_with_the_reason(node: Node) -> None:
    node.call(
        "POST",
        "/schemas",
        {"name": "small", "type": "json", "source": '{"properties": {"n": {"maximum": 4}}}'},
    )
    checks = [{"type": "json", "schema": "small"}]
    gate = {
        "name": "gate",
        "topics": ["gated/#"],
        "strategy": "all_pass",
        "failure_action": "drop",
        "checks": checks,
    }
    node.call("POST", "/validations", gate)
    report = over(node, start(node, to="mqtt", topic="gated/${topic}", until=10))["result"]
    assert (report["sent"], report["refused"], len(report["problems"])) == (5, 5, 5)
    assert "validation 'gate'" in report["problems"][0]["reason"]


@pytest.mark.parametrize(
    ("body", "pointer", "says"),
    [
        ({"to": "stream:none"}, "/to", "there is no stream 'none'"),
        ({"to": "stream:kept"}, "/to", "cannot be replayed into itself"),
        ({"to": "stream:of-rows"}, "/to", "holds rows, the replay sends messages"),
        ({"to": "kafka:none"}, "/to", "there is no action 'kafka:none'"),
        ({"to": "kafka"}, "/to", "expected 'mqtt', 'stream:NAME'"),
        ({"to": "stream:of-rows", "topic": "a"}, "/topic", "only a replay to 'mqtt'"),
        ({"to": "mqtt", "rate": 0}, "/rate", "1"),
        ({"to": "mqtt", "filter": "a/#/b"}, "/filter", "#"),
        ({"to": "mqtt", "from": 10_000_000}, "/from", "no record there"),
        ({"to": "mqtt", "rule": "of-events"}, "/rule", "no messages"),
    ],
)
def test_what_cannot_be_replayed_is_refused_with_its_place(
    node: Node, body: dict[str, Any], pointer: str, says: str
) -> None:
    if "of-rows" not in [one["name"] for one in node.call("GET", "/streams")["items"]]:
        node.call("POST", "/streams", {"name": "of-rows"})
        sql = 'SELECT clientid FROM "$events/client/connected"'
        node.call("POST", "/rules", {"name": "of-events", "sql": sql, "actions": []})
    problems = node.call("POST", "/streams/kept:replay", body, expect=422)["errors"]
    assert problems[0]["pointer"] == pointer
    assert says in problems[0]["message"]


def test_rows_to_an_action_wait_for_its_target_and_none_is_lost(node: Node) -> None:
    folder = node.data_dir.parent / "rows"
    node.call(
        "POST",
        "/connectors",
        {"name": "disk", "type": "file", "filepath": str(folder / "rows.log")},
    )
    parameters = {"template": '{"n": ${payload.n}, "offset": ${replay.offset}}'}
    node.call(
        "POST",
        "/actions",
        {"name": "rows", "type": "file", "connector": "disk", "parameters": parameters},
    )
    id = start(node, to="file:rows", rate=None)
    eventually(lambda: (job(node, id)["error"] or "").startswith("It waits: "))
    assert job(node, id)["state"] == "running"
    folder.mkdir()
    shown = over(node, id)
    assert (shown["state"], shown["error"], shown["result"]["sent"]) == ("done", None, MESSAGES)
    # the buffer is on disk: rows in it are safe
    eventually(lambda: len(arrived(folder)) >= MESSAGES)
    assert sorted(arrived(folder)) == list(range(MESSAGES))


def test_the_command_shows_the_plan_then_the_result(node: Node) -> None:
    def sluice(*arguments: str, expect: int = 0) -> str:
        done = command(*arguments, SLUICE_URL=node.url, SLUICE_API_TOKEN=TOKEN)
        assert done.returncode == expect, done.stdout + done.stderr
        return done.stdout + done.stderr

    asked = (
        "streams",
        "replay",
        "kept",
        "--to",
        "mqtt",
        "--topic",
        "again/${topic}",
        "--until",
        "20",
    )
    assert "would replay" in sluice(*asked, "--dry-run")
    assert "replayed 20 records to mqtt: 20 sent" in sluice(*asked, "--rate", "60000/m")
    assert json.loads(sluice(*asked, "--json"))["sent"] == 20
    id = sluice(*asked, "--rate", "1/s", "--detach").strip()
    assert f"job {id} is paused" in sluice("jobs", "pause", id)
    assert f"job {id} continues" in sluice("jobs", "resume", id)
    sluice("jobs", "cancel", id)
    assert "expected records per time" in sluice(*asked, "--rate", "fast", expect=2)
