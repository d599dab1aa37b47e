"""What is there after a broker ended, in order or by ``kill -9``, and was started again on the same ports."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import paho.mqtt.client as paho
import pyarrow as pa
import pytest

from tests.end_to_end.clients import DEADLINE_S, Client, MosquittoSub, publish
from tests.support.node import Node, command, eventually, running
from tests.support.processor import ended

STOP_DEADLINE_S = 10.0
KINDS = ("schemas", "validations", "transforms", "rules", "streams", "lake/tables")
OBJECTS: list[tuple[str, dict[str, Any]]] = [
    ("schemas", {"name": "reading", "type": "json", "source": json.dumps({"type": "object"})}),
    ("schemas", {
        "name": "point", "type": "avro",
        "source": json.dumps({"type": "record", "name": "point", "fields": [{"name": "x", "type": "long"}]}),
    }),
    ("validations", {
        "name": "z-first", "topics": ["gate/#"], "strategy": "all_pass", "failure_action": "drop",
        "checks": [{"type": "json", "schema": "reading"}],
    }),
    ("validations", {
        "name": "a-second", "topics": ["points/#"], "strategy": "any_pass", "failure_action": "ignore",
        "checks": [{"type": "avro", "schema": "point"}],
    }),
    ("transforms", {
        "name": "stamp", "topics": ["gate/#"], "failure_action": "drop",
        "payload_decoder": {"type": "json"}, "payload_encoder": {"type": "json"},
        "operations": [{"key": "payload.by", "value": "clientid"}],
    }),
    ("streams", {"name": "rows"}),
    ("streams", {"name": "raw", "topics": ["gate/#"]}),
    ("rules", {
        "name": "both", "sql": 'SELECT payload.n AS n, payload.by AS by FROM "gate/#"',
        "actions": [
            {"type": "stream", "stream": "rows"},
            {"type": "republish", "topic": "again/${by}", "payload": "${n}", "qos": 1, "retain": False},
        ],
    }),
    ("lake/tables", {"name": "rows", "stream": "rows", "format": "delta"}),
]  # fmt: skip
_CHANGING = frozenset(
    {
        "metrics",
        "last_error",
        "recent_failures",
        "failure_shapes",
        "action_details",
        "positions",
        "records",
        "bytes",
        "oldest",
        "newest",
    }
    | {"records_per_s", "state", "reason", "report", "rows", "lag_records", "lag_s", "is_expected"}
)


@dataclass
class Restarted:
    """A node that has been ended and started again, and what was seen of that."""

    node: Node
    how: str
    before: dict[str, Any]
    stdout: str = ""
    exit_status: int = 0
    stop_s: float = 0.0
    start_s: float = 0.0
    farewells: list[Any] = field(default_factory=list)
    next_offset: int = 0


@pytest.fixture(scope="module", params=["SIGTERM", "kill -9"])
def restarted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Restarted]:
    directory = tmp_path_factory.mktemp("restart") / "node"
    with running(directory, config="lake.run_spark = false\n") as node:
        for path, spec in OBJECTS:
            node.call("POST", f"/{path}", spec)
        _leave_something(node)
        watcher, old = Client(node, "watcher"), Client(node, "old", version=paho.MQTTv311)
        seen = Restarted(
            node, request.param, _objects(node), next_offset=_next_offset(node, "rows")
        )
        ports = (node.mqtt, node.api)
        _end(seen)
        seen.farewells = [client.farewell.get(timeout=DEADLINE_S)[0] for client in (watcher, old)]
        began = time.monotonic()
        node.start()
        seen.start_s = time.monotonic() - began
        assert (node.mqtt, node.api) == ports
        yield seen


def _leave_something(node: Node) -> None:
    """A retained message, queued messages of three sessions and one that is half delivered, records of streams."""
    publish(node, "kept/one", "retained", "-q", "1", "-r")
    publish(node, "kept/two", "removed again", "-q", "1", "-r")
    publish(node, "kept/two", "", "-q", "1", "-r")
    for version in ("mqttv311", "mqttv5"):
        MosquittoSub(node, *_session(version)).close()
    with Client(node, "away-paho", expiry_s=3600) as client:
        client.subscribe("gate/#", 2)
    for number in range(3):
        publish(
            node, "gate/1", json.dumps({"n": number}), "-q", "2", "-V", "mqttv5", "-i", "sender"
        )
    eventually(lambda: _next_offset(node, "rows") == 3)


def _session(version: str) -> list[str]:
    options = ["-V", version, "-c", "-i", f"away-{version}", "-q", "2", "-t", "gate/#"]
    return [*options, "-x", "3600"] if version == "mqttv5" else options


def _end(seen: Restarted) -> None:
    process = seen.node.process
    assert process is not None
    assert process.stdout is not None
    if seen.how == "SIGTERM":
        seen.stop_s = ended(process)
    else:
        process.kill()
        process.wait(DEADLINE_S)
        seen.node.kill_cells()
    seen.exit_status = process.wait(DEADLINE_S)
    with process.stdout as rest:
        seen.stdout = rest.read().decode()


def _objects(node: Node) -> dict[str, Any]:
    return {
        kind: [
            {key: value for key, value in item.items() if key not in _CHANGING}
            for item in node.call("GET", f"/{kind}")["items"]
        ]
        for kind in KINDS
    }


def _shards(node: Node, stream: str) -> list[dict[str, Any]]:
    shards: list[dict[str, Any]] = node.call("GET", f"/streams/{stream}/positions")["shards"]
    return shards


def _next_offset(node: Node, stream: str) -> int:
    """Behind the last record, of all shards together."""
    return sum(int(shard["next_offset"]) for shard in _shards(node, stream))


def _rows(node: Node, stream: str) -> list[list[dict[str, Any]]]:
    """The payloads of each shard that has any."""
    found = []
    with node.client(follow_redirects=True) as api:
        for shard in _shards(node, stream):
            parts = {"shard": shard["shard"], "from": 0, "to": shard["next_offset"]}
            answer = api.get(f"/streams/{stream}/records", params=parts)
            texts = pa.ipc.open_stream(answer.content).read_all()["payload"].to_pylist()
            found.append([json.loads(text) for text in texts])
    return [rows for rows in found if rows]


def test_it_prints_one_line_and_ends_as_it_was_told(restarted: Restarted) -> None:
    assert restarted.stdout == ""  # besides the line that says ready, which was read before
    log = restarted.node.log.read_text()
    assert "Traceback" not in log
    if restarted.how == "SIGTERM":
        assert restarted.exit_status == 0
        assert restarted.stop_s < STOP_DEADLINE_S
        assert "node.stopping" in log


def test_clients_of_version_5_are_told_that_the_server_shuts_down(restarted: Restarted) -> None:
    told, old = restarted.farewells
    if restarted.how == "SIGTERM":
        assert told.value == 0x8B
    assert old.is_failure  # 3.1.1 has no word for it: the connection just ends


def test_objects_made_through_the_api_are_there_again_in_their_order(restarted: Restarted) -> None:
    assert _objects(restarted.node) == restarted.before
    assert [item["name"] for item in restarted.before["validations"]] == ["z-first", "a-second"]


def test_retained_messages_are_there_again_and_removed_ones_are_not(restarted: Restarted) -> None:
    with MosquittoSub(restarted.node, "-q", "1", "-t", "kept/#", form="%r %q %t %p") as late:
        publish(restarted.node, "kept/three", "live", "-q", "1")
        assert late.take(2) == ["1 1 kept/one retained", "0 1 kept/three live"]


@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
def test_a_session_gets_what_waited_for_it_once_and_in_order(
    restarted: Restarted, version: str
) -> None:
    with MosquittoSub(restarted.node, *_session(version), form="%q %p") as back:
        assert back.take(3) == [f'2 {{"n":{number},"by":"sender"}}' for number in range(3)]


def test_a_session_says_that_it_was_there_and_keeps_its_subscriptions(restarted: Restarted) -> None:
    with Client(restarted.node, "away-paho", is_clean=False) as back:
        assert back.flags.session_present
        got = [json.loads(back.take().payload)["n"] for _ in range(3)]
        back.publish("gate/self", '{"n": 9}')
        got.append(json.loads(back.take().payload)["n"])
    assert got == [0, 1, 2, 9]


def test_the_pipeline_goes_on_where_it_was(restarted: Restarted) -> None:
    node = restarted.node
    before = _next_offset(node, "rows")
    assert before >= restarted.next_offset
    with Client(node, "sender") as client:
        client.subscribe("again/#", 1)
        client.publish("gate/1", '{"n": 100}')
        message = client.take()
        assert (message.topic, message.payload) == ("again/sender", b"100")
        reason, _ = client.publish("gate/1", "not JSON")
        assert reason.value == 0x99
    assert _next_offset(node, "rows") == before + 1
    (rows,) = (rows for rows in _rows(node, "rows") if rows[0]["by"] == "sender")
    assert [row["n"] for row in rows[:3]] == [0, 1, 2]
    assert rows[-1] == {"n": 100, "by": "sender"}


def test_commands_find_the_node_by_its_directory(restarted: Restarted) -> None:
    done = command("status", "--data-dir", str(restarted.node.data_dir))
    assert (done.returncode, done.stderr) == (0, "")
    assert restarted.node.url.removeprefix("http://") in done.stdout
