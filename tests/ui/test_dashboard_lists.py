"""Lists and objects of any kind in a real browser: long lists, filters in the address, effects before a deletion."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.node import Node
from tests.support.node import running as serving
from tests.ui.browser import check_everywhere, sign_in

MANY = 300


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker with one stream that a rule writes, and many rules, one of them disabled."""
    with serving(tmp_path_factory.mktemp("lists") / "data", config="overload.enable = false") as node:
        node.call("POST", "/streams", {"name": "warm"})
        for number in range(MANY):
            stream = {"actions": [{"type": "stream", "stream": "warm"}]} if number == 0 else {}
            node.call("POST", "/rules", {"name": f"rule-{number:04}", "sql": 'SELECT qos FROM "a/#"', **stream})
        node.call("POST", "/rules/rule-0007:disable")
        yield node


def test_a_long_list_draws_the_rows_in_view(page: Any, broker: Node, complaints: list[str]) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/rules")
    rows = page.locator(".list tbody tr[aria-rowindex]")
    rows.first.wait_for()
    assert page.get_attribute(".list table", "aria-rowcount") == str(MANY + 1)
    while page.locator(f"text=rule-{MANY - 1:04}").count() == 0:
        page.evaluate("document.querySelector('.list').scrollTop = 1e9")
        page.wait_for_timeout(20)
    assert rows.count() < 60
    assert complaints == []


def test_filters_are_in_the_address(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/rules")
    page.get_by_label("Name").fill("rule-0007")
    page.wait_for_url("**/rules?q=rule-0007")
    page.wait_for_selector("text=1 shown")
    page.reload()
    page.wait_for_selector("text=1 shown")
    assert page.input_value("input[type=search]") == "rule-0007"
    page.goto(f"{broker.url}/rules?state=disabled")
    page.wait_for_selector("td >> text=rule-0007")
    page.wait_for_selector("text=1 shown")
    page.goto(f"{broker.url}/rules?q=nothing")
    page.wait_for_selector("text=None matches.")


def test_a_deletion_says_what_it_affects_and_an_object_that_is_used_stays(page: Any, broker: Node) -> None:
    broker.call("POST", "/rules", {"name": "to-go", "sql": 'SELECT qos FROM "a/#"'})
    sign_in(page, broker)
    page.goto(f"{broker.url}/rules/to-go")
    page.click("button[aria-label='Do something with to-go']")
    page.click("text=Delete…")
    page.wait_for_selector("text=It would be deleted. Nothing else is affected.")
    page.keyboard.press("Tab")
    page.click("[role=alertdialog] >> text=Delete >> nth=-1")
    page.wait_for_url("**/rules")
    assert broker.call("GET", "/rules/to-go", expect=404)["code"] == "not_found"
    page.goto(f"{broker.url}/streams")
    page.click("button[aria-label='Do something with warm']")
    page.click("text=Delete…")
    page.wait_for_selector("[role=alertdialog] >> text=rule-0000")


def test_disabling_shows_at_once(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/rules?q=rule-0003")
    page.click("button[aria-label='Do something with rule-0003']")
    page.click("[role=menuitem] >> text=Disable")
    page.click("[role=alertdialog] >> button:text('Disable')")
    page.wait_for_selector("td >> text=disabled")
    assert broker.call("GET", "/rules/rule-0003")["enable"] is False


@pytest.mark.parametrize("path", ["/rules", "/rules/rule-0000", "/connectors", "/streams"])
def test_lists_and_objects_are_accessible_at_any_width(
    page: Any, broker: Node, complaints: list[str], path: str
) -> None:
    sign_in(page, broker)
    check_everywhere(page, f"{broker.url}{path}", "main .card >> nth=0", complaints)
