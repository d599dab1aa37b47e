"""One API over two cells: requests reach the cell of the client, lists are merged, rights hold."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from broker.admin.rights import Actor
from broker.core.errors import Conflict
from tests.cluster.cells import Cells, live, running
from tests.end_to_end.clients import Client
from tests.support.local_node import sluice
from tests.support.mqtt_server import on_loop
from tests.support.node import TOKEN, eventually
from ui.api.cell_calls import ACTOR_HEADER, header_of_actor
from ui.api.cell_figures import FIGURES_HEADER, as_one
from ui.api.cell_joins import labelled_metrics, summed


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cells]:
    with running(tmp_path_factory.mktemp("faces") / "data") as cells:
        yield cells


@pytest.fixture(scope="module")
def devices(cells: Cells) -> Iterator[list[str]]:
    """Clients of both cells, each connected to its own."""
    every = [f"d-{number:03}" for number in range(300)]
    names = sorted(
        name
        for cell in (0, 1)
        for name in [name for name in every if cells.place.cell_of(name) == cell][:10]
    )
    assert len(names) == 20
    with ExitStack() as stack:
        for name in names:
            client = Client(cells.nodes[cells.place.cell_of(name)], name)
            stack.enter_context(client)
            client.subscribe(f"to/{name}", 1)
        yield names


def pages(cells: Cells, path: str, limit: int, **query: Any) -> list[dict[str, Any]]:
    """All items of a list, page by page."""
    items: list[dict[str, Any]] = []
    cursor: str | None = None
    with cells.front.client() as api:
        while True:
            parameters = {"limit": limit, **query, **({"cursor": cursor} if cursor else {})}
            page = api.get(path, params=parameters)
            assert page.status_code == 200, page.text
            body = page.json()
            assert "incomplete" not in body, body
            assert "places" not in body
            assert len(body["items"]) <= limit
            items += body["items"]
            cursor = body["next"]
            if cursor is None:
                return items


@pytest.mark.parametrize("limit", [1, 3, 7, 20, 1000])
@pytest.mark.parametrize(
    "sort", ["clientid", "-clientid", "connected_at", "-connected_at", "-queued"]
)
def test_clients_of_all_cells_are_one_list(
    cells: Cells, devices: list[str], sort: str, limit: int
) -> None:
    items = pages(cells, "/clients", limit, sort=sort)
    names = [item["clientid"] for item in items]
    assert sorted(names) == devices
    assert {item["clientid"]: item["cell"] for item in items} == {
        name: cells.place.cell_of(name) for name in devices
    }
    if sort in ("clientid", "-queued"):
        assert names == devices
    if sort == "-clientid":
        assert names == devices[::-1]
    if sort.endswith("connected_at"):
        times = [item["connected_at"] for item in items]
        assert times == sorted(times, reverse=sort.startswith("-"))


def test_a_client_is_shown_by_its_cell(cells: Cells, devices: list[str]) -> None:
    for name in devices:
        assert cells.front.call("GET", f"/clients/{name}")["clientid"] == name
        assert cells.front.call("GET", f"/sessions/{name}")["clientid"] == name
        assert cells.front.call("GET", f"/clients/{name}/events")["items"]
    for cell in (0, 1):
        problem = cells.front.call("GET", f"/clients/{cells.client_of(cell, 'no')}", expect=404)
        assert "client" in problem["detail"]


def test_the_topics_of_all_cells_are_one_tree(cells: Cells) -> None:
    pages(cells, "/topics", 100)  # counting begins
    publishers = [cells.client_of(cell, "tree") for cell in (0, 1)]
    for number, name in enumerate(publishers):
        with Client(cells.nodes[number], name) as client:
            for topic in ("tree/both", f"tree/only-{number}"):
                for _ in range(number + 1):
                    client.publish(topic, b"1234", 1)
    eventually(
        lambda: cells.front.call("GET", "/topics?under=tree")["under"]["messages"] == 6,
        what="the tree has counted all",
    )
    rows = {
        row["topic"]: row for row in pages(cells, "/topics", 100, under="tree", sort="-messages")
    }
    assert list(rows) == ["tree/both", "tree/only-1", "tree/only-0"]
    assert [row["messages"] for row in rows.values()] == [3, 2, 1]
    assert [row["bytes"] for row in rows.values()] == [12, 8, 4]
    assert {row["mean_bytes"] for row in rows.values()} == {4}
    page = cells.front.call("GET", "/topics?under=tree&sort=name")
    assert [row["topic"] for row in page["items"]] == sorted(rows)
    assert page["total"] == page["under"]["levels"] == 3
    assert page["under"]["messages"] == 6
    assert page["under"]["mean_bytes"] == 4
    # of a page at a time, each message is counted once
    parts = pages(cells, "/topics", 1, under="tree", sort="name")
    assert sum(row["messages"] for row in parts) == 6


RULE = {"name": "r", "sql": 'SELECT * FROM "t/#"', "actions": []}


def own(cells: Cells, cell: int, method: str, path: str, body: Any = None) -> httpx.Response:
    """The answer of one cell itself, as administrator."""
    headers = {"Authorization": f"Bearer {TOKEN}", ACTOR_HEADER: header_of_actor(Actor("test"))}
    with cells.api(cell) as api:
        return api.request(method, path, json=body, headers=headers)


def test_a_change_of_what_is_saved_reaches_all_cells(cells: Cells) -> None:
    cells.front.call("POST", "/rules", RULE)
    assert own(cells, 1, "GET", "/rules/r").json()["sql"] == RULE["sql"]
    cells.front.call("PUT", "/rules/r", {**RULE, "sql": 'SELECT qos FROM "t/#"'})
    assert own(cells, 1, "GET", "/rules/r").json()["sql"] == 'SELECT qos FROM "t/#"'
    cells.front.call("POST", "/rules/r:disable")
    assert own(cells, 1, "GET", "/rules/r").json()["enable"] is False
    cells.front.call("POST", "/rules", {**RULE, "name": "s"})
    cells.front.call("POST", "/rules:reorder", {"order": ["s", "r"]})
    assert [rule["name"] for rule in own(cells, 1, "GET", "/rules").json()["items"]] == ["s", "r"]
    for name in ("r", "s"):
        cells.front.call("DELETE", f"/rules/{name}")
        assert own(cells, 1, "GET", f"/rules/{name}").status_code == 404


def test_users_settings_and_bans_reach_all_cells(cells: Cells) -> None:
    made = cells.front.call("POST", "/users", {"name": "meter"})
    password = made["password"]
    assert own(cells, 1, "GET", "/users/meter").json()["name"] == "meter"
    rotated = cells.front.call("POST", "/users/meter:rotate")["password"]
    assert rotated != password
    cells.front.call("DELETE", "/users/meter")
    assert own(cells, 1, "GET", "/users/meter").status_code == 404
    cells.front.call("PUT", "/config/mqtt.max_inflight", {"value": 17})
    assert own(cells, 1, "GET", "/config/mqtt.max_inflight").json()["value"] == 17
    cells.front.call("POST", "/bans", {"as": "clientid", "who": "evil"})
    assert own(cells, 1, "GET", "/bans/clientid%2Fevil").status_code == 200
    cells.front.call("DELETE", "/bans/clientid%2Fevil")
    assert own(cells, 1, "GET", "/bans/clientid%2Fevil").status_code == 404


def test_a_secret_reaches_all_cells_with_its_value(cells: Cells) -> None:
    front = cells.front
    for method, path, body in (
        ("POST", "/secrets", {"name": "target", "value": "first"}),
        ("PUT", "/secrets/target", {"value": "second", "description": "of a test"}),
    ):
        front.call(method, path, body)
        shown = own(cells, 1, "GET", "/secrets/target")
        assert shown.status_code == 200
        assert shown.json() == front.call("GET", "/secrets/target")
    front.call("DELETE", "/secrets/target")
    assert own(cells, 1, "GET", "/secrets/target").status_code == 404


def test_only_the_front_writes_the_file(cells: Cells) -> None:
    refused = own(cells, 1, "POST", "/rules", {**RULE, "name": "own"})
    assert refused.status_code == 503
    assert "cell 0" in refused.json()["detail"]
    assert own(cells, 1, "GET", "/rules/own").status_code == 404


def test_a_cell_that_has_not_read_a_file_again_reads_it_with_the_next_change(
    tmp_path: Path,
) -> None:
    with running(tmp_path / "data", config="mqtt.max_inflight = 20") as cells:
        file = cells.front.data_dir / "sluice.conf"
        file.write_text("mqtt.max_inflight = 21")
        cells.front.reload()  # this cell alone
        cells.front.call("POST", "/rules", RULE)
        assert own(cells, 1, "GET", "/rules/r").json()["name"] == "r"
        assert own(cells, 1, "GET", "/config/mqtt.max_inflight").json()["value"] == 20
        cells.front.call("PUT", "/config/mqtt.max_topic_levels", {"value": 7})
        for key, value in (("max_inflight", 21), ("max_topic_levels", 7)):
            assert own(cells, 1, "GET", f"/config/mqtt.{key}").json()["value"] == value
        file.write_text("mqtt.max_inflight = 22")  # which no cell has read
        refused = cells.front.call("PUT", "/config/mqtt.max_topic_levels", {"value": 8}, expect=409)
        assert f"{file} changed after the broker read it" in refused["detail"]


def test_other_cells_take_over_only_the_objects_that_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path / "data") as cells:
        cells.front.call("POST", "/rules", RULE)
        reads: list[str] = []
        monkeypatch.setattr(cells.nodes[1]._reload, "_read", lambda _values: reads.append("read"))
        cells.front.call("PUT", "/rules/r", {**RULE, "sql": 'SELECT qos FROM "t/#"'})
        cells.front.call("POST", "/rules", {**RULE, "name": "s"})
        cells.front.call("POST", "/users", {"name": "meter", "password": "a-password"})
        cells.front.call("PUT", "/users/meter", {"password": "another-password"})
        cells.front.call("DELETE", "/rules/s")
        for path in ("/rules", "/users"):
            items = [own(cells, cell, "GET", path).json()["items"] for cell in (0, 1)]
            assert [item["etag"] for item in items[0]] == [item["etag"] for item in items[1]]
            assert len(items[0]) == 1
        assert not reads
        monkeypatch.undo()
        cells.front.call("DELETE", "/users/meter")
        assert own(cells, 1, "GET", "/users/meter").status_code == 404
        # what it takes over later, from the file, is the same
        cells.front.call("POST", "/config:reload")
        items = [own(cells, cell, "GET", "/rules").json()["items"] for cell in (0, 1)]
        assert [item["sql"] for item in items[0]] == [item["sql"] for item in items[1]]


def test_a_change_that_one_cell_refuses_is_in_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path / "data", config="mqtt.max_inflight = 20") as cells:
        cells.front.call("POST", "/rules", RULE)
        cells.front.call("POST", "/rules", {**RULE, "name": "s"})

        async def refuse(*_: object) -> None:
            raise Conflict("it has no room")

        monkeypatch.setattr(cells.nodes[1]._reload, "follow", refuse)
        changes: list[tuple[str, str, Any]] = [
            ("POST", "/rules", {**RULE, "name": "new"}),
            ("PUT", "/rules/r", {**RULE, "sql": 'SELECT qos FROM "t/#"'}),
            ("DELETE", "/rules/r", None),
            ("POST", "/rules:reorder", {"order": ["s", "r"]}),
            ("PUT", "/config/mqtt.max_topic_levels", {"value": 7}),
            ("POST", "/users", {"name": "meter", "password": "a-password"}),
        ]
        before = cells.front.call("GET", "/rules")["items"]
        for method, path, body in changes:
            refused = cells.front.call(method, path, body, expect=409)
            assert (
                refused["detail"] == "cell 1 refused the change, so no cell has it: it has no room"
            )
            for cell in (0, 1):
                rules = own(cells, cell, "GET", "/rules").json()["items"]
                assert [(rule["name"], rule["sql"]) for rule in rules] == [
                    (rule["name"], rule["sql"]) for rule in before
                ]
                assert own(cells, cell, "GET", "/users/meter").status_code == 404
                levels = own(cells, cell, "GET", "/config/mqtt.max_topic_levels").json()
                assert levels["value"] != 7
        monkeypatch.undo()
        for method, path, body in changes:
            if path != "/rules:reorder":
                cells.front.call(method, path, body)
        assert own(cells, 1, "GET", "/rules/r").status_code == 404
        assert own(cells, 1, "GET", "/config/mqtt.max_topic_levels").json()["value"] == 7


def test_a_cell_that_is_away(tmp_path: Path) -> None:
    with running(tmp_path / "data") as cells:
        there, gone = cells.client_of(0), cells.client_of(1)
        with Client(cells.nodes[0], there):
            cells.nodes[1].stop()
            page = cells.front.call("GET", "/clients")
            assert [item["clientid"] for item in page["items"]] == [there]
            assert page["incomplete"] == [{"cell": 1, "why": "it does not run"}]
            assert page["next"] is None
            assert cells.front.call("GET", "/status")["incomplete"][0]["cell"] == 1
            problem = cells.front.call("GET", f"/clients/{gone}", expect=503)
            assert problem["detail"] == "cell 1 does not answer: it does not run"
            cells.front.call("POST", "/bans", {"as": "clientid", "who": "x"}, expect=503)
            cells.front.call("GET", "/bans/clientid%2Fx", expect=404)
            cells.front.call("POST", "/rules", RULE)
            cells.nodes[1].start()
            assert own(cells, 1, "GET", "/rules/r").status_code == 200
            for name in ("at-once", "again"):
                cells.front.call("POST", "/rules", {**RULE, "name": name})
                assert own(cells, 1, "GET", f"/rules/{name}").status_code == 200
            eventually(lambda: "incomplete" not in cells.front.call("GET", "/clients"))


def test_rights_hold_in_the_cell_of_the_client(cells: Cells, devices: list[str]) -> None:
    made = cells.front.call("POST", "/tokens", {"name": "viewer", "role": "viewer"})
    scoped = {"name": "scoped", "role": "operator", "topics": ["mine/#"]}
    narrow = cells.front.call("POST", "/tokens", scoped)
    forged = {ACTOR_HEADER: header_of_actor(Actor("administrator"))}
    for name in (devices[0], cells.client_of(0, "d-0"), cells.client_of(1, "d-0")):
        kick = {"clientids": [name]}
        with cells.front.client() as api:
            for more in ({}, forged):
                viewer = {"Authorization": f"Bearer {made['token']}", **more}
                assert api.get(f"/clients/{name}", headers=viewer).status_code in (200, 404)
                assert api.post("/clients:kick", json=kick, headers=viewer).status_code == 403
                assert api.delete(f"/sessions/{name}", headers=viewer).status_code == 403
                nobody = {"Authorization": "", **more}
                assert api.get(f"/clients/{name}", headers=nobody).status_code == 401
                wrong = {"Authorization": "Bearer not-the-token", **more}
                assert api.get(f"/clients/{name}", headers=wrong).status_code == 401
            of_scope = {"Authorization": f"Bearer {narrow['token']}"}
            peek = api.get(f"/clients/{name}/messages", headers=of_scope)
            assert peek.status_code == 403
            assert "mine/#" in peek.text
    # the socket of a cell asks for the actor, and refuses by the actor's rights
    name = cells.client_of(1, "d-0")
    token = {"Authorization": f"Bearer {TOKEN}"}
    viewer = {ACTOR_HEADER: header_of_actor(Actor("a viewer", "viewer"))}
    with cells.api(1) as api:
        assert api.get("/clients", headers=token).status_code == 401
        assert api.get("/clients", headers={**token, ACTOR_HEADER: "e30="}).status_code == 401
        assert api.get("/clients", headers=viewer).status_code == 200
        assert api.delete(f"/sessions/{name}", headers=viewer).status_code == 403
    assert cells.front.call("POST", "/cells:adopt", {}, expect=(404, 405)) is not None
    for name in ("viewer", "scoped"):
        cells.front.call("DELETE", f"/tokens/{name}")


def test_clients_of_all_cells_are_kicked(cells: Cells) -> None:
    names = [cells.client_of(cell, "kicked") for cell in (0, 1)]
    with Client(cells.nodes[0], names[0]) as first, Client(cells.nodes[1], names[1]) as second:
        answer = cells.front.call("POST", "/clients:kick", {"clientids": [*names, "nobody"]})
        assert answer == {"kicked": 2, "not_connected": ["nobody"]}
        assert first.farewell.get(timeout=20)
        assert second.farewell.get(timeout=20)
    entry = cells.front.call("GET", "/audit-log")["items"][0]
    assert entry["operation"] == "kickClients"
    cells.front.call("POST", "/clients:kick", {"clientids": [names[1]]})
    cells.front.call("DELETE", f"/sessions/{names[1]}", expect=(204, 404))
    latest = cells.front.call("GET", "/audit-log")["items"][:2]
    assert [entry["name"] for entry in latest] == [names[1], names[1]]
    assert own(cells, 1, "GET", "/audit-log").json()["items"] == []


def test_sessions_of_clients_of_all_cells_are_cleared(cells: Cells) -> None:
    names = [cells.client_of(cell, "cleared") for cell in (0, 1)]
    for node, name in zip(cells.nodes, names, strict=True):
        with Client(node, name, expiry_s=600) as client:
            client.subscribe("cleared", 1)
    body = {"clientids": [*names, "nobody"]}
    dry = cells.front.call("POST", "/clients:clear?dry_run=true", body)
    ends = "1 session ends, with 0 messages waiting."
    assert dry["consequences"] == [f"In cell 0: {ends}", f"In cell 1: {ends}"]
    answer = cells.front.call("POST", "/clients:clear", body)
    assert answer == {"cleared": 2, "unknown": ["nobody"]}
    assert cells.front.call("GET", "/sessions?clientid=cleared*")["items"] == []


@pytest.mark.parametrize(
    "cursor",
    ["", "x", "e30=", "W10=", "WzFd", "W2ZhbHNlLGZhbHNlXQ==", "W1tdLFtdXQ==", "W1sxXSxbMl1d"],
)
def test_cursors_of_others_are_refused(cells: Cells, cursor: str) -> None:
    for path in ("/clients", "/subscriptions", "/alarms", "/login-failures", "/delayed"):
        problem = cells.front.call("GET", f"{path}?cursor={cursor}", expect=422)
        assert "cursor" in problem["errors"][0]["pointer"]


def test_cells_are_a_list(cells: Cells, devices: list[str]) -> None:
    page = cells.front.call("GET", "/cells")
    assert [row["number"] for row in page["items"]] == [0, 1]
    assert [row["state"] for row in page["items"]] == ["running", "running"]
    assert sum(row["clients"] for row in page["items"]) == len(devices)
    shown = sluice(cells.front, "cells", "list")
    assert shown.returncode == 0, shown.stderr
    assert len(shown.stdout.splitlines()) >= 3
    assert cells.front.call("GET", "/status")["connections"] == len(devices)


def test_metrics_have_the_label_of_their_cell(cells: Cells, devices: list[str]) -> None:
    text = httpx.get(f"{cells.front.url}/metrics", trust_env=False, timeout=30).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    connections = families["sluice_connections"].samples
    assert sorted(sample.labels["cell"] for sample in connections) == ["0", "1"]
    assert sum(sample.value for sample in connections) == len(devices)
    assert all("cell" in sample.labels for family in families.values() for sample in family.samples)
    assert [sample.value for sample in families["sluice_cell_up"].samples] == [1, 1]


def test_lines_of_metrics_keep_their_labels() -> None:
    own = '# HELP m_total it\n# TYPE m_total counter\nm_total{cell="1",who="a \\"}{ b"} 3\nm_total 1\n'
    other = "# TYPE m_total counter\nm_total 2.5\nnonsense\n"
    text = asyncio.run(labelled_metrics({0: own, 1: other}, 3))
    (up, family) = text_string_to_metric_families(text)
    assert [(sample.labels["cell"], sample.value) for sample in up.samples] == [
        ("0", 1),
        ("1", 1),
        ("2", 0),
    ]
    assert [(sample.labels, sample.value) for sample in family.samples] == [
        ({"cell": "0", "peer": "1", "who": 'a "}{ b'}, 3),
        ({"cell": "0"}, 1),
        ({"cell": "1"}, 2.5),
    ]
    assert text.count("# TYPE m_total") == 1


@on_loop
async def test_others_have_their_turn_while_metrics_of_many_cells_are_joined() -> None:
    text = "".join(f'# TYPE m{n} gauge\nm{n}{{who="a"}} {n}\n' for n in range(1000))
    turns = 0
    joining = asyncio.create_task(labelled_metrics(dict.fromkeys(range(16), text), 16))
    while not joining.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 4
    assert joining.result().count("m999{") == 16


def test_a_tail_has_the_messages_of_all_cells(cells: Cells) -> None:
    names = [cells.client_of(cell, "tailed") for cell in (0, 1)]
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with (
        Client(cells.nodes[0], names[0]) as first,
        Client(cells.nodes[1], names[1]) as second,
        cells.front.client() as api,
        api.stream("GET", "/topics/tail?filter=tail/%23&seconds=60", headers=headers) as lines,
    ):
        seen: set[str] = set()
        for line in lines.iter_lines():
            message = json.loads(line)
            if "matched" in message:
                first.publish("tail/a", b"1", 1)
                second.publish("tail/b", b"2", 1)
            if "topic" in message.get("message", message):
                seen.add(message.get("message", message)["topic"])
            if seen == {"tail/a", "tail/b"}:
                break
    assert seen == {"tail/a", "tail/b"}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_captured_message_reaches_subscribers_of_another_cell(cells: Cells, qos: int) -> None:
    topic, name = f"captured/{qos}", f"cross-{qos}"
    reader, publisher = cells.client_of(1, "reader"), cells.client_of(0, "publisher")
    cells.front.call("POST", "/captures", {"name": name, "filter": topic})
    with Client(cells.nodes[1], reader) as first, Client(cells.nodes[0], publisher) as second:
        first.subscribe(topic, qos)
        second.publish(topic, b"x", qos)
        assert first.take().payload == b"x"

    def deliveries() -> list[tuple[str, str]]:
        items = cells.front.call("GET", f"/captures/{name}/records")["items"]
        return [
            (step["name"], step["state"])
            for item in items
            for step in item["steps"]
            if step["stage"] == "delivery"
        ]

    assert eventually(deliveries, 10) == [("cell 1", "queued" if qos == 2 else "sent")]
    cells.front.call("DELETE", f"/captures/{name}")


def test_a_tail_ends_after_so_many_messages_of_all_cells(cells: Cells) -> None:
    name = cells.client_of(1, "counted")
    with (
        Client(cells.nodes[1], name) as publisher,
        cells.front.client() as api,
        api.stream("GET", "/topics/tail?filter=counted&seconds=60&count=2") as lines,
    ):
        messages = 0
        for line in lines.iter_lines():
            if "matched" in json.loads(line):
                publisher.publish("counted", b"1", 1)
                publisher.publish("counted", b"2", 1)
            else:
                messages += 1
    assert messages == 2


HOSTILE = [
    "", "a", "d-000", "d-200", "d-201", "%00", "%2F", "..%2F..", "é", "%ED%A0%80", "a" * 300, "-1", "0",
    "99999999999999999999", "e30=", "W10=", "[]", "{}", "null", "true", "#", "+/#", "2026-01-01T00:00:00Z", "\\x00",
]  # fmt: skip
BODIES: list[Any] = [
    None, {}, {"name": "a"}, {"clientids": []}, {"clientids": ["d-000", 7, None]}, {"clientids": "d-000"},
    {"clientid": 5}, {"clientid": "no", "filters": []}, {"clientid": "no", "subscriptions": [{"filter": "a"}]},
    {"filter": "#"}, {"filter": 3}, {"dry_run": True}, {"as": "clientid", "who": ""}, {"order": []}, {"value": [1]},
]  # fmt: skip
NOT_CALLED = ("cells:adopt", ":reload", "/backup", "topics/tail", "audit-log:export", "/session")


def test_random_requests_get_an_answer(cells: Cells, devices: list[str]) -> None:
    chance = Random(7)
    with cells.front.client() as api:
        paths = api.get("/openapi.json").json()["paths"]
        operations = [
            (method.upper(), path.removeprefix("/api/v1"), operation)
            for path, methods in paths.items()
            for method, operation in methods.items()
            if operation["x-resource"]["at"] not in ("here", "config")
            and not any(part in path for part in NOT_CALLED)
        ]
        assert len(operations) > 40
        for _ in range(400):
            method, path, operation = chance.choice(operations)
            target = re.sub(r"\{[^}]*\}", lambda _: chance.choice(HOSTILE) or "x", path)
            names = [
                each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"
            ]
            query = {
                name: chance.choice(HOSTILE)
                for name in names
                if name not in ("wait", "drain") and chance.random() < 0.3
            }
            body = chance.choice(BODIES) if method in ("POST", "PUT", "PATCH") else None
            try:
                request = api.build_request(method, target, params=query, json=body)
            except httpx.InvalidURL:
                continue
            answer = api.send(request)
            what = f"{method} {target} {query} {body}: {answer.status_code} {answer.text[:500]}"
            assert answer.status_code < 500, what
            assert "incomplete" not in answer.text, what
        assert api.get("/clients").status_code == 200


def test_the_live_channel_counts_the_clients_of_all_cells(cells: Cells, devices: list[str]) -> None:
    expected = cells.front.call("GET", "/status")["connections"]
    assert expected > sum(cells.place.cell_of(name) == 0 for name in devices)
    with live(cells, "status") as frames:
        assert any(data.get("connections") == expected for data in frames)


GATE = {
    "name": "g",
    "topics": ["figures/#"],
    "strategy": "all_pass",
    "failure_action": "drop",
    "checks": [{"type": "sql", "sql": "SELECT payload.n AS n WHERE payload.n >= 0"}],
}


def test_figures_of_what_each_cell_runs_are_those_of_all(cells: Cells) -> None:
    front = cells.front
    front.call("POST", "/rules", {"name": "f", "sql": 'SELECT * FROM "figures/#"'})
    front.call("POST", "/validations", GATE)
    names = [cells.client_of(cell, "counted") for cell in (0, 1)]
    with ExitStack() as stack:
        for cell, name in enumerate(names):
            client = stack.enter_context(Client(cells.nodes[cell], name))
            for number in range(3 + cell):
                client.publish("figures/a", b'{"n": %d}' % number, 1)
            client.publish("figures/a", b"{}", 1)
    (rule,) = front.call("GET", "/rules?like_name=f")["items"]
    assert rule["metrics"]["matched"] == 7
    assert front.call("GET", "/rules/f")["metrics"]["matched"] == 7
    gate = front.call("GET", "/validations/g")
    assert (gate["metrics"]["succeeded"], gate["metrics"]["failed"]) == (7, 2)
    assert {failure["clientid"] for failure in gate["recent_failures"]} == set(names)
    with live(cells, "lists", kind="rules", filters={"like_name": "f"}) as frames:
        assert any(
            row["object"]["metrics"]["matched"] == 7
            for frame in frames
            for row in frame["rows"].values()
        )
    with live(cells, "object", kind="validations", name="g") as frames:
        assert any(frame["object"]["metrics"]["failed"] == 2 for frame in frames)
    for path in ("/rules/f", "/validations/g"):
        front.call("DELETE", path)


def test_a_window_of_a_list_has_the_figures_of_its_objects(cells: Cells) -> None:
    for number in range(4):
        sql = f'SELECT * FROM "window/{number}"'
        cells.front.call("POST", "/rules", {"name": f"w{number}", "sql": sql})
    with Client(cells.nodes[1], cells.client_of(1, "window")) as client:
        for number in range(4):
            for _ in range(number):
                client.publish(f"window/{number}", b"{}", 1)
    window = {"kind": "rules", "filters": {"like_name": "w"}, "position": 2, "limit": 2}
    seen: dict[str, int] = {}
    with live(cells, "lists", **window) as frames:
        while seen != {"w2": 2, "w3": 3}:
            for name, row in next(frames)["rows"].items():
                seen[name] = row["object"]["metrics"]["matched"]
    for number in range(4):
        cells.front.call("DELETE", f"/rules/w{number}")


def test_other_cells_send_no_more_of_an_object_than_is_joined(cells: Cells) -> None:
    cells.front.call("POST", "/rules", {"name": "long", "sql": 'SELECT * FROM "long/#"'})
    headers = {
        "Authorization": f"Bearer {TOKEN}",
        ACTOR_HEADER: header_of_actor(Actor("front")),
        FIGURES_HEADER: "1",
    }
    with cells.api(1) as api:
        (sent,) = api.get("/rules?like_name=long", headers=headers).json()["items"]
    assert sent.keys() == {"name", "metrics", "state", "problem", "last_error"}
    (shown,) = cells.front.call("GET", "/rules?like_name=long")["items"]
    assert shown["sql"] == 'SELECT * FROM "long/#"'
    with cells.front.client() as api:
        (shown,) = api.get("/rules?like_name=long", headers={FIGURES_HEADER: "1"}).json()["items"]
    assert "sql" in shown
    cells.front.call("DELETE", "/rules/long")


def test_a_connector_that_is_away_from_one_cell_is_not_shown_as_connected() -> None:
    own = {"name": "c", "status": "connected", "status_reason": None, "last_error": None}
    other = {**own, "status": "disconnected", "status_reason": "refused", "last_error": {"a": 1}}
    assert as_one(own, {1: other}) == {**other, "status_reason": "cell 1: refused"}
    assert as_one(other, {1: own}) == other
    assert as_one(own, {}) == as_one(own, {1: dict(own)}) == own


def test_of_quantiles_the_largest_counts() -> None:
    first, second = ({"evaluation_s": {"p50": p50, "timed": 2}} for p50 in (0.5, None))
    for parts in ((first, second), (second, first)):
        assert summed(*parts) == {"evaluation_s": {"p50": 0.5, "timed": 4}}


def test_an_effect_counts_the_clients_of_all_cells(cells: Cells) -> None:
    names = [cells.client_of(cell, "banned") for cell in (0, 1)]
    spec = {"as": "clientid_re", "who": "banned-.*"}
    with ExitStack() as stack:
        stack.enter_context(Client(cells.nodes[1], names[1]))
        effect = cells.front.call("POST", "/bans?dry_run=true", spec)
        assert effect["consequences"] == ["1 client is disconnected."]
        stack.enter_context(Client(cells.nodes[0], names[0]))
        effect = cells.front.call("POST", "/bans?dry_run=true", spec)
        assert effect["consequences"] == [
            f"In cell {cell}: 1 client is disconnected." for cell in (0, 1)
        ]
        assert effect["summary"] == "It would be created."
    assert cells.front.call("GET", "/bans")["items"] == []


def test_a_live_tail_has_the_messages_of_all_cells(cells: Cells) -> None:
    names = [cells.client_of(cell, "followed") for cell in (0, 1)]
    with (
        Client(cells.nodes[0], names[0]) as first,
        Client(cells.nodes[1], names[1]) as second,
        live(cells, "tail", filter="live/#", clientid="followed*") as frames,
    ):
        numbers: dict[str, int] = {}
        seen: list[str] = []
        first.publish("live/a", b"own", 1)
        eventually(lambda: tails_of(cells, 1) == 1)
        for number in range(200):  # more than the rate of 50 a second
            second.publish("live/b", b"%d" % number, 1)
        while numbers.get("matched") != 201:
            data = next(frames)
            seen += [message["topic"] for message in data.get("messages", ())]
            numbers |= {name: value for name, value in data.items() if name != "messages"}
    assert {"live/a", "live/b"} == set(seen)
    assert numbers["shown"] == len(seen) < 201
    assert numbers["skipped"] == 201 - len(seen)
    eventually(lambda: not tails_of(cells, 1))


def tails_of(cells: Cells, cell: int) -> int:
    """Open tails of a cell."""
    text = httpx.get(f"{cells.front.url}/metrics", trust_env=False, timeout=30).text
    samples = (
        sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "sluice_tails" and sample.labels["cell"] == str(cell)
    )
    return int(next(samples).value)


@pytest.mark.parametrize("limit", [1, 4, 1000])
def test_sessions_and_subscriptions_of_all_cells_are_one_list(
    cells: Cells, devices: list[str], limit: int
) -> None:
    sessions = pages(cells, "/sessions", limit, sort="-clientid")
    assert [item["clientid"] for item in sessions] == devices[::-1]
    subscriptions = pages(cells, "/subscriptions", limit)
    assert [(item["clientid"], item["filter"]) for item in subscriptions] == [
        (name, f"to/{name}") for name in devices
    ]
    matching = pages(cells, "/subscriptions", limit, match=f"to/{devices[3]}")
    assert [item["clientid"] for item in matching] == [devices[3]]
    chosen = pages(cells, "/clients", limit, clientid=f"{devices[0][:4]}*", connected="true")
    assert [item["clientid"] for item in chosen] == [
        name for name in devices if name.startswith(devices[0][:4])
    ]


def test_the_longest_queues_are_those_of_all_cells(cells: Cells) -> None:
    names = [cells.client_of(cell, "away") for cell in (1, 0)]
    for number, name in enumerate(names, 1):
        node = cells.nodes[cells.place.cell_of(name)]
        with Client(node, name, expiry_s=600) as client:
            client.subscribe(f"queued/{name}", 1)
        with Client(node, f"to-{name}") as publisher:
            for _ in range(number):
                publisher.publish(f"queued/{name}", b"x", 1)
    top = cells.front.call("GET", "/sessions:top?count=5")["items"]
    assert [(item["clientid"], item["queued"]) for item in top] == [(names[1], 2), (names[0], 1)]
    assert len(cells.front.call("GET", "/sessions:top?count=1&by=bytes")["items"]) == 1
    longest = pages(cells, "/sessions", 1, sort="-queued", connected="false")
    assert [item["clientid"] for item in longest] == [names[1], names[0]]
    purge = {"clientid": "away-*", "connected": False}
    dry = cells.front.call("POST", "/sessions:purge", {**purge, "dry_run": True})
    assert dry["sessions"] == 2
    assert cells.front.call("POST", "/sessions:purge", purge)["sessions"] == 2
    for name in names:
        cells.front.call("GET", f"/sessions/{name}", expect=404)


def test_what_the_schema_registry_saves_reaches_all_cells(cells: Cells) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    schema = {"schemaType": "JSON", "schema": '{"type": "object"}'}
    url = f"{cells.front.url}/registry/subjects/meters/versions"
    answer = httpx.post(url, json=schema, headers=headers, trust_env=False, timeout=30)
    assert answer.status_code == 200, answer.text
    eventually(lambda: own(cells, 1, "GET", "/schemas/meters").status_code == 200)
    cells.front.call("DELETE", "/schemas/meters?permanent=true")
    assert own(cells, 1, "GET", "/schemas/meters").status_code == 404


def test_a_share_group_of_another_cell_is_in_the_live_list(cells: Cells) -> None:
    group = "$share/elsewhere/jobs/#"
    with (
        Client(cells.nodes[1], cells.client_of(1, "worker")) as client,
        live(cells, "lists", kind="groups") as listed,
        live(cells, "object", kind="groups", name=group) as one,
    ):
        client.subscribe(group, 1)
        assert any(frame["rows"].get(group, {}).get("etag") for frame in listed)
        assert any(frame["object"] and frame["object"]["members"] == 1 for frame in one)


def test_live_metrics_are_those_of_all_cells(cells: Cells) -> None:
    with (
        Client(cells.nodes[1], cells.client_of(1, "measured")) as client,
        live(cells, "metrics", names=["connections"]) as frames,
    ):
        client.publish("measured", b"{}", 1)
        for frame in frames:
            shown = {one["labels"]["cell"]: one["value"] for one in frame["connections"]}
            if shown.keys() == {"0", "1"} and shown["1"] >= 1:
                break


def test_a_share_group_is_one_over_all_cells(cells: Cells) -> None:
    group = "$share/workers/jobs/#"
    path = "/groups/" + quote(group, safe="")
    assert cells.front.call("POST", "/groups", {"group": group}, expect=201)["group"] == group
    with ExitStack() as stack:
        clients = []
        for cell in (0, 1):
            name = cells.client_of(cell, "worker")
            client = stack.enter_context(Client(cells.nodes[cell], name))
            client.subscribe(group, 1)
            clients.append(name)
        shown = cells.front.call("GET", path)
        assert sorted(member["clientid"] for member in shown["member_list"]) == sorted(clients)
        assert (shown["members"], shown["connected"]) == (2, 2)
        with Client(cells.nodes[1], cells.client_of(1, "publisher")) as publisher:
            for number in range(5):
                publisher.publish("jobs/1", b"%d" % number, qos=1)
        eventually(lambda: cells.front.call("GET", path)["delivered"] == 5)
        rows = pages(cells, "/groups", 10)
        row = next(row for row in rows if row["group"] == group)
        assert (row["members"], row["delivered"], row["waiting"]) == (2, 5, 0)
        assert [item["group"] for item in rows].count(group) == 1
        with live(cells, "lists", kind="groups") as frames:
            shown = (frame["rows"].get(group) for frame in frames)
            assert any(
                (live_row["object"]["members"], live_row["object"]["delivered"]) == (2, 5)
                for live_row in shown
                if live_row
            )
        with live(cells, "object", kind="groups", name=group) as frames:
            assert any(len(frame["object"]["member_list"]) == 2 for frame in frames)
    eventually(lambda: cells.front.call("GET", path)["members"] == 0)
    cells.front.call("DELETE", path)
    for cell in (0, 1):
        assert own(cells, cell, "GET", path).status_code == 404
