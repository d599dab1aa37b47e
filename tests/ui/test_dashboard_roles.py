"""Each page as each role, in a real browser: none asks for what the server refuses, none offers it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
from paho.mqtt import publish as mqtt_publish

from tests.support.node import Node, eventually
from tests.support.node import running as serving
from tests.ui.browser import Requests, check_look
from tests.ui.test_dashboard_states import PASSWORD

ROLES: Final = ("viewer", "operator", "editor")
TOPICS: Final = ["halls/#"]
OBJECTS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("streams", {"name": "raw", "topics": TOPICS}),
    ("streams", {"name": "stopped"}),
    (
        "schemas",
        {"name": "hall", "type": "json", "source": '{"type": "object", "required": ["t"]}'},
    ),
    (
        "validations",
        {
            "name": "fits",
            "topics": TOPICS,
            "checks": [{"type": "json", "schema": "hall"}],
            "quarantine": "stopped",
            "strategy": "all_pass",
            "failure_action": "drop",
        },
    ),
    (
        "transforms",
        {
            "name": "mark",
            "topics": TOPICS,
            "operations": [{"key": "user_property.seen", "value": "clientid"}],
            "failure_action": "drop",
        },
    ),
    ("rules", {"name": "warm", "sql": 'SELECT payload.t AS t FROM "halls/#"', "tests": []}),
    ("connectors", {"name": "hook", "type": "http", "url": "http://127.0.0.1:9/"}),
    ("actions", {"name": "hook", "type": "http", "connector": "hook", "parameters": {"path": "/"}}),
    ("connectors", {"name": "away", "type": "mqtt", "server": "127.0.0.1:9"}),
    (
        "sources",
        {"name": "away", "type": "mqtt", "connector": "away", "parameters": {"topic": "x/#"}},
    ),
    ("lake/tables", {"name": "raw", "stream": "raw"}),
    ("access/rules", {"name": "all", "permission": "allow", "topics": ["#"]}),
    ("alarm-receivers", {"name": "duty", "type": "topic", "topic": "duty/${name}"}),
    ("captures", {"name": "night", "filter": "halls/#"}),
)
PAGES: Final = (
    "streams/raw",
    "schemas/hall",
    "validations/fits",
    "transforms/mark",
    "rules/warm",
    "connectors/hook",
    "actions/hook",
    "sources/away",
    "tables/raw",
    "access/rules/all",
    "alarm-receivers/duty",
    "captures/night",
    "retained/halls%2F1%2Ft",
    "clients/reader",
    "overview",
    "topics",
    "mqtt-client",
    "access/rules",
    "validations",
    "",
)
READS: Final = re.compile(
    r"Copy|Explain|History|Previous|Next|Go|Newest|Rows|Export|Dead letters|Show|Hide the steps|Follow|Apply|Stop$|CSV"
    r"|PNG|Table|\d+ (min|h|days)$|mosquitto|Python|MQTTX|A table|Another topic|Kafka"
)
"""Labels of buttons that change nothing."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker with an object of each kind, and an account of each role."""
    config = "lake.run_spark = false\noverload.enable = false\n"
    with serving(tmp_path_factory.mktemp("roles") / "data", config=config) as node:
        for role in ROLES:
            account = {"name": role, "role": role, "password": PASSWORD}
            node.call("POST", "/accounts", account)
        for path, spec in OBJECTS:
            node.call("POST", f"/{path}", spec)
        host, port = node.mqtt
        for payload in ({"t": 1}, {}):
            mqtt_publish.single(
                "halls/1/t", json.dumps(payload), 1, retain=True, hostname=host, port=port
            )
        eventually(lambda: len(node.call("GET", "/refused")["items"]) == 1)
        eventually(lambda: len(node.call("GET", "/retained")["items"]) == 1)
        yield node


def sign_in_as(page: Any, broker: Node, role: str) -> None:
    answer = page.request.post(
        f"{broker.url}/api/v1/session",
        data={"name": role, "password": PASSWORD},
        headers={"Origin": broker.url},
    )
    assert answer.status == 204


@pytest.mark.parametrize("role", ROLES)
def test_no_page_and_no_tab_asks_for_what_the_role_may_not(
    page: Any, broker: Node, role: str
) -> None:
    refused: list[str] = []
    page.on(
        "response",
        lambda answer: (
            refused.append(f"{page.url}: {answer.request.method} {answer.url}")
            if answer.status == 403
            else None
        ),
    )
    offered: list[str] = []
    requests = Requests(page)
    sign_in_as(page, broker, role)
    for path in PAGES:
        page.goto(f"{broker.url}/{path}")
        page.wait_for_selector("main h1")
        requests.wait()
        tabs = page.locator("main nav.tabs a").evaluate_all("links => links.map(link => link.href)")
        for address in tabs or [page.url]:
            page.goto(address)
            page.wait_for_selector("main h1")
            requests.wait()
            if role == "viewer":
                buttons = page.locator("main :is(button, a.button):visible:enabled")
                offered += [
                    f"{page.url}: {label}"
                    for label in buttons.all_inner_texts()
                    if not READS.match(label) and label.strip()
                ]
    assert refused == []
    assert offered == []


@pytest.mark.parametrize(
    ("path", "may_not"),
    [
        ("", "test rules"),
        ("streams/raw?tab=replay", "replay records"),
        ("tables/raw?tab=replay", "replay tables"),
        ("tables/raw?tab=audit", "audit tables"),
        ("tables/raw?tab=maintain", "maintain tables"),
        ("rules/warm", "test rules"),
        ("rules/warm?tab=back-test", "back-test rules"),
        ("schemas/hall?tab=try", "decode or encode payloads"),
        ("validations/fits?tab=change", "try validations"),
        ("alarm-receivers/duty?tab=test", "run this test"),
    ],
)
def test_a_page_says_what_the_role_of_a_viewer_may_not(
    page: Any, broker: Node, path: str, may_not: str
) -> None:
    sign_in_as(page, broker, "viewer")
    page.goto(f"{broker.url}/{path}")
    page.wait_for_selector(f"main >> text=Your role may not {may_not}.")
    check_look(page, 1280, "light")


def test_an_operator_explains_a_message_and_asks_what_a_client_may_do(
    page: Any, broker: Node, complaints: list[str]
) -> None:
    sign_in_as(page, broker, "operator")
    refused = broker.call("GET", "/refused")["items"][0]["id"]
    page.goto(f"{broker.url}/refused/{refused}")
    page.click("main button:text-is('Explain')")
    dialog = page.locator("[role=dialog]")
    dialog.locator("text=/It is stopped by validation/").wait_for()
    dialog.locator("text=/required/").first.wait_for()
    page.keyboard.press("Escape")
    page.goto(f"{broker.url}/access/rules")
    page.get_by_label("Client identifier").fill("meter-7")
    page.get_by_label("Topic", exact=True).fill("meters/7")
    page.click("main button:text-is('Check')")
    page.wait_for_selector("main >> text=meter-7 may publish meters/7")
    page.goto(f"{broker.url}/streams/raw?tab=replay")
    page.click("main button:text-is('Show the plan')")
    page.wait_for_selector("main dl[aria-label=Plan]")
    page.goto(f"{broker.url}/connectors/hook?tab=test")
    page.click("main button:text-is('Test the connection')")
    page.wait_for_selector("main >> text=/A step failed/")
    assert complaints == []
