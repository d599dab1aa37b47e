"""Schemas, validations and transformations in a real browser on a real broker: from files, with previews, in order."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.publish as mqtt_publish
import pytest

from tests.support.node import TOKEN, Node, eventually
from tests.support.node import running as serving
from tests.ui.browser import check_everywhere, sign_in, tab_to

READING: dict[str, Any] = {
    "type": "object",
    "required": ["temp"],
    "properties": {"temp": {"type": "number"}},
}
FRAME = {
    "type": "record",
    "name": "Frame",
    "fields": [{"name": "id", "type": "long"}, {"name": "at", "type": "string"}],
}
PROTO = {
    "main.proto": 'syntax = "proto3"; import "unit.proto"; message Measurement { Unit unit = 1; double value = 2; }',
    "unit.proto": 'syntax = "proto3"; message Unit { string name = 1; }',
}
GATE: dict[str, Any] = {"strategy": "all_pass", "failure_action": "drop"}
RANGE = {"type": "sql", "sql": "SELECT * WHERE payload.temp < 50"}
CHANGE: dict[str, Any] = {
    "failure_action": "drop",
    "payload_decoder": {"type": "json"},
    "payload_encoder": {"type": "json"},
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    config = "overload.enable = false\n"  # a busy machine is not what these tests are about
    with serving(tmp_path_factory.mktemp("gates") / "data", config=config) as node:
        node.call("POST", "/streams", {"name": "raw", "topics": ["meters/#"]})
        node.call("POST", "/streams", {"name": "refused"})
        node.call("POST", "/schemas", {"name": "reading", "type": "json", "source": READING})
        check = {"type": "json", "schema": "reading"}
        node.call(
            "POST",
            "/validations",
            {"name": "fits", "topics": ["kept/#"], **GATE, "checks": [check]},
        )
        for name in ("one", "two", "three"):
            node.call(
                "POST",
                "/validations",
                {"name": name, "topics": ["order/#"], **GATE, "checks": [RANGE]},
            )
        publish(node, ("meters/attic", '{"temp": 21.5}'))
        yield node


@pytest.fixture
def signed_in(page: Any, broker: Node) -> Any:
    sign_in(page, broker)
    return page


def publish(node: Node, *messages: tuple[str, str]) -> None:
    sent = [{"topic": topic, "payload": payload, "qos": 1} for topic, payload in messages]
    mqtt_publish.multiple(sent, hostname=node.mqtt[0], port=node.mqtt[1], client_id="meter-7")  # type: ignore[arg-type]


def write(page: Any, label: str, text: str) -> None:
    """Replace the text of an editor."""
    editor = page.locator(f".cm-content[aria-label='{label}']")
    editor.click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(text)


# Schemas


def test_schemas_are_registered_from_files(
    signed_in: Any, broker: Node, tmp_path: Path, complaints: list[str]
) -> None:
    page = signed_in
    for file, source, kind, field in (
        ("frame.avsc", FRAME, "Avro", "id"),
        ("room.json", READING, "JSON Schema", "temp"),
    ):
        (tmp_path / file).write_text(json.dumps(source, indent=2))
        page.goto(f"{broker.url}/new/schemas")
        if file == "room.json":
            dropped = page.evaluate_handle(
                "([name, text]) => { const t = new DataTransfer(); t.items.add(new File([text], name)); return t; }",
                [file, (tmp_path / file).read_text()],
            )
            page.dispatch_event(".drop", "drop", {"dataTransfer": dropped})
        else:
            page.set_input_files("input[type=file]", tmp_path / file)
        name = file.partition(".")[0]
        page.wait_for_selector(f"[aria-label=Fields] >> text={field}")
        page.wait_for_selector("text=It can be saved")
        assert page.get_by_label("Name").input_value() == name
        page.click("button:text-is('Save')")
        page.wait_for_url(f"**/schemas/{name}")
        page.wait_for_selector(
            "[aria-label=Fields] >> text=number" if name == "room" else "[aria-label=Fields]"
        )
        page.goto(f"{broker.url}/schemas")
        page.wait_for_selector(f"tr:has-text('{name}') >> text={kind}")
    assert json.loads(broker.call("GET", "/schemas/frame")["source"]) == FRAME
    assert broker.call("GET", "/schemas/room")["type"] == "json"
    assert complaints == []


def test_proto_files_are_one_schema_whose_root_no_other_imports(
    signed_in: Any, broker: Node, tmp_path: Path
) -> None:
    page = signed_in
    for file, text in PROTO.items():
        (tmp_path / file).write_text(text)
    page.goto(f"{broker.url}/new/schemas")
    page.set_input_files("input[type=file]", [tmp_path / "unit.proto", tmp_path / "main.proto"])
    page.wait_for_selector("[aria-label=Fields] >> text=value")
    assert page.get_by_label("Name").input_value() == "main"
    page.click("button:text-is('Save')")
    page.wait_for_url("**/schemas/main")
    files = broker.call("GET", "/schemas/main")["files"]
    assert [one["path"] for one in files if one.get("root")] == ["main.proto"]


def test_a_broken_schema_is_refused_at_its_place_before_saving(
    signed_in: Any, broker: Node
) -> None:
    page = signed_in
    page.goto(f"{broker.url}/new/schemas")
    page.get_by_label("Name").fill("broken")
    write(page, "Source", '{"type": "objekt"}')
    page.wait_for_selector("[aria-label=Problems] li")
    assert page.locator("text=It can be saved").count() == 0
    page.reload()
    page.wait_for_selector("text=Your draft was restored")
    page.click("text=Discard it")


def test_a_change_says_what_it_breaks_and_versions_are_compared_and_taken_back(
    signed_in: Any, broker: Node
) -> None:
    page = signed_in
    broker.call("POST", "/schemas", {"name": "meter", "type": "json", "source": READING})
    check = {"type": "json", "schema": "meter"}
    broker.call(
        "POST",
        "/validations",
        {"name": "meter", "topics": ["meters/#"], **GATE, "mode": "shadow", "checks": [check]},
    )
    publish(broker, *[("meters/attic", '{"temp": 20}')] * 3)
    page.goto(f"{broker.url}/schemas/meter?tab=change")
    page.wait_for_selector(".cm-content")
    unit = {"unit": {"type": "string"}}
    changed = json.dumps(
        {**READING, "required": ["temp", "unit"], "properties": {**READING["properties"], **unit}}
    )
    write(page, "Source", changed)
    page.wait_for_selector("text=Not compatible: the mode is backward")
    page.wait_for_selector("text=/Of the last \\d+ messages, \\d+ would no longer fit/")
    page.wait_for_selector("[aria-label='Before saving'] >> text=meter")
    page.click("text=Save as a new version")
    page.wait_for_selector("[role=alert] >> text=/compat/i")
    page.click("text=Discard")
    page.goto(f"{broker.url}/schemas/meter?tab=versions")
    page.get_by_label("Compatibility of new versions").select_option("none")
    eventually(lambda: broker.call("GET", "/schemas/meter")["compatibility"] == "none")
    page.goto(f"{broker.url}/schemas/meter?tab=change")
    page.wait_for_selector(".cm-content")
    write(page, "Source", changed)
    page.wait_for_selector("text=Compatible (none)")
    page.click("text=Save as a new version")
    page.wait_for_selector(".effect >> text=meter")
    page.click("text=Save as a new version, with these effects")
    eventually(lambda: broker.call("GET", "/schemas/meter")["version"] == 2)
    page.goto(f"{broker.url}/schemas/meter?tab=versions")
    page.wait_for_selector("[aria-label=Changes] >> text=unit")
    page.click("text=Use version 1")
    page.click("[role=alertdialog] >> button:text-is('Use')")
    page.wait_for_selector("tr:has-text('in use'):has-text('1')")
    eventually(lambda: broker.call("GET", "/schemas/meter")["version"] == 1)


def test_payloads_are_decoded_and_values_encoded(signed_in: Any, broker: Node) -> None:
    page = signed_in
    broker.call("PUT", "/schemas/packet", {"type": "avro", "source": FRAME})
    page.goto(f"{broker.url}/schemas/packet?tab=try")
    page.fill("#payload", "2a 04 6f 6b")
    page.click("text=Decode →")
    page.wait_for_selector("text=The payload fits.")
    assert json.loads(page.locator(".cm-content").inner_text()) == {"id": 21, "at": "ok"}
    write(page, "Value as JSON", '{"id": 22, "at": "ok"}')
    page.click("text=← Encode")
    page.wait_for_selector("text=The value was encoded.")
    assert page.input_value("#payload") == "2c 04 6f 6b"
    page.fill("#payload", "2")
    page.click("text=Decode →")
    page.wait_for_selector("text=payload: expected pairs of hexadecimal digits")
    page.goto(f"{broker.url}/schemas/reading?tab=try")
    page.fill("#of", "meters/#")
    page.click("text=Take it")
    page.wait_for_selector("text=The payload fits.")


# Validations and transformations


def test_a_validation_is_created_in_shadow_mode_forecast_and_enforced(
    signed_in: Any, broker: Node, complaints: list[str]
) -> None:
    page = signed_in
    page.goto(f"{broker.url}/schemas/reading")
    page.goto(f"{broker.url}/new/validations?schema=reading&type=json")
    page.get_by_label("Name").fill("watch")
    page.get_by_label("Topics").fill("shadow/#")
    page.wait_for_selector("text=No message of shadow/# is known yet")
    publish(broker, ("shadow/1", '{"temp": "hot"}'))
    page.wait_for_selector(".mine >> text=would fail; passes, since it is in shadow mode")
    page.wait_for_selector(".mine >> text=payload.temp")
    page.click("button:text-is('Save')")
    page.wait_for_url("**/validations/watch")
    page.wait_for_selector("text=In shadow mode: would have stopped 0 of 0 messages")
    publish(broker, *[("shadow/1", '{"temp": 1}')] * 3, ("shadow/2", '{"temp": "warm"}'))
    page.wait_for_selector("text=In shadow mode: would have stopped 1 of 4 messages (25%)")
    page.wait_for_selector("[aria-label='Shapes of failures'] >> text=payload.temp")
    page.click("text=Enforce…")
    page.click("[role=alertdialog] >> button:text-is('Enforce')")
    page.wait_for_selector("text=0 of 0 messages failed")
    assert broker.call("GET", "/validations/watch")["mode"] == "enforce"
    publish(broker, ("shadow/2", "{}"))
    page.wait_for_selector("text=1 of 1 message (100%) failed")
    assert complaints == []


def test_a_transformation_is_created_with_a_preview_of_the_whole_chain(
    signed_in: Any, broker: Node
) -> None:
    page = signed_in
    page.goto(f"{broker.url}/new/transforms")
    page.get_by_label("Name").fill("site")
    page.get_by_label("Topics").fill("kept/#")
    page.wait_for_selector("text=No message of kept/# is known yet")
    publish(broker, ("kept/1", '{"temp": 1}'))
    page.wait_for_selector(".pipeline >> text=fits")
    page.wait_for_selector(".mine >> text=meter-7")
    page.get_by_label("Value").fill("upper(clientid)")
    page.wait_for_selector(".mine >> text=METER-7")
    page.get_by_label("Value").fill("uper(clientid)")
    page.wait_for_selector("text=/no function 'uper'/")
    page.get_by_label("Value").fill("upper(clientid)")
    page.wait_for_selector(".mine >> text=METER-7")
    page.click("text=Forecast on the last 1 message")
    page.wait_for_selector("text=/Would have stopped 0 of 1 message/")
    page.click("button:text-is('Save')")
    page.wait_for_url("**/transforms/site")
    saved = broker.call("GET", "/transforms/site")
    assert saved["operations"] == [{"key": "payload.seen_by", "value": "upper(clientid)"}]


def test_a_preview_takes_the_newest_message_that_reaches_the_gate(
    signed_in: Any, broker: Node
) -> None:
    page = signed_in
    broker.call(
        "POST", "/validations", {"name": "sieve", "topics": ["sieved/#"], **GATE, "checks": [RANGE]}
    )
    page.goto(f"{broker.url}/new/transforms")
    page.get_by_label("Name").fill("behind")
    page.get_by_label("Topics").fill("sieved/#")
    page.wait_for_selector("text=No message of sieved/# is known yet")
    publish(broker, *[("sieved/1", '{"temp": 60}')] * 2)
    page.wait_for_selector(
        "text=/None of the last 2 messages reaches this transformation: validation sieve stops/"
    )
    page.wait_for_selector(".pipeline li:has-text('sieve') >> text=dropped")
    publish(broker, ("sieved/1", '{"temp": 7}'), ("sieved/1", '{"temp": 61}'))
    page.wait_for_selector(".mine >> text=meter-7")
    page.wait_for_selector(
        "text=/newest message that reaches this transformation. Newer ones end at validation sieve/"
    )
    page.wait_for_selector(".difference >> text=7")
    page.click("text=Write one")
    page.get_by_role("textbox", name="Payload").fill('{"temp": 62}')
    page.wait_for_selector("text=/does not reach this transformation: validation sieve stops it/")
    page.click("text=Discard")
    broker.call("DELETE", "/validations/sieve")


def test_form_and_code_follow_each_other(signed_in: Any, broker: Node) -> None:
    page = signed_in
    page.goto(f"{broker.url}/new/validations")
    page.get_by_label("Name").fill("both")
    page.wait_for_selector(".cm-content >> text=both")
    draft = {"name": "typed", "topics": ["a/#"], **GATE, "checks": [RANGE]}
    write(page, "As code", json.dumps(draft))
    page.wait_for_function("document.querySelector('.field input')?.value === 'typed'")
    assert page.get_by_label("Topics").input_value() == "a/#"
    write(page, "As code", "{")
    page.wait_for_selector("text=code: expected JSON")
    assert page.get_by_label("Name").input_value() == "typed"
    page.get_by_label("Name").fill("again")
    page.wait_for_selector(".cm-content >> text=again")
    page.click("text=Discard")


def test_copied_commands_save_the_draft(signed_in: Any, broker: Node) -> None:
    page = signed_in
    page.goto(f"{broker.url}/new/validations")
    for number, place in enumerate(("curl", "CLI")):
        draft = {"name": f"copied-{number}", "topics": ["it's/#"], **GATE, "checks": [RANGE]}
        write(page, "As code", json.dumps(draft))
        page.wait_for_function(
            "name => document.querySelector('.field input')?.value === name", arg=draft["name"]
        )
        page.click(".card .head >> text=Copy as…")
        text = page.locator(f".popover section:has-text('{place}') pre").first.inner_text()
        page.keyboard.press("Escape")
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        environ = {"SLUICE_API_TOKEN": TOKEN, "SLUICE_URL": broker.url, "PATH": path}
        subprocess.run(
            ["sh", "-c", text], env=environ, capture_output=True, timeout=240, check=True
        )
        assert broker.call("GET", f"/validations/{draft['name']}")["topics"] == ["it's/#"]


def test_the_second_of_two_browsers_sees_both_versions(
    signed_in: Any, browser: Any, broker: Node
) -> None:
    page = signed_in
    check = [{"type": "json", "schema": "reading"}]
    spec = {"name": "shared", "topics": ["s/#"], "description": "first", **GATE, "checks": check}
    broker.call("POST", "/validations", spec)
    other = browser.new_context().new_page()
    sign_in(other, broker)
    for one, text in ((page, "mine"), (other, "theirs")):
        one.goto(f"{broker.url}/validations/shared?tab=change")
        one.get_by_label("Description").fill(text)
    other.click("button:text-is('Save')")
    eventually(lambda: broker.call("GET", "/validations/shared")["description"] == "theirs")
    other.context.close()
    page.click("button:text-is('Save')")
    page.wait_for_selector("text=Somebody else changed this object")
    page.wait_for_selector(".conflict .difference >> text=theirs")
    page.wait_for_selector(".conflict .difference >> text=mine")
    page.click("text=Save yours over it")
    eventually(lambda: broker.call("GET", "/validations/shared")["description"] == "mine")


def orders(broker: Node) -> list[str]:
    names = [item["name"] for item in broker.call("GET", "/validations?topic=order/1")["items"]]
    return [name for name in names if name in ("one", "two", "three")]


def test_the_pipeline_of_a_topic_explains_and_is_ordered_by_keyboard(
    signed_in: Any, broker: Node
) -> None:
    page = signed_in
    page.goto(f"{broker.url}/validations?on=order/1")
    page.wait_for_selector(".pipeline >> text=three")
    publish(broker, ("order/1", '{"temp": 60}'))
    page.wait_for_selector(".pipeline li:has-text('one') >> text=dropped")
    page.wait_for_selector(".pipeline li:has-text('two') >> text=not reached")
    before = orders(broker)
    tab_to(page, f"[aria-label^='Move {before[0]}']")
    page.keyboard.press("Alt+ArrowDown")
    page.wait_for_selector(".effect >> text=/moves from place/")
    assert page.evaluate("document.activeElement.ariaLabel").startswith(f"Move {before[0]}")
    page.keyboard.press("Alt+ArrowDown")
    page.wait_for_selector(f"text=/{before[1]} → {before[2]} → {before[0]}/")
    assert orders(broker) == before
    tab_to(page, ".primary")
    page.wait_for_selector(".primary:text('Save the order'):not(:disabled)")
    tab_to(page, ".primary:not(a)") if page.evaluate(
        "document.activeElement.tagName"
    ) == "A" else None
    page.keyboard.press("Enter")
    eventually(lambda: orders(broker) == [before[1], before[2], before[0]])


def test_an_order_is_changed_by_pointer_and_not_over_that_of_somebody_else(
    signed_in: Any, broker: Node
) -> None:
    page = signed_in
    before = orders(broker)
    page.goto(f"{broker.url}/validations?on=order/1")
    page.wait_for_selector(".pipeline >> text=three")
    page.drag_and_drop(
        f".pipeline li:has-text('{before[2]}')", f".pipeline li:has-text('{before[0]}')"
    )
    page.wait_for_selector(".effect >> text=/moves from place/")
    names = [item["name"] for item in broker.call("GET", "/validations")["items"]]
    broker.call("POST", "/validations:reorder", {"order": names[::-1]})
    page.click("text=Save the order")
    page.wait_for_selector("text=Somebody else changed the order")
    page.click("text=Discard")
    broker.call("POST", "/validations:reorder", {"order": names})
    page.reload()
    page.wait_for_selector(".pipeline >> text=three")
    page.drag_and_drop(
        f".pipeline li:has-text('{before[2]}')", f".pipeline li:has-text('{before[0]}')"
    )
    page.click("text=Save the order")
    eventually(lambda: orders(broker) == [before[2], before[0], before[1]])


def test_what_waits_in_quarantine_is_published_again_after_the_fix(
    signed_in: Any, broker: Node
) -> None:
    page = signed_in
    spec = {"topics": ["q/#"], **GATE, "quarantine": "refused"}
    broker.call("PUT", "/validations/narrow", {**spec, "checks": [RANGE]})
    publish(broker, ("q/1", '{"temp": 60}'), ("q/1", '{"temp": 61}'), ("q/1", '{"temp": 70}'))
    page.goto(f"{broker.url}/validations/narrow")
    page.wait_for_selector("text=3 messages in stream refused")
    page.wait_for_selector(
        "[aria-label='Messages in quarantine'] >> text=the condition of the SQL does not hold"
    )
    broker.call(
        "PUT",
        "/validations/narrow",
        {**spec, "checks": [{"type": "sql", "sql": "SELECT * WHERE payload.temp < 65"}]},
    )
    page.check("[aria-label='Select 0/1']")
    page.click("text=Publish 1 selected again")
    page.wait_for_selector("text=1 published, 0 failed again.")
    page.wait_for_selector("text=2 messages in stream refused")
    assert page.locator("[aria-label='Messages in quarantine'] >> text=61").count() == 0
    page.check("[aria-label='Select all shown']")
    page.click("text=Publish 2 selected again")
    page.wait_for_selector("text=1 published, 1 failed again.")
    page.wait_for_selector("text=1 message in stream refused")


def begin_with_keys(page: Any, broker: Node, key: str, kind: str) -> None:
    """Get from Start to the form of a new object."""
    page.goto(f"{broker.url}/")
    page.wait_for_selector("main h1")
    page.keyboard.press("g")
    page.keyboard.press(key)
    page.wait_for_selector(f"a[href*='/new/{kind}']")
    tab_to(page, f"a[href*='/new/{kind}']")
    page.keyboard.press("Enter")
    page.wait_for_selector(".cm-content")


def test_a_validation_is_created_with_the_keyboard_alone(signed_in: Any, broker: Node) -> None:
    page = signed_in
    begin_with_keys(page, broker, "v", "validations")
    page.wait_for_selector("main .items input")
    tab_to(page, "main input")
    page.keyboard.type("keys")
    tab_to(page, "main textarea")
    page.keyboard.type("keys/#")
    tab_to(page, "main .items input")
    page.keyboard.type("reading")
    tab_to(page, ".saving .primary")
    page.keyboard.press("Enter")
    page.wait_for_url("**/validations/keys")
    assert broker.call("GET", "/validations/keys")["checks"][0]["schema"] == "reading"


def test_a_schema_and_a_transformation_are_created_with_the_keyboard_alone(
    signed_in: Any, broker: Node
) -> None:
    page = signed_in
    begin_with_keys(page, broker, "c", "schemas")
    tab_to(page, "main input:not([type=file])")
    page.keyboard.type("pressed")
    tab_to(page, ".cm-content")
    page.keyboard.press("Control+A")
    page.keyboard.type('{"type": "object", "required": ["t"]')
    page.wait_for_selector("text=It can be saved")
    tab_to(page, ".saving .primary")
    page.keyboard.press("Enter")
    page.wait_for_url("**/schemas/pressed")
    assert json.loads(broker.call("GET", "/schemas/pressed")["source"])["required"] == ["t"]
    begin_with_keys(page, broker, "t", "transforms")
    tab_to(page, "main input")
    page.keyboard.type("pressed")
    tab_to(page, "main textarea")
    page.keyboard.type("keys/#")
    tab_to(page, "main .items input")
    page.keyboard.press("Control+A")
    page.keyboard.type("payload.by")
    page.keyboard.press("Tab")
    page.keyboard.press("Control+A")
    page.keyboard.type("upper(clientid)")
    tab_to(page, ".saving .primary")
    page.keyboard.press("Enter")
    page.wait_for_url("**/transforms/pressed")
    operations = broker.call("GET", "/transforms/pressed")["operations"]
    assert operations == [{"key": "payload.by", "value": "upper(clientid)"}]


@pytest.mark.parametrize(
    ("path", "ready"),
    [
        ("/schemas", "td >> text=reading"),
        ("/schemas/reading", "[aria-label=Fields] >> text=temp"),
        ("/schemas/reading?tab=change", ".cm-content"),
        ("/schemas/reading?tab=versions", "text=in use"),
        ("/schemas/reading?tab=try", ".cm-content"),
        ("/new/schemas", ".cm-content"),
        ("/validations?on=order/1", ".pipeline >> text=three"),
        ("/validations/one", "text=Last failures"),
        ("/validations/one?tab=change", "text=/more settings?/"),
        ("/new/transforms", "text=/more settings?/"),
    ],
)
def test_pages_are_accessible_at_any_width(
    signed_in: Any, broker: Node, complaints: list[str], path: str, ready: str
) -> None:
    check_everywhere(signed_in, f"{broker.url}{path}", ready, complaints)
