"""The page of a stream: its records sent again, with the plan first, paused, resumed and cancelled."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.end_to_end.test_bridge_buffers import publish
from tests.support.node import Node, eventually
from tests.support.node import running as serving
from tests.ui.browser import check_everywhere, sign_in


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker with a stream of messages, a second one, and a rule."""
    with serving(
        tmp_path_factory.mktemp("replays") / "data", config="overload.enable = false"
    ) as node:
        node.call("POST", "/streams", {"name": "kept", "topics": ["n/#"]})
        node.call("POST", "/streams", {"name": "copy", "topics": ["never/#"]})
        node.call(
            "POST",
            "/rules",
            {"name": "some", "sql": 'SELECT payload.n AS n FROM "n/1"', "actions": []},
        )
        publish(node, range(300))
        yield node


def test_records_are_sent_again_after_the_plan_was_shown(
    page: Any, broker: Node, complaints: list[str]
) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/streams/kept")
    page.click("nav.tabs >> text=Replay")
    page.select_option("label:text-is('To') + select", "stream:copy")
    page.fill("label:has-text('Topic filter') input", "n/1")
    page.click("text=Show the plan")
    page.wait_for_selector("[aria-label=Plan] >> text=/100 of 300 records/")
    page.click("form >> text=Copy as…")
    assert (
        page.locator(".popover pre").last.inner_text()
        == "sluice streams replay kept --to stream:copy --filter n/1"
    )
    page.keyboard.press("Escape")
    page.click("button:text('Replay 100 records')")
    page.wait_for_selector("text=/100 sent, 200 skipped/")
    assert broker.call("GET", "/streams/copy")["records"] == 100
    check_everywhere(
        page, f"{broker.url}/streams/kept?tab=replay", "text=Show the plan", complaints
    )


def test_a_replay_is_paused_resumed_and_cancelled(
    page: Any, broker: Node, complaints: list[str]
) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/streams/kept?tab=replay&topic=again&rate=1&rule=some")
    page.click("text=Show the plan")
    page.wait_for_selector("[aria-label='First records'] >> text=again")
    page.click("button:text-matches('^Replay')")
    page.click("button:text('Pause the replay')")
    page.wait_for_selector(".job >> text=paused")
    job = broker.call("GET", "/jobs")["items"][0]
    assert job["state"] == "paused"
    bar = f"progress[aria-label='{job['kind']} {job['name']}']"
    percent = re.compile(r"of 300 records \(\d+ %\)")
    page.goto(f"{broker.url}/jobs")
    row = page.locator("tr", has=page.locator(f"a[href*='{job['id']}']"))
    row.get_by_text(percent).wait_for()
    row.locator("progress[max='300']").wait_for()
    page.goto(f"{broker.url}/jobs/{job['id']}")
    page.wait_for_selector(f"main {bar}")
    page.get_by_role("status").filter(has_text=percent).wait_for()
    broker.call("POST", f"/jobs/{job['id']}:resume")
    page.get_by_role("status").filter(
        has_text=re.compile(r"\(\d+ %\), .* a second, .* left")
    ).wait_for()
    assert page.locator(bar).get_attribute("max") == "300"
    broker.call("POST", f"/jobs/{job['id']}:pause")
    page.goto(f"{broker.url}/streams/kept?tab=replay")  # the page finds the one that is under way
    page.click("button:text('Resume the replay')")
    page.wait_for_selector(".job >> text=running")
    page.click("button:text('Cancel')")
    page.wait_for_selector(".job >> text=cancelled")
    eventually(lambda: broker.call("GET", f"/jobs/{job['id']}")["state"] == "cancelled")
    assert complaints == []


def test_what_cannot_be_replayed_is_said(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/streams/kept?tab=replay&to=kafka:none")
    page.click("text=Show the plan")
    page.wait_for_selector("[role=alert] >> text=there is no action 'kafka:none'")
