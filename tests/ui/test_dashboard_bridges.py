"""Connectors, actions and sources in a real browser, with a real Kafka that is stopped and started again."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import paho.mqtt.client as mqtt
import paho.mqtt.publish as mqtt_publish
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.kafka_server import Kafka
from tests.support.node import TOKEN, Node, command, eventually
from tests.support.node import running as serving
from tests.support.plain_http import NO_TLS
from tests.support.processor import Stopwatch, family
from tests.ui.browser import check_everywhere, sign_in

GOOD, BAD = 7, 3
PASSWORD = "wonder:land"
PAGES = [
    ("/connectors", ".list tbody tr"),
    ("/new/connectors", ".catalogue li"),
    ("/new/connectors?type=mqtt", ".fields"),
    ("/connectors/plant", "[aria-label='Used by'] td"),
    ("/connectors/plant?tab=settings", ".fields"),
    ("/actions", ".list tbody tr"),
    ("/new/actions", "[aria-label=Connectors] td"),
    ("/actions/orders", "[aria-label=Buffer] progress"),
    ("/actions/orders?tab=settings", ".fields"),
    ("/actions/strict?tab=dead+letters", "[aria-label='Dead letters'] td"),
    ("/actions/orders?tab=over+time", ".chart .plot"),
    ("/sources/back", "[aria-label=About] dd"),
]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with Kafka(tmp_path_factory.mktemp("kafka") / "cluster", sasl=["PLAIN"]) as started:
        yield started


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, kafka: Kafka) -> Iterator[Node]:
    """A broker with a good action, one whose topics Kafka refuses, and a source that reads what the good one wrote."""
    with serving(
        tmp_path_factory.mktemp("bridges") / "data", config="overload.enable = false"
    ) as node:
        login = {"mechanism": "plain", "username": "alice", "password": PASSWORD}
        hosts = {"bootstrap_hosts": kafka.secured("SASL_PLAINTEXT"), "authentication": login}
        node.call("POST", "/connectors", {"name": "plant", "type": "kafka", **hosts})
        action = {"type": "kafka", "connector": "plant"}
        topic = {"topic": "orders", "allow_auto_topic_creation": True}
        node.call("POST", "/actions", {"name": "orders", **action, "parameters": topic})
        wrong = {
            "parameters": {"topic": "${payload}"},
            "resource_opts": {"missing_target": "give_up"},
        }
        node.call("POST", "/actions", {"name": "strict", **action, **wrong})
        node.call(
            "POST",
            "/rules",
            {"name": "good", "sql": 'SELECT payload FROM "good"', "actions": ["kafka:orders"]},
        )
        node.call(
            "POST",
            "/rules",
            {"name": "bad", "sql": 'SELECT payload FROM "bad"', "actions": ["kafka:strict"]},
        )
        publish(node, *[("good", "{}")] * GOOD, *[("bad", "no topic")] * BAD)
        eventually(lambda: node.call("GET", "/actions/orders/metrics")["success"] == GOOD)
        eventually(lambda: node.call("GET", "/actions/strict")["dead_letters_waiting"] == BAD)
        parameters = {"topics": ["orders"], "offset_reset_policy": "earliest"}
        node.call("POST", "/sources", {"name": "back", **action, "parameters": parameters})
        eventually(lambda: node.call("GET", "/sources/back/metrics")["success"] == GOOD)
        yield node


def publish(node: Node, *messages: tuple[str, str]) -> None:
    sent = [{"topic": topic, "payload": payload, "qos": 1} for topic, payload in messages]
    mqtt_publish.multiple(sent, hostname=node.mqtt[0], port=node.mqtt[1])  # type: ignore[arg-type]


def figure(page: Any, label: str) -> str:
    """The exact value of a figure."""
    found: str = page.get_attribute(f".figure:has(.label:text-is('{label}')) .value", "title")
    return found


def in_shell(broker: Node, command: str) -> str:
    """What a command that was copied prints in a shell."""
    sluice = f"{sys.executable} -m broker.cli.main"
    environ = {"SLUICE_API_TOKEN": TOKEN, "SLUICE_URL": broker.url, "PATH": "/usr/bin:/bin"}
    if command.startswith("curl"):
        command = f"{command} -s"
    command = re.sub(r"(^|\| )sluice ", rf"\1{sluice} ", command)
    return subprocess.run(
        ["sh", "-c", command], env=environ, capture_output=True, text=True, timeout=240
    ).stdout


def tab_to(page: Any, selector: str) -> None:
    """Press Tab until an element has the focus."""
    for _ in range(150):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"Tab does not reach {selector}")


def test_figures_are_those_of_the_api_and_of_metrics(
    page: Any, broker: Node, complaints: list[str]
) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/actions/orders")
    page.wait_for_selector(
        f"text={GOOD} rows = {GOOD} confirmed + 0 failed + 0 dropped + 0 waiting + 0 in flight"
    )
    page.wait_for_selector("text=every row is accounted for")
    assert figure(page, "Confirmed") == str(GOOD)
    page.goto(f"{broker.url}/actions/strict")
    page.wait_for_selector(
        f"text={BAD} rows = 0 confirmed + {BAD} failed + 0 dropped + 0 waiting + 0 in flight"
    )
    assert figure(page, "Given up") == str(BAD)
    page.wait_for_selector(f"text={BAD} dead letters kept")
    page.goto(f"{broker.url}/sources/back")
    page.wait_for_selector(".figure >> text=Not read yet")
    assert (figure(page, "Read"), figure(page, "Committed"), figure(page, "Not read yet")) == (
        str(GOOD),
        str(GOOD),
        "0",
    )
    metrics = httpx.get(f"{broker.url}/metrics", verify=NO_TLS, timeout=60).text
    for line in (
        f'sluice_action_success_total{{action="kafka:orders"}} {GOOD}',
        f'sluice_action_failed_total{{action="kafka:strict"}} {BAD}',
        f'sluice_source_received_total{{source="kafka:back"}} {GOOD}',
        'sluice_source_lag_records{source="kafka:back"} 0',
        'sluice_action_lag_seconds{action="kafka:orders"} 0',
    ):
        assert line in metrics, line
    assert complaints == []


def test_the_catalogue_says_what_each_type_is_for_and_needs(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/new/connectors")
    page.wait_for_selector(".catalogue li")
    text = page.inner_text(".catalogue")
    for one in broker.call("GET", "/connector-types")["items"]:
        assert one["title"] in text
        assert one["summary"] in text
        for needed in one["parameters"]["connector"].get("required", []):
            assert needed.replace("_", " ") in text


def test_a_connector_is_created_tested_and_used_with_the_keyboard_alone(
    page: Any, broker: Node
) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/connectors")
    page.wait_for_selector(".list tbody tr")
    tab_to(page, "a[href='/new/connectors']")
    page.keyboard.press("Enter")
    page.wait_for_selector(".catalogue li")
    tab_to(page, "a[href='/new/connectors?type=file']")
    page.keyboard.press("Enter")
    page.get_by_label("Name").wait_for()
    page.get_by_label("Name").focus()
    page.keyboard.type("notes")
    page.keyboard.press("Tab")
    page.keyboard.type(str(broker.data_dir.parent / "notes.txt"))
    tab_to(page, ".probe button")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Every step went well. Nothing was written.")
    page.get_by_role("button", name="Create").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/connectors/notes")
    page.wait_for_selector("h1:has-text('connected')")
    tab_to(page, "a[href='/new/actions?connector=notes']")
    page.keyboard.press("Enter")
    page.get_by_label("Name").wait_for()
    page.get_by_label("Name").focus()
    page.keyboard.type("lines")
    page.get_by_role("button", name="Create").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/actions/lines")
    page.wait_for_selector("text=No rule sends rows to it yet")
    assert broker.call("GET", "/actions/lines")["connector"] == "notes"


def test_an_empty_secret_keeps_the_stored_one_and_a_draft_has_none(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/connectors/plant?tab=settings")
    secret = page.get_by_label("Password (required)")
    secret.wait_for()
    assert PASSWORD not in page.content()
    assert (secret.input_value(), secret.get_attribute("placeholder")) == (
        "",
        "stored; leave empty to keep it",
    )
    page.wait_for_selector("text=A stored one stays if its field is left empty")
    secret.fill("not the password")
    page.click(".probe button")
    page.wait_for_selector(".step:has-text('Sign in') >> text=failed")
    page.wait_for_selector("text=Check the user name, the password and the mechanism.")
    page.click("form > .changeable > .fields > .more > summary")
    page.get_by_label("Description").fill("The plant's cluster")
    assert "not the password" not in page.evaluate("JSON.stringify(localStorage)")
    page.reload()
    page.wait_for_selector("text=Your draft was restored")
    assert page.get_by_label("Description").input_value() == "The plant's cluster"
    assert secret.input_value() == ""
    page.click("button:text-is('Save')")
    page.click("text=Save, with these effects")  # its actions and sources are named first
    eventually(
        lambda: broker.call("GET", "/connectors/plant")["description"] == "The plant's cluster"
    )
    assert broker.call("POST", "/connectors/plant:test")["ok"]  # with the password that is stored


def test_units_are_written_and_read_as_people_do(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/actions/orders?tab=settings")
    page.wait_for_selector(".fields")
    page.click("text=5 more settings")
    page.click("text=21 more settings")
    size = page.get_by_label("Max buffer bytes")
    assert size.input_value() == "256MB"
    size.fill("16MB")
    page.get_by_label("Request timeout").fill("90")
    page.get_by_label("Retry interval").focus()
    assert page.get_by_label("Request timeout").input_value() == "90s"
    page.click("button:text-is('Save')")
    page.click("text=Save, with these effects")
    options = eventually(
        lambda: (
            (found := broker.call("GET", "/actions/orders")["resource_opts"])["max_buffer_bytes"]
            < 2**25
            and found
        )
    )
    assert (options["max_buffer_bytes"], options["request_timeout"]) == (16 * 2**20, 90)
    size.fill("much")
    page.click("button:text-is('Save')")
    page.wait_for_selector(".field:has-text('Max buffer bytes') [role=alert] >> text=much")


def test_a_test_shows_the_step_that_fails_and_what_to_do(page: Any, broker: Node) -> None:
    broker.call("POST", "/connectors", {"name": "closed", "type": "mqtt", "server": "127.0.0.1:1"})
    sign_in(page, broker)
    page.goto(f"{broker.url}/connectors/closed")
    page.wait_for_selector("text=/attempts? to connect failed/")
    page.click("a.button:text-is('Run the test')")
    page.click(".probe button")
    page.wait_for_selector(".step:has-text('Connect') >> text=connection refused")
    page.wait_for_selector(".step:has-text('Check the port')")
    page.wait_for_selector(".step:has-text('not tried')")
    page.goto(f"{broker.url}/actions/orders?tab=test")
    page.click(".probe button")
    page.wait_for_selector(".step:has-text('May it write?') >> text=/may be written/")
    result = json.loads(in_shell(broker, page.inner_text(".probe .command pre") + " --json"))
    assert [step["name"] for step in result["steps"]][-2:] == ["target", "permission"]
    broker.call("DELETE", "/connectors/closed")


def test_copied_commands_give_what_the_page_shows(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/actions/strict?tab=settings")
    page.wait_for_selector(".fields")
    page.get_by_label("Topic (required)").fill("${payload}-x")
    page.click("[aria-label=Settings] >> text=Copy as…")
    page.wait_for_selector("h3:text('HOCON')")
    curl, cli, hocon = page.locator(".popover pre").all_inner_texts()
    assert json.loads(in_shell(broker, curl))["parameters"]["topic"] == "${payload}-x"
    broker.call("PATCH", "/actions/strict", {"parameters": {"topic": "${payload}"}})
    in_shell(broker, cli)
    assert broker.call("GET", "/actions/strict")["parameters"]["topic"] == "${payload}-x"
    broker.call("PATCH", "/actions/strict", {"parameters": {"topic": "${payload}"}})
    check = broker.data_dir.parent / "check"
    check.mkdir(exist_ok=True)
    connector = f'connectors.plant {{ type = kafka, bootstrap_hosts = "127.0.0.1:1" }}\n{hocon}\n'
    (check / "sluice.conf").write_text(connector)
    done = command("config", "check", "--data-dir", str(check))
    assert done.returncode == 0, done.stdout + done.stderr
    page.keyboard.press("Escape")
    page.click("button:text-is('Discard')")


def test_dead_letters_are_shown_sent_again_and_deleted(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/actions/strict?tab=dead+letters")
    page.wait_for_selector(f"text={BAD} in all.")
    letters = broker.call("GET", "/actions/strict/dead-letters")["items"]
    second, last = letters[1]["offset"], letters[-1]["offset"]
    page.check(f"[aria-label='Select {second}']")
    page.check(f"[aria-label='Select {last}']")
    with page.expect_download() as caught:
        page.click("text=Export 2 selected")
    lines = Path(caught.value.path()).read_text().splitlines()
    assert [json.loads(line) for line in lines] == [letters[1], letters[-1]]
    page.uncheck(f"[aria-label='Select {last}']")
    page.click("text=Delete 1 selected…")
    page.click("text=Delete 1 dead letter")
    page.wait_for_selector(f"text={BAD - 1} in all.")
    assert broker.call("GET", "/actions/strict/dead-letters")["items"] == [letters[0], *letters[2:]]
    page.check(f"[aria-label='Select {last}']")
    page.click("text=Send 1 selected again…")
    page.click("button:text-is('Send again')")
    page.wait_for_selector("text=1 sent again")
    page.click(".modal >> text=Close")
    eventually(lambda: broker.call("GET", "/actions/strict/metrics")["failed"] == BAD + 1)
    kept = broker.call("GET", "/actions/strict/dead-letters")["items"]
    assert [one["offset"] for one in kept[:-1]] == [
        one["offset"] for one in (letters[0], *letters[2:-1])
    ]
    assert kept[-1]["offset"] > last
    publish(broker, ("bad", "no topic"))
    page.wait_for_selector(f"text={BAD} in all.")
    assert letters[0]["reason"] in page.inner_text("[aria-label='Dead letters']")
    page.click("text=Send again…")
    page.fill("input[type=number]", "1")
    page.click("button:text-is('Send again')")
    page.wait_for_selector("text=1 sent again")
    page.click(".modal >> text=Close")
    eventually(lambda: broker.call("GET", "/actions/strict/metrics")["failed"] == BAD + 3)
    broker.call("PATCH", "/actions/strict", {"parameters": {"topic": "orders"}})
    eventually(lambda: broker.call("GET", "/actions/strict")["status"] == "connected")
    page.click("text=Send again…")
    page.fill("input[type=number]", str(BAD - 1))
    page.click("button:text-is('Send again')")
    page.wait_for_selector(f"text={BAD - 1} sent again")
    page.click(".modal >> text=Close")
    page.wait_for_selector("text=1 in all.")
    page.click("text=Delete all…")
    page.wait_for_selector("text=Delete all 1 dead letter of strict?")
    page.click("text=Delete 1 dead letter")
    page.wait_for_selector("text=No dead letters.")
    assert broker.call("GET", "/actions/strict")["dead_letters_waiting"] == 0
    assert broker.call("GET", "/actions/strict/metrics")["success"] == BAD - 1


def test_pausing_stopping_and_draining(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/actions/orders")
    page.click("main button:text-is('Pause')")
    page.wait_for_selector("text=Paused by a person: rows wait in the buffer until it is resumed.")
    publish(broker, ("good", "{}"), ("good", "{}"))
    page.wait_for_selector("text=+ 2 waiting + 0 in flight")
    page.click("button:text-is('Resume')")
    page.wait_for_selector("text=+ 0 waiting + 0 in flight")
    page.click("text=Drain…")
    page.click("button:text-is('Drain')")
    page.wait_for_selector("text=Every row was sent; the action is stopped.")
    page.click(".modal >> text=Close")
    page.wait_for_selector("text=It stays stopped until it is started")
    page.click("button:text-is('Start')")
    page.wait_for_selector("h1:has-text('connected')")


@pytest.mark.parametrize(("path", "ready"), PAGES)
def test_pages_are_accessible_at_any_width(
    page: Any, broker: Node, complaints: list[str], path: str, ready: str
) -> None:
    if "dead" in path:
        broker.call("PATCH", "/actions/strict", {"parameters": {"topic": "${payload}"}})
        publish(broker, ("bad", "no topic"))
        eventually(lambda: broker.call("GET", "/actions/strict")["dead_letters_waiting"])
    sign_in(page, broker)
    check_everywhere(page, f"{broker.url}{path}", ready, complaints)


def test_a_stopped_kafka_shows_its_cause_waiting_rows_and_an_alarm_within_10_s_and_then_drains(
    page: Any, broker: Node, kafka: Kafka
) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/actions/orders")
    page.wait_for_selector("h1:has-text('connected')")
    before = broker.call("GET", "/actions/orders/metrics")["matched"]
    client, is_over, sent = mqtt.Client(CallbackAPIVersion.VERSION2), threading.Event(), 0
    client.connect(*broker.mqtt)
    client.loop_start()

    def send() -> None:
        nonlocal sent
        while not is_over.wait(0.1):
            client.publish("good", "{}", qos=1).wait_for_publish(30)
            sent += 1

    sending = threading.Thread(target=send)
    sending.start()
    try:
        kafka.kill()
        watch = Stopwatch(*family())
        page.wait_for_selector("h1:has-text('disconnected')")
        page.wait_for_selector("main >> text=/connection refused/")
        page.wait_for_selector("text=Alarm: action 'kafka:orders' is disconnected")
        page.wait_for_selector(".alarms:has-text('alarm')")
        waiting = int(figure(page, "Waiting").replace(",", ""))
        assert watch.elapsed_s() < 10
        assert waiting > 0
        page.wait_for_selector("text=It goes on by itself once its connector is connected.")
        page.wait_for_selector("text=/At the present rate it is full in/")
        page.goto(f"{broker.url}/actions?state=disconnected")
        page.wait_for_selector("tr:has-text('orders') >> text=/connection refused/")
        page.goto(f"{broker.url}/actions/orders")
        kafka.start()
        page.click("text=Try now")
        page.wait_for_selector("h1:has-text('connected')")
    finally:
        is_over.set()
        sending.join()
        client.disconnect()
        client.loop_stop()
    page.wait_for_selector("text=+ 0 waiting + 0 in flight", timeout=60_000)
    metrics = broker.call("GET", "/actions/orders/metrics")
    assert metrics["matched"] == before + sent
    assert metrics["success"] == metrics["matched"]
    page.wait_for_selector("text=Alarm: action 'kafka:orders' is disconnected", state="detached")
