"""Explain, wherever the dashboard shows a message: stages, rows and receivers, or why there is no message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.support.node import Node, eventually
from tests.support.node import running as serving
from tests.ui.browser import check_everywhere, check_look, painted, set_look, sign_in, tab_to

TOPIC = "halls/1/t"
DIALOG = "[role=dialog]"
PASSWORD = "a long password"
SCHEMA = {"type": "object", "required": ["t"]}


class Refusing(BaseHTTPRequestHandler):
    """Answers 400 to every POST."""

    def do_POST(self) -> None:  # the library's name
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_error(400)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@pytest.fixture(scope="module")
def refusing() -> Iterator[str]:
    """The address of an HTTP server that takes nothing."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, refusing: str) -> Iterator[Node]:
    """A broker that has a message in a stream, retained, delayed, captured, in flight and queued, one that a validation
    stopped, and one whose row an HTTP server refused."""
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
        node.call("POST", "/captures", {"name": "of-sleeper", "clientid": "sleeper"})
        reader = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="reader", protocol=mqtt.MQTTv5)
        reader.connect(*node.mqtt)
        reader.loop_start()
        eventually(reader.is_connected, what="reader connects")
        reader.subscribe("halls/#", qos=1)
        sleeper = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id="sleeper",
            protocol=mqtt.MQTTv5,
            manual_ack=True,
        )
        properties = Properties(PacketTypes.CONNECT)
        properties.ReceiveMaximum = 1
        sleeper.connect(*node.mqtt, properties=properties)
        sleeper.loop_start()
        eventually(sleeper.is_connected, what="sleeper connects")
        sleeper.subscribe("halls/#", qos=1)
        eventually(lambda: len(node.call("GET", "/subscriptions")["items"]) == 2)
        good = {"topic": TOPIC, "payload": '{"t": 21}', "qos": 1, "retain": True}
        node.call("POST", "/messages:publish", good)
        node.call("POST", "/messages:publish", good)
        node.call("POST", "/connectors", {"name": "hook", "type": "http", "url": refusing})
        sends = {"name": "hook", "type": "http", "connector": "hook", "parameters": {"path": "/"}}
        node.call("POST", "/actions", sends)
        lost = 'SELECT payload.t AS lost FROM "lost/#"'
        node.call("POST", "/rules", {"name": "lost", "sql": lost, "actions": ["http:hook"]})
        node.call("POST", "/messages:publish", good | {"topic": "lost/1", "retain": False})
        eventually(lambda: node.call("GET", "/actions/hook")["dead_letters_waiting"] == 1)
        node.call("POST", "/messages:publish", good | {"topic": f"$delayed/3600/{TOPIC}"})
        with node.client() as http:
            bad = {"topic": TOPIC, "payload": '{"x": 1}', "qos": 1}
            assert http.post("/messages:publish", json=bad).status_code == 422
        eventually(lambda: node.call("GET", "/captures/night/records")["total"] == 3)
        yield node
        for client in (reader, sleeper):
            client.loop_stop()
            client.disconnect()


@pytest.mark.parametrize(
    "path",
    [
        "streams/raw?tab=records",
        "retained",
        "retained/halls%2F1%2Ft",
        "delayed",
        "captures/night",
        "clients/sleeper",
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


def test_a_message_that_waits_for_a_client_is_explained_on_its_page(
    page: Any, broker: Node, complaints: list[str]
) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/clients/sleeper")
    waiting = page.locator("section[aria-label='Messages for it'] tr:has-text('queued')")
    waiting.get_by_role("button", name="Explain").click()
    dialog = page.locator(DIALOG)
    dialog.locator("text=It passes all stages.").wait_for()
    for name in ("fits", "warm", "sleeper", "reader", "raw"):
        dialog.locator(f"a.name:text-is('{name}')").first.wait_for()
    dialog.locator("code:text-is('{\"t\":21}')").wait_for()
    assert complaints == []


def test_a_dead_letter_of_an_action_shows_its_row_and_what_acts_on_the_topic(
    page: Any, broker: Node, complaints: list[str]
) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/actions/hook?tab=dead+letters")
    page.click("section[aria-label='Dead letters'] button:text-is('Explain')")
    dialog = page.locator(DIALOG)
    dialog.locator("text=/The row was given up: .*400/").wait_for()
    dialog.locator("text=/A dead letter has the row that a rule made/").wait_for()
    dialog.locator("code:text-is('{\"lost\":21}')").wait_for()
    dialog.locator("text=What acts on the topic").wait_for()
    dialog.locator("a.name:text-is('lost')").wait_for()
    dialog.locator("text=No client subscribes to it.").wait_for()
    assert complaints == []


def test_an_explanation_that_is_slow_or_refused_says_so(page: Any, broker: Node) -> None:
    held: list[Any] = []
    page.route("**/api/v1/pipeline:preview*", lambda route: held.append(route))
    sign_in(page, broker)
    page.goto(f"{broker.url}/retained/halls%2F1%2Ft")
    page.click("main button:text-is('Explain')")
    dialog = page.locator(DIALOG)
    dialog.locator("[role=status] >> text=Trying the message…").wait_for()
    for width, scheme in ((390, "dark"), (1280, "light")):
        set_look(page, width, scheme)
        painted(page)
        check_look(page, width, scheme)
    body = '{"code": "unavailable", "detail": "the node is overloaded"}'
    held.pop().fulfill(status=503, content_type="application/problem+json", body=body)
    dialog.locator("[role=alert] >> text=the node is overloaded").wait_for()
    dialog.locator("button:text-is('Run again')").click()
    eventually(lambda: bool(held) or page.wait_for_timeout(20), what="the second try")
    held.pop().continue_()
    dialog.locator("text=It passes all stages.").wait_for()


def test_a_role_that_may_not_try_sees_what_acts_on_the_topic(
    page: Any, broker: Node, complaints: list[str]
) -> None:
    account = {"name": "olga", "role": "viewer", "password": PASSWORD}
    broker.call("POST", "/accounts", account)
    page.request.post(
        f"{broker.url}/api/v1/session",
        data={"name": "olga", "password": PASSWORD},
        headers={"Origin": broker.url},
    )
    page.goto(f"{broker.url}/retained/halls%2F1%2Ft")
    page.click("main button:text-is('Explain')")
    dialog = page.locator(DIALOG)
    dialog.locator("text=/Your role may not try messages/").wait_for()
    dialog.locator("a.name:text-is('warm')").wait_for()
    dialog.locator("a.name:text-is('reader')").wait_for()
    assert complaints == []


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


def test_a_capture_of_a_client_shows_what_happened_to_it(
    page: Any, broker: Node, complaints: list[str]
) -> None:
    sign_in(page, broker)
    check_everywhere(
        page, f"{broker.url}/captures/of-sleeper", "main td >> text=/Connected from/", complaints
    )
    page.wait_for_selector("main td >> text=/Subscribed: halls/")
    assert page.locator("main tbody button:text-is('Explain')").count() == 0


def test_a_client_is_captured_from_its_page(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/clients/reader")
    page.click("main button:text-is('Capture…')")
    page.click("[role=alertdialog] button:text-is('Capture')")
    page.wait_for_url("**/captures/reader-*")
    page.wait_for_selector("main dd >> text=reader")
    [capture] = [
        one for one in broker.call("GET", "/captures")["items"] if one["clientid"] == "reader"
    ]
    broker.call("DELETE", f"/captures/{capture['name']}")
