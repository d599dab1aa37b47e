"""Streams and tables in a real browser, on a real broker with Spark: records, rows, replay, audit, drafts."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import duckdb
import pytest
from deltalake import DeltaTable

from tests.support.node import TOKEN, Node, eventually
from tests.support.node import running as serving
from tests.ui.browser import check_everywhere, check_look, sign_in, tab_to
from tests.ui.test_dashboard_declared import connected

pytestmark = pytest.mark.spark

WRONG = 'SELECT payload.temp AS temp, payload.temp * 1.9 + 32 AS fahrenheit FROM "meters/#" WHERE payload.temp > 20'
SPARK_MS = 180_000
TABS = (
    "",
    "?tab=rows",
    "?tab=rows&letters=true",
    "?tab=replay&from=0&to=4",
    "?tab=audit",
    "?tab=settings",
)


def publish(node: Node, *payloads: Any) -> None:
    for payload in payloads:
        text = payload if isinstance(payload, str) else json.dumps(payload)
        node.call("POST", "/messages:publish", {"topic": "meters/attic", "payload": text, "qos": 1})


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker with a stream of messages, some of which a rule of a table cannot take."""
    with serving(
        tmp_path_factory.mktemp("lake") / "data", config="overload.enable = false"
    ) as node:
        node.call("POST", "/streams", {"name": "meters", "topics": ["meters/#"]})
        node.call("POST", "/streams", {"name": "nothing"})
        node.call("POST", "/rules", {"name": "warm", "sql": WRONG})
        publish(node, {"temp": 25}, {"temp": 5}, "broken", {"temp": 30})
        yield node


@pytest.fixture(scope="module")
def filled(broker: Node) -> Node:
    """The same with a table that has all of it."""
    broker.call("POST", "/lake/tables", {"name": "raw", "stream": "meters"})
    eventually(
        lambda: broker.call("GET", "/lake/tables/raw")["rows"], 180, 0.5, "rows in the table"
    )
    return broker


def rows_of(node: Node, table: str) -> list[tuple[Any, ...]]:
    """The rows as DuckDB reads them."""
    rows = DeltaTable(node.data_dir / "lake" / table).to_pyarrow_table()  # noqa: F841  # DuckDB finds it by its name
    found = duckdb.connect().sql("SELECT temp, round(fahrenheit, 1) FROM rows ORDER BY temp")
    assert found is not None
    return found.fetchall()


def test_a_row_is_on_the_page_and_in_duckdb_and_a_corrected_rule_rebuilds_it(
    page: Any, broker: Node, complaints: list[str]
) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/tables")
    page.click("text=New table")
    page.get_by_label("Stream", exact=True).select_option("meters")
    page.get_by_label("Rule").select_option("warm")
    page.get_by_label("Name (required)").fill("warm")
    page.click("button:text('Create')")
    page.wait_for_url("**/tables/warm")
    page.wait_for_selector("h1 >> text=running", timeout=SPARK_MS)
    page.click("nav.tabs >> text=Rows")
    page.wait_for_selector("td:text('79.5')")
    page.wait_for_selector("td:text('89')")
    assert rows_of(broker, "warm") == [(25, 79.5), (30, 89.0)]
    page.click("button:text('Dead letters')")
    page.wait_for_selector("td >> text=/the payload is not JSON/")
    page.click("a[aria-label='Message 2 of shard 0']")
    page.wait_for_selector("section[aria-label='Record 2'] >> text=broken")

    broker.call("PUT", "/rules/warm", {"sql": WRONG.replace("1.9", "1.8")})
    page.goto(f"{broker.url}/tables/warm?tab=replay")
    page.click("text=Show the plan")
    page.wait_for_selector("text=/4 records: ?0 to 3/")
    page.wait_for_selector("text=2 rows and 1 dead letter of table warm")
    assert rows_of(broker, "warm") == [(25, 79.5), (30, 89.0)]
    page.click("button:text('Replay 4 records')")
    page.wait_for_selector(
        "text=/2 rows and 1 dead letter in place of 2 and 1, 1 filtered/", timeout=SPARK_MS
    )
    assert rows_of(broker, "warm") == [(25, 77.0), (30, 86.0)]
    page.click("text=See the rows")
    page.wait_for_selector("td:text('77')")
    page.click("nav.tabs >> text=Audit")
    page.click("button:text('Audit')")
    page.wait_for_selector("text=Every record is accounted for, once.")
    assert page.locator(".strip-of-shard .audit-ok").count() == 1
    page.click("nav.tabs >> text=Health")
    page.wait_for_selector("[aria-label=Versions] tbody >> text=replay")

    page.goto(f"{broker.url}/tables/warm?tab=rows&letters=true")
    page.check("[aria-label='Select 0/2']")
    page.click("text=Replay 1 selected")
    page.click("text=Show the plan")
    page.click("button:text('Replay 1 record')")
    page.wait_for_selector(
        "text=/0 rows and 1 dead letter in place of 0 and 1, 0 filtered/", timeout=SPARK_MS
    )
    page.click("form >> text=Copy as…")
    assert page.locator(".popover pre").last.inner_text() == "sluice replay warm --record 0/2"
    assert complaints == []


def test_the_page_of_a_table_lists_the_tables_that_its_rows_go_into(
    page: Any, filled: Node
) -> None:
    spec = {"name": "split", "stream": "meters", "tables": "split_${qos}", "commit_interval": 0.5}
    filled.call("POST", "/lake/tables", spec)
    eventually(
        lambda: (filled.call("GET", "/lake/tables/split")["rows"] or 0) >= 4,
        180,
        0.5,
        "rows in the tables",
    )
    sign_in(page, filled)
    page.goto(f"{filled.url}/tables/split")
    page.wait_for_selector("text=/rows go into split_.*, at most 100 tables/")
    page.click("table a:text-is('split_1')")
    page.wait_for_url("**/tables/split?*member=split_1*")
    page.wait_for_selector("text=/newest .* of split_1/")
    filled.call("DELETE", "/lake/tables/split")


def test_an_audit_names_the_offsets_that_are_missing_and_doubled(page: Any, filled: Node) -> None:
    broker = filled
    publish(broker, *({"temp": n} for n in range(6)))
    eventually(
        lambda: broker.call("GET", "/lake/tables/raw")["rows"] >= 10, 180, 0.5, "rows in the table"
    )
    table = DeltaTable(broker.data_dir / "lake" / "raw")
    table.delete("_offset = 5 OR _offset = 6")
    sign_in(page, broker)
    page.goto(f"{broker.url}/tables/raw?tab=audit")
    page.click("button:text('Audit')")
    page.wait_for_selector("text=/2 records are in neither/")
    page.wait_for_selector(".strip-of-shard >> text=Missing: 5 to 6")
    assert page.locator(".strip-of-shard svg .audit-missing").count() == 1
    page.click(".strip-of-shard a:text('5 to 6')")
    page.wait_for_url("**/streams/meters?*tab=records*")
    page.goto(f"{broker.url}/tables/raw?tab=replay&from=5&to=7")
    page.click("text=Show the plan")
    page.wait_for_selector("text=Replaces0 rows and 0 dead letters")
    page.click("button:text('Replay 2 records')")
    page.wait_for_selector("text=/2 rows and 0 dead letters in place of 0 and 0/", timeout=SPARK_MS)
    page.click("text=audit the table")
    page.click("button:text('Audit')")
    page.wait_for_selector("text=Every record is accounted for, once.")


def test_a_row_of_a_table_is_explained_from_its_message_through_every_stage(
    page: Any, filled: Node, complaints: list[str]
) -> None:
    node = filled
    node.call("PUT", "/rules/warm", {"sql": WRONG})  # as it was before it was corrected
    node.call("POST", "/schemas", {"name": "meter", "type": "json", "source": '{"type": "object"}'})
    gate = {
        "name": "whole",
        "topics": ["meters/#"],
        "checks": [{"type": "json", "schema": "meter"}],
    }
    node.call("POST", "/validations", gate | {"strategy": "all_pass", "failure_action": "drop"})
    reader = connected(node, "wall-display", "meters/+")
    try:
        sign_in(page, node)
        page.goto(f"{node.url}/tables/raw?tab=rows")
        row = page.locator(
            "[aria-label='Rows of the table'] tbody tr:has(a[aria-label='Message 0 of shard 0'])"
        )
        row.get_by_role("button", name="Explain").click()
        dialog = page.locator("[role=dialog]")
        dialog.locator("text=/it became this row of table raw/").wait_for()
        dialog.locator("text=It passes all stages.").wait_for()
        stages = dialog.get_by_role("group", name="Stages")
        stages.locator("tr:has(a.name:text-is('whole')) >> text=passed").wait_for()
        stages.locator("tr:has(a.name:text-is('warm')) >> text=/79.5/").wait_for()
        dialog.locator("li:has-text('stream meters') a.name:text-is('raw')").wait_for()
        dialog.locator("tr:has(a.name:text-is('wall-display')) >> text=yes").wait_for()
        node.call("POST", "/rules/warm:disable")
        try:
            dialog.get_by_role("button", name="Run again").click()
            stages.locator("a.name:text-is('warm')").wait_for(state="detached")
            stages.locator("a.name:text-is('whole')").wait_for()
        finally:
            node.call("POST", "/rules/warm:enable")
        check_look(page, 1280, "light")
        page.keyboard.press("Escape")
        dialog.wait_for(state="detached")
        assert page.evaluate("document.activeElement.textContent") == "Explain"
    finally:
        reader.disconnect()
        reader.loop_stop()
        node.call("DELETE", "/validations/whole")
    assert complaints == []


def test_a_dead_letter_and_a_row_that_a_rule_wrote_say_what_they_are_from(
    page: Any, filled: Node
) -> None:
    node = filled
    to_stream = [{"type": "stream", "stream": "hot"}]
    node.call("POST", "/streams", {"name": "hot"})
    node.call("POST", "/rules", {"name": "hot", "sql": WRONG, "actions": to_stream})
    node.call("POST", "/lake/tables", {"name": "hot", "stream": "hot"})
    node.call("POST", "/lake/tables", {"name": "strict", "stream": "meters", "rule": "warm"})
    publish(node, {"temp": 41})
    sign_in(page, node)
    for table, members in (("strict", "dead_letters"), ("hot", "rows")):
        eventually(
            lambda: node.call("GET", f"/lake/tables/{table}")[members],  # noqa: B023
            180,
            0.5,
            f"{members} of table {table}",
        )
    page.goto(f"{node.url}/tables/strict?tab=rows&letters=true")
    page.locator("main td").get_by_role("button", name="Explain").first.click()
    dialog = page.locator("[role=dialog]")
    dialog.locator("text=/a dead letter of table strict: .*the payload is not JSON/").wait_for()
    failed = dialog.get_by_role("group", name="Stages").locator("tr:has(a.name:text-is('warm'))")
    failed.locator("text=the payload is not JSON").wait_for()
    page.goto(f"{node.url}/tables/hot?tab=rows")
    page.locator("main td").get_by_role("button", name="Explain").first.click()
    dialog.locator("text=/it became this row of table hot/").wait_for()
    dialog.locator("text=/Rule hot wrote this row/").wait_for()
    for table in ("hot", "strict"):
        node.call("DELETE", f"/lake/tables/{table}")


def test_a_shadow_is_compared_and_swapped(page: Any, filled: Node) -> None:
    sign_in(page, filled)
    page.goto(f"{filled.url}/tables/raw?tab=replay&from=0&to=2")
    page.get_by_label("Into").select_option("shadow")
    page.click("text=Show the plan")
    page.click("button:text('Replay 2 records')")
    page.wait_for_selector("text=/2 of 2 records, since/", timeout=SPARK_MS)
    page.click("button:text('Compare'):not([disabled])")
    page.wait_for_selector(
        "[aria-label='Difference of rows'] >> text=/2 the same, 0 changed/", timeout=SPARK_MS
    )
    page.click("button:text('Swap'):not([disabled])")
    page.wait_for_selector("text=The table has the rows of the shadow.", timeout=SPARK_MS)
    eventually(
        lambda: page.locator("progress[aria-label='Shadow of raw']").count() == 0,
        30,
        0.2,
        "no shadow is left",
    )


def test_copied_commands_replay_what_the_page_would(page: Any, filled: Node) -> None:
    sign_in(page, filled)
    page.goto(f"{filled.url}/tables/raw?tab=replay&from=0&to=2")
    page.click("form >> text=Copy as…")
    curl, cli = page.locator(".popover pre").all_inner_texts()
    assert cli == "sluice replay raw --from 0 --to 2"
    environ = {**os.environ, "SLUICE_API_TOKEN": TOKEN, "SLUICE_URL": filled.url}
    command = [sys.executable, "-m", "broker.cli.main", *cli.split()[1:]]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=180)
    assert done.stdout.startswith("replayed [0, 2) of shard 0: 2 records, which were 2 rows"), (
        done.stderr
    )
    answer = subprocess.run(
        ["sh", "-c", f"{curl} -s"], env=environ, capture_output=True, timeout=180, check=True
    )
    assert (json.loads(answer.stdout)["records"], json.loads(answer.stdout)["rows_after"]) == (2, 2)


def test_what_a_link_says_is_one_word_of_a_copied_command(page: Any, filled: Node) -> None:
    topics = "a';touch harm;'"
    sign_in(page, filled)
    page.goto(f"{filled.url}/streams/meters?{urlencode({'tab': 'records', 'topics': topics})}")
    page.click("[role=search] >> text=Copy as…")
    _, cli = page.locator(".popover pre").all_inner_texts()
    words = shlex.split(cli)
    assert words[words.index("--filter") + 1] == topics


def test_a_table_is_replayed_with_the_keyboard_alone(page: Any, filled: Node) -> None:
    sign_in(page, filled)
    page.goto(f"{filled.url}/tables/raw")
    page.wait_for_selector("nav.tabs")
    tab_to(page, "nav.tabs a[href*='tab=replay']")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Show the plan")
    tab_to(page, "[aria-label=Range] button[aria-pressed=false]")
    page.keyboard.press("Enter")
    tab_to(page, "main form input")
    page.keyboard.type("0")
    page.keyboard.press("Tab")
    page.keyboard.type("2")
    page.keyboard.press("Enter")
    page.wait_for_selector("button:text('Replay 2 records')")
    tab_to(page, "main form .primary")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=/2 rows and 0 dead letters in place of 2 and 0/", timeout=SPARK_MS)


def test_a_table_of_rows_says_that_a_replay_runs_no_rule(page: Any, filled: Node) -> None:
    filled.call("POST", "/lake/tables", {"name": "nothing", "stream": "nothing"})
    sign_in(page, filled)
    page.goto(f"{filled.url}/tables/nothing?tab=replay")
    page.wait_for_selector("text=a replay does not run a rule")
    page.goto(f"{filled.url}/tables/raw?tab=replay")
    page.wait_for_selector("text=The messages of the stream are converted again")
    assert page.locator("text=a replay does not run a rule").count() == 0
    filled.call("DELETE", "/lake/tables/nothing")


def test_a_range_that_cannot_be_replayed_says_why(page: Any, filled: Node) -> None:
    sign_in(page, filled)
    page.goto(f"{filled.url}/tables/raw?tab=replay&from=1&to=900000")
    page.click("text=Show the plan")
    page.wait_for_selector("[role=alert] >> text=/table 'raw' has offsets .* not all of/")
    page.goto(f"{filled.url}/tables/raw?tab=replay&from=2030-01-01T00:00:00Z")
    page.click("text=Show the plan")
    page.wait_for_selector("text=There is nothing to replay")


def test_records_are_browsed_by_offset_and_time_and_are_in_the_address(
    page: Any, broker: Node
) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/streams/meters")
    page.wait_for_selector("[aria-label='Shards']")
    page.click("nav.tabs >> text=Records")
    page.get_by_label("Offset or time").fill("1")
    page.click("button:text('Go')")
    page.wait_for_selector("tbody tr:first-child >> text=/^1$/")
    page.get_by_label("Find in these records").fill("broken")
    page.wait_for_selector(".records tbody tr:only-child")
    page.click(".records a:text('2')")
    page.wait_for_selector("section[aria-label='Record 2']")
    page.click("summary:text('Bytes')")
    page.wait_for_selector("text=62 72 6f 6b 65 6e")
    page.reload()
    page.wait_for_selector("section[aria-label='Record 2'] >> text=broken")
    assert page.get_attribute("a:text('Use as test input')", "href").endswith(
        "stream=meters&record=0%2F2"
    )
    page.goto(f"{broker.url}/streams/meters?tab=records&from=2020-01-01T00:00:00Z&limit=20")
    page.wait_for_selector("tbody tr:first-child >> text=/^0$/")
    page.goto(f"{broker.url}/streams/meters?tab=records&from=2090-01-01T00:00:00Z")
    page.wait_for_selector("text=There is no record at this place or after it.")
    page.goto(f"{broker.url}/streams/meters?tab=records")
    page.get_by_label("Topic filter").fill("nowhere/#")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=No topic at this place or after it matches the filter.")
    page.get_by_label("Topic filter").fill("meters/+")
    page.keyboard.press("Enter")
    page.wait_for_selector("tbody tr:first-child >> text=/^0$/")
    page.goto(f"{broker.url}/streams/nothing?tab=records")
    page.wait_for_selector("text=No rule has written a row yet.")


def test_a_range_of_records_is_exported_as_lines_of_json(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/streams/meters?tab=records&from=0")
    page.click("button:text('Export…')")
    page.get_by_label("Last offset").fill("x")
    page.wait_for_selector("text=Last offset: expected an offset that is not before the first.")
    page.get_by_label("First offset").fill("1")
    page.get_by_label("Last offset").fill("2")
    with page.expect_download() as caught:
        page.click("button:text('Export 2 records')")
    assert caught.value.suggested_filename == "meters-0-1-2.ndjson"
    records = [json.loads(line) for line in Path(caught.value.path()).read_text().splitlines()]
    assert (
        records == broker.call("GET", "/streams/meters/records?from=1&limit=2&decode=true")["items"]
    )


def test_keyboard_alone_finds_a_record_and_starts_a_table(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/streams/meters?tab=records")
    page.wait_for_selector(".records tbody tr")
    page.get_by_label("Offset or time").focus()
    page.keyboard.type("0")
    page.keyboard.press("Enter")
    page.wait_for_url("**from=0*")
    page.locator(".records a").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("section[aria-label='Record 0']")
    page.keyboard.press("g")
    page.keyboard.press("l")
    page.wait_for_url("**/tables")
    page.get_by_role("link", name="New table").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('New table')")
    page.wait_for_selector("option:has-text('nothing')", state="attached")
    page.get_by_label("Stream", exact=True).focus()
    page.keyboard.type("nothing")
    page.wait_for_selector("text=/0 records/")
    while not page.locator("input:focus").count():
        page.keyboard.press("Tab")


def test_a_draft_outlives_a_broker_that_is_killed(page: Any, tmp_path: Path) -> None:
    with serving(
        tmp_path / "data", config="lake.run_spark = false\noverload.enable = false\n"
    ) as node:
        node.call("POST", "/streams", {"name": "meters", "topics": ["meters/#"]})
        node.call("POST", "/lake/tables", {"name": "kept", "stream": "meters"})
        sign_in(page, node)
        page.goto(f"{node.url}/new/tables")
        page.get_by_label("Stream", exact=True).select_option("meters")
        page.get_by_label("Name (required)").fill("draft")
        page.get_by_label("Format").select_option("iceberg")
        node.kill()
        page.wait_for_selector("text=/Connection to the broker lost since/")
        page.click("button:text('Create')")
        page.wait_for_selector(
            "text=The server does not answer. Nothing was saved; what you typed is kept."
        )
        node.start()
        page.wait_for_selector(".link-state:has-text('Live')")
        assert page.get_by_label("Name (required)").input_value() == "draft"
        page.reload()
        page.wait_for_selector("text=Your draft was restored")
        assert page.get_by_label("Name (required)").input_value() == "draft"
        assert page.get_by_label("Format").input_value() == "iceberg"
        assert page.get_by_label("Stream", exact=True).input_value() == "meters"
        assert [one["name"] for one in node.call("GET", "/lake/tables")["items"]] == ["kept"]
        page.click("button:text('Create')")
        page.wait_for_url("**/tables/draft")
        assert node.call("GET", "/lake/tables/draft")["format"] == "iceberg"


@pytest.mark.parametrize(
    "tab", ["", "?tab=records", "?tab=records&from=0&record=2", "?tab=settings"]
)
def test_the_pages_of_a_stream_are_accessible_at_any_width(
    page: Any, broker: Node, complaints: list[str], tab: str
) -> None:
    sign_in(page, broker)
    ready = "section[aria-label='Record 2'] dd" if "record=" in tab else "main .card >> nth=0"
    check_everywhere(page, f"{broker.url}/streams/meters{tab}", ready, complaints)


@pytest.mark.parametrize("tab", TABS)
def test_the_pages_of_a_table_are_accessible_at_any_width(
    page: Any, filled: Node, complaints: list[str], tab: str
) -> None:
    sign_in(page, filled)
    check_everywhere(page, f"{filled.url}/tables/raw{tab}", "main .card >> nth=0", complaints)


@pytest.mark.parametrize(
    "path", ["/streams", "/tables", "/new/tables?stream=meters&rule=warm", "/new/streams"]
)
def test_lists_and_forms_are_accessible_at_any_width(
    page: Any, broker: Node, complaints: list[str], path: str
) -> None:
    sign_in(page, broker)
    check_everywhere(page, f"{broker.url}{path}", "main .card >> nth=0", complaints)
