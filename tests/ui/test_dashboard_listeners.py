"""The pages of listeners in a real browser: a new one, its settings, what fixes them, and what its end leads to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.node import Node, eventually
from tests.support.node import running as serving
from tests.ui.browser import check_everywhere, sign_in, tab_to

CONFIG = """
overload.enable = false
listeners.tcp.filed { bind = "127.0.0.1:0", max_connections = 9 }
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker with a listener of its file, and one of the API with a client."""
    with serving(tmp_path_factory.mktemp("listeners") / "data", config=CONFIG) as node:
        node.call("POST", "/listeners/tcp:hall", {"bind": "127.0.0.1:0"})
        yield node


def settings_of(broker: Node, name: str) -> Any:
    return broker.call("GET", f"/listeners/{name}")["settings"]


def client_of(broker: Node, name: str, client_id: str) -> mqtt.Client:
    """A client that stays connected to a listener."""
    host, _, port = broker.call("GET", f"/listeners/{name}")["address"].rpartition(":")
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=mqtt.MQTTv5)
    client.connect(host, int(port))
    client.loop_start()
    eventually(client.is_connected, what=f"{client_id} connects")
    return client


def test_a_listener_is_created_by_keyboard_and_its_problems_stand_at_their_fields(
    page: Any, broker: Node, complaints: list[str]
) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/listeners")
    page.click("text=New listener")
    page.get_by_label("Identifier").focus()
    page.keyboard.type("plant floor")
    page.get_by_label("Bind").focus()
    page.keyboard.type("nowhere")
    tab_to(page, "main button.primary")
    page.keyboard.press("Enter")
    page.wait_for_selector("main .field:has(label:has-text('Identifier')) [role=alert]")
    page.get_by_label("Identifier").fill("plant")
    page.click("main button.primary")
    page.wait_for_selector("main .field:has(label:text-is('Bind')) [role=alert]")
    page.get_by_label("Bind").fill("127.0.0.1:0")
    page.get_by_label("Max connections").fill("50")
    page.click("main button.primary")
    page.wait_for_url("**/listeners/tcp*plant*")
    page.wait_for_selector("main h1 >> text=running")
    created = broker.call("GET", "/listeners/tcp:plant")
    assert (created["max_connections"], created["settings"]["backlog"]) == (50, 1024)
    broker.call("DELETE", "/listeners/tcp:plant")
    assert [text for text in complaints if "422" not in text] == []


def test_a_listener_with_tls_asks_for_its_certificate(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/new/listeners")
    page.get_by_label("Clients connect by").select_option("MQTT over TLS")
    page.get_by_label("Identifier").fill("safe")
    page.get_by_label("Certfile").first.fill("/none.pem")
    page.get_by_label("Keyfile").first.fill("/none-key.pem")
    page.click("main button.primary")
    problem = page.locator("main .field:has(label:text-is('Certfile')) [role=alert]")
    problem.locator("text=/none.pem: expected a path in/").last.wait_for()
    broker.call("GET", "/listeners/ssl:safe", expect=404)


def test_settings_are_changed_with_their_effect_and_only_those(page: Any, broker: Node) -> None:
    client = client_of(broker, "tcp:hall", "stays")
    sign_in(page, broker)
    page.goto(f"{broker.url}/listeners/tcp:hall?tab=settings")
    page.get_by_label("Max connections").fill("7")
    page.click("main button:text-is('Save')")
    eventually(lambda: settings_of(broker, "tcp:hall")["max_connections"] == 7)
    page.click("main summary >> text=more settings")
    page.click("main [role=group] summary >> text=more settings")
    page.get_by_label("Keepalive idle").fill("5m")
    page.click("main button:text-is('Save')")
    page.wait_for_selector("main .effect >> text=Its address is opened again; connected clients")
    assert settings_of(broker, "tcp:hall")["tcp_options"]["keepalive_idle"] == 0
    page.click("main button:text-is('Save, with these effects')")
    eventually(lambda: settings_of(broker, "tcp:hall")["tcp_options"]["keepalive_idle"] == 300)
    saved = (broker.data_dir / "api.hocon").read_text()
    assert "keepalive_idle" in saved
    assert "backlog" not in saved, "only what was changed is saved"
    [entry] = broker.call("GET", "/audit-log?name=tcp:hall&limit=1")["items"]
    assert entry["summary"] == "changed tcp_options"
    page.get_by_label("Keepalive probes").fill("0")
    page.click("main button:text-is('Save')")
    page.wait_for_selector("main .field:has(label:text-is('Keepalive probes')) [role=alert]")
    page.click("main button:text-is('Discard')")
    page.get_by_label("Max connections").fill("")
    page.click("main button:text-is('Save')")
    eventually(lambda: settings_of(broker, "tcp:hall")["max_connections"] == 0)
    assert client.is_connected()
    client.loop_stop()
    client.disconnect()


def test_a_change_of_somebody_else_is_a_conflict(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/listeners/tcp:hall?tab=settings")
    page.get_by_label("Max connections").fill("70")
    broker.call("PATCH", "/listeners/tcp:hall", {"max_connections": 60})
    page.click("main button:text-is('Save')")
    page.wait_for_selector("main .conflict >> text=60")
    page.click("text=Save yours over it")
    eventually(lambda: settings_of(broker, "tcp:hall")["max_connections"] == 70)


def test_a_setting_of_a_stronger_layer_is_disabled_and_names_it(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/listeners/tcp:filed?tab=settings")
    limit = page.get_by_label("Max connections")
    limit.wait_for()
    assert limit.is_disabled()
    place = f"{broker.data_dir / 'sluice.conf'} line 3"
    page.wait_for_selector(f"main .help code:text-is('{place}') >> nth=0")
    page.click("main summary >> text=more settings")
    page.get_by_label("Backlog").fill("99")
    page.click("main button:text-is('Save')")
    page.wait_for_selector("main .effect")
    page.click("main button:text-is('Save, with these effects')")
    eventually(lambda: settings_of(broker, "tcp:filed")["backlog"] == 99)
    page.goto(f"{broker.url}/listeners/tcp:default?tab=settings")
    page.wait_for_selector("main .help code:text-is('command line')")
    assert page.get_by_label("Bind").is_disabled()
    page.click("button[aria-label='Do something with tcp:default']")
    page.click("text=Delete…")
    page.wait_for_selector("[role=alertdialog] >> text=is always there")


def test_a_listener_is_stopped_started_and_deleted_and_may_drain(page: Any, broker: Node) -> None:
    broker.call("POST", "/listeners/tcp:gate", {"bind": "127.0.0.1:0"})
    client = client_of(broker, "tcp:gate", "drains")
    sign_in(page, broker)
    page.goto(f"{broker.url}/listeners/tcp:gate")
    page.click("text=Its clients")
    page.wait_for_selector("main td >> text=drains")
    page.go_back()
    page.wait_for_selector("main h1 >> text=running")
    page.click("button[aria-label='Do something with tcp:gate']")
    assert page.locator("[role=menuitem]").all_inner_texts() == ["Stop", "Restart", "Delete…"]
    page.click("[role=menuitem] >> text=Stop")
    page.wait_for_selector("[role=alertdialog] >> text=1 client is disconnected.")
    page.get_by_label("Let connected clients stay").check()
    page.wait_for_selector("[role=alertdialog] >> text=1 client may stay connected")
    page.click("[role=alertdialog] >> button:text-is('Stop')")
    page.wait_for_selector("main h1 >> text=stopped")
    assert client.is_connected()
    client.loop_stop()
    page.click("button[aria-label='Do something with tcp:gate']")
    page.click("[role=menuitem] >> text=Start")
    page.click("[role=alertdialog] >> button:text-is('Start')")
    page.wait_for_selector("main h1 >> text=running")
    page.click("button[aria-label='Do something with tcp:gate']")
    page.click("text=Delete…")
    page.wait_for_selector("[role=alertdialog] >> text=1 client is disconnected.")
    page.click("[role=alertdialog] >> button:text-is('Delete')")
    page.wait_for_url("**/listeners")
    broker.call("GET", "/listeners/tcp:gate", expect=404)


@pytest.mark.parametrize(
    "path", ["listeners", "listeners/tcp:hall", "listeners/tcp:filed?tab=settings", "new/listeners"]
)
def test_pages_of_listeners_are_accessible_at_any_width(
    page: Any, broker: Node, complaints: list[str], path: str
) -> None:
    sign_in(page, broker)
    ready = "main section.card :is(td, dd, select, input)"
    check_everywhere(page, f"{broker.url}/{path}", ready, complaints)
