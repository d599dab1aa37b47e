"""The dashboard of a broker with several cells in a real browser: one broker, whose lists say which cell has what."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.cells import Cells, running
from tests.end_to_end.clients import Client
from tests.support.node import eventually
from tests.ui.browser import LOOKS, check_look, painted, set_look, sign_in


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cells]:
    with running(tmp_path_factory.mktemp("cells") / "data") as cells:
        yield cells


def test_cells_are_processes_with_their_share_of_clients(page: Any, cells: Cells) -> None:
    names = [cells.client_of(cell) for cell in (0, 1)]
    face: Any = cells.front
    sign_in(page, face)
    with Client(cells.nodes[0], names[0]), Client(cells.nodes[1], names[1]):
        page.goto(f"{cells.front.url}/cells")
        page.wait_for_selector("main h1 >> text=Cells")
        page.wait_for_selector(f"main td >> text='{os.getpid()}'")
        painted(page)
        heads = page.locator("main thead th").all_inner_texts()
        assert [head for head in heads if head.endswith("per")] == []
        rows = [row.split("\t") for row in page.locator("main tbody tr").all_inner_texts()]
        assert [row[0].strip() for row in rows] == ["0", "1"]
        assert all("running" in row[1] for row in rows)
        for width, scheme in LOOKS:
            set_look(page, width, scheme)
            painted(page)
            check_look(page, width, scheme)
        set_look(page, 1280, "light")
        page.goto(f"{cells.front.url}/clients")
        for name in names:
            page.wait_for_selector(f"main a.name:text-is('{name}')")


def test_the_topic_tree_has_a_level_once(page: Any, cells: Cells) -> None:
    face: Any = cells.front
    sign_in(page, face)
    face.call("GET", "/topics")  # the counting begins with the first look
    page.goto(f"{cells.front.url}/topics")
    page.wait_for_selector("main h1 >> text=Topics")
    for cell in (0, 1):
        with Client(cells.nodes[cell], cells.client_of(cell, "tree")) as client:
            client.publish(f"hall/meter-{cell}", b"21", 1)
    row = page.locator("main tr", has=page.locator("a:text-is('hall')"))
    row.first.wait_for()
    eventually(
        lambda: row.first.locator("td").nth(1).inner_text().strip() == "2",
        what="the level has the topics of both cells",
    )
    assert row.count() == 1
    row.locator("a").click()
    for cell in (0, 1):
        page.wait_for_selector(f"main a:text-is('meter-{cell}')")
