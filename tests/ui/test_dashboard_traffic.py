"""Pages of traffic in a real browser: from a device that loses messages to the reason, and who gets a topic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.support.node import Node, eventually
from tests.support.node import running as serving
from tests.ui.browser import check_everywhere, check_look, painted, set_look, sign_in

CONFIG = "overload.enable = false\nmqtt { max_queued_messages = 2, slow_subscriber = drop }\n"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker with a device that acknowledges nothing, for which more messages arrived than its queue holds."""
    with serving(tmp_path_factory.mktemp("traffic") / "data", config=CONFIG) as node:
        node.call(
            "POST",
            "/rules",
            {"name": "warm", "sql": 'SELECT payload.t AS t FROM "halls/#"', "actions": []},
        )
        device = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id="device-7", protocol=mqtt.MQTTv5, manual_ack=True
        )
        properties = Properties(PacketTypes.CONNECT)
        properties.ReceiveMaximum = 1
        properties.UserProperty = [("firmware", "4.2"), ("site", "north"), ("firmware", "4.2-b")]
        device.connect(*node.mqtt, properties=properties)
        device.loop_start()
        eventually(device.is_connected, what="device-7 connects")
        device.subscribe("halls/#", qos=1)
        eventually(lambda: len(node.call("GET", "/subscriptions")["items"]) == 1)
        for number in range(6):
            node.call(
                "POST",
                "/messages:publish",
                {"topic": "halls/1/t", "payload": f'{{"t": {number}}}', "qos": 1},
            )
        yield node
        device.loop_stop()
        device.disconnect()


COUNT_CLICKS = """addEventListener("click", ({ isTrusted }) => {
  if (isTrusted) sessionStorage.clicks = 1 + Number(sessionStorage.clicks ?? 0);
}, true);"""


@pytest.mark.parametrize("width", [1280, 390])
def test_the_reason_for_lost_messages_is_found_within_five_clicks(
    page: Any, broker: Node, complaints: list[str], width: int
) -> None:
    set_look(page, width, "light")
    page.add_init_script(COUNT_CLICKS)
    sign_in(page, broker)
    page.goto(f"{broker.url}/overview")
    clients = page.locator("nav a[href^='/clients']")
    clients.wait_for(state="attached")
    if not clients.is_visible():
        page.click("nav summary:has-text('Traffic')")
    clients.click()
    page.click("main a.name:text-is('device-7')")
    page.wait_for_selector("text=/Not delivered: 3 messages, since its queue was full/")
    page.wait_for_selector("text=/all 1 that may be in flight are/")
    timeline = page.locator("section[aria-label='Time line']")
    timeline.locator("text=3 messages not delivered: its queue was full").wait_for()
    timeline.locator("text=/Connected from 127.0.0.1/").wait_for()
    pairs = page.locator("section[aria-label='User properties'] dt").all_inner_texts()
    assert pairs == ["firmware", "site", "firmware"]
    messages = page.locator("section[aria-label='Messages for it']")
    messages.locator("text=in_flight").wait_for()
    messages.locator("button:text-is('Explain')").first.click()
    page.wait_for_selector("[role=dialog] >> text=It passes all stages.")
    page.wait_for_selector("[role=dialog] a.name:text-is('warm')")
    page.wait_for_selector("[role=dialog] a.name:text-is('device-7')")
    painted(page)
    check_look(page, width, "light")
    assert 2 < int(page.evaluate("sessionStorage.clicks")) <= 5
    assert complaints == []


@pytest.mark.parametrize("path", ["clients/device-7", "topics?under=halls&topic=halls/1/t"])
def test_pages_of_traffic_are_accessible_at_any_width(
    page: Any, broker: Node, complaints: list[str], path: str
) -> None:
    sign_in(page, broker)
    check_everywhere(page, f"{broker.url}/{path}", "main section.card td", complaints)


def test_the_tree_leads_to_who_gets_a_topic_and_to_its_messages(page: Any, broker: Node) -> None:
    broker.call("GET", "/topics")  # the counting begins with the first look
    broker.call("POST", "/messages:publish", {"topic": "halls/2/t", "payload": '{"t": 5}'})
    sign_in(page, broker)
    page.goto(f"{broker.url}/topics")
    page.click("section[aria-label=Tree] a.name:text-is('halls')")
    page.click("section[aria-label=Tree] a.name:text-is('2')")
    page.click("section[aria-label=Tree] a.name:text-is('t')")
    who = page.locator("section[aria-label='Who gets it and why']")
    who.locator("a.name:text-is('device-7')").wait_for()
    page.wait_for_selector("section[aria-label=Messages] >> text=/0 matched/")
    broker.call("POST", "/messages:publish", {"topic": "halls/2/t", "payload": '{"t": 6}'})
    page.wait_for_selector('section[aria-label=Messages] td >> text=/"t":6/')
    with page.expect_download() as saved:
        page.click("text=Download")
    assert '"topic":"halls/2/t"' in saved.value.path().read_text()
    who.get_by_label("Topic").fill("nobody/there")
    who.locator("text=No client subscribes to it.").wait_for()
