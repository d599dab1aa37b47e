"""The dashboard in a real browser, on a real broker: signing in, live figures, a lost broker, and accessibility."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import paho.mqtt.publish as mqtt_publish
import pytest

from tests.support.node import TOKEN, Node, command, eventually
from tests.support.node import running as serving
from tests.support.plain_http import NO_TLS
from tests.ui.api_node import Node as ApiNode
from tests.ui.api_node import Running
from tests.ui.browser import LOOKS, check_everywhere, check_look, is_shown, set_look, sign_in
from ui.api import pages

MOST_BYTES = 150_000
"""What the browser loads before it shows a page, compressed."""
_NOT_FOUND = "Failed to load resource: the server responded with a status of 404 (Not Found)"
HOSTILE = "<img src=x onerror=document.title=1><script>document.title=2<|script>"
PAGES = [
    "/",
    "/overview",
    "/overview?range=1h&table=messages",
    "/rules/warm",
    "/streams/warm",
    "/nowhere",
]


def publish(node: Node, *messages: tuple[str, str]) -> None:
    """Publish with QoS 1, as a client whose identifier is markup."""
    sent = [{"topic": topic, "payload": payload, "qos": 1} for topic, payload in messages]
    mqtt_publish.multiple(sent, hostname=node.mqtt[0], port=node.mqtt[1], client_id=HOSTILE)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker with a rule, a stream, and a validation that refused a message with markup in its topic and client."""
    with serving(
        tmp_path_factory.mktemp("dashboard") / "data", config="overload.enable = false\n"
    ) as node:
        node.call("POST", "/streams", {"name": "warm"})
        sql = 'SELECT payload.t AS t FROM "meters/#" WHERE payload.t > 20'
        node.call(
            "POST",
            "/rules",
            {"name": "warm", "sql": sql, "actions": [{"type": "stream", "stream": "warm"}]},
        )
        schema = {"type": "object", "required": ["t"]}
        node.call("POST", "/schemas", {"name": "reading", "type": "json", "source": schema})
        check = {"type": "json", "schema": "reading"}
        validation = {
            "name": "reading",
            "topics": ["#"],
            "strategy": "all_pass",
            "failure_action": "drop",
        }
        node.call("POST", "/validations", {**validation, "checks": [check]})
        publish(node, *[("meters/1", '{"t": 21.5}')] * 3, (HOSTILE, "{}"))
        yield node


def test_figures_of_the_page_are_those_of_the_api_and_of_metrics(
    page: Any, broker: Node, complaints: list[str]
) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/overview")
    page.wait_for_selector("text=4 in all")
    text = page.inner_text("main").replace("\n", " ")
    page.click("text=This node")
    page.wait_for_selector("section[aria-label=Addresses]")
    text += page.inner_text("main").replace("\n", " ")
    status = broker.call("GET", "/status")
    ledger = status["ledger"]
    assert ledger == {"received": 4, "accepted": 3, "dropped": 1, "residual": 0, "lost_rows": 0}
    for expected in (
        "4 received = 3 accepted + 1 dropped (validation failed 1)",
        "every message is accounted for",
        "3 passed · 0 failed",
        f"mqtt://{broker.mqtt[0]}:{broker.mqtt[1]}",
        "mosquitto_pub",
        "No table yet",
        "lake/tables",
        "No alarm is active",
        status["refusals"][0]["text"],
    ):
        assert expected in text, text
    metrics = httpx.get(f"{broker.url}/metrics", verify=NO_TLS, timeout=60).text
    for line in (
        'sluice_messages_received_total{qos="1"} 4',
        "sluice_messages_passed_total 3",
        'sluice_messages_refused_total{reason="validation_failed"} 1',
    ):
        assert line in metrics, line
    assert HOSTILE in text
    assert page.title() == f"Overview · {status['node']} · Sluice"
    assert complaints == []


def test_figures_move_without_a_reload(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/")
    page.wait_for_selector("text=/\\d so far/")
    before = broker.call("GET", "/status")["counters"]["received"]
    publish(broker, ("meters/2", '{"t": 1}'))
    page.wait_for_selector(f"text={before + 1} so far")


def test_link_signs_in_once_and_leaves_the_address(
    page: Any, running: Running, node: ApiNode
) -> None:
    link = node.context.new_sign_in_link()
    page.goto(link)
    page.wait_for_selector("h1:has-text('From a message to a table')")
    page.wait_for_selector(".link-state:has-text('Live')")
    assert page.url == f"{running.url}/"
    page.context.clear_cookies()
    page.goto(link)
    page.wait_for_selector("text=was used already")
    assert "code" not in page.url


def test_token_signs_in_and_signing_out_signs_out(page: Any, broker: Node) -> None:
    page.goto(f"{broker.url}/overview?range=1h")
    page.fill("#token", "wrong")
    page.click("text=Sign in >> nth=-1")
    page.wait_for_selector("text=the token is wrong")
    page.fill("#token", TOKEN)
    page.click("text=Sign in >> nth=-1")
    page.wait_for_selector("button[aria-pressed=true]:text('1 h')")  # the page that was asked for
    assert page.evaluate("document.cookie + JSON.stringify(localStorage)") == "{}"
    page.click("button[aria-label=Settings]")
    page.click("text=Sign out")
    page.wait_for_selector("#token")


def test_an_account_signs_in_and_sees_what_its_role_permits(page: Any, broker: Node) -> None:
    broker.call(
        "POST", "/accounts", {"name": "ann", "role": "viewer", "password": "a long password"}
    )
    page.goto(f"{broker.url}/schemas")
    page.fill("#name", "ann")
    page.fill("#password", "not the password")
    page.click("form[aria-label=Account] button")
    page.wait_for_selector("text=the name or the password is wrong")
    page.fill("#password", "a long password")
    page.keyboard.press("Enter")
    page.wait_for_selector("nav[aria-label=Pages] >> text=Schemas")
    page.wait_for_selector("text=New schema", state="detached")
    assert page.locator("nav[aria-label=Pages] a[href^='/users']").count() == 1
    assert page.locator("nav[aria-label=Pages] a[href^='/accounts']").count() == 0
    broker.call("PUT", "/accounts/ann", {"role": "administrator"})
    page.wait_for_selector("text=New schema")
    page.click("button[aria-label=Settings]")
    page.wait_for_selector("text=Signed in as ann (administrator)")
    broker.call("DELETE", "/accounts/ann")
    page.wait_for_selector("#password")


def test_the_page_to_sign_in_is_accessible_at_any_width(page: Any, broker: Node) -> None:
    check_everywhere(page, broker.url, "#token", [])


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_accessible_at_the_width_that_it_is_opened_at(
    page: Any, broker: Node, complaints: list[str], path: str
) -> None:
    sign_in(page, broker)
    for width, scheme in LOOKS:
        set_look(page, width, scheme)
        page.goto(f"{broker.url}{path}")
        page.wait_for_selector("main h1")
        page.wait_for_selector("text=Live")
        check_look(page, width, scheme)
    assert complaints == []


def test_the_finder_and_the_settings_are_accessible_at_any_width(
    page: Any, broker: Node, complaints: list[str]
) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/")
    page.wait_for_selector("text=Live")
    for width, scheme in LOOKS:
        set_look(page, width, scheme)
        page.keyboard.press("Control+k")
        page.wait_for_selector("[role=menuitem]:has-text('warm')")
        check_look(page, width, scheme)
        page.keyboard.press("Escape")
        page.click("button[aria-label=Settings]")
        page.wait_for_selector("text=Time zone")
        check_look(page, width, scheme)
        page.keyboard.press("Escape")
    assert complaints == []


def test_keyboard_alone_reaches_pages_objects_and_help(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/")
    page.wait_for_selector("main h1")
    page.keyboard.press("g")
    page.keyboard.press("o")
    page.wait_for_url("**/overview")
    page.keyboard.press("?")
    page.wait_for_selector("h2:has-text('Keyboard')")
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    page.wait_for_selector("[role=menuitem]:has-text('warm')")
    page.keyboard.type("warm")
    page.wait_for_selector("[role=menuitem] >> nth=0")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('warm')")
    assert "/warm" in page.url


def test_every_link_leads_to_a_page(page: Any, broker: Node, complaints: list[str]) -> None:
    sign_in(page, broker)
    waiting, seen = ["/"], {"/"}
    missing: set[str] = set()
    page.on("response", lambda answer: missing.add(answer.url) if answer.status == 404 else None)
    while waiting:
        path = waiting.pop()
        if path.startswith("/api/"):  # a file to download
            assert page.request.get(f"{broker.url}{path}").ok, path
            continue
        answer = page.goto(f"{broker.url}{path}")
        assert answer.status == 200, path
        if "text/html" not in answer.headers["content-type"]:
            continue
        page.wait_for_selector("h1")
        if not path.startswith("/docs"):
            page.wait_for_selector("text=Live")
            assert not page.locator("main >> text=/not found|there is no (?!.* yet)/i").count(), (
                path
            )
        links = page.eval_on_selector_all(
            "a[href]",
            "all => all.filter(({origin}) => origin === location.origin).map(({pathname}) => pathname)",
        )
        fresh = set(links) - seen
        seen |= fresh
        waiting += sorted(fresh)
    assert {
        "/overview",
        "/rules/warm",
        "/streams/warm",
        "/schemas/reading",
        "/new/rules",
        "/docs",
        "/docs/README.md",
    } <= seen
    assert set(complaints) <= {_NOT_FOUND}
    api = f"{broker.url}/api/v1"
    for address in missing:  # of a client that left, messages and its time line remain
        assert re.fullmatch(rf"{re.escape(api)}/clients/[^/?]+", address), address
        broker.call("GET", address.removeprefix(api), expect=404)
        assert broker.call("GET", f"{address.removeprefix(api)}/events")["items"], address


def test_a_page_is_in_its_address(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/overview?range=15m&table=clients&tz=Asia%2FTokyo")
    page.wait_for_selector("button[aria-pressed=true]:text('15 min')")
    page.wait_for_selector("text=Asia/Tokyo")
    page.wait_for_selector("[aria-label='Clients, values'] tbody tr")
    page.click("button:text('1 h')")
    page.wait_for_url("**/overview?range=1h*")
    page.reload()
    page.wait_for_selector("button[aria-pressed=true]:text('1 h')")
    page.wait_for_selector("[aria-label='Clients, values'] tbody tr")


def test_dragging_across_one_chart_zooms_all(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/overview")
    page.wait_for_selector("section[aria-label=Messages] .plot canvas")
    page.wait_for_selector("text=1 s per value")
    box = page.locator("section[aria-label=Messages] .u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 20, steps=5)
    page.mouse.up()
    page.wait_for_selector("text=Back to live")
    assert re.search(r"from=\d+&to=\d+", page.url)
    page.click("text=Back to live")
    page.wait_for_selector("text=Drag across a chart")


def test_a_rule_is_tried_saved_and_runs(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/")
    page.fill("#sql", 'SELECT payload.t AS heat FROM "meters/#" WHERE')
    page.wait_for_selector("#result >> text=/line 1, column/")
    page.fill("#sql", 'SELECT payload.t AS heat FROM "meters/#" WHERE payload.t > 20')
    page.fill("#payload", '{"t": 19}')
    page.wait_for_selector("#result >> text=does not match")
    page.fill("#payload", '{"t": 30}')
    page.wait_for_selector("#result >> text=/heat.*30/")
    page.fill("#rule", "heat")
    page.reload()
    page.wait_for_selector("#result >> text=/heat.*30/")  # the draft is still there
    page.click("text=Save and start")
    page.wait_for_selector("text=Rule heat runs")
    page.select_option("label:has-text('Rule') >> select", "heat")
    page.wait_for_selector("text=/a replay after a correction/")
    assert page.get_by_label("Run the rule over messages").is_checked()
    page.get_by_label("Keep the rows that the rule writes").check()
    page.wait_for_selector("button:enabled:text('Create a table from this rule')")
    assert broker.call("GET", "/rules/heat")["state"] == "running"
    page.click("text=Save and start")
    page.wait_for_selector("[role=status] >> text=/heat.*exists|already/")


def test_changes_in_the_shown_time_are_listed(page: Any, broker: Node) -> None:
    def is_listed(what: str) -> bool:
        page.clock.fast_forward(10_000)  # the page asks for them this often
        return is_shown(page, f".changes >> text={what}", 1500)

    broker.call("POST", "/rules", {"name": "seen", "sql": 'SELECT qos FROM "seen"'})
    sign_in(page, broker)
    page.clock.install()
    page.goto(f"{broker.url}/overview")
    page.wait_for_selector("text=every message is accounted for")
    eventually(lambda: is_listed("in this time"))
    page.click(".changes summary")
    eventually(lambda: is_listed("rule seen added by administrator"))
    broker.call("DELETE", "/rules/seen")
    eventually(lambda: is_listed("rule seen removed"))


def test_copied_commands_give_what_the_page_shows(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/rules/warm")
    page.click("text=Copy as…")
    page.wait_for_selector("h3:text('HOCON')")
    texts = page.locator(".popover pre").all_inner_texts()
    assert len(texts) == 3
    environ = {"SLUICE_API_TOKEN": TOKEN, "SLUICE_URL": broker.url, "PATH": "/usr/bin:/bin"}
    answer = subprocess.run(
        ["sh", "-c", f"{texts[0]} -s"], env=environ, capture_output=True, timeout=240, check=True
    )
    assert json.loads(answer.stdout)["name"] == "warm"
    assert texts[1] == "sluice rules show warm"
    assert texts[2].startswith("rule_engine.rules.warm {")
    assert not re.search(r"enable|description|tests|language|from =", texts[2])  # as by default
    check = broker.data_dir.parent / "check"
    check.mkdir(exist_ok=True)
    (check / "sluice.conf").write_text(f"streams.warm {{}}\n{texts[2]}\n")
    done = command("config", "check", "--data-dir", str(check))
    assert done.returncode == 0, done.stdout + done.stderr


def test_broker_that_is_killed_is_reported_and_found_again(page: Any, tmp_path: Path) -> None:
    with serving(tmp_path / "data", config="overload.enable = false") as broker:
        sign_in(page, broker)
        page.goto(f"{broker.url}/overview")
        page.wait_for_selector("text=every message is accounted for")
        broker.kill()
        page.wait_for_selector("text=/Connection to the broker lost since \\d\\d:\\d\\d:\\d\\d/")
        page.wait_for_selector("text=/Reconnecting in \\d+ s/")
        assert page.is_visible("text=every message is accounted for")  # what was known stays
        broker.start()
        page.wait_for_selector(".link-state:has-text('Live')")
        assert page.locator(".strip").count() == 0


def test_a_paused_page_asks_for_nothing(page: Any, broker: Node) -> None:
    asked: list[str] = []
    sign_in(page, broker)
    page.clock.install()
    page.goto(f"{broker.url}/overview")
    page.wait_for_selector("text=every message is accounted for")
    page.click("#pause")
    page.wait_for_selector(".link-state:has-text('Paused')")
    page.clock.run_for(1_000)
    page.on("request", lambda request: asked.append(request.url))
    page.clock.run_for(30_000)
    assert asked == []
    page.click("#pause")
    page.clock.run_for(2_000)
    page.wait_for_selector(".link-state:has-text('Live')")
    assert asked


def test_colours_follow_the_choice(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.emulate_media(color_scheme="light")
    page.goto(f"{broker.url}/")
    page.click("button[aria-label=Settings]")
    page.select_option("[role=dialog] select >> nth=0", "dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 22, 23)"
    page.reload()
    page.wait_for_selector("main h1")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 22, 23)"


def test_every_operation_of_a_real_broker_opens(
    page: Any, broker: Node, complaints: list[str]
) -> None:
    paths = httpx.get(f"{broker.url}/api/v1/openapi.json", verify=NO_TLS, timeout=60).json()[
        "paths"
    ]
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


def test_files_are_kept_by_browsers_and_pages_are_not(broker: Node) -> None:
    with httpx.Client(base_url=broker.url, verify=NO_TLS, timeout=60) as http:
        first, second = http.get("/overview"), http.get("/rules/warm")
        assert first.headers["cache-control"] == "no-cache"
        policy = first.headers["content-security-policy"]
        nonce = re.search(r"script-src 'self' 'nonce-([\w-]+)'", policy)
        assert nonce
        assert nonce[1] in first.text
        assert nonce[1] not in second.text
        assert "default-src 'none'" in policy
        assert "require-trusted-types-for 'script'" in policy
        files = re.findall(r'(?:src|href)="(/assets/[^"]+)"', first.text)
        size = len(gzip.compress(first.content))
        for file in files:
            answer = http.get(file)
            assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert answer.headers["content-encoding"] == "gzip"
            size += int(answer.headers["content-length"])
            for taken in ("identity", "identity, gzip;q=0"):
                plain = http.get(file, headers={"Accept-Encoding": taken})
                assert "content-encoding" not in plain.headers
                assert plain.content == answer.content
        assert files
        assert size <= MOST_BYTES
        gone = http.get("/assets/index-old.js")
        assert gone.status_code == 404
        unknown = http.get("/api/v1/nothing")
        assert (unknown.status_code, unknown.json()["code"]) == (404, "no_such_path")
        assert http.post("/api/v1/nothing").status_code == 404


_SCRIPTS = """performance.getEntriesByType('resource').filter(({name}) => /\\.(js|css)$/.test(name))
    .reduce((sum, {encodedBodySize}) => sum + encodedBodySize, 0)"""


def test_the_first_page_is_small_with_all_that_it_loads_to_be_shown(
    page: Any, broker: Node
) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/")
    page.wait_for_selector("text=/\\d so far/")
    page.wait_for_load_state("networkidle")
    assert 50_000 < page.evaluate(_SCRIPTS) <= MOST_BYTES


def test_answers_are_compressed_where_the_client_takes_that(broker: Node) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "Accept-Encoding": "gzip"}
    with httpx.Client(
        base_url=f"{broker.url}/api/v1", headers=headers, verify=NO_TLS, timeout=60
    ) as http:
        functions = http.get("/functions")
        assert functions.headers["content-encoding"] == "gzip"
        assert int(functions.headers["content-length"]) < len(functions.content) / 3
        plain = http.get("/functions", headers={"Accept-Encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.content == functions.content
        assert "content-encoding" not in http.get("/jobs").headers  # too short to gain


def test_the_finder_knows_clients_topics_and_actions(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    publish(broker, ("cellar/pump", "{}"))
    broker.call("GET", "/topics?search=*")  # the counting begins with the first look
    publish(broker, ("cellar/pump", "{}"))
    page.goto(f"{broker.url}/")
    page.wait_for_selector("text=Live")
    page.keyboard.press("Control+k")
    page.wait_for_selector("[role=menuitem]:has-text('warm')")
    page.keyboard.type("cellar")
    page.wait_for_selector("[role=menuitem]:has-text('cellar/pump') >> text=Topic")
    page.keyboard.press("Control+a")
    page.keyboard.type("new rule")
    page.wait_for_selector("[role=menuitem]:has-text('New rule')")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('New rule')")


def test_what_is_wrong_is_said_first_and_counted_in_the_navigation(page: Any, broker: Node) -> None:
    broker.call(
        "POST",
        "/rules",
        {"name": "broken", "sql": 'SELECT payload.t FROM "x"', "actions": ["http:nowhere"]},
    )
    sign_in(page, broker)
    page.goto(f"{broker.url}/overview")
    if broker.call("GET", "/status")["rule_states"].get("failed"):
        page.wait_for_selector("section[aria-label=Health] >> text=/wrong: .*1 rule failed/")
        page.wait_for_selector("nav a[href^='/rules'] .wrong >> text=1")
    broker.call("DELETE", "/rules/broken")
    page.wait_for_selector("section[aria-label=Health] >> text=All is well")


def test_server_without_the_dashboard_says_how_to_get_it(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "DIST", tmp_path)
    answer = httpx.get(running.url, verify=NO_TLS, timeout=60)
    assert answer.status_code == 503
    assert "make ui" in answer.text


def test_an_overloaded_broker_says_since_when_and_because_of_what(
    page: Any, tmp_path: Path
) -> None:
    config = "overload { interval = 50ms, polls = 2, max_loop_lag = 0, memory_limit = 1MB }\n"
    with serving(tmp_path / "data", config=config) as node:
        sign_in(page, node)
        page.goto(f"{node.url}/overview")
        page.wait_for_selector("[role=alert]:has-text('Overloaded since')")
        text = page.inner_text("[role=alert]:has-text('Overloaded since')")
        assert re.fullmatch(
            r"Overloaded since \d\d:\d\d:\d\d.*, because the process uses [\d,]+% of its memory .*\.",
            text,
        )
