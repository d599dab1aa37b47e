"""Pages that are drawn from declarations, in a real browser: clients and what is kept for them, access, listeners."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import paho.mqtt.client as mqtt
import paho.mqtt.publish as mqtt_publish
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from docs.generate import DASHBOARD_KINDS
from tests.support.node import Node, eventually
from tests.support.node import running as serving
from tests.ui.browser import (
    check_everywhere,
    check_look,
    painted,
    set_look,
    sign_in,
    tab_to,
    violations,
)

RETAINED = 120
NAMED = "site/a b?#%2F"
DECLARED = json.loads(DASHBOARD_KINDS.read_text())
PATHS = [
    "settings" if entry["path"] == "config" else entry["path"]
    for entry in (*DECLARED["kinds"], *DECLARED["resources"])
    if entry["path"] != "lake/tables"
]


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
    with serving(
        tmp_path_factory.mktemp("declared") / "data", config="overload.enable = false\n"
    ) as node:
        clients = [
            connected(node, NAMED, "meters/#", "lamps/+"),
            connected(node, "gauge-1", "a"),
            connected(node, "to-kick"),
        ]
        host, port = node.mqtt
        sent = [
            {"topic": f"kept/{at:03}", "payload": "{}", "qos": 1, "retain": True}
            for at in range(RETAINED)
        ]
        sent.append({"topic": "$delayed/3600/later/1", "payload": "{}", "qos": 1})
        mqtt_publish.multiple(sent, hostname=host, port=port, client_id="publisher")  # type: ignore[arg-type]
        with node.client() as http:
            assert http.get("/status", headers={"Authorization": "Bearer wrong"}).status_code == 401
        eventually(lambda: len(node.call("GET", "/subscriptions")["items"]) == 3)
        yield node
        for client in clients:
            client.loop_stop()
            client.disconnect()


@pytest.mark.parametrize("path", PATHS)
def test_each_declared_list_has_a_page(
    page: Any, broker: Node, complaints: list[str], path: str
) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/{path}")
    page.wait_for_selector("main section.card :is(td, .empty)")
    assert page.locator("main >> text=Page not found").count() == 0
    assert violations(page) == []
    set_look(page, 390, "dark")
    painted(page)
    check_look(page, 390, "dark")
    assert complaints == []


@pytest.mark.parametrize(
    "path", ["clients", "sessions", "retained", f"clients/{NAMED.replace('%', '%25')}"]
)
def test_pages_of_live_things_are_accessible_at_any_width(
    page: Any, broker: Node, complaints: list[str], path: str
) -> None:
    sign_in(page, broker)
    address = (
        path.replace("site/", "site%2F").replace("?", "%3F").replace("#", "%23").replace(" ", "%20")
    )
    check_everywhere(page, f"{broker.url}/{address}", "main section.card :is(td, dd)", complaints)


def test_a_group_of_the_navigation_opens_by_keyboard_and_leads_to_its_pages(
    page: Any, broker: Node
) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/overview")
    page.wait_for_selector("nav summary >> text=Administration")
    assert not page.is_visible("nav a[href^='/listeners']")
    tab_to(page, "nav details:last-of-type summary")
    page.keyboard.press("Enter")
    page.click("nav a[href^='/listeners']")
    page.wait_for_selector("main h1 >> text=Listeners")
    page.goto(f"{broker.url}/retained")
    page.wait_for_selector("nav a[aria-current=page] >> text=Retained messages")


def test_a_long_list_is_paged_and_filtered_by_the_server(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/retained")
    rows = page.locator("main tbody tr")
    page.wait_for_selector("td >> text=kept/000")
    assert rows.count() == 50
    page.click("text=Next")
    page.wait_for_selector("td >> text=kept/050")
    page.click("text=Next")
    page.wait_for_selector("td >> text=kept/119")
    assert rows.count() == RETAINED - 100
    assert page.is_disabled("button:text-is('Next')")
    page.click("text=Previous")
    page.wait_for_selector("td >> text=kept/099")
    page.get_by_label("Filter", exact=True).fill("kept/007")
    page.wait_for_url("**filter=kept*")
    page.wait_for_selector("td >> text=kept/000", state="detached")
    page.wait_for_selector("td >> text=kept/007")
    assert rows.count() == 1
    page.get_by_label("Filter", exact=True).fill("kept/none")
    page.wait_for_selector("text=None matches.")
    page.get_by_label("Filter", exact=True).fill("a/#/b")
    page.wait_for_selector("main [role=alert] .err")


def test_the_order_of_a_list_is_in_the_address(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/clients")
    page.get_by_label("Sort by").select_option("-clientid")
    page.wait_for_url("**sort=-clientid*")
    page.wait_for_selector("main tbody tr:first-child a.name:text-is('to-kick')")
    page.reload()
    page.wait_for_selector("main tbody tr:first-child a.name:text-is('to-kick')")


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
    page.wait_for_selector("main .empty >> text=nobody is not connected")


def test_a_client_is_disconnected_after_its_effect_was_shown(page: Any, broker: Node) -> None:
    kicked = connected(broker, "kick-me")
    try:
        sign_in(page, broker)
        page.goto(f"{broker.url}/clients?clientid=kick-*")
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
    page.goto(f"{broker.url}/clients?clientid=many-*")
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


def test_sessions_of_several_clients_are_cleared_together(page: Any, broker: Node) -> None:
    several = [connected(broker, f"clear-{at}", "a") for at in range(2)]
    sign_in(page, broker)
    page.goto(f"{broker.url}/clients?clientid=clear-*")
    page.wait_for_selector("td >> text=clear-1")
    page.get_by_label("Select all shown").check()
    for client in several:
        client.loop_stop()
    page.click("text=Clear 2 clients…")
    page.wait_for_selector("[role=alertdialog] >> text=2 clients are disconnected")
    page.click("[role=alertdialog] >> button:text-is('Clear')")
    page.wait_for_selector("text=None matches.")
    assert broker.call("GET", "/sessions?clientid=clear-*")["items"] == []


def test_retained_messages_that_a_filter_selects_are_cleared(page: Any, broker: Node) -> None:
    mqtt_publish.single(
        "gone/1", "x", qos=1, retain=True, hostname=broker.mqtt[0], port=broker.mqtt[1]
    )
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
    mqtt_publish.single(
        "$delayed/3600/soon", "x", qos=1, hostname=broker.mqtt[0], port=broker.mqtt[1]
    )
    name = next(
        item["id"] for item in broker.call("GET", "/delayed")["items"] if item["topic"] == "soon"
    )
    sign_in(page, broker)
    page.goto(f"{broker.url}/delayed/{name}")
    page.wait_for_selector("main dd >> text=/in \\d+ min/")
    page.click("main button:text-is('Delete…')")
    page.wait_for_selector("[role=alertdialog] >> text=/is not published/")
    page.click("[role=alertdialog] >> button:text-is('Delete')")
    page.wait_for_url("**/delayed")
    assert [item["topic"] for item in broker.call("GET", "/delayed")["items"]] == ["later/1"]


def test_a_token_is_created_and_shown_once(page: Any, broker: Node) -> None:
    broker.call("POST", "/streams", {"name": "hot"})
    sign_in(page, broker)
    page.goto(f"{broker.url}/tokens")
    page.wait_for_selector("text=There is no token yet.")
    page.click("text=New token")
    page.get_by_label("Name (required)").fill("reader")
    page.get_by_label("Streams").first.fill("hot")
    page.click("button:text-is('Create')")
    page.wait_for_selector("text=Shown only once.")
    assert page.locator("main [aria-label='Shown only once'] pre").first.inner_text().strip()
    page.click("main a.name:text-is('reader')")
    page.wait_for_selector("main h1 >> text=reader")
    page.wait_for_selector("main dd a:text-is('hot')")
    page.click("button[aria-label='Do something with reader']")
    page.click("text=Delete…")
    page.wait_for_selector(
        "[role=alertdialog] >> text=Programs that use it are refused from then on."
    )
    page.click("[role=alertdialog] >> button:text-is('Delete')")
    page.wait_for_url("**/tokens")


def test_a_secret_that_is_typed_is_neither_kept_in_the_browser_nor_shown_again(
    page: Any, broker: Node
) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/new/secrets")
    page.get_by_label("Name (required)").fill("kafka")
    page.get_by_label("Value").fill("open-sesame")
    assert page.locator("details.more").get_by_label("Value").count() == 0, (
        "it is not among further settings"
    )
    page.wait_for_function(
        "() => Object.values(localStorage).some(draft => draft.includes('kafka'))"
    )
    assert "open-sesame" not in page.evaluate("JSON.stringify(localStorage)")
    page.click("button:text-is('Create')")
    page.wait_for_selector("main h1 >> text=kafka")
    page.click("nav.tabs >> text=Definition")
    page.wait_for_selector("main pre.source")
    assert "open-sesame" not in page.content()


def test_an_audit_entry_shows_what_changed_and_takes_it_back(page: Any, broker: Node) -> None:
    broker.call(
        "POST", "/access/rules", {"name": "audited", "permission": "deny", "topics": ["meters/#"]}
    )
    entry = next(
        item for item in broker.call("GET", "/audit-log")["items"] if item["name"] == "audited"
    )
    sign_in(page, broker)
    page.goto(f"{broker.url}/audit-log/{entry['id']}")
    page.wait_for_selector("main .differences li:has-text('/topics') >> text=meters/#")
    page.click("main button:text-is('Take back…')")
    page.wait_for_selector("[role=alertdialog] >> text=Take back audit entry")
    page.click("[role=alertdialog] >> button:text-is('Take back')")
    page.wait_for_selector("main [role=status] >> text=done")
    assert all(item["name"] != "audited" for item in broker.call("GET", "/access/rules")["items"])


def test_only_what_an_item_permits_is_offered(page: Any, broker: Node) -> None:
    broker.call("POST", "/messages:publish", {"topic": "offered/1", "payload": "x", "retain": True})
    broker.call("POST", "/retained:clear", {"filter": "offered/#"})
    broker.call("POST", "/streams", {"name": "offered"})
    entries = broker.call("GET", "/audit-log")["items"]
    changed, cleared = (
        next(item for item in entries if item["operation"] == operation)
        for operation in ("createStream", "clearRetained")
    )
    assert changed["can_revert"]
    assert not cleared["can_revert"]
    sign_in(page, broker)
    page.goto(f"{broker.url}/audit-log?operation=createStream")
    page.wait_for_selector(f"button[aria-label='Do something with {changed['id']}']")
    page.goto(f"{broker.url}/audit-log?operation=clearRetained")
    page.wait_for_selector("td >> text=clearRetained")
    assert page.locator(f"button[aria-label='Do something with {cleared['id']}']").count() == 0
    page.goto(f"{broker.url}/audit-log/{cleared['id']}")
    page.wait_for_selector("main dd >> text=clearRetained")
    assert page.locator("main button:text-is('Take back…')").count() == 0
    page.goto(f"{broker.url}/audit-log/{changed['id']}")
    page.wait_for_selector("main button:text-is('Take back…')")
    broker.call("DELETE", "/streams/offered")


def test_a_capture_is_started_on_the_page_of_captures(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/captures")
    page.click("main button:text-is('Start a capture…')")
    page.get_by_label("Name (required)").fill("by-page")
    page.get_by_label("Filter").fill("captured/#")
    page.click("[role=dialog] button:text-is('Continue')")
    page.click("[role=alertdialog] button:text-is('Start')")
    page.click("main a.name:text-is('by-page')")
    page.wait_for_selector("main dd >> text=captured/#")
    page.wait_for_selector("main button:text-is('Stop…')")
    assert page.locator("main button:has-text('Start')").count() == 0
    broker.call("DELETE", "/captures/by-page")


def test_a_back_test_shows_its_range_and_time_in_words(page: Any, broker: Node) -> None:
    broker.call("POST", "/streams", {"name": "tried", "topics": ["tried/#"]})
    broker.call("POST", "/messages:publish", {"topic": "tried/1", "payload": "1", "qos": 1})
    job = broker.call(
        "POST",
        "/rules:backtest",
        {"sql": 'SELECT payload FROM "tried/#"', "stream": "tried"},
        202,
    )
    eventually(lambda: broker.call("GET", f"/backtests/{job['id']}")["state"] == "done")
    sign_in(page, broker)
    page.goto(f"{broker.url}/backtests")
    page.wait_for_selector("td >> text=shard 0: 0 to 1")
    page.wait_for_selector("th >> text=Time left")
    page.click("main tbody a.name")
    page.wait_for_selector("main dt >> text=Time left")
    assert page.locator("main button:text-is('Cancel…')").count() == 0  # it has ended
    broker.call("DELETE", "/streams/tried")


def test_an_access_rule_is_created_changed_and_deleted_at_the_address_of_its_kind(
    page: Any, broker: Node
) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/new/access/rules")
    page.get_by_label("Name (required)").fill("readers")
    page.get_by_label("Permission").select_option("allow")
    page.get_by_label("Topics (required)").fill("meters/#")
    page.click("button:text-is('Create')")
    button = page.locator("button:text-is('Create, with these effects')")
    shown = page.locator("main h1:has-text('readers')")
    button.or_(shown).first.wait_for()
    if button.count():
        button.click()
    page.wait_for_url("**/access/rules/readers*")
    page.click("nav.tabs >> text=Settings")
    page.get_by_label("Permission").select_option("deny")
    page.click("button:text-is('Show the effect')")
    page.wait_for_selector("main .effect")
    assert broker.call("GET", "/access/rules/readers")["permission"] == "allow"
    page.goto(f"{broker.url}/access/rules")
    page.wait_for_selector("td >> text=allow")
    page.click("button[aria-label='Do something with readers']")
    page.click("text=Delete…")
    page.click("[role=alertdialog] >> button:text-is('Delete')")
    page.wait_for_selector("text=There is no access rule yet.")


def test_a_listener_is_stopped_and_started_by_its_declared_verbs(page: Any, broker: Node) -> None:
    listener = next(item["id"] for item in broker.call("GET", "/listeners")["items"])
    sign_in(page, broker)
    page.goto(f"{broker.url}/listeners")
    page.click(f"button[aria-label='Do something with {listener}']")
    page.click("[role=menuitem] >> text=Restart")
    page.wait_for_selector("[role=alertdialog] >> text=Close a listener and open it again")


def test_an_alarm_list_shows_past_alarms_too(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/alarms")
    page.wait_for_selector("text=No active alarms.")
    page.click("nav.tabs >> text=Past alarms")
    page.wait_for_url("**view=*history*")
    page.click("text=Delete past alarms…")
    page.wait_for_selector("[role=alertdialog] >> text=Active alarms stay.")


def test_an_alarm_is_acknowledged_with_a_note_and_leads_to_what_it_is_about(
    page: Any, broker: Node
) -> None:
    name = "source_disconnected:mqtt:away"
    server = {"name": "away", "type": "mqtt", "server": "127.0.0.1:9"}
    source = {"name": "away", "type": "mqtt", "connector": "away"}
    broker.call("POST", "/connectors", server)
    broker.call("POST", "/sources", {**source, "parameters": {"topic": "x/#"}})
    eventually(lambda: [row["name"] for row in broker.call("GET", "/alarms")["items"]] == [name])
    sign_in(page, broker)
    page.goto(f"{broker.url}/alarms")
    page.wait_for_selector("td >> text=Check that the external system runs")
    page.click(f"button[aria-label='Do something with {name}']")
    page.click("[role=menuitem] >> text=Acknowledge")
    page.get_by_label("Note").fill("the plant is closed")
    page.click("text=Continue")
    page.click("[role=alertdialog] button.primary, [role=alertdialog] button.danger")
    page.wait_for_selector("td >> text=the plant is closed")
    assert broker.call("GET", f"/alarms/{name}")["acknowledged_by"] == "administrator"
    page.goto(f"{broker.url}/overview")
    page.wait_for_selector("#alarms >> text=acknowledged by administrator")
    assert violations(page) == []
    page.click("#alarms >> text=sources/away")
    page.wait_for_selector("text=Alarm: source 'mqtt:away' is")
    broker.call("DELETE", "/sources/away")
    broker.call("DELETE", "/connectors/away")
    eventually(lambda: not broker.call("GET", "/alarms")["items"])
    page.goto(f"{broker.url}/alarms?view=/history")
    page.wait_for_selector(f"td >> text={name}")
    assert page.locator("button[aria-label^='Do something']").count() == 0


def test_a_receiver_of_alarms_is_tested_on_its_page(page: Any, broker: Node) -> None:
    spec = {"name": "duty", "type": "topic", "topic": "duty/${name}"}
    broker.call("POST", "/alarm-receivers", spec)
    sign_in(page, broker)
    page.goto(f"{broker.url}/alarm-receivers/duty?tab=test")
    page.click("text=Test the alarm receiver")
    page.wait_for_selector("text=published on duty/test")
    page.wait_for_selector("text=Every step went well. Check that the test arrived.")
    assert violations(page) == []
    broker.call("DELETE", "/alarm-receivers/duty")


def test_a_deletion_of_retained_messages_is_undone_on_its_page(page: Any, broker: Node) -> None:
    message = {"topic": "undone/1", "payload": "x", "retain": True}
    broker.call("POST", "/messages:publish", message)
    broker.call("POST", "/retained:clear", {"filter": "undone/#"})
    [deletion] = broker.call("GET", "/retained-deletions")["items"][:1]
    sign_in(page, broker)
    page.goto(f"{broker.url}/retained")
    page.click("text=Undo a deletion")
    page.click(f"button[aria-label='Do something with {deletion['id']}']")
    page.click("[role=menuitem] >> text=Undo")
    page.click("[role=alertdialog] button.primary, [role=alertdialog] button.danger")
    eventually(
        lambda: broker.call("GET", "/retained?filter=undone/%23")["items"], what="the undoing"
    )


def test_a_tail_follows_some_publishers(page: Any, broker: Node) -> None:
    host, port = broker.mqtt
    sign_in(page, broker)
    page.goto(f"{broker.url}/topics?filter=tailed/%23")
    page.fill("label:has-text('Client') input", "gauge-*")
    page.get_by_label("Client", exact=True).press("Enter")

    def is_shown() -> bool:
        for name in ("other", "gauge-9"):
            mqtt_publish.single(
                "tailed/1", f"from {name}", 1, hostname=host, port=port, client_id=name
            )
        return bool(page.locator("td >> text=from gauge-9").count())

    eventually(is_shown)
    page.get_by_label("Address").fill("10.0.0.0/99")
    page.get_by_label("Address").press("Enter")
    page.wait_for_selector("[role=alert] >> text=expected an address or a network")


def test_rows_are_cards_on_a_narrow_screen(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    narrow = connected(broker, "narrow", "narrow/#")
    page.goto(f"{broker.url}/subscriptions?clientid=narrow")
    page.wait_for_selector("td >> text=narrow/#")
    narrow.disconnect()
    set_look(page, 390, "light")
    cell = page.locator("main td[data-title=QoS]").first
    assert cell.evaluate("cell => getComputedStyle(cell, '::before').content") == '"QoS"'
    assert cell.evaluate("cell => getComputedStyle(cell).display") == "grid"


def test_a_setting_is_found_by_words_and_changed_in_its_form(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/settings?text=topic levels&group=mqtt")
    page.click("td >> text=mqtt.max_topic_levels")
    page.wait_for_selector("main >> text=Maximum")
    page.click("nav.tabs >> text=Settings")
    page.get_by_label("Value (required)").fill("77")
    page.click("button:text-is('Show the effect')")
    page.wait_for_selector("main .effect")
    page.click("main button:has-text('Save')")
    eventually(lambda: broker.call("GET", "/config/mqtt.max_topic_levels")["value"] == 77)
    page.goto(f"{broker.url}/settings")
    page.get_by_label("Not the default").select_option("true")
    page.wait_for_url("**changed=*")
    page.wait_for_selector("td >> text=mqtt.max_topic_levels")
    assert page.locator("td >> text=mqtt.max_subscriptions").count() == 0
    broker.call("DELETE", "/config/mqtt.max_topic_levels")


def test_counts_of_what_is_wrong_do_not_widen_the_page(page: Any, broker: Node) -> None:
    closed = {"name": "closed", "type": "mqtt", "server": "127.0.0.1:1"}
    source = {"name": "none", "type": "mqtt", "connector": "closed", "parameters": {"topic": "a"}}
    broker.call("POST", "/connectors", closed)
    broker.call("POST", "/sources", source)
    try:
        sign_in(page, broker)
        page.goto(f"{broker.url}/sources/none")
        page.wait_for_selector("nav summary:has-text('Diagnose') .wrong")
        set_look(page, 390, "light")
        painted(page)
        check_look(page, 390, "light")
    finally:
        broker.call("DELETE", "/sources/none")
        broker.call("DELETE", "/connectors/closed")
