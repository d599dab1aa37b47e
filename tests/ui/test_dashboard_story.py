"""From a schema to corrected rows in a table, with nothing but a browser, on a real broker with Spark and a meter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable

from tests.support.node import Node, eventually
from tests.support.node import running as serving
from tests.support.ticking import ticking
from tests.ui.browser import sign_in

pytestmark = pytest.mark.spark

READING = {"type": "object", "required": ["temp"], "properties": {"temp": {"type": "number"}}}
FRAME = {"type": "record", "name": "Frame", "fields": [{"name": "id", "type": "long"}]}
GOOD, BAD = ("meters/attic", b'{"temp": 25}'), ("meters/cellar", b'{"temp": "hot"}')
SQL = 'SELECT payload.room AS room, payload.temp * 1.9 + 32 AS fahrenheit FROM "meters/#" WHERE payload.temp > 20'
SPARK_MS = 240_000


def write(page: Any, sql: str) -> None:
    page.focus(".cm-content[aria-label=SQL]")
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(sql)


def rows_of(node: Node, table: str) -> list[tuple[Any, ...]]:
    """The different rows of a table, as DuckDB reads them."""
    rows = DeltaTable(node.data_dir / "lake" / table).to_pyarrow_table()  # noqa: F841  # DuckDB finds it by its name
    found = duckdb.connect().sql(
        "SELECT DISTINCT room, round(fahrenheit, 1) FROM rows ORDER BY ALL"
    )
    assert found is not None
    return found.fetchall()


def register_schemas(page: Any, node: Node, directory: Path) -> None:
    for file, source in (("frame.avsc", FRAME), ("reading.json", READING)):
        (directory / file).write_text(json.dumps(source))
        page.goto(f"{node.url}/new/schemas")
        page.set_input_files("input[type=file]", directory / file)
        page.wait_for_selector("text=It can be saved")
        page.click("button:text-is('Save')")
        page.wait_for_url(f"**/schemas/{file.partition('.')[0]}")


def validate(page: Any, node: Node) -> None:
    """A validation in shadow mode, whose forecast is read before it is enforced."""
    page.goto(f"{node.url}/new/validations?schema=reading&type=json")
    page.get_by_label("Name").fill("fits")
    page.get_by_label("Topics").fill("meters/#")
    page.wait_for_selector(".mine >> text=/passes/")
    page.click("button:text-is('Save')")
    page.wait_for_url("**/validations/fits")
    page.wait_for_selector("text=/In shadow mode: would have stopped [1-9]\\d* of/")
    page.click("text=Enforce…")
    page.click("[role=alertdialog] >> button:text-is('Enforce')")
    page.wait_for_selector("text=/[1-9]\\d* of \\d+ messages .* failed/")


def transform(page: Any, node: Node) -> None:
    page.goto(f"{node.url}/new/transforms")
    page.get_by_label("Name").fill("room")
    page.get_by_label("Topics").fill("meters/#")
    page.get_by_label("Key").fill("payload.room")
    page.get_by_label("Value").fill("nth(2, topic_split(topic))")
    page.wait_for_selector(".mine >> text=/attic|dropped/")
    page.click("button:text-is('Save')")
    page.wait_for_url("**/transforms/room")


def write_rule(page: Any, node: Node) -> None:
    """A rule with a mistake that one key fixes, tried on live messages as the gates leave them."""
    page.goto(f"{node.url}/new/rules")
    page.get_by_label("Name", exact=True).fill("warm")
    write(page, SQL.replace("payload.temp >", "payload.tmp >"))
    page.wait_for_selector("[aria-label=Problems] li >> text=did you mean 'temp'?")
    page.keyboard.press("Control+.")
    page.wait_for_selector("[aria-label=Problems] li", state="detached")
    page.wait_for_selector("#result >> text=/attic.*79.5/s")  # the transformation added the room
    # no rule sees them
    page.wait_for_selector("[aria-label=Messages] button:has-text('dropped')", state="detached")
    page.click("[aria-label=Messages] button:has-text('row') >> nth=0")
    page.click("text=Keep as test case")
    page.wait_for_selector("text=1 of 1 pass")
    page.click("section[aria-label=Create] button.primary")
    page.wait_for_url("**/rules/warm")


def create_tables(page: Any, node: Node) -> None:
    """A table of the rule's rows in one step; and a stream of messages with a table that runs the rule over it."""
    page.goto(f"{node.url}/rules/warm?tab=actions")
    page.get_by_label("Keep the rows that the rule writes").check()
    page.click("text=Create a table from this rule")
    page.wait_for_selector("section[aria-label=Table] >> role=link[name='warm']")
    page.goto(f"{node.url}/new/streams")
    page.get_by_label("Name (required)").fill("raw")
    page.get_by_label("Topics").fill("meters/#")
    page.click("button:text-is('Create')")
    page.wait_for_url("**/streams/raw")
    page.goto(f"{node.url}/new/tables")
    page.get_by_label("Stream", exact=True).select_option("raw")
    page.get_by_label("Rule").select_option("warm")
    page.get_by_label("Name (required)").fill("history")
    page.click("button:text-is('Create')")
    page.wait_for_url("**/tables/history")


def test_a_newcomer_gets_from_a_schema_to_corrected_rows_with_a_browser_alone(
    page: Any, tmp_path: Path, complaints: list[str]
) -> None:
    with serving(tmp_path / "data", config="overload.enable = false\n") as node:
        sign_in(page, node)
        with ticking(node, GOOD, BAD, name="meter-7", every_s=0.2):
            register_schemas(page, node, tmp_path)
            validate(page, node)
            transform(page, node)
            write_rule(page, node)
            create_tables(page, node)
            for table in ("history", "warm"):
                page.goto(f"{node.url}/tables/{table}?tab=rows")
                page.wait_for_selector("td:text('79.5')", timeout=SPARK_MS)
                assert rows_of(node, table) == [("attic", 79.5)]

        page.goto(f"{node.url}/rules/warm")
        write(page, SQL.replace("1.9", "1.8"))
        page.wait_for_selector("text=0 of 1 pass")  # the case expects the mistake
        assert [one for one in complaints if "status of 422" not in one] == []  # the mistakes
        complaints.clear()
        node.kill()
        page.wait_for_selector("text=/Connection to the broker lost since/")
        node.start()
        page.wait_for_selector(".link-state:has-text('Live')")
        page.reload()
        page.wait_for_selector("text=Your draft was restored")
        for path in ("schemas", "validations", "transforms", "streams", "lake/tables"):
            assert node.call("GET", f"/{path}")["items"], path
        page.click("[aria-label='Remove case 1']")
        page.click("section[aria-label=Save] button.primary")
        # it runs the rule
        page.wait_for_selector("section[aria-label=Save] >> text=/table history/")
        page.click("section[aria-label=Save] button.primary")
        eventually(lambda: "1.8" in node.call("GET", "/rules/warm")["sql"])

        page.goto(f"{node.url}/tables/history?tab=replay")
        page.click("text=Show the plan")
        page.click("button:text('Replay')")
        page.wait_for_selector("text=/rows and 0 dead letters in place of/", timeout=SPARK_MS)
        page.click("text=See the rows")
        page.wait_for_selector("td:text('77')")
        assert rows_of(node, "history") == [("attic", 77.0)]
        page.click("nav.tabs >> text=Audit")
        page.click("button:text('Audit')")
        page.wait_for_selector("text=Every record is accounted for, once.")
    # some requests were on their way at the kill
    lost = (
        "net::ERR_",
        "WebSocket",
        "Failed to fetch",
        "status of 422",
    )
    assert [one for one in complaints if not any(sign in one for sign in lost)] == []
