"""Streams to files and back, by the commands and the API, also while the broker is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pytest

from tests.end_to_end.clients import Client
from tests.end_to_end.test_bridge_buffers import publish
from tests.support.local_node import Node, command, running
from tests.support.node import TOKEN, Reachable, eventually
from tests.support.node import Node as NodeProcess
from tests.support.node import running as running_process

MESSAGES = 500
NDJSON = "application/x-ndjson"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker with a stream of messages in two shards."""
    with running(
        tmp_path_factory.mktemp("files") / "data", config="overload.enable = false"
    ) as node:
        node.call("POST", "/streams", {"name": "kept", "topics": ["n/#"], "shards": 2})
        publish(node, range(MESSAGES))
        with Client(node, "other") as client:
            client.publish(
                "n/bytes",
                b"\xff\x00",
                2,
                UserProperty=[("a", "1"), ("a", "2")],
                CorrelationData=b"\xfe",
            )
        eventually(lambda: node.call("GET", "/streams/kept")["records"] == MESSAGES + 1)
        yield node


def sluice(node: Reachable, *arguments: str, expect: int = 0) -> str:
    done = command("streams", *arguments, SLUICE_URL=node.url, SLUICE_API_TOKEN=TOKEN)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr


def records(node: Reachable, stream: str) -> list[dict[str, Any]]:
    """All records, without their places, in the order of their times."""
    found: list[dict[str, Any]] = []
    for shard in node.call("GET", f"/streams/{stream}")["positions"]:
        path = f"/streams/{stream}/records?raw=true&limit=1000&shard={shard['shard']}"
        found += node.call("GET", path)["items"]
    places = {"shard", "offset"}
    return sorted(
        ({name: value for name, value in row.items() if name not in places} for row in found),
        key=lambda row: (row["at"], row["payload"]["data"]),
    )


def post(node: Reachable, path: str, data: bytes, media_type: str = NDJSON) -> httpx.Response:
    with node.client() as client:
        return client.post(path, content=data, headers={"Content-Type": media_type})


@pytest.mark.parametrize("form", ["ndjson", "parquet"])
def test_what_is_exported_and_imported_is_the_same(node: Node, tmp_path: Path, form: str) -> None:
    file = tmp_path / f"kept.{form}"
    assert f"wrote {MESSAGES + 1} records" in sluice(node, "export", "kept", str(file))
    assert [one.name for one in tmp_path.iterdir()] == [file.name]
    node.call("POST", "/streams", {"name": form, "topics": ["never/#"], "shards": 3})
    assert f"appended {MESSAGES + 1} records" in sluice(node, "import", form, str(file))
    assert records(node, form) == records(node, "kept")
    read = "read_json_auto" if form == "ndjson" else "read_parquet"
    count = (
        duckdb.connect()
        .execute(f"SELECT count(*), count(DISTINCT (shard, \"offset\")) FROM {read}('{file}')")
        .fetchone()
    )
    assert count == (MESSAGES + 1, MESSAGES + 1)


def test_a_part_of_a_stream_is_exported(node: Node, tmp_path: Path) -> None:
    file = tmp_path / "part"
    report = json.loads(
        sluice(node, "export", "kept", str(file), "--from", "10", "--filter", "n/1", "--json")
    )
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert report["records"] == len(lines) > 100
    assert {line["topic"] for line in lines} == {"n/1"}
    assert min(line["offset"] for line in lines) >= 10


@pytest.mark.parametrize(
    ("form", "read"), [("ndjson", "read_json_auto"), ("parquet", "read_parquet")]
)
def test_the_api_gives_a_range_as_a_file(node: Node, tmp_path: Path, form: str, read: str) -> None:
    held = max(
        node.call("GET", "/streams/kept")["positions"], key=lambda one: int(one["next_offset"])
    )
    path = (
        f"/streams/kept/records?shard={held['shard']}&from=0&to={held['next_offset']}&format={form}"
    )
    with node.client(follow_redirects=True) as client:
        answer = client.get(path)
    file = tmp_path / "range"
    file.write_bytes(answer.content)
    assert duckdb.connect().execute(f"SELECT count(*) FROM {read}('{file}')").fetchone() == (
        int(held["next_offset"]),
    )


def test_an_import_continues_after_a_kill_and_appends_each_record_once(tmp_path: Path) -> None:
    with running_process(tmp_path / "data", config="overload.enable = false") as node:
        _import_continues_after_a_kill(node, tmp_path)


def _import_continues_after_a_kill(node: NodeProcess, tmp_path: Path) -> None:
    file, total = tmp_path / "many.ndjson", 40_000
    with file.open("w") as lines:
        for number in range(total):
            lines.write(f'{{"topic": "a/{number % 7}", "payload": "{number}", "client_id": "c"}}\n')
    node.call("POST", "/streams", {"name": "many", "topics": ["never/#"]})
    folder = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-m", "broker.cli.main", "streams", "import", "many", str(file)],
        env={**os.environ, "SLUICE_URL": node.url, "SLUICE_API_TOKEN": TOKEN},
        text=True,
        stdout=subprocess.PIPE,
        cwd=folder,
    ) as importing:
        eventually(lambda: node.call("GET", "/streams/many")["records"] > 0, every_s=0.01)
        node.kill()
        node.start()
        said, _ = importing.communicate(timeout=120)
    assert said == f"appended {total:,} records to stream many\n"
    copy = tmp_path / "copy.ndjson"
    sluice(node, "export", "many", str(copy))
    assert [json.loads(line)["payload"] for line in copy.read_text().splitlines()] == [
        str(n) for n in range(total)
    ]


def test_a_part_that_is_sent_again_is_there_once(node: Node) -> None:
    node.call("POST", "/streams", {"name": "parts", "topics": ["never/#"]})
    line = b'{"topic": "a", "payload": "b"}\n'
    path = "/streams/parts:import?import=one&part="
    assert post(node, path + "0", line * 3).json() == {
        "records": 3,
        "is_repeated": False,
        "notes": [],
    }
    assert post(node, path + "0", line * 3).json() == {
        "records": 0,
        "is_repeated": True,
        "notes": [],
    }
    late = post(node, path + "2", line)
    assert (late.status_code, late.json()["detail"]) == (
        409,
        "import 'one': expected part 1, got 2",
    )
    assert post(node, path + "1", line).json()["records"] == 1
    assert node.call("GET", "/streams/parts")["records"] == 4


def test_what_cannot_be_imported_is_refused_whole(node: Node, tmp_path: Path) -> None:
    node.call("POST", "/streams", {"name": "of-rows"})
    rows = b'{"topic": "a", "payload": "{}"}\n{"topic": "a", "payload": "no"}\n'
    refused = post(node, "/streams/of-rows:import", rows)
    assert refused.status_code == 422
    assert "record 2: the stream holds rows" in refused.text
    assert node.call("GET", "/streams/of-rows")["records"] == 0
    assert "application/x-ndjson" in post(node, "/streams/of-rows:import", b"", "text/csv").text
    assert post(node, "/streams/none:import", b"").status_code == 404
    file = tmp_path / "wrong.ndjson"
    file.write_bytes(b'{"topic": "a", "payload": "{}"}\n{"topic": 1}\n')
    assert "line 2: topic: expected a string" in sluice(
        node, "import", "of-rows", str(file), expect=1
    )
    assert (
        "no such file"
        in sluice(node, "import", "of-rows", str(tmp_path / "none"), expect=1).lower()
    )
    assert "expected ndjson or parquet" in sluice(
        node, "export", "kept", "x", "--format", "csv", expect=2
    )


def test_records_that_retention_removes_soon_are_said_so(node: Node) -> None:
    node.call(
        "POST", "/streams", {"name": "young", "topics": ["never/#"], "retention": {"age": "1h"}}
    )
    old = b'{"topic": "a", "payload": "b", "ts": "2020-01-01T00:00:00Z"}'
    notes = post(node, "/streams/young:import", old).json()["notes"]
    assert notes[0].startswith(
        "Records from 2020-01-01T00:00:00.000Z on are older than stream 'young' keeps them"
    )
