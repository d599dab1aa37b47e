"""The MQTT client of the dashboard in a real browser: it connects through the API, publishes and subscribes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.node import Node
from tests.support.node import running as serving
from tests.ui.browser import check_everywhere, check_look, painted, set_look, sign_in, tab_to

SCHEMA = {
    "type": "record",
    "name": "Reading",
    "fields": [{"name": "t", "type": "double"}],
}
CHECK = {"type": "object", "required": ["t"]}
PASSWORD = "a long password"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker that authenticates clients, with an Avro schema and a validation that refuses."""
    with serving(
        tmp_path_factory.mktemp("mqtt") / "data", config="overload.enable = false\n"
    ) as node:
        node.call("POST", "/authentication", {"mechanism": "builtin"})
        node.call("POST", "/users", {"name": "meter", "password": PASSWORD})
        node.call(
            "POST", "/schemas", {"name": "reading", "type": "avro", "source": json.dumps(SCHEMA)}
        )
        node.call("POST", "/schemas", {"name": "hall", "type": "json", "source": json.dumps(CHECK)})
        node.call(
            "POST",
            "/validations",
            {
                "name": "fits",
                "topics": ["halls/#"],
                "checks": [{"type": "json", "schema": "hall"}],
                "strategy": "all_pass",
                "failure_action": "drop",
            },
        )
        yield node


def connect(page: Any, broker: Node, client_id: str = "page-1") -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/mqtt-client")
    page.get_by_label("Client ID").fill(client_id)
    page.get_by_label("User name").fill("meter")
    page.get_by_label("Password").fill(PASSWORD)
    page.click("button:text-is('Connect')")
    page.wait_for_selector(f"text=Connected as {client_id}")


def test_a_message_with_all_properties_comes_back_with_them(
    page: Any, broker: Node, complaints: list[str]
) -> None:
    connect(page, broker)
    subscriptions = page.locator("section[aria-label=Subscriptions]")
    subscriptions.get_by_label("Topic filter").fill("rooms/#")
    subscriptions.get_by_text("Options").click()
    subscriptions.get_by_label("Subscription identifier").fill("7")
    subscriptions.get_by_role("button", name="Subscribe", exact=True).click()
    subscriptions.locator("td code:text-is('rooms/#')").wait_for()
    client = broker.call("GET", "/clients/page-1")
    assert client["address"].startswith("127.0.0.1:")
    publish = page.locator("section[aria-label=Publish]")
    publish.get_by_label("Topic", exact=True).fill("rooms/1")
    publish.locator("textarea").first.fill('{"t": 21.5}')
    publish.get_by_label("QoS").select_option("2")
    publish.get_by_label("Retain").check()
    publish.get_by_text("Properties", exact=True).click()
    publish.get_by_label("Content type").fill("application/json")
    publish.get_by_label("Response topic").fill("answers/1")
    publish.get_by_label("Correlation data").fill("request-9")
    publish.get_by_label("Expires after").fill("600")
    publish.get_by_label("Payload is UTF-8").check()
    publish.get_by_label("User properties").fill("site=north\nsite=south\nunit=°C")
    publish.get_by_role("button", name="Publish").click()
    messages = page.locator("section[aria-label=Messages]")
    messages.locator("text=acknowledged").wait_for()
    received = messages.locator("tr:has-text('← received')")
    received.get_by_text("Details").click()
    facts = received.locator("dl").inner_text()
    for text in (
        "application/json",
        "answers/1",
        "request-9",
        "600",
        "north",
        "south",
        "°C",
        "Subscription-Identifier",
        "7b 22 74 22",
    ):
        assert text in facts, (text, facts)
    retained = broker.call("GET", "/retained:message?topic=rooms/1")
    assert retained["properties"] == {
        "Content-Type": "application/json",
        "Response-Topic": "answers/1",
        "Correlation-Data": {"$base64": "cmVxdWVzdC05"},
        "Message-Expiry-Interval": retained["properties"]["Message-Expiry-Interval"],
        "Payload-Format-Indicator": 1,
    }
    assert retained["user_properties"] == [["site", "north"], ["site", "south"], ["unit", "°C"]]
    assert (retained["clientid"], retained["username"]) == ("page-1", "meter")
    received.get_by_role("button", name="Explain").click()
    page.wait_for_selector("[role=dialog] a.name:text-is('page-1')")
    assert complaints == []


def test_what_a_validation_refuses_is_said_in_words_and_explained(page: Any, broker: Node) -> None:
    connect(page, broker, "page-2")
    publish = page.locator("section[aria-label=Publish]")
    publish.get_by_label("Topic", exact=True).fill("halls/1")
    publish.locator("textarea").first.fill("{}")
    publish.get_by_role("button", name="Explain").click()
    dialog = page.locator("[role=dialog]")
    dialog.locator("text=Not published yet.").wait_for()
    dialog.locator("text=/It is stopped by validation/").wait_for()
    page.keyboard.press("Escape")
    publish.get_by_role("button", name="Publish").click()
    sent = page.locator("section[aria-label=Messages] tr:has-text('→ sent')")
    sent.locator("text=/refused: .* \\(0x[0-9a-f]{2}\\)/").wait_for()
    sent.get_by_role("button", name="Explain").click()
    dialog.locator("text=/The broker's answer: refused/").wait_for()
    dialog.locator("a.name:text-is('fits')").first.wait_for()


def test_payloads_are_encoded_and_decoded_by_a_schema(page: Any, broker: Node) -> None:
    connect(page, broker, "page-3")
    subscriptions = page.locator("section[aria-label=Subscriptions]")
    subscriptions.get_by_label("Topic filter").fill("avro/#")
    subscriptions.get_by_role("button", name="Subscribe", exact=True).click()
    subscriptions.locator("td code:text-is('avro/#')").wait_for()
    publish = page.locator("section[aria-label=Publish]")
    publish.get_by_label("Topic", exact=True).fill("avro/1")
    publish.locator("textarea").first.fill('{"t": 21.5}')
    publish.get_by_label("The payload is").select_option("schema reading")
    publish.get_by_role("button", name="Publish").click()
    messages = page.locator("section[aria-label=Messages]")
    messages.get_by_label("Decode by").select_option("reading")
    received = messages.locator("tr:has-text('← received')")
    received.locator("code:text-is('{\"t\":21.5}')").wait_for()
    publish.locator("textarea").first.fill('{"t": "warm"}')
    publish.get_by_role("button", name="Publish").click()
    publish.locator("[role=alert] >> text=/t/").wait_for()
    publish.get_by_label("The payload is").select_option("hex")
    publish.locator("textarea").first.fill("0g")
    publish.get_by_role("button", name="Publish").click()
    publish.locator("text=Payload: expected pairs of hexadecimal digits.").wait_for()


def test_a_wrong_password_and_bad_fields_are_sentences(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/mqtt-client")
    page.get_by_label("User name").fill("meter")
    page.get_by_label("Password").fill("wrong")
    page.click("button:text-is('Connect')")
    page.wait_for_selector("text=/Disconnected: .*\\(0x8[67]\\)/")
    page.get_by_text("Options").first.click()
    page.get_by_label("Keep-alive, in seconds").fill("soon")
    page.click("button:text-is('Connect')")
    page.wait_for_selector("text=Keep-alive: expected a whole number from 0 to 65535")


def test_a_large_message_comes_back_and_a_kick_is_said(page: Any, broker: Node) -> None:
    connect(page, broker, "page-4")
    subscriptions = page.locator("section[aria-label=Subscriptions]")
    subscriptions.get_by_label("Topic filter").fill("large")
    subscriptions.get_by_role("button", name="Subscribe", exact=True).click()
    subscriptions.locator("td code:text-is('large')").wait_for()
    publish = page.locator("section[aria-label=Publish]")
    publish.get_by_label("Topic", exact=True).fill("large")
    publish.locator("textarea").first.fill("x" * 300_000)
    publish.get_by_role("button", name="Publish").click()
    page.wait_for_selector("tr:has-text('← received') >> text=293 KiB")
    broker.call("POST", "/clients:kick", {"clientids": ["page-4"]})
    page.wait_for_selector("text=/Disconnected: an administrator ended it \\(0x98\\)/")


def test_examples_are_kept_and_passwords_are_not(page: Any, broker: Node) -> None:
    connect(page, broker, "page-5")
    publish = page.locator("section[aria-label=Publish]")
    publish.get_by_label("Topic", exact=True).fill("rooms/5")
    publish.locator("textarea").first.fill("warm")
    publish.get_by_label("Example name").fill("room")
    publish.get_by_role("button", name="Save as example").click()
    assert PASSWORD not in page.evaluate("JSON.stringify(localStorage)")
    page.reload()
    page.wait_for_selector("text=not connected")
    assert page.get_by_label("Client ID").input_value() == "page-5"
    assert page.get_by_label("Password").input_value() == ""
    publish.get_by_label("Load an example").select_option("room")
    assert publish.get_by_label("Topic", exact=True).input_value() == "rooms/5"
    publish.get_by_role("button", name="Delete example").click()
    publish.get_by_label("Load an example").wait_for(state="detached")


def test_the_keyboard_alone_connects_and_publishes(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/mqtt-client")
    page.wait_for_selector("text=not connected")
    page.get_by_label("User name").focus()
    page.keyboard.type("meter")
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_selector("text=/Connected as/")
    page.get_by_label("Topic", exact=True).focus()
    page.keyboard.type("keys/1")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=/no client subscribes to the topic/")
    tab_to(page, "section[aria-label=Messages] td button")
    page.keyboard.press("Enter")
    page.wait_for_selector("[role=dialog] >> text=No client subscribes to it.")


def test_a_viewer_is_told_what_is_missing(page: Any, broker: Node, complaints: list[str]) -> None:
    broker.call(
        "POST", "/accounts", {"name": "vera", "role": "viewer", "password": "a long password"}
    )
    try:
        page.goto(broker.url)
        answer = page.request.post(
            f"{broker.url}/api/v1/session",
            data={"name": "vera", "password": "a long password"},
            headers={"Origin": broker.url},
        )
        assert answer.status == 204
        check_everywhere(page, f"{broker.url}/mqtt-client", "text=/Your role may not publish/", [])
        assert page.locator("button:text-is('Connect')").count() == 0
    finally:
        broker.call("DELETE", "/accounts/vera")


def test_the_page_is_accessible_at_any_width_empty_and_with_messages(
    page: Any, broker: Node, complaints: list[str]
) -> None:
    sign_in(page, broker)
    check_everywhere(page, f"{broker.url}/mqtt-client", "text=/Nothing was sent/", complaints)
    set_look(page, 1280, "light")
    connect(page, broker, "page-" + "6" * 40)
    publish = page.locator("section[aria-label=Publish]")
    publish.get_by_label("Topic", exact=True).fill("long/" + "level" * 40)
    publish.locator("textarea").first.fill("word" * 200)
    for _ in range(3):
        publish.get_by_role("button", name="Publish").click()
    for summary in page.locator("main summary").all():
        summary.click()
    page.wait_for_selector("section[aria-label=Messages] tr:nth-child(3)")
    for width, scheme in ((1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")):
        set_look(page, width, scheme)
        painted(page)
        check_look(page, width, scheme)
