"""Pages that are drawn from declarations, in a real browser: clients and what is kept for them, access, listeners."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import paho.mqtt.client as mqtt
import paho.mqtt.publish as mqtt_publish
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.node import Node, eventually
from tests.support.node import running as serving
from tests.ui.browser import set_look, sign_in, tab_to

RETAINED = 120
NAMED = "site/a b?#%2F"


def connected(node: Node, client_id: str, *filters: str) -> mqtt.Client:
    """A client that stays connected, with these subscriptions."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=mqtt.MQTTv5)
    client.connect(*node.mqtt)
    client.loop_start()
    eventually(client.is_connected, what=f"{client_id} connects")
    for topic_filter in filters:
        client.subscribe(topic_filter, qos=1)
    return client


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker with three clients, retained messages of more than a page, a delayed message and a failed login."""
    with serving(tmp_path_factory.mktemp("declared") / "data", config="overload.enable = false\n") as node:
        clients = [
            connected(node, NAMED, "meters/#", "lamps/+"),
            connected(node, "gauge-1", "a"),
            connected(node, "to-kick"),
        ]
        host, port = node.mqtt
        sent = [{"topic": f"kept/{at:03}", "payload": "{}", "qos": 1, "retain": True} for at in range(RETAINED)]
        sent.append({"topic": "$delayed/3600/later/1", "payload": "{}", "qos": 1})
        mqtt_publish.multiple(sent, hostname=host, port=port, client_id="publisher")  # type: ignore[arg-type]
        with node.client() as http:
            assert http.get("/status", headers={"Authorization": "Bearer wrong"}).status_code == 401
        eventually(lambda: len(node.call("GET", "/subscriptions")["items"]) == 3)
        yield node
        for client in clients:
            client.loop_stop()
            client.disconnect()


def test_a_group_of_the_navigation_opens_by_keyboard_and_leads_to_its_pages(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/overview")
    page.wait_for_selector("nav summary >> text=Clients")
    assert not page.is_visible("nav a[href^='/sessions']")
    tab_to(page, "nav details:first-of-type summary")
    page.keyboard.press("Enter")
    page.click("nav a[href^='/sessions']")
    page.wait_for_selector("main h1 >> text=Sessions")
    page.goto(f"{broker.url}/retained")
    page.wait_for_selector("nav a[aria-current=page] >> text=Retained messages")


def test_a_client_with_any_name_has_a_page_with_its_subscriptions(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/clients")
    page.click(f"a.name:text-is('{NAMED}')")
    page.wait_for_selector(f"main h1 >> text={NAMED}")
    page.wait_for_selector("main td >> text=lamps/+")
    page.reload()
    page.wait_for_selector(f"main h1 >> text={NAMED}")
    page.wait_for_selector("main td >> text=meters/#")
    page.goto(f"{broker.url}/clients/nobody")
    page.wait_for_selector("main .empty >> text=nobody")


def test_a_client_is_disconnected_after_its_effect_was_shown(page: Any, broker: Node) -> None:
    kicked = connected(broker, "kick-me")
    try:
        sign_in(page, broker)
        page.goto(f"{broker.url}/clients?client_id=kick-*")
        page.click("button[aria-label='Do something with kick-me']")
        page.click("[role=menuitem] >> text=Disconnect")
        page.wait_for_selector("[role=alertdialog] >> text=1 client is disconnected")
        assert kicked.is_connected()
        kicked.loop_stop()
        page.click("[role=alertdialog] >> button:text-is('Disconnect')")
        page.wait_for_selector("main [role=status] >> text=done")
        page.wait_for_selector("text=None matches.")
    finally:
        kicked.loop_stop()


def test_several_clients_are_selected_and_disconnected_together(page: Any, broker: Node) -> None:
    several = [connected(broker, f"many-{at}") for at in range(3)]
    sign_in(page, broker)
    page.goto(f"{broker.url}/clients?client_id=many-*")
    page.wait_for_selector("td >> text=many-2")
    page.get_by_label("Select all shown").check()
    for client in several:
        client.loop_stop()
    page.click("text=Disconnect 3 clients…")
    page.wait_for_selector("[role=alertdialog] >> text=3 clients are disconnected")
    page.keyboard.press("Escape")
    page.wait_for_selector("[role=alertdialog]", state="detached")
    page.click("text=Disconnect 3 clients…")
    page.click("[role=alertdialog] >> button:text-is('Disconnect')")
    page.wait_for_selector("text=None matches.")


def test_retained_messages_that_a_filter_selects_are_cleared(page: Any, broker: Node) -> None:
    mqtt_publish.single("gone/1", "x", qos=1, retain=True, hostname=broker.mqtt[0], port=broker.mqtt[1])
    sign_in(page, broker)
    page.goto(f"{broker.url}/retained?filter=gone/%23")
    page.wait_for_selector("td >> text=gone/1")
    page.click("text=Clear retained messages…")
    assert page.locator("[role=dialog] >> text=Filter").count() >= 1
    page.click("[role=dialog] >> text=Show the effect")
    page.wait_for_selector("[role=alertdialog] >> text=1 retained message is deleted")
    page.click("[role=alertdialog] >> button:text-is('Clear')")
    page.wait_for_selector("text=None matches.")
    assert broker.call("GET", "/retained:count")["messages"] == RETAINED


def test_a_delayed_message_is_deleted_on_its_page(page: Any, broker: Node) -> None:
    mqtt_publish.single("$delayed/3600/soon", "x", qos=1, hostname=broker.mqtt[0], port=broker.mqtt[1])
    name = next(item["id"] for item in broker.call("GET", "/delayed")["items"] if item["topic"] == "soon")
    sign_in(page, broker)
    page.goto(f"{broker.url}/delayed/{name}")
    page.wait_for_selector("main dd >> text=/in \\d+ min/")
    page.click("main button:text-is('Delete…')")
    page.wait_for_selector("[role=alertdialog] >> text=/is not published/")
    page.click("[role=alertdialog] >> button:text-is('Delete')")
    page.wait_for_url("**/delayed")
    assert [item["topic"] for item in broker.call("GET", "/delayed")["items"]] == ["later/1"]


def test_rows_are_cards_on_a_narrow_screen(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/subscriptions")
    page.wait_for_selector("td >> text=meters/#")
    set_look(page, 390, "light")
    cell = page.locator("main td[data-title=QoS]").first
    assert cell.evaluate("cell => getComputedStyle(cell, '::before').content") == '"QoS"'
    assert cell.evaluate("cell => getComputedStyle(cell).display") == "grid"
