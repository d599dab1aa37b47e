"""Rules in a real browser: written with a fix on one key, tried on real messages, saved, tested, compared, followed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from broker.cli.exit_codes import CHECK_SAID_NO
from tests.support.node import TOKEN, Node, eventually, sluice
from tests.support.node import running as serving
from tests.ui.browser import check_everywhere, is_shown, sign_in, tab_to

EDITOR = ".cm-content[aria-label=SQL]"
FINDINGS = "[role=status][aria-label=Problems] li"
TOLD = "#result"
SAVE = "section[aria-label=Save] button.primary"
WARM = 'SELECT payload.temp AS celsius, clientid FROM "meters/#" WHERE payload.temp > 20'
SITE = 'SELECT payload.site AS site FROM "meters/#"'


SCHEMA = {"name": "reading", "type": "json", "compatibility": "none"}


def reading(**fields: str) -> dict[str, Any]:
    """A schema of payloads that have a temperature, these fields and nothing else."""
    properties = {
        "temp": {"type": "number"},
        **{name: {"type": kind} for name, kind in fields.items()},
    }
    return {
        "type": "object",
        "required": ["temp"],
        "properties": properties,
        "additionalProperties": False,
    }


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker whose meters have a schema and a stream, which holds three messages."""
    with serving(
        tmp_path_factory.mktemp("rules") / "data", config="overload.enable = false"
    ) as node:
        node.call("POST", "/schemas", {**SCHEMA, "source": reading(site="string")})
        validation = {
            "name": "reading",
            "topics": ["meters/#"],
            "strategy": "all_pass",
            "failure_action": "drop",
        }
        node.call(
            "POST",
            "/validations",
            {**validation, "checks": [{"type": "json", "schema": "reading"}]},
        )
        node.call("POST", "/streams", {"name": "raw", "topics": ["meters/#"]})
        for temp in (19, 21, 23):
            publish(node, temp)
        yield node


@pytest.fixture(autouse=True)
def no_rules(broker: Node) -> None:
    for rule in broker.call("GET", "/rules")["items"]:
        broker.call("DELETE", f"/rules/{rule['name']}?force=true")


def publish(node: Node, temp: float) -> None:
    payload = json.dumps({"temp": temp, "site": "north"})
    node.call("POST", "/messages:publish", {"topic": "meters/attic", "payload": payload, "qos": 1})


def serious(complaints: list[str]) -> list[str]:
    """Without answers that say that SQL has a mistake, or that the machine is busy; the browser lists each of them."""
    return [one for one in complaints if "status of 422" not in one and "status of 503" not in one]


def opened(page: Any, broker: Node, path: str) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}{path}")
    page.wait_for_selector(EDITOR)


def write(page: Any, sql: str) -> None:
    """Replace what is in the editor, by the keyboard."""
    page.focus(EDITOR)
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(sql)


def test_a_rule_is_written_fixed_tried_and_saved_by_the_keyboard(
    page: Any, broker: Node, complaints: list[str]
) -> None:
    opened(page, broker, "/new/rules")
    page.get_by_label("Name", exact=True).focus()
    page.keyboard.type("warm")
    for _ in ("SQL", "jq", "the editor"):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "SQL"
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(WARM.replace("payload.temp AS", "payload.tmp AS"))
    page.wait_for_selector(f"{FINDINGS} >> text=did you mean 'temp'?")
    page.keyboard.press("Control+.")
    page.wait_for_selector(FINDINGS, state="detached")
    assert page.inner_text(EDITOR) == WARM
    page.wait_for_selector("text=2 of the last 3 match")
    page.wait_for_selector(f"{TOLD} >> text=/celsius.*23/")
    page.wait_for_selector("text=/Rows have celsius double, clientid string/")
    publish(broker, 25)
    page.wait_for_selector("text=3 of the last 4 match")  # what arrives meanwhile is tried too
    page.wait_for_selector(f"{TOLD} >> text=/celsius.*25/")
    page.wait_for_selector(".trial >> text=payload.temp > 20")
    page.keyboard.press("Control+s")
    page.wait_for_url("**/rules/warm")
    rule = broker.call("GET", "/rules/warm")
    assert (rule["sql"], rule["state"]) == (WARM, "running")
    assert serious(complaints) == []


def test_numbers_are_shown_with_all_their_digits(page: Any, broker: Node) -> None:
    publish(broker, 31.333846775201351)
    opened(page, broker, "/new/rules")
    write(page, 'SELECT 9007199254740993 AS big, payload.temp AS t FROM "meters/#"')
    page.wait_for_selector(f"{TOLD} >> text=/big.*9007199254740993/")
    page.wait_for_selector(f".trial >> text={31.333846775201351!r}")


def test_tab_leaves_the_editor(page: Any, broker: Node) -> None:
    opened(page, broker, "/new/rules")
    page.focus(EDITOR)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('.cm-editor')") is None


def test_names_are_completed_and_types_shown(page: Any, broker: Node) -> None:
    publish(broker, 21)
    opened(page, broker, "/new/rules")
    write(page, 'SELECT  FROM "meters/#"')
    for _ in range(len(' FROM "meters/#"')):
        page.keyboard.press("ArrowLeft")
    page.keyboard.type("payload.te")
    option = page.locator("[role=option]", has_text="payload.temp")
    option.wait_for()
    assert "double" in option.inner_text()
    # the editor takes Enter as a line break in the first moment of a list
    page.wait_for_timeout(100)
    page.keyboard.press("Enter")
    assert page.inner_text(EDITOR).startswith("SELECT payload.temp ")
    page.keyboard.type(", upp")
    # an answer that comes late closes the list that the keys have opened
    eventually(
        lambda: (
            is_shown(page, "[role=option] >> text=upper") or page.keyboard.press("Control+Space")
        )
    )
    page.keyboard.press("Escape")
    write(page, 'SELECT * FROM "me')

    def is_offered() -> bool:
        # topics are known since plans changed: with rules, and when a page waits for messages
        publish(broker, 21)
        page.keyboard.press("Control+Space")
        return is_shown(page, "[role=option] >> text=meters/#")

    eventually(is_offered)
    write(page, 'SELECT payload.temp FROM "meters/#"')
    page.hover(f"{EDITOR} .cm-line", position={"x": 90, "y": 10})
    page.wait_for_selector(".cm-tooltip >> text=payload.temp double")


def shown_problems(page: Any) -> list[str]:
    return [text.split("\n")[0] for text in page.locator(FINDINGS).all_inner_texts()]


def printed_problems(broker: Node, sql: str) -> list[str]:
    """What ``sluice rules check`` says of the SQL, as the page words it."""

    def checked() -> list[list[dict[str, Any]]] | None:
        done = sluice(broker, "rules", "check", "--sql", sql, "--json")
        answer = json.loads(done.stdout or done.stderr)
        return (
            [answer.get("errors", answer.get("warnings"))]
            if done.returncode in (0, CHECK_SAID_NO)
            else None
        )

    found = eventually(checked, what="an answer of a node that is busy")
    assert found
    return [
        f"line {one['line']}, column {one['column']}: {one['message']}"
        + (f"; {one['suggestion']}" if "suggestion" in one else "")
        for one in found[0]
    ]


def test_problems_are_those_of_the_cli_also_after_a_schema_changed(page: Any, broker: Node) -> None:
    opened(page, broker, "/new/rules")
    write(page, SITE)
    page.wait_for_selector("text=Rows have site string")
    assert shown_problems(page) == printed_problems(broker, SITE) == []
    file = broker.data_dir.parent / "reading.json"
    file.write_text(json.dumps({**SCHEMA, "source": reading(side="string")}))
    changed = sluice(broker, "schemas", "apply", "-f", str(file))
    assert changed.returncode == 0, changed.stderr
    try:
        page.wait_for_selector(f"{FINDINGS} >> text=did you mean 'side'?")
        assert shown_problems(page) == printed_problems(broker, SITE) != []
        write(page, "SELECT upper(1), FROM 'meters/#'")
        page.wait_for_selector(f"{FINDINGS} >> text=remove the comma")
        assert shown_problems(page) == printed_problems(broker, "SELECT upper(1), FROM 'meters/#'")
    finally:
        broker.call("PUT", "/schemas/reading", {**SCHEMA, "source": reading(site="string")})


def test_sql_is_formatted(page: Any, broker: Node) -> None:
    opened(page, broker, "/new/rules")
    write(page, 'select payload.temp as t -- warm\nfrom "meters/#" where payload.temp>20')
    page.click("button:text('Format')")
    page.locator(EDITOR).filter(has_text="SELECT payload.temp AS t -- warm").wait_for()


def test_messages_of_a_stream_an_event_and_one_by_hand_are_inputs(page: Any, broker: Node) -> None:
    opened(page, broker, "/new/rules?input=stream")
    write(page, WARM)
    page.wait_for_selector("[aria-label=Messages] >> text=meters/attic at offset 0")
    # as the page of the stream links to it
    page.goto(f"{broker.url}/new/rules?stream=raw&shard=0&offset=1")
    page.wait_for_selector("[aria-label=Messages] li:first-child >> text=at offset 1")
    page.click("button:text('By hand')")
    page.wait_for_url("**input=own*")
    page.focus(".cm-content[aria-label=Payload]")
    page.keyboard.press("Control+a")
    page.keyboard.insert_text('{"temp": 99}')
    page.wait_for_selector(f"{TOLD} >> text=/celsius.*99/")
    page.select_option("label:has-text('Encoded by') select", "reading")
    page.focus(".cm-content[aria-label=Payload]")
    page.keyboard.press("Control+a")
    page.keyboard.insert_text('{"temp": "hot"}')
    page.wait_for_selector("[role=alert] >> text=/temp/")
    write(page, 'SELECT clientid, reason FROM "$events/client/disconnected"')
    page.click("button:text('Event')")
    page.wait_for_selector(f"{TOLD} >> text=clientid")


def test_copied_commands_give_what_the_page_shows(page: Any, broker: Node) -> None:
    broker.call("POST", "/rules", {"name": "warm", "sql": WARM})
    opened(page, broker, "/rules/warm?input=stream")
    page.wait_for_selector(f"{TOLD} >> text=celsius")
    shown = json.loads(page.inner_text(TOLD))
    page.click("section[aria-label=Test] >> text=Copy as…")
    curl, cli = page.locator(".popover pre").all_inner_texts()
    environ = os.environ | {"SLUICE_API_TOKEN": TOKEN, "SLUICE_URL": broker.url}
    answer = subprocess.run(
        ["sh", "-c", f"{curl} -s"], env=environ, capture_output=True, timeout=240, check=True
    )
    assert json.loads(answer.stdout)["rows"] == [shown]
    command = cli.replace("sluice ", f"{sys.executable} -m broker.cli.main ", 1)
    done = subprocess.run(
        ["sh", "-c", command], env=environ, capture_output=True, text=True, timeout=240, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) == shown


def test_copied_commands_save_the_draft(page: Any, broker: Node) -> None:
    broker.call("POST", "/rules", {"name": "warm", "sql": WARM, "actions": [{"type": "console"}]})
    opened(page, broker, "/rules/warm")
    written = "SELECT payload.temp AS t FROM 'meters/#'"
    write(page, written)
    page.click("section[aria-label=Save] >> text=Copy as…")
    page.wait_for_selector("h3:text('HOCON')")
    curl, cli, hocon = page.locator(".popover pre").all_inner_texts()
    said = f'sql = "{written}"\n  actions = [\n    {{\n      type = "console"\n    }}\n  ]'
    assert hocon == f"rule_engine.rules.warm {{\n  {said}\n}}"
    environ = os.environ | {"SLUICE_API_TOKEN": TOKEN, "SLUICE_URL": broker.url}
    for command in (
        f"{curl} -s",
        cli.replace("| sluice ", f"| {sys.executable} -m broker.cli.main "),
    ):
        broker.call("PUT", "/rules/warm", {"sql": WARM})
        subprocess.run(
            ["sh", "-c", command], env=environ, capture_output=True, timeout=240, check=True
        )
        rule = broker.call("GET", "/rules/warm")
        assert (rule["sql"], [action["type"] for action in rule["actions"]]) == (
            written,
            ["console"],
        )


def test_test_cases_hold_a_save_back(page: Any, broker: Node) -> None:
    broker.call("POST", "/rules", {"name": "warm", "sql": WARM})
    opened(page, broker, "/rules/warm?input=stream")
    page.click("text=Keep as test case")
    page.wait_for_selector("text=1 of 1 pass")
    page.click(SAVE)
    eventually(lambda: len(broker.call("GET", "/rules/warm")["tests"]) == 1)
    write(page, WARM.replace("20", "200"))
    page.wait_for_selector("text=0 of 1 pass")
    page.click(SAVE)
    page.wait_for_selector("section[aria-label=Save] >> text=/case 1/")
    assert broker.call("GET", "/rules/warm")["sql"] == WARM
    page.check("text=Save it although test cases fail")
    page.click(SAVE)
    eventually(lambda: "200" in broker.call("GET", "/rules/warm")["sql"])


def test_a_draft_is_compared_over_a_stream_and_a_version_is_restored(
    page: Any, broker: Node
) -> None:
    broker.call("POST", "/rules", {"name": "warm", "sql": WARM})
    opened(page, broker, "/rules/warm")
    write(page, WARM.replace("> 20", "> 22"))
    page.wait_for_selector(f"{SAVE}:enabled")
    page.click("text=Back-test")
    page.click("button:text('Run')")
    page.wait_for_selector(
        "text=/messages, .* match, .* rows: 0 added, [1-9]\\d* lost/", timeout=120_000
    )
    page.wait_for_selector(".difference >> text=/21/")
    page.click("nav.tabs >> text=Editor")
    page.wait_for_selector(f"{EDITOR} >> text=22")  # the draft is still there
    page.click(SAVE)
    eventually(lambda: "22" in broker.call("GET", "/rules/warm")["sql"])
    page.click("text=Versions")
    page.click("text=Compare version 1")
    page.wait_for_selector(".difference .cm-content")
    page.click("text=Restore version 1…")
    page.click("[role=alertdialog] >> button:text('Restore')")
    page.wait_for_selector("td >> text=3")
    assert broker.call("GET", "/rules/warm")["sql"] == WARM


MESSAGES, ROWS = "Run the rule over messages", "Keep the rows that the rule writes"


def test_a_table_that_a_replay_can_rebuild_is_created_by_the_keyboard(
    page: Any, broker: Node
) -> None:
    broker.call("POST", "/rules", {"name": "warm", "sql": WARM})
    sign_in(page, broker)
    page.goto(f"{broker.url}/rules/warm?tab=actions")
    page.wait_for_selector(
        "section[aria-label=Table] >> text=/replay after a correction of the rule rebuilds older/"
    )
    page.wait_for_selector("section[aria-label=Table] >> text=/a replay cannot rebuild older ones/")
    assert page.get_by_label(MESSAGES).is_checked()
    tab_to(page, "section[aria-label=Table] button.primary")
    page.keyboard.press("Enter")
    page.wait_for_selector("section[aria-label=Table] >> text=no row yet")
    table = broker.call("GET", "/lake/tables/warm")
    assert (table["stream"], table["rule"]) == ("raw", "warm")
    assert broker.call("GET", "/rules/warm")["actions"] == []
    broker.call("DELETE", "/lake/tables/warm")


def test_a_table_of_rows_is_created_on_request(page: Any, broker: Node) -> None:
    broker.call("POST", "/rules", {"name": "rowed", "sql": WARM})
    sign_in(page, broker)
    page.goto(f"{broker.url}/rules/rowed?tab=actions")
    page.get_by_label(ROWS).check()
    page.wait_for_selector("text=/rule rowed: would write its rows to stream rowed/")
    page.click("text=Create a table from this rule")
    page.wait_for_selector("section[aria-label=Table] >> text=no row yet")
    page.wait_for_selector("section[aria-label=Actions] >> text=stream rowed")
    assert broker.call("GET", "/lake/tables/rowed")["stream"] == "rowed"
    broker.call("DELETE", "/lake/tables/rowed")


def test_the_table_of_a_rule_over_events_can_only_be_one_of_rows(page: Any, broker: Node) -> None:
    broker.call(
        "POST",
        "/rules",
        {"name": "comings", "sql": 'SELECT clientid FROM "$events/client_connected"'},
    )
    sign_in(page, broker)
    page.goto(f"{broker.url}/rules/comings?tab=actions")
    page.wait_for_selector("section[aria-label=Table] >> text=/it reads events only/")
    assert page.get_by_label(MESSAGES).is_disabled()
    assert page.get_by_label(ROWS).is_checked()


PROGRAM = ".cm-content[aria-label='jq program']"


def test_a_rule_in_jq_is_checked_tried_and_saved(
    page: Any, broker: Node, complaints: list[str]
) -> None:
    publish(broker, 21)
    opened(page, broker, "/new/rules")
    page.get_by_label("Name", exact=True).fill("halved")
    page.click("[aria-label=Language] >> text=jq")
    assert page.get_by_label("Reads").input_value() == "meters/#"  # as the SQL did
    page.focus(PROGRAM)
    page.keyboard.press("Control+a")
    page.keyboard.insert_text("{half: (.payload.temp / )}")
    page.wait_for_selector(FINDINGS)
    page.keyboard.press("Control+a")
    page.keyboard.insert_text("{half: (.payload.temp / 2)}")
    page.wait_for_selector(FINDINGS, state="detached")
    page.wait_for_selector(f"{TOLD} >> text=/half.*10.5/")
    page.get_by_label("Reads").fill("meters/+\nrooms/#\n")
    page.click("section[aria-label=Create] button.primary")
    page.wait_for_url("**/rules/halved")
    rule = broker.call("GET", "/rules/halved")
    assert (rule["language"], rule["from"], rule["state"]) == (
        "jq",
        ["meters/+", "rooms/#"],
        "running",
    )
    assert "/ 2" in rule["jq"]
    page.wait_for_selector(PROGRAM)
    page.get_by_label("Reads").fill("meters/+")
    page.click(SAVE)
    eventually(lambda: broker.call("GET", "/rules/halved")["from"] == ["meters/+"])
    for unsaved in ("rooms/+", "meters/+"):
        page.click("[aria-label=Language] >> text=jq")
        page.get_by_label("Reads").fill(unsaved)
        page.click("[aria-label=Language] >> text=SQL")
        shown = page.inner_text(EDITOR)  # the same as SQL
        assert shown.endswith(f"JQ '{{half: (.payload.temp / 2)}}' FROM \"{unsaved}\""), shown
    page.click(SAVE)
    eventually(lambda: "jq" not in broker.call("GET", "/rules/halved"))
    page.wait_for_selector("[aria-label=Language] [aria-pressed=true] >> text=SQL")
    assert broker.call("GET", "/rules/halved")["from"] == ["meters/+"]
    assert serious(complaints) == []


def names(broker: Node) -> list[str]:
    return [rule["name"] for rule in broker.call("GET", "/rules")["items"]]


def test_the_order_of_rules_is_shown_and_changed(page: Any, broker: Node) -> None:
    for name in ("one", "two", "three"):
        broker.call("POST", "/rules", {"name": name, "sql": WARM})
    sign_in(page, broker)
    page.goto(f"{broker.url}/rules")
    page.wait_for_selector("tr:has-text('three') >> td >> nth=0 >> text=3")
    page.click("[aria-label='Do something with three']")
    page.click("text=Move before two")
    page.wait_for_selector("[role=alertdialog] >> text=/three.* moves from place 3 to 2/")
    assert names(broker) == ["one", "two", "three"]
    page.click("[role=alertdialog] >> button:text-is('Move')")
    page.wait_for_selector("tr:has-text('three') >> td >> nth=0 >> text=2")
    assert names(broker) == ["one", "three", "two"]
    page.click("[aria-label='Do something with one']")
    assert page.locator("text=Move before").count() == 0
    page.click("text=Move after three")
    page.wait_for_selector("[role=alertdialog] >> text=/moves from place/")
    broker.call("POST", "/rules:reorder", {"order": ["two", "three", "one"]})
    page.click("[role=alertdialog] >> button:text-is('Move')")
    page.wait_for_selector("[role=alertdialog] >> text=/changed/")
    assert names(broker) == ["two", "three", "one"]


def test_rules_of_a_topic_are_ordered_in_its_pipeline(page: Any, broker: Node) -> None:
    for name in ("one", "two"):
        broker.call("POST", "/rules", {"name": name, "sql": WARM})
    sign_in(page, broker)
    page.goto(f"{broker.url}/validations?on=meters/attic")
    page.wait_for_selector(".pipeline >> text=two")
    page.focus("[aria-label^='Move one']")
    page.keyboard.press("Alt+ArrowDown")
    page.wait_for_selector("text=/Rules: two → one/")
    page.click("text=Save the order")
    eventually(lambda: names(broker) == ["two", "one"])


@pytest.mark.parametrize(
    "path",
    [
        "/rules",
        "/rules/warm",
        "/rules/warm?tab=actions",
        "/rules/warm?tab=versions",
        "/new/rules?input=own",
    ],
)
def test_pages_of_rules_are_accessible_at_any_width(
    page: Any, broker: Node, complaints: list[str], path: str
) -> None:
    action = {"type": "republish", "topic": "warm/${clientid}", "payload": "${celsius}"}
    broker.call(
        "POST", "/rules", {"name": "warm", "sql": WARM, "actions": [action, {"type": "console"}]}
    )
    sign_in(page, broker)
    ready = {
        "/rules": "td >> text=warm",
        "/rules/warm?tab=actions": "section[aria-label=Table] >> text=/cannot rebuild/",
        "/rules/warm?tab=versions": "td >> text=runs now",
    }.get(path, EDITOR)
    check_everywhere(page, f"{broker.url}{path}", ready, [])
    assert serious(complaints) == []


def test_messages_that_arrive_do_not_end_a_slow_evaluation_and_do_not_replace_a_chosen_one(
    page: Any, broker: Node
) -> None:
    held: list[Any] = []
    is_slow = True
    page.route(
        "**/rules:explain", lambda route: held.append(route) if is_slow else route.continue_()
    )
    with page.expect_request("**/rules:explain"):
        opened(page, broker, "/new/rules?input=latest")
    publish(broker, 31)
    for _ in range(2):  # the second has been asked for since
        with page.expect_response("**/topics/latest*"):
            pass
    held.pop(0).continue_()
    page.wait_for_selector(".trial")
    is_slow = False
    for route in held:
        route.continue_()
    page.click("[aria-label=Messages] button >> text=31")
    for temp in range(40, 61):
        publish(broker, temp)
    page.wait_for_selector("[aria-label=Messages] button >> text=60")
    page.wait_for_selector("[aria-label=Messages] button[aria-pressed=true] >> text=31")
    page.wait_for_selector(f"{TOLD} >> text=/celsius.*31/")
