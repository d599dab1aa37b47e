"""One API over two cells: requests reach the cell of the client, lists are merged, rights hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.cluster.cells import Cells, running
from tests.end_to_end.clients import Client


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cells]:
    with running(tmp_path_factory.mktemp("faces") / "data") as cells:
        yield cells


@pytest.fixture(scope="module")
def devices(cells: Cells) -> Iterator[list[str]]:
    """Clients of both cells, each connected to its own."""
    names = sorted(f"d-{number:02}" for number in range(20))
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
