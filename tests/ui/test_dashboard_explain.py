"""Explain, wherever the dashboard shows a message: stages, rows and receivers, or why there is no message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.node import Node, eventually
from tests.support.node import running as serving
from tests.ui.browser import check_everywhere, check_look, painted, set_look, sign_in, tab_to

TOPIC = "halls/1/t"
DIALOG = "[role=dialog]"
SCHEMA = {"type": "object", "required": ["t"]}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker that has one message in a stream, retained, delayed and captured, and one that a validation stopped."""
    with serving(
        tmp_path_factory.mktemp("explain") / "data", config="overload.enable = false\n"
    ) as node:
        node.call("POST", "/streams", {"name": "raw", "topics": ["halls/#"]})
        node.call("POST", "/streams", {"name": "warm"})
        node.call("POST", "/streams", {"name": "stopped"})
        node.call(
            "POST", "/schemas", {"name": "hall", "type": "json", "source": json.dumps(SCHEMA)}
        )
        node.call(
            "POST",
            "/rules",
            {
                "name": "warm",
                "sql": 'SELECT payload.t AS t FROM "halls/#"',
                "actions": [{"type": "stream", "stream": "warm"}],
            },
        )
        node.call(
            "POST",
            "/validations",
            {
                "name": "fits",
                "topics": ["halls/#"],
                "checks": [{"type": "json", "schema": "hall"}],
                "quarantine": "stopped",
                "strategy": "all_pass",
                "failure_action": "drop",
            },
        )
        node.call("POST", "/captures", {"name": "night", "filter": "halls/#"})
        reader = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="reader", protocol=mqtt.MQTTv5)
        reader.connect(*node.mqtt)
        reader.loop_start()
        eventually(reader.is_connected, what="reader connects")
        reader.subscribe("halls/#", qos=1)
        eventually(lambda: node.call("GET", "/subscriptions")["items"])
        good = {"topic": TOPIC, "payload": '{"t": 21}', "qos": 1, "retain": True}
        node.call("POST", "/messages:publish", good)
        node.call("POST", "/messages:publish", good | {"topic": f"$delayed/3600/{TOPIC}"})
        with node.client() as http:
            bad = {"topic": TOPIC, "payload": '{"x": 1}', "qos": 1}
            assert http.post("/messages:publish", json=bad).status_code == 422
        eventually(lambda: node.call("GET", "/captures/night/records")["total"] == 2)
        yield node
        reader.loop_stop()
        reader.disconnect()


@pytest.mark.parametrize(
    "path",
    [
        "streams/raw?tab=records",
        "retained",
        "retained/halls%2F1%2Ft",
        "delayed",
        "captures/night",
    ],
)
def test_a_message_is_explained_where_it_is_shown(
    page: Any, broker: Node, complaints: list[str], path: str
) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/{path}")
    tab_to(page, "main button[aria-haspopup=dialog]:not([aria-label])", most=150)
    page.keyboard.press("Enter")
    dialog = page.locator(DIALOG)
    dialog.locator("text=It passes all stages.").wait_for()
    dialog.locator("a.name:text-is('fits')").wait_for()
    dialog.locator("code:text-is('{\"t\":21}')").wait_for()
    dialog.locator("a.name:text-is('reader')").wait_for()
    dialog.locator("li:has-text('stream raw')").wait_for()
    broker.call("POST", "/rules/warm:disable")
    try:
        dialog.locator("button:text-is('Run again')").click()
        dialog.locator("a.name:text-is('warm')").wait_for(state="detached")
    finally:
        broker.call("POST", "/rules/warm:enable")
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    assert complaints == []


def test_a_quarantined_message_is_tried_again_as_it_was_published(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    dialog = page.locator(DIALOG)
    page.goto(f"{broker.url}/validations/fits?tab=watch")
    page.click("section[aria-label='Last failures'] td >> button:text-is('Explain')")
    dialog.locator("text=/It is stopped by validation/").wait_for()
    dialog.locator("text=/When it was published, it failed/").wait_for()
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    page.click("section[aria-label=Quarantine] td >> button:text-is('Explain')")
    dialog.locator("text=/It is stopped by validation/").wait_for()
    dialog.locator("text=/required/").first.wait_for()


def test_what_is_not_kept_is_said_with_what_acts_on_the_topic(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/streams/warm?tab=records")
    page.click("main td >> button:text-is('Explain')")
    dialog = page.locator(DIALOG)
    dialog.locator("text=/Rule warm wrote this row/").wait_for()
    dialog.locator("text=What acts on the topic").wait_for()
    page.keyboard.press("Escape")


def test_a_refused_message_is_run_again_as_everything_is_configured_now(
    page: Any, broker: Node, complaints: list[str]
) -> None:
    sign_in(page, broker)
    dialog = page.locator(DIALOG)
    row = broker.call("GET", "/refused")["items"][0]
    for path in ("overview", "refused", f"refused/{row['id']}"):
        page.goto(f"{broker.url}/{path}")
        page.click("main button:text-is('Explain')")
        dialog.locator("text=/It is stopped by validation/").wait_for()
        dialog.locator("text=/required/").first.wait_for()
        if path == "overview":
            dialog.locator("text=/When it was published, it was stopped/").wait_for()
        page.keyboard.press("Escape")
        dialog.wait_for(state="detached")
    broker.call("POST", "/validations/fits:disable")
    try:
        page.click("main button:text-is('Explain')")
        dialog.locator("text=It passes all stages.").wait_for()
        dialog.locator("a.name:text-is('reader')").wait_for()
    finally:
        broker.call("POST", "/validations/fits:enable")
    for number in range(50):
        with broker.client() as http:
            bad = {"topic": f"halls/{number}/t", "payload": "{}", "qos": 1}
            assert http.post("/messages:publish", json=bad).status_code == 422
    page.goto(f"{broker.url}/refused/{row['id']}")
    page.wait_for_selector("main >> text=/there is no refused message/")
    assert [line for line in complaints if "404" not in line] == []


def test_an_explanation_is_accessible_at_any_width(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/retained/halls%2F1%2Ft")
    page.click("main button:text-is('Explain')")
    page.wait_for_selector(f"{DIALOG} a.name:text-is('reader')")
    for width, scheme in ((1280, "light"), (390, "light"), (390, "dark")):
        set_look(page, width, scheme)
        painted(page)
        check_look(page, width, scheme)


def test_a_capture_shows_the_stages_that_each_message_met(
    page: Any, broker: Node, complaints: list[str]
) -> None:
    sign_in(page, broker)
    check_everywhere(page, f"{broker.url}/captures/night", "main details summary", complaints)
    set_look(page, 1280, "light")
    page.click("main details summary >> nth=0")
    page.wait_for_selector("main details[open] a.name:text-is('warm')")
    page.wait_for_selector("main >> text=refused")
