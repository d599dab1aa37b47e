"""Streams over two cells: each has shards of its own, and the first cell answers for all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from broker.admin.rights import Actor
from pyspark_sluice.client import StreamClient
from tests.cluster.cells import Cells, live, running
from tests.end_to_end.clients import Client
from tests.support.node import TOKEN, eventually
from ui.api.cell_calls import ACTOR_HEADER, header_of_actor

SHARDS = 2


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cells]:
    with running(tmp_path_factory.mktemp("streams") / "data") as cells:
        yield cells


def clients_of(cells: Cells, count: int) -> list[str]:
    """So many identifiers of each cell."""
    names = [f"d-{number}" for number in range(100 + count * 8)]
    return [
        name
        for cell in range(2)
        for name in [name for name in names if cells.place.cell_of(name) == cell][:count]
    ]


def publish(cells: Cells, names: list[str], topic: str, payloads: range) -> Counter[str]:
    """Messages of all these clients, acknowledged; by payload."""
    sent: Counter[str] = Counter()
    for name in names:
        with Client(cells.nodes[cells.place.cell_of(name)], name) as client:
            for number in payloads:
                client.publish(f"{topic}/{name}", f'{{"n": "{name} {number}"}}', 1)
                sent[f"{name} {number}"] += 1
    return sent


def read_all(cells: Cells, stream: str) -> Counter[str]:
    """What a reader with the source's client reads, by payload."""
    client = StreamClient(cells.front.url, TOKEN, stream)
    where = client.positions()
    found: Counter[str] = Counter()
    for shard in where.shards:
        for batch in client.read(where, shard.shard, shard.first, shard.next):
            found.update(payload.as_py().decode() for payload in batch.column("payload"))
    return found


def by_shard(stream: dict[str, Any], member: str = "shards") -> dict[int, int]:
    return {shard["shard"]: int(shard["next_offset"]) for shard in stream[member]}


def test_a_reader_gets_the_records_of_all_cells(cells: Cells) -> None:
    cells.front.call("POST", "/streams", {"name": "all", "topics": ["all/#"], "shards": SHARDS})
    names = clients_of(cells, 6)
    sent = publish(cells, names, "all", range(20))
    where = cells.front.call("GET", "/streams/all/positions")
    assert sorted(by_shard(where)) == [0, 1, 2, 3]
    assert sum(by_shard(where).values()) == len(names) * 20
    assert not any("stale" in shard for shard in where["shards"])
    found = read_all(cells, "all")
    assert found == wrapped(sent)
    shown = cells.front.call("GET", "/streams/all")
    assert by_shard(shown, "positions") == by_shard(where)
    assert shown["records"] == len(names) * 20
    assert shown["shards"] == SHARDS
    listed = cells.front.call("GET", "/streams")["items"]
    assert [each["records"] for each in listed if each["name"] == "all"] == [len(names) * 20]


def test_records_and_files_of_any_shard_are_read_at_the_front(cells: Cells) -> None:
    cells.front.call("POST", "/streams", {"name": "pages", "topics": ["pages/#"]})
    names = clients_of(cells, 3)
    sent = publish(cells, names, "pages", range(5))
    found: Counter[str] = Counter()
    files: Counter[str] = Counter()
    with cells.front.client(follow_redirects=True) as api:
        for shard in range(2):
            page = api.get("/streams/pages/records", params={"shard": shard}).json()
            assert {item["shard"] for item in page["items"]} == {shard}
            assert {cells.place.cell_of(item["clientid"]) for item in page["items"]} == {shard}
            found.update(item["payload"]["data"]["n"] for item in page["items"])
            asked = {"shard": shard, "from": 0, "to": page["next_offset"], "format": "ndjson"}
            answer = api.get("/streams/pages/records", params=asked)
            assert answer.status_code == 200, answer.text
            lines = [json.loads(line) for line in answer.text.splitlines()]
            assert {line["shard"] for line in lines} == {shard}
            files.update(json.loads(line["payload"])["n"] for line in lines)
            few = api.get(
                "/streams/pages/records", params={**asked, "filter": f"pages/{names[3 * shard]}"}
            )
            assert len(few.text.splitlines()) == 5
    assert found == files == sent
    cells.front.call("GET", "/streams/pages/records?shard=2", expect=404)
    at = cells.front.call("GET", "/streams/pages/positions?at=2020-01-01T00:00:00Z")
    assert [shard["at_offset"] for shard in at["shards"]] == ["0", "0"]


def test_a_ticket_is_for_the_shards_of_its_cell(cells: Cells) -> None:
    cells.front.call("POST", "/streams", {"name": "own", "topics": ["own/#"]})
    publish(cells, clients_of(cells, 1), "own", range(1))
    where = cells.front.call("GET", "/streams/own/positions")
    other = where["shards"][1]
    for log, ticket, status in (
        (other["log"], other["ticket"], 200),
        (other["log"], where["ticket"], 401),
        (where["log"], other["ticket"], 401),
        (other["log"] + 70 * 10_000_000, other["ticket"], 401),
    ):
        address = f"{where['ranges_url']}/streams/{log}/1?from=0&to=1"
        answer = httpx.get(
            address, headers={"Authorization": f"Bearer {ticket}"}, trust_env=False, timeout=30
        )
        assert answer.status_code == status, answer.text


def test_a_cell_that_is_away_keeps_its_place(cells: Cells) -> None:
    cells.front.call("POST", "/streams", {"name": "away", "topics": ["away/#"]})
    names = clients_of(cells, 2)
    sent = publish(cells, names, "away", range(5))
    before = cells.front.call("GET", "/streams/away/positions")
    cells.nodes[1].stop()
    try:
        after = cells.front.call("GET", "/streams/away/positions")
        assert by_shard(after) == by_shard(before)
        assert [shard.get("stale", False) for shard in after["shards"]] == [False, True]
        sent += publish(cells, names[:2], "away", range(5, 10))
        # its records are still served, from its store
        assert read_all(cells, "away") == wrapped(sent)
        cells.front.call("GET", "/streams/away/records?shard=1", expect=503)
        cells.front.call("GET", "/streams/away/positions?at=2020-01-01T00:00:00Z", expect=503)
    finally:
        cells.nodes[1].start()
    sent += publish(cells, names[2:], "away", range(5, 10))
    assert read_all(cells, "away") == wrapped(sent)
    positions = cells.front.call("GET", "/streams/away/positions")
    assert not any("stale" in shard for shard in positions["shards"])


def test_a_front_that_has_not_heard_of_a_cell_answers_no_positions(cells: Cells) -> None:
    cells.front.call("POST", "/streams", {"name": "unheard", "topics": ["unheard/#"]})
    sent = publish(cells, clients_of(cells, 1), "unheard", range(5))
    cells.nodes[1].stop()
    cells.front.stop()
    try:
        cells.front.start()
        problem = cells.front.call("GET", "/streams/unheard/positions", expect=503)
        assert problem["detail"] == "cell 1 has not shown yet what it has of stream 'unheard'"
    finally:
        cells.nodes[1].start()
    assert read_all(cells, "unheard") == wrapped(sent)


def test_a_stream_that_was_deleted_and_created_again_begins_anew_in_all_cells(
    cells: Cells,
) -> None:
    spec = {"name": "again", "topics": ["again/#"]}
    names = clients_of(cells, 2)
    cells.front.call("POST", "/streams", spec)
    publish(cells, names, "again", range(5))
    first = cells.front.call("GET", "/streams/again/positions")
    cells.front.call("DELETE", "/streams/again")
    cells.front.call("POST", "/streams", spec)
    second = cells.front.call("GET", "/streams/again/positions")
    assert second["epoch"] != first["epoch"]
    assert by_shard(second) == {0: 0, 1: 0}
    sent = publish(cells, names, "again", range(5))
    assert read_all(cells, "again") == wrapped(sent)
    # the same while a cell is away
    cells.nodes[1].stop()
    try:
        cells.front.call("DELETE", "/streams/again")
        cells.front.call("POST", "/streams", spec)
    finally:
        cells.nodes[1].start()
    sent = publish(cells, names, "again", range(3))
    assert read_all(cells, "again") == wrapped(sent)
    # one that is gone leaves nothing
    cells.nodes[1].stop()
    try:
        cells.front.call("DELETE", "/streams/again")
    finally:
        cells.nodes[1].start()
    with cells.api(1) as api:
        assert api.get("/streams/again", headers=as_cell()).status_code == 404
    assert "stream.without_definition" not in cells.nodes[1].log.read_text()


def wrapped(sent: Counter[str]) -> Counter[str]:
    return Counter({f'{{"n": "{text}"}}': count for text, count in sent.items()})


def test_a_replay_sends_the_records_of_all_cells_and_is_one_job(cells: Cells) -> None:
    cells.front.call("POST", "/streams", {"name": "source", "topics": ["source/#"]})
    cells.front.call("POST", "/streams", {"name": "copy", "topics": ["nothing/#"]})
    names = clients_of(cells, 3)
    sent = publish(cells, names, "source", range(20))
    total = sent.total()
    plan = cells.front.call("POST", "/streams/source:plan-replay", {"to": "stream:copy"})
    assert (plan["records"], plan["matched"], plan["rate"]) == (total, total, 1000)
    assert [part["shard"] for part in plan["ranges"]] == [0, 1]
    report = cells.front.call(
        "POST", "/streams/source:replay", {"to": "stream:copy", "rate": 100_000}
    )
    assert (report["records"], report["sent"], report["stream"]) == (total, total, "source")
    assert read_all(cells, "copy") == wrapped(sent)
    (job,) = [job for job in cells.front.call("GET", "/jobs")["items"] if job["name"] == "source"]
    assert job["progress"] == {"done": total, "total": total, "unit": "records"}
    assert job["state"] == "done"
    shown = cells.front.call("GET", f"/jobs/{job['id']}")
    assert shown["result"]["sent"] == total
    with live(cells, "jobs") as frames:
        assert any(data.get(job["id"], {}).get("progress") == job["progress"] for data in frames)
    # from the records of one cell only
    one = {"to": "stream:copy", "from": {"1": 0}}
    assert cells.front.call("POST", "/streams/source:replay", one)["sent"] == total // 2
    nothing = {"to": "stream:copy", "from": "2090-01-01T00:00:00Z"}
    problem = cells.front.call("POST", "/streams/source:replay", nothing, expect=422)
    assert problem["errors"][0]["message"] == "stream 'source' has no record there"


def test_a_replay_over_cells_is_paused_and_cancelled_as_one(cells: Cells) -> None:
    cells.front.call("POST", "/streams", {"name": "slow", "topics": ["slow/#"]})
    publish(cells, clients_of(cells, 2), "slow", range(20))
    with cells.front.client() as api:
        started = api.post(
            "/streams/slow:replay",
            json={"to": "mqtt", "rate": 2, "topic": "again/${topic}"},
            headers={"Prefer": "respond-async"},
        )
    assert started.status_code == 202, started.text
    job = started.json()
    assert started.headers["Location"] == f"/api/v1/jobs/{job['id']}"
    assert job["progress"]["total"] == 80
    states = {"pause": "paused", "resume": "running", "cancel": "cancelled"}
    for verb, state in states.items():
        cells.front.call("POST", f"/jobs/{job['id']}:{verb}")
        eventually(lambda: cells.front.call("GET", f"/jobs/{job['id']}")["state"] == state)  # noqa: B023
        for cell in range(2):
            with cells.api(cell) as api:
                assert api.get(f"/jobs/{job['id']}", headers=as_cell()).json()["state"] == state
    cells.front.call("POST", "/jobs/none:cancel", expect=404)


def test_a_back_test_reads_all_cells(cells: Cells) -> None:
    cells.front.call("POST", "/streams", {"name": "history", "topics": ["history/#"]})
    names = clients_of(cells, 2)
    sent = publish(cells, names, "history", range(10))
    sql = 'SELECT payload.n AS n FROM "history/#"'
    job = cells.front.call("POST", "/rules:backtest", {"sql": sql, "stream": "history"}, 202)
    shown = eventually(
        lambda: (
            (now := cells.front.call("GET", f"/backtests/{job['id']}"))["state"] != "running"
            and now
        )
    )
    assert shown["state"] == "done", shown
    assert shown["progress"]["done"] == shown["progress"]["total"] == sent.total(), shown
    assert shown["result"]["complete"], shown


def test_an_import_goes_to_the_cells_of_its_clients(cells: Cells) -> None:
    cells.front.call("POST", "/streams", {"name": "imported", "topics": ["imported/#"]})
    names = clients_of(cells, 3)
    lines = "".join(
        json.dumps({"topic": f"imported/{name}", "payload": f"{name} {n}", "client_id": name})
        + "\n"
        for n in range(4)
        for name in names
    )
    headers = {"Content-Type": "application/x-ndjson"}
    with cells.front.client() as api:
        for is_repeated in (False, True):
            answer = api.post(
                "/streams/imported:import",
                params={"import": "one", "part": 0},
                content=lines,
                headers=headers,
            )
            assert answer.status_code == 200, answer.text
            assert answer.json() == {
                "records": 0 if is_repeated else 24,
                "is_repeated": is_repeated,
                "notes": [],
            }
        bad = api.post("/streams/imported:import", content="{", headers=headers)
        assert bad.status_code == 422
    for shard in range(2):
        page = cells.front.call("GET", f"/streams/imported/records?shard={shard}")
        assert {cells.place.cell_of(item["clientid"]) for item in page["items"]} == {shard}
        assert page["total"] == 12


def as_cell() -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKEN}", ACTOR_HEADER: header_of_actor(Actor("test"))}
