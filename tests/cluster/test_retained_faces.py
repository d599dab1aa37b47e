"""Retained messages of two cells in the API: one list, and each message found, deleted and undone where it is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import httpx
import pytest

from tests.cluster.cells import Cells, running
from tests.end_to_end.clients import Client
from tests.support.local_node import sluice

_TOPICS = 12


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cells]:
    config = "retained { max_messages = 40 }"
    with running(tmp_path_factory.mktemp("retained") / "data", config=config) as cells:
        yield cells


@pytest.fixture
def api(cells: Cells) -> Iterator[httpx.Client]:
    with cells.front.client() as api:
        assert api.post("/retained:clear", json={"filter": "#"}).status_code == 200
        yield api


def publish(api: httpx.Client, topic: str, payload: str = "x", **more: Any) -> httpx.Response:
    members = {"topic": topic, "payload": payload, "qos": 1, "retain": True, **more}
    return api.post("/messages:publish", json=members)


def filled(cells: Cells, api: httpx.Client, prefix: str) -> dict[str, int]:
    """Topics with a message, of both cells alike, with the cell that has each."""
    names = (f"{prefix}/{at:02}" for at in count())
    by_cell: dict[int, list[str]] = {0: [], 1: []}
    while min(map(len, by_cell.values())) < _TOPICS // 2:
        name = next(names)
        if len(own := by_cell[cells.place.cell_of(name)]) < _TOPICS // 2:
            own.append(name)
    topics = {name: cell for cell, own in by_cell.items() for name in own}
    for topic in topics:
        assert publish(api, topic, topic).status_code == 200
    return topics


def test_one_list_with_a_column_cell(cells: Cells, api: httpx.Client) -> None:
    topics = filled(cells, api, "list")
    items: list[dict[str, Any]] = []
    cursor = None
    while True:
        parameters = {"limit": 5, **({"cursor": cursor} if cursor else {})}
        page = api.get("/retained", params=parameters).json()
        items += page["items"]
        cursor = page["next"]
        if cursor is None:
            break
    assert [(item["topic"], item["cell"]) for item in items] == sorted(topics.items())
    total = api.get("/retained:count").json()
    assert total["messages"] == _TOPICS
    assert total["bytes"] > sum(map(len, topics))
    listed = sluice(cells.front, "retained", "ls", "list/#").stdout
    assert all(topic in listed for topic in topics)


def test_one_is_shown_and_deleted_where_it_is(cells: Cells, api: httpx.Client) -> None:
    for topic in filled(cells, api, "one"):
        shown = api.get("/retained:message", params={"topic": topic})
        assert shown.json()["topic"] == topic
        assert api.delete("/retained:message", params={"topic": topic}).status_code == 204
        assert api.get("/retained:message", params={"topic": topic}).status_code == 404
        assert api.delete("/retained:message", params={"topic": topic}).status_code == 404


def test_a_filter_is_cleared_and_undone_in_all_cells(cells: Cells, api: httpx.Client) -> None:
    topics = filled(cells, api, "clear")
    assert publish(api, "stays").status_code == 200
    dry = api.post("/retained:clear", json={"filter": "clear/#", "dry_run": True}).json()
    assert (dry["messages"], dry["undo"]) == (_TOPICS, None)
    cleared = api.post("/retained:clear", json={"filter": "clear/#"}).json()
    assert cleared["messages"] == _TOPICS
    assert api.get("/retained:count").json()["messages"] == 1
    deletions = [
        item
        for item in api.get("/retained-deletions").json()["items"]
        if item["id"] == cleared["undo"]
    ]
    assert sorted(item["cell"] for item in deletions) == [0, 1]
    assert sum(item["messages"] for item in deletions) == _TOPICS
    newer = next(topic for topic, cell in topics.items() if cell)
    assert publish(api, newer, "newer").status_code == 200
    undone = api.post(f"/retained-deletions/{cleared['undo']}:undo").json()
    assert undone == {"restored": _TOPICS - 1, "newer": 1, "expired": 0, "refused": 0}
    assert api.get("/retained:count").json()["messages"] == _TOPICS + 1
    assert api.post(f"/retained-deletions/{cleared['undo']}:undo").status_code == 404


def test_a_deletion_in_the_other_cell_alone_is_undone(cells: Cells, api: httpx.Client) -> None:
    topic = next(topic for topic, cell in filled(cells, api, "other").items() if cell)
    cleared = api.post("/retained:clear", json={"filter": topic}).json()
    assert cleared["messages"] == 1
    assert cleared["undo"]
    assert api.post(f"/retained-deletions/{cleared['undo']}:undo").json()["restored"] == 1
    assert api.get("/retained:message", params={"topic": topic}).status_code == 200


def test_the_api_says_that_the_cell_of_the_topic_refused(cells: Cells, api: httpx.Client) -> None:
    answers = [publish(api, f"full/{at}") for at in range(45)]
    refused = [answer for answer in answers if answer.status_code == 422]
    assert len(refused) == 5
    assert all("limit of 40 retained messages" in answer.text for answer in refused)


def test_topics_know_of_messages_of_other_cells(cells: Cells, api: httpx.Client) -> None:
    api.get("/topics")
    topics = filled(cells, api, "tree")
    page = api.get("/topics", params={"under": "tree", "sort": "name"}).json()
    assert {item["topic"] for item in page["items"]} == topics.keys()
    assert all(item["retained"] for item in page["items"])
    for topic in topics:
        latest = api.get("/topics/latest", params={"filter": topic}).json()["items"]
        assert [(item["source"], item["message"]["topic"]) for item in latest] == [
            ("retained", topic)
        ]


def test_metrics_are_by_cell(cells: Cells, api: httpx.Client) -> None:
    filled(cells, api, "metrics")
    text = httpx.get(api.base_url.copy_with(path="/metrics"), headers=api.headers).text
    for cell in (0, 1):
        assert f'sluice_retained_messages{{cell="{cell}"}} 6' in text


def test_clients_of_any_cell_are_sent_them(cells: Cells, api: httpx.Client) -> None:
    topics = filled(cells, api, "sent")
    for cell in (0, 1):
        with Client(cells.nodes[cell], cells.client_of(cell)) as client:
            client.subscribe("sent/#", 1)
            received = [client.messages.get(timeout=60) for _ in topics]
            assert {message.topic for message in received} == topics.keys()
