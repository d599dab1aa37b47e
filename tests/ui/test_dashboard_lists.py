"""Lists and objects of any kind in a real browser: long lists, filters in the address, effects before a deletion."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.config.assignments import HEADER
from tests.support.node import Node
from tests.support.node import running as serving
from tests.support.processor import is_within
from tests.ui.browser import check_everywhere, painted, sign_in, tasks_of, typed, violations

MANY = 300


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker with one stream that a rule writes, and many rules, one of them disabled."""
    directory = tmp_path_factory.mktemp("lists") / "data"
    rules = [
        {"name": f"rule-{number:04}", "sql": 'SELECT qos FROM "a/#"'} for number in range(MANY)
    ]
    saved(directory, "rule_engine.rules", rules)
    with serving(directory, config="overload.enable = false") as node:
        node.call("POST", "/streams", {"name": "warm"})
        node.call("PATCH", "/rules/rule-0000", {"actions": [{"type": "stream", "stream": "warm"}]})
        node.call("POST", "/rules/rule-0007:disable")
        yield node


def saved(directory: Path, section: str, specs: list[dict[str, Any]]) -> None:
    """Make a data directory with these objects, as the API would have saved them."""
    directory.mkdir()
    lines = [f"{section}.{spec['name']} = {json.dumps(spec)}\n" for spec in specs]
    (directory / "api.hocon").write_text("".join((HEADER, *lines)))


def test_a_long_list_draws_the_rows_in_view(page: Any, broker: Node, complaints: list[str]) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/rules")
    rows = page.locator(".list tbody tr[aria-rowindex]")
    rows.first.wait_for()
    assert page.get_attribute(".list table", "aria-rowcount") == str(MANY + 1)
    page.wait_for_function(
        """last => {
          const list = document.querySelector('.list');
          list.scrollTop = 1e9;
          return list.textContent.includes(last);
        }""",
        arg=f"rule-{MANY - 1:04}",
    )
    assert rows.count() < 60
    assert complaints == []


LISTS = (
    "schemas",
    "validations",
    "transforms",
    "rules",
    "connectors",
    "actions",
    "sources",
    "streams",
    "tables",
)


def test_a_new_broker_has_empty_lists_and_one_that_is_away_is_reported(
    page: Any, tmp_path: Path
) -> None:
    with serving(tmp_path / "data", config="overload.enable = false") as new:
        sign_in(page, new)
        page.goto(new.url)
        for kind in LISTS:
            page.click(f"nav a[href^='/{kind}']")
            page.wait_for_url(f"**/{kind}")
            page.wait_for_selector("main >> text=/There is no .* yet/")
            assert violations(page) == [], kind
        for kind in LISTS:
            page.goto(f"{new.url}/{kind}/unknown")
            page.wait_for_selector("main >> text=/there is no .*unknown/i")
        page.goto(f"{new.url}/rules")
        page.wait_for_selector("text=Live")
        new.kill()
        # not even what the browser has kept of the pages: each is waited for
        page.route("**/assets/*.js", lambda route: route.abort())
        for kind in LISTS:
            page.click(f"nav a[href^='/{kind}']")
            page.wait_for_selector("main h1")
            page.wait_for_selector(".strip >> text=/Connection to the broker lost/")
            assert not page.locator("main >> text=/There is no .* yet/").count() or kind in (
                "rules",
                "tables",
            ), kind
        page.click("nav a[href^='/topics']")
        page.wait_for_selector(".strip >> text=/Connection to the broker lost/")
        page.click("nav a[href^='/schemas']")
        page.unroute("**/assets/*.js")
        new.start()
        page.wait_for_selector("main >> text=/There is no .* yet/")


def test_any_object_is_found_by_its_name(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/overview")
    page.wait_for_selector("text=Live")
    page.keyboard.press("Control+k")
    page.wait_for_selector("[role=menuitem]:has-text('rule-0000')")
    assert page.locator("[role=menuitem]").count() < MANY / 2
    page.keyboard.type(f"rule-{MANY - 1:04}")
    page.wait_for_selector(f"[role=menuitem]:has-text('rule-{MANY - 1:04}')")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/rules/rule-{MANY - 1:04}")


def test_filters_are_in_the_address(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/rules")
    page.get_by_label("Name").fill("rule-0007")
    page.wait_for_url("**/rules?q=rule-0007")
    page.wait_for_selector("text=1 shown")
    page.reload()
    page.wait_for_selector("text=1 shown")
    assert page.input_value("input[type=search]") == "rule-0007"
    page.goto(f"{broker.url}/rules?state=disabled")
    page.wait_for_selector("td >> text=rule-0007")
    page.wait_for_selector("text=1 shown")
    page.goto(f"{broker.url}/rules?q=nothing")
    page.wait_for_selector("text=None matches.")


def test_a_deletion_says_what_it_affects_and_an_object_that_is_used_stays(
    page: Any, broker: Node
) -> None:
    broker.call("POST", "/rules", {"name": "to-go", "sql": 'SELECT qos FROM "a/#"'})
    sign_in(page, broker)
    page.goto(f"{broker.url}/rules/to-go")
    page.click("button[aria-label='Do something with to-go']")
    page.click("text=Delete…")
    page.wait_for_selector("text=It would be deleted. Nothing else is affected.")
    page.keyboard.press("Tab")
    page.click("[role=alertdialog] >> text=Delete >> nth=-1")
    page.wait_for_url("**/rules")
    assert broker.call("GET", "/rules/to-go", expect=404)["code"] == "not_found"
    page.goto(f"{broker.url}/streams")
    page.click("button[aria-label='Do something with warm']")
    page.click("text=Delete…")
    page.wait_for_selector("[role=alertdialog] >> text=rule-0000")


def test_a_deletion_of_what_is_used_shows_all_that_goes_and_deletes_it_together(
    page: Any, broker: Node
) -> None:
    broker.call("POST", "/streams", {"name": "whole"})
    write = [{"type": "stream", "stream": "whole"}]
    broker.call(
        "POST", "/rules", {"name": "writes-it", "sql": 'SELECT qos FROM "a/#"', "actions": write}
    )
    sign_in(page, broker)
    page.goto(f"{broker.url}/streams")
    page.click("button[aria-label='Do something with whole']")
    page.click("text=Delete…")
    page.wait_for_selector(
        "[role=alertdialog] >> text=Other objects use it. They would be deleted too."
    )
    page.wait_for_selector("[role=alertdialog] >> text=writes-it")
    assert broker.call("GET", "/rules/writes-it")["name"] == "writes-it"
    page.click("[role=alertdialog] >> text=Delete all")
    page.wait_for_selector("[role=alertdialog]", state="detached")
    assert broker.call("GET", "/streams/whole", expect=404)["code"] == "not_found"
    assert broker.call("GET", "/rules/writes-it", expect=404)["code"] == "not_found"


def test_disabling_shows_at_once(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/rules?q=rule-0003")
    page.click("button[aria-label='Do something with rule-0003']")
    page.click("[role=menuitem] >> text=Disable")
    page.click("[role=alertdialog] >> button:text('Disable')")
    page.wait_for_selector("td >> text=disabled")
    assert broker.call("GET", "/rules/rule-0003")["enable"] is False


@pytest.mark.parametrize("path", ["/rules", "/rules/rule-0000", "/connectors", "/streams"])
def test_lists_and_objects_are_accessible_at_any_width(
    page: Any, broker: Node, complaints: list[str], path: str
) -> None:
    sign_in(page, broker)
    check_everywhere(page, f"{broker.url}{path}", "main .card >> nth=0", complaints)


@pytest.fixture(
    scope="module",
    params=[10_000, pytest.param(100_000, marks=[pytest.mark.heavy, pytest.mark.timeout(3600)])],
)
def schemas(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Node, int]]:
    """A broker with so many schemas."""
    count: int = request.param
    directory = tmp_path_factory.mktemp("many") / "data"
    source = '{"type": "object", "properties": {"temp": {"type": "number"}}}'
    specs = [
        {"name": f"schema-{number:06}", "type": "json", "source": source} for number in range(count)
    ]
    saved(directory, "schema_registry.schemas", specs)
    node = Node(directory, config="overload.enable = false").start(timeout_s=600)
    yield node, count
    node.stop()


def test_a_list_of_any_length_shows_rows_at_once_and_scrolls_without_long_tasks(
    page: Any, schemas: tuple[Node, int], complaints: list[str]
) -> None:
    node, count = schemas
    sign_in(page, node)
    with tasks_of(page) as opening:
        page.goto(f"{node.url}/schemas")
        page.wait_for_selector(".list tbody tr[aria-rowindex]:not([aria-busy])")
    assert page.get_attribute(".list table", "aria-rowcount") == str(count + 1)
    heap_before = heap_of(page)
    with tasks_of(page) as tasks:
        for step in range(1, 41):
            page.evaluate(
                "share => { const one = document.querySelector('.list'); one.scrollTop = one.scrollHeight * share; }",
                step / 40,
            )
            painted(page)
        page.wait_for_selector(f"td >> text=schema-{count - 1:06}")
    grown = heap_of(page) - heap_before
    assert page.locator(".list tbody tr[aria-rowindex]").count() < 60
    figures = {"first row": sum(opening), "longest task": max(tasks), "heap grown": grown}
    print(count, figures)
    assert sum(opening) < 1000, figures
    assert max(tasks) < 200, figures
    assert grown < 16 * 1024 * 1024, figures
    assert complaints == []


def test_a_key_in_the_search_field_is_painted_soon(page: Any, schemas: tuple[Node, int]) -> None:
    node, _ = schemas
    sign_in(page, node)
    page.goto(f"{node.url}/schemas")
    page.locator(".list tbody tr[aria-rowindex]").first.wait_for()
    page.get_by_label("Name").focus()
    assert is_within(typed(page, "schema-0099999999999", "text=None matches.") / 1000, 0.1)


def test_a_key_in_the_rule_editor_is_painted_soon(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/rules/rule-0000")
    editor = page.locator(".cm-content[aria-label=SQL]")
    editor.click()
    page.keyboard.press("Control+End")
    assert is_within(typed(page, " WHERE qos > 0 AND n", ".cm-lintRange") / 1000, 0.1)


def heap_of(page: Any) -> int:
    """The bytes of the page's JavaScript heap after a collection."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    size: int = session.send("Runtime.getHeapUsage")["usedSize"]
    session.detach()
    return size


FILED = """
schema_registry.schemas = [{ name = filed, type = json, source = { type = object } }]
schema_validation.validations = [{ name = filed, topics = ["t/#"], strategy = all_pass, failure_action = drop
  mode = shadow, checks = [{ type = json, schema = filed }] }]
message_transformation.transformations = [{ name = filed, topics = ["t/#"], failure_action = drop
  operations = [{ key = qos, value = "1" }] }]
rule_engine.rules = [{ name = filed, sql = "SELECT * FROM \\"t/#\\"" }
  { name = lone, sql = "SELECT 1 FROM \\"t/#\\"" }]
connectors = [{ name = filed, type = http, url = "http://127.0.0.1:9", enable = false }]
actions = [{ name = filed, type = http, connector = filed, enable = false, parameters { path = "/" } }]
streams = [{ name = filed, topics = ["t/#"] }]
lake { run_spark = false, tables = [{ name = filed, stream = filed }] }
"""
TABS = {
    "schemas": ("change", "versions"),
    "validations": ("watch", "change"),
    "transforms": ("watch", "change"),
    "rules": ("editor", "actions", "versions"),
    "connectors": ("", "settings"),
    "actions": ("", "settings"),
    "streams": ("settings",),
    "tables": ("settings",),
}
CHANGES = (
    "Save",
    "Save as a new version",
    "Show the effect",
    "Enable",
    "Enforce…",
    "Keep as test case",
    "Format",
)


def test_objects_of_a_file_cannot_be_changed_on_any_page(page: Any, tmp_path: Path) -> None:
    with serving(tmp_path / "data", config=FILED) as node:
        sign_in(page, node)
        file = f"code:has-text('{node.data_dir / 'sluice.conf'}')"
        for kind, tabs in TABS.items():
            page.goto(f"{node.url}/{kind}")
            page.wait_for_selector("tr:has-text('filed') >> text=read-only")
            page.click("[aria-label='Do something with filed']")
            page.wait_for_selector(f".popover >> {file}")
            items = page.locator("[role=menuitem]")
            assert items.count() >= 1
            assert page.locator("[role=menuitem]:not([aria-disabled=true])").count() == 0, kind
            page.keyboard.press("Escape")
            for tab in tabs:
                page.goto(f"{node.url}/{kind}/filed?tab={tab}")
                page.wait_for_selector(f"main .note >> {file}")
                if tab in ("change", "settings", "editor"):
                    page.wait_for_selector(".saving")
                    page.wait_for_selector(
                        ".changeable :is(input, textarea, select)", state="attached"
                    )
                    assert (
                        page.locator(
                            ".changeable :is(input, textarea, select, button):not(:disabled)"
                        ).count()
                        == 0
                    )
                for label in CHANGES:
                    buttons = page.locator(f"main button:text-is('{label}')")
                    assert all(button.is_disabled() for button in buttons.all()), (kind, tab, label)
                assert (
                    page.locator(
                        "main .cm-content[aria-label=SQL]:not([aria-readonly=true])"
                    ).count()
                    == 0
                )
        page.goto(f"{node.url}/rules/lone?tab=actions")
        page.wait_for_selector("section[aria-label=Table] >> text=/sluice.conf/")
        assert page.get_by_label("Keep the rows that the rule writes").is_disabled()
        page.goto(f"{node.url}/validations?on=t/1")
        page.wait_for_selector("[aria-label^='Move filed']:disabled")
        page.wait_for_function(
            "document.querySelectorAll(\"[aria-label^='Move filed']:not(:disabled)\").length === 0"
        )


def test_an_object_of_a_file_is_read_only_and_names_it(page: Any, tmp_path: Path) -> None:
    config = 'rule_engine.rules { filed { sql = "SELECT * FROM \\"t/#\\"" } }'
    with serving(tmp_path / "data", config=config) as node:
        for name in ("made", "other"):
            node.call("POST", "/rules", {"name": name, "sql": 'SELECT * FROM "t/#"'})
        sign_in(page, node)
        page.goto(f"{node.url}/rules")
        page.wait_for_selector("tr:has-text('filed') >> text=read-only")
        assert page.locator("tr:has-text('made') >> text=read-only").count() == 0
        page.click("[aria-label='Do something with made']")
        page.wait_for_selector("text=Move after other")
        assert page.locator("text=Move before filed").count() == 0  # objects of files come first
        page.keyboard.press("Escape")
        page.goto(f"{node.url}/rules/filed?tab=editor")
        page.wait_for_selector(f"code:has-text('{node.data_dir / 'sluice.conf'}')")
        page.get_by_role("textbox", name="SQL").click()
        page.keyboard.type("x")
        assert page.get_by_role("textbox", name="SQL").inner_text() == 'SELECT * FROM "t/#"'
        assert page.locator("button.primary:text-is('Save')").is_disabled()
