"""Streams, tables and publishing over HTTP."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from tests.ui.api_node import Node


def test_positions_say_where_to_read_with_offsets_as_texts(api: httpx.Client) -> None:
    assert api.get("/streams/readings/positions").json() == {
        "stream": "readings",
        "kind": "rows",
        "shards": [{"shard": 0, "first_offset": "7", "next_offset": "9007199254740993"}],
        "ranges_url": "http://127.0.0.1:9",
        "ticket": "t i/cket",
        "expires_at": "2026-01-01T00:00:00Z",
        "epoch": "e-3",
        "log": 17,
    }


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("2026-01-01T00:00:00Z", 1767225600_000000),
        ("2026-01-01T01:00:00.000001+01:00", 1767225600_000001),
        ("1767225600123", 1767225600_123000),
        ("0", 0),
    ],
)
def test_a_time_is_rfc_3339_or_milliseconds(
    api: httpx.Client, text: str, microseconds: int
) -> None:
    for query in (
        {"at": text},
        f"at={text}",
    ):
        # escaped, and with the plus sign that people forget to escape
        shard = api.get("/streams/readings/positions", params=query).json()["shards"][0]
        assert shard["at_offset"] == str(microseconds)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-01-01T00:00:00", "-1", "1.5", "1" * 17])
def test_what_is_no_time_is_refused(api: httpx.Client, text: str) -> None:
    answer = api.get("/streams/readings/positions", params={"at": text})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/query/at")


def test_records_are_read_from_the_range_server_with_a_ticket(api: httpx.Client) -> None:
    answer = api.get("/streams/readings/records?shard=2&from=9007199254740993&to=9007199254741000")
    assert answer.status_code == 307
    target = urlsplit(answer.headers["location"])
    assert (target.netloc, target.path) == ("127.0.0.1:9", "/streams/17/2")
    assert parse_qs(target.query) == {
        "from": ["9007199254740993"],
        "to": ["9007199254741000"],
        "ticket": ["t i/cket"],
    }


def test_positions_at_a_time_may_wait_for_an_object_store_and_do_not_hold_the_event_loop(
    api: httpx.Client, node: Node
) -> None:
    api.get("/streams/readings/positions?at=0").raise_for_status()
    assert node.logs.was_on_event_loop is False


@pytest.mark.parametrize("query", ["from=a&to=1", "from=-1&to=1", "from=1&to=2&shard=-1"])
def test_a_range_that_is_none_is_refused(api: httpx.Client, query: str) -> None:
    assert api.get(f"/streams/readings/records?{query}").status_code == 422


@pytest.mark.parametrize("path", ["/streams/none/positions", "/streams/none/records?from=0&to=1"])
def test_a_stream_that_is_not_there_is_not_found(api: httpx.Client, path: str) -> None:
    assert api.get(path).status_code == 404


def test_a_table_is_previewed_audited_and_reported_on(api: httpx.Client, node: Node) -> None:
    assert len(api.get("/lake/tables/meters/preview").json()["rows"]) == 20
    assert api.get("/lake/tables/meters/preview?limit=1").json()["rows"] == [node.tables.rows[0]]
    assert api.post("/lake/tables/meters:audit").json() == {"complete": None}
    assert api.post("/lake/tables/meters:audit?depth=values").json() == {"complete": "values"}
    assert api.post("/lake/tables/meters:audit?depth=more").status_code == 422
    job = api.post("/lake/tables/meters:audit", headers={"Prefer": "respond-async"})
    assert (job.status_code, job.json()["kind"], job.json()["progress"]["total"]) == (
        202,
        "audit",
        5,
    )
    assert {one["id"]: one["kind"] for one in api.get("/jobs").json()["items"]}[
        job.json()["id"]
    ] == "audit"
    assert api.get("/lake/tables/meters/history?limit=5").json() == {"versions": []}
    assert (
        api.put("/lake/tables/meters/report", json={"state": "running", "rows": 3}).status_code
        == 204
    )
    reported = node.tables.reports["meters"]
    assert {name: value for name, value in reported.items() if value is not None} == {
        "state": "running",
        "rows": 3,
    }
    assert (
        api.put("/lake/tables/meters/report", json={"state": "happy"}).json()["errors"][0][
            "pointer"
        ]
        == "/state"
    )
    assert api.get("/lake/tables/none/preview").status_code == 404
    assert api.get("/lake/tables/meters/preview?limit=1001").status_code == 422


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ("21 °C", "21 °C".encode()),
        ({"encoding": "utf8", "data": "x"}, b"x"),
        ({"encoding": "base64", "data": "/wA="}, b"\xff\x00"),
        ({"encoding": "json", "data": {"t": 21.0}}, b'{"t":21.0}'),
    ],
)
def test_a_message_is_published_through_the_pipeline(
    api: httpx.Client, node: Node, payload: object, expected: bytes
) -> None:
    body = {
        "topic": "a/b",
        "payload": payload,
        "qos": 1,
        "retain": True,
        "user_properties": [["k", "v"], ["k", "w"]],
    }
    assert api.post("/messages:publish", json=body).json()["receivers"] == 2
    [message] = node.pipeline.messages
    assert (message.topic, message.payload, message.qos, message.retain) == (
        "a/b",
        expected,
        1,
        True,
    )
    assert message.user_properties == [("k", "v"), ("k", "w")]
    assert message.client.client_id == "sluice-api"


def test_a_message_that_a_gate_stops_is_told_why(api: httpx.Client) -> None:
    answer = api.post("/messages:publish", json={"topic": "refused/1"})
    assert (answer.status_code, answer.json()["code"]) == (422, "message_refused")
    assert "meters" in answer.json()["detail"]
    assert "/t: 'x' is not a number" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"topic": 1}, "/topic"),
        ({"qos": 3}, "/qos"),
        ({"qos": True}, "/qos"),
        ({"retain": 1}, "/retain"),
        ({"user_properties": [["a"]]}, "/user_properties/0"),
        ({"payload": 3}, "/payload"),
        ({"payload": {"encoding": "hex", "data": ""}}, "/payload/encoding"),
        ({"payload": {"encoding": "base64", "data": "?"}}, "/payload/data"),
        ({"payload": {"encoding": "utf8", "data": 1}}, "/payload/encoding"),
        ({"retian": True}, "/retian"),
    ],
)
def test_a_message_that_is_none_is_refused_with_its_place(
    api: httpx.Client, node: Node, change: dict[str, object], pointer: str
) -> None:
    answer = api.post("/messages:publish", json={"topic": "a"} | change)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)
    assert node.pipeline.messages == []


@pytest.mark.parametrize("topic", ["", "a/#", "a/+/b", "a\0b"])
def test_a_topic_with_wildcards_is_refused(api: httpx.Client, topic: str) -> None:
    assert api.post("/messages:publish", json={"topic": topic}).status_code == 422


def test_a_retype_and_the_acceptance_of_a_gap_are_jobs(api: httpx.Client) -> None:
    path, body = "/lake/tables/meters:retype", {"column": "t", "type": "double"}
    assert api.post(path, json=body).json() == {"table": "meters", **body}
    started = api.post(path, json=body, headers={"Prefer": "respond-async"})
    job = api.get(started.headers["Location"].removeprefix("/api/v1")).json()
    assert (job["kind"], job["name"], job["progress"]["total"]) == ("retype", "meters", 7)
    assert api.post(path, json={"column": "t"}).status_code == 422
    assert api.post("/lake/tables/none:retype", json=body).status_code == 404
    cleaned = api.post("/lake/tables/meters:clean?dry_run=true", json={"older_than": "2h"}).json()
    assert cleaned == {"table": "meters", "dry_run": True, "files": 7200, "dead_letter_files": 1}
    assert api.post("/lake/tables/meters:accept-gap").json() == {"table": "meters", "records": 5}


def test_a_compaction_and_an_expiry_are_previewed_and_are_jobs(api: httpx.Client) -> None:
    path, small = (
        "/lake/tables/meters:compact",
        {"table": "meters", "files": 7, "bytes": 700, "files_after": 1},
    )
    assert api.post(f"{path}?dry_run=true").json() == {**small, "dry_run": True}
    assert api.post(path).json() == {**small, "dry_run": False}
    job = api.get(
        api.post(path, headers={"Prefer": "respond-async"})
        .headers["Location"]
        .removeprefix("/api/v1")
    ).json()
    assert (job["kind"], job["name"], job["progress"]["total"]) == ("compact", "meters", 7)
    assert api.post("/lake/tables/none:compact?dry_run=true").status_code == 404
    path, old = (
        "/lake/tables/meters:expire",
        {"table": "meters", "snapshots": 2, "files": 7200, "bytes": 10},
    )
    assert api.post(f"{path}?dry_run=true", json={"older_than": "2h"}).json() == {
        **old,
        "dry_run": True,
    }
    assert api.post(path, json={"older_than": "2h"}).json() == {**old, "dry_run": False}
    assert api.post(path, json={"older_than": "soon"}).status_code == 422
    path = "/lake/tables/meters:retain"
    rows = {"table": "meters", "dry_run": True, "rows": 7200}
    assert api.post(f"{path}?dry_run=true", json={"older_than": "2h"}).json() == rows
    assert api.post(path, json={}).json() == {**rows, "dry_run": False, "rows": 3}


def test_a_shadow_is_compared_and_swapped(api: httpx.Client) -> None:
    assert api.post("/lake/tables/meters:diff").json() == {"table": "meters", "records": 7}
    assert api.post("/lake/tables/none:diff").status_code == 404
    shadow = {"table": "meters", "records": 7, "done": 7, "is_complete": True}
    assert api.post("/lake/tables/meters:swap?dry_run=true").json() == shadow
    assert api.post("/lake/tables/meters:swap").json() == {**shadow, "version": 4}
    assert api.get("/lake/tables/meters/shadow").json() == {"shadow": shadow}


def test_a_replay_is_planned_and_is_a_job(api: httpx.Client) -> None:
    path, body = "/lake/tables/meters:replay", {"from": 1, "to": "8", "rule": "hot"}
    planned = {
        "ranges": [{"shard": 0, "start": 1, "end": 8}], "records": 7, "rule": "hot", "recreates": False
    }  # fmt: skip
    assert api.post(f"{path}?dry_run=true", json=body).json() == planned
    assert api.post(path, json=body).json() == {
        **planned,
        "rows_after": 7,
        "into": None,
        "rate": None,
    }
    started = api.post(path, json=body, headers={"Prefer": "respond-async"})
    assert started.status_code == 202
    job = api.get(started.headers["Location"].removeprefix("/api/v1")).json()
    assert (job["kind"], job["name"], job["progress"]["total"]) == ("replay", "meters", 7)
    assert api.post(path, json={"from": 1, "to": 1}).json()["ranges"] == []
    assert api.post(path, json={"from": "yesterday"}).status_code == 422
    assert api.post("/lake/tables/none:replay", json={}).status_code == 404
