"""The status page in a real browser: signing in, live figures, payloads as text, no complaint in the console."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.node import running as serving
from tests.support.plain_http import NO_TLS
from tests.support.processes import free_port
from tests.ui.api_node import TOKEN, Node, Running, status_of_a_young_node
from ui.api.status import Status

playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make install")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no browser: apt-get install chromium")

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>'


def busy() -> Status:
    """A node in traffic, with markup wherever a client can put text."""
    now = datetime.now(UTC)

    def moment(seconds_ago: float) -> str:
        return (now - timedelta(seconds=seconds_ago)).isoformat().replace("+00:00", "Z")

    status = status_of_a_young_node()
    status["started_at"], status["uptime_s"] = moment(7384), 7384.0
    status["listeners"] = [{"name": "mqtt", "protocol": "mqtt", "address": "127.0.0.1:1883"}]
    status["counters"] = {"received": 12_345, "delivered": 20_000, "dropped": 45, "rules_matched": 12_300}
    status["rates"] = {"received": 5.21, "delivered": 8.0, "dropped": 0.2, "rows": 2.5}
    status["dropped"] = {"validation_failed": 45}
    status["ledger"] = {"received": 12_345, "accepted": 12_300, "dropped": 45, "residual": 0, "lost_rows": 3}
    status["lost_rows"] = {"expired": 3}
    status["rules"] = [
        {
            "name": "warm",
            "state": "running",
            "matched": 9,
            "passed": 4,
            "no_result": 4,
            "failed": 1,
            "last_error": {"text": "cannot add a text to a number", "time_ms": round(now.timestamp() * 1000) - 5_500},
        }
    ]
    status["streams"] = [
        {"name": "readings", "shards": [{"shard": 0, "first_offset": "0", "next_offset": "9007199254740993"}]}
    ]
    status["tables"] = [
        {
            "name": "meters",
            "stream": "readings",
            "format": "delta",
            "state": "running",
            "rows": 4_000,
            "lag_records": 3,
            "last_commit_at": moment(2),
        },
        {
            "name": "archive",
            "stream": "raw",
            "format": "delta",
            "state": "failed",
            "reason": "the path is not writable",
        },
    ]
    status["refusals"] = [
        {
            "at": moment(4),
            "topic": HOSTILE,
            "client_id": HOSTILE,
            "stage": "validation",
            "name": "meters",
            "reason": "validation_failed",
            "text": HOSTILE,
        }
    ]
    status["next_steps"] = [{"label": "Watch", "command": "mosquitto_sub -h 127.0.0.1 -p 1883 -t 'demo/#' -v"}]
    return status


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def complaints() -> list[str]:
    """What the browser writes to its console."""
    return []


@pytest.fixture
def page(browser: Any, complaints: list[str]) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    context.close()


def test_the_link_signs_in_and_the_page_shows_what_the_node_does(
    page: Any, running: Running, node: Node, complaints: list[str]
) -> None:
    node.context.status = busy
    node.tables.rows = [{"meter": HOSTILE, "kwh": 1.5, "_offset": 7}]
    page.goto(node.context.new_sign_in_link())
    page.wait_for_selector("#rows tbody tr")
    text = page.inner_text("main#status")
    for expected in (
        "5.21 /s",
        "12.3 k received = 12.3 k accepted + 45 dropped (validation failed 45)",
        "every message is accounted for",
        "3 rows lost by actions (expired 3)",
        "the path is not writable",
        "cannot add a text to a number · 5 s ago",
        "9,010 T",
        "mqtt://127.0.0.1:1883",
        "mosquitto_sub -h 127.0.0.1 -p 1883 -t 'demo/#' -v",
    ):
        assert expected in text.replace("\n", " "), text
    assert text.count(HOSTILE) == 4
    assert page.title() == "sluice@test · Sluice"
    assert page.url == f"{running.url}/"
    assert complaints == []


def test_figures_move_without_a_reload(page: Any, node: Node) -> None:
    page.goto(node.context.new_sign_in_link())
    page.wait_for_selector("text=No table yet")
    node.context.status = busy
    page.wait_for_selector("text=12.3 k in all")
    page.wait_for_selector("#chart polyline.series-1", state="attached")


def test_an_empty_node_says_what_to_do(page: Any, running: Running, node: Node, complaints: list[str]) -> None:
    page.goto(node.context.new_sign_in_link())
    page.wait_for_selector("text=No rule yet")
    text = page.inner_text("main#status")
    assert f"{running.url}/api/v1/lake/tables" in text
    assert "mosquitto_pub" in text
    assert complaints == []


def test_the_token_signs_in_and_signing_out_signs_out(page: Any, running: Running) -> None:
    page.goto(running.url)
    page.fill("#token", "wrong")
    page.click("#sign-in-form button")
    page.wait_for_selector("text=the token is wrong")
    page.fill("#token", TOKEN)
    page.click("#sign-in-form button")
    page.wait_for_selector("#status:not([hidden])")
    assert page.evaluate("document.cookie + JSON.stringify(localStorage) + JSON.stringify(sessionStorage)") == "{}{}"
    page.click("#sign-out")
    page.wait_for_selector("#sign-in:not([hidden])")


def test_a_link_used_twice_says_so(page: Any, node: Node) -> None:
    link = node.context.new_sign_in_link()
    node.context.sign_in.redeem(link.rpartition("=")[2])
    page.goto(link)
    page.wait_for_selector("text=was used already")


def test_a_server_that_goes_away_is_said_to_be_away_and_comes_back(page: Any) -> None:
    first = Running(Node(), free_port())
    page.goto(first.node.context.new_sign_in_link())
    page.wait_for_selector("text=Live")
    first.stop()
    page.wait_for_selector("text=/Connection lost since \\d\\d:\\d\\d:\\d\\d/")
    second = Running(first.node, first.port)
    try:
        page.wait_for_selector("#link-state:text('Live')")
        assert page.is_hidden("#strip")
    finally:
        page.close()
        second.stop()


def test_another_table_is_one_click_away(page: Any, node: Node) -> None:
    node.context.status = busy
    page.goto(node.context.new_sign_in_link())
    page.wait_for_selector("#rows tbody tr")
    page.click("button[data-press=archive]")
    page.wait_for_selector("text=there is no table 'archive'")


@pytest.mark.parametrize("width", [1280, 768, 360, 320])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_stands_out_of_the_page_at_any_width(page: Any, node: Node, width: int, scheme: str) -> None:
    node.context.status = busy
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(node.context.new_sign_in_link())
    page.wait_for_selector("#rows tbody tr")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_every_operation_of_a_real_broker_opens(page: Any, tmp_path: Path, complaints: list[str]) -> None:
    with serving(tmp_path / "data") as broker:
        paths = httpx.get(f"{broker.url}/api/v1/openapi.json", verify=NO_TLS, timeout=60).json()["paths"]
        described = [operation for methods in paths.values() for operation in methods.values()]
        page.goto(f"{broker.url}/docs#{described[-1]['operationId']}")
        page.wait_for_selector("details[open] .command pre")
        entries = page.locator("details.operation")
        assert sorted(entries.evaluate_all("all => all.map(one => one.id)")) == sorted(
            operation["operationId"] for operation in described
        )
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        page.wait_for_function(f"document.querySelectorAll('details pre').length === {len(described)}")
        for operation in described:
            text = page.inner_text(f"#{operation['operationId']}")
            assert "Answers" in text
            assert ("Body, " in text) == ("requestBody" in operation)
        assert "undefined" not in page.inner_text("#operations")
        page.goto(f"{broker.url}/docs/problems")
        assert page.is_visible("#in_use")
    assert complaints == []


def test_a_paused_page_asks_for_nothing(page: Any, node: Node) -> None:
    asked: list[str] = []
    page.clock.install()
    page.goto(node.context.new_sign_in_link())
    page.wait_for_selector("#link-state:text('Live')")
    page.click("#pause")
    page.wait_for_selector("text=Paused")
    page.on("request", lambda request: asked.append(request.url))
    page.clock.run_for(30_000)
    assert asked == []
    page.click("#pause")
    page.clock.run_for(1_000)
    page.wait_for_selector("#link-state:text('Live')")
    assert asked
