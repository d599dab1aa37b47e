"""The audit log in a real browser: a colleague broke a rule; who it was, what changed, and back again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.node import Node
from tests.support.node import running as serving
from tests.support.plain_http import NO_TLS
from tests.ui.browser import check_everywhere, check_look, painted, set_look, sign_in, tab_to

GOOD = 'SELECT payload.t AS t FROM "halls/#" WHERE payload.t > 30'
BROKEN = 'SELECT payload.t AS t FROM "halls/#" WHERE payload.t > 3000'
PASSWORD = "a long password"
ENTRIES = 120


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker with many entries of its log, and a rule that an account has changed for the worse."""
    with serving(
        tmp_path_factory.mktemp("audit") / "data", config="overload.enable = false\n"
    ) as node:
        node.call("POST", "/accounts", {"name": "ben", "role": "editor", "password": PASSWORD})
        node.call("POST", "/accounts", {"name": "vera", "role": "viewer", "password": PASSWORD})
        node.call("POST", "/rules", {"name": "hot", "sql": GOOD, "actions": []})
        for number in range(ENTRIES):
            node.call("POST", "/streams", {"name": f"stream-{number}"})
        with httpx.Client(
            base_url=node.url, verify=NO_TLS, headers={"Origin": node.url}, timeout=60
        ) as ben:
            signed_in = ben.post("/api/v1/session", json={"name": "ben", "password": PASSWORD})
            assert signed_in.status_code == 204
            changed = ben.patch("/api/v1/rules/hot", json={"sql": BROKEN})
            assert changed.status_code == 200, changed.text
        yield node


def sign_in_as(page: Any, broker: Node, name: str) -> None:
    answer = page.request.post(
        f"{broker.url}/api/v1/session",
        data={"name": name, "password": PASSWORD},
        headers={"Origin": broker.url},
    )
    assert answer.status == 204


def test_who_broke_a_rule_and_what_changed_is_found_and_taken_back_by_keyboard(
    page: Any, broker: Node, complaints: list[str]
) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/rules/hot")
    page.wait_for_selector("a.button:text-is('History')")
    tab_to(page, "main a[href^='/audit-log']")
    page.keyboard.press("Enter")
    row = page.locator("main tbody tr", has_text="ben")
    row.locator("text=dashboard").wait_for()
    assert page.locator("main tbody tr").count() == 2  # its creation, and the change
    tab_to(page, "main tbody tr:first-child a[href*='/audit-log/']")
    page.keyboard.press("Enter")
    page.wait_for_selector("main >> text=payload.t > 3000")
    changes = page.locator("main .differences")
    changes.locator("text=/WHERE payload.t > 30 *→/").wait_for()
    tab_to(page, "main .title button")
    assert page.evaluate("document.activeElement.textContent") == "Take back…"
    page.keyboard.press("Enter")
    dialog = page.locator("[role=alertdialog]")
    dialog.locator("button:text-is('Take back'):not([disabled])").wait_for()
    tab_to(page, "[role=alertdialog] .buttons button:first-child")
    page.keyboard.press("Enter")
    dialog.wait_for(state="detached")
    page.wait_for_selector("[role=status] >> text=/done/")
    assert broker.call("GET", "/rules/hot")["sql"] == GOOD
    page.goto(f"{broker.url}/rules/hot")
    page.click("a.button:text-is('History')")
    page.wait_for_selector("main tbody tr:nth-child(3)")
    assert complaints == []


def test_the_log_is_searched_paged_and_empty_in_words(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/audit-log")
    page.wait_for_selector("main tbody tr:nth-child(50)")
    page.click("button:text-is('Next')")
    page.wait_for_selector("text=/51 to 100/")
    page.goto(f"{broker.url}/audit-log?actor=ben&operation=patchRule")
    page.wait_for_selector("main tbody tr")
    assert page.locator("main tbody tr").count() == 1
    page.goto(f"{broker.url}/audit-log?actor=nobody")
    page.wait_for_selector("main >> text=None matches.")
    page.goto(f"{broker.url}/audit-log/none")
    page.wait_for_selector("main .empty")


def test_what_the_filters_select_is_downloaded(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/audit-log?kind=rule&name=hot")
    page.wait_for_selector("main tbody td >> text=ben")
    with page.expect_download() as saved:
        page.click("main a.button:text-is('Download')")
    lines = [json.loads(line) for line in saved.value.path().read_text().splitlines()]
    changed = [{change["name"] for change in entry["changes"]} for entry in lines]
    assert changed
    assert all("hot" in names for names in changed)
    assert any(entry["actor"] == "ben" and entry["changes"] for entry in lines)
    assert saved.value.suggested_filename == "audit-log.jsonl"


def test_a_viewer_reads_the_log_and_takes_nothing_back(page: Any, broker: Node) -> None:
    sign_in_as(page, broker, "vera")
    page.goto(f"{broker.url}/audit-log?name=hot")
    page.wait_for_selector("main tbody tr a")
    page.click("main tbody tr a[href*='/audit-log/'] >> nth=0")
    page.wait_for_selector("main section.card")
    assert page.locator("button:has-text('Take back')").count() == 0


def test_a_log_that_cannot_be_read_says_so(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.route(
        "**/api/v1/audit-log?*",
        lambda route: route.fulfill(
            status=503,
            content_type="application/problem+json",
            body='{"code": "unavailable", "detail": "the store takes nothing"}',
        ),
    )
    page.goto(f"{broker.url}/audit-log")
    page.wait_for_selector("main [role=alert] >> text=the store takes nothing")
    set_look(page, 390, "dark")
    painted(page)
    check_look(page, 390, "dark")


@pytest.mark.parametrize("path", ["audit-log", "audit-log?name=hot", "rules/hot"])
def test_pages_of_the_story_are_accessible_at_any_width(
    page: Any, broker: Node, complaints: list[str], path: str
) -> None:
    sign_in(page, broker)
    check_everywhere(page, f"{broker.url}/{path}", "main section.card", complaints)


def test_an_entry_is_accessible_at_any_width(
    page: Any, broker: Node, complaints: list[str]
) -> None:
    [entry] = broker.call("GET", "/audit-log?actor=ben&operation=patchRule")["items"]
    sign_in(page, broker)
    check_everywhere(page, f"{broker.url}/audit-log/{entry['id']}", "main .differences", complaints)
