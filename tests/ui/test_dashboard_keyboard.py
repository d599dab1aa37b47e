"""Each list with the keyboard alone, in a real browser on a real broker.

A row is reached and opened, its menu opened and closed, and its main verb done; the focus comes back each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.support.node import Node, eventually
from tests.support.node import running as serving
from tests.ui.browser import sign_in, tab_to
from tests.ui.test_dashboard_declared import DECLARED, PATHS, connected
from tests.ui.test_dashboard_states import PASSWORD, api_path

MENU: Final = "main tbody button[aria-label^='Do something']"
DIALOG: Final = "[role=alertdialog], [role=dialog]"
CONFIRM: Final = "[role=alertdialog] :is(button.danger, button.primary):enabled"
MOST_TABS: Final = 150
OWN: Final[dict[str, dict[str, Any]]] = {
    "streams": {"name": "own"},
    "schemas": {"name": "own", "type": "json", "source": "{}"},
    "schema-registries": {"name": "own", "url": "http://127.0.0.1:9/"},
    "validations": {
        "name": "own",
        "topics": ["own/#"],
        "checks": [{"type": "sql", "sql": "SELECT 1 AS one WHERE payload.t > 0"}],
        "strategy": "all_pass",
        "failure_action": "drop",
    },
    "transforms": {
        "name": "own",
        "topics": ["own/#"],
        "operations": [{"key": "user_property.seen", "value": "clientid"}],
        "failure_action": "drop",
    },
    "rules": {"name": "own", "sql": 'SELECT qos FROM "own/#"'},
    "connectors": {"name": "own", "type": "http", "url": "http://127.0.0.1:9/"},
    "actions": {
        "name": "own",
        "type": "mqtt",
        "connector": "away",
        "parameters": {"topic": "x"},
    },
    "sources": {
        "name": "own",
        "type": "mqtt",
        "connector": "away",
        "parameters": {"topic": "x/#"},
    },
    "access/rules": {"name": "own", "permission": "allow", "topics": ["own/#"]},
    "alarm-receivers": {"name": "own", "type": "topic", "topic": "duty/${name}"},
    "users": {"name": "own", "password": PASSWORD},
    "bans": {"as": "clientid", "who": "no-own"},
    "rewrites": {
        "name": "own",
        "action": "all",
        "source_topic": "old/#",
        "re": "^old/(.+)$",
        "dest_topic": "new/$1",
    },
    "auto-subscriptions": {"name": "own", "topic": "own/c/${clientid}"},
    "groups": {"group": "$share/own/own/#"},
    "accounts": {"name": "own", "role": "viewer", "password": PASSWORD},
    "tokens": {"name": "own", "role": "viewer"},
    "secrets": {"name": "own", "value": "x"},
    "captures": {"name": "own", "filter": "own/#"},
}
"""Objects that nothing else uses, by the list that has them."""
VERBS: Final = {
    "clients": "Disconnect",
    "retained-deletions": "Undo",
    "audit-log": "Take back",
    "alarms": "",
    "listeners": "",
    "quarantine": "",
    "settings": "",
}
"""The main verb of a list where it is not Delete; none where other tests need what it would change, or it has ended."""
SHOWN: Final = {"audit-log": "?name=taken"}
"""Filters of a list whose main verb some items refuse, as a sign-in cannot be taken back."""
ENDED: Final = {"backtests", "jobs"}
"""Lists whose items have ended, so that nothing is offered for them."""
EMPTY: Final = {
    "saturation": "only what overloads a broker adds an entry",
    "authentication": "clients of this broker have no password",
    "authorization/sources": "it would ask a service for each client",
    "cluster/machines": "it has a machine only where there are several",
}
ENTRIES: Final = {entry["path"]: entry for entry in (*DECLARED["kinds"], *DECLARED["resources"])}


def test_only_lists_that_cannot_be_filled_are_left_out() -> None:
    assert {*VERBS, *OWN, *ENDED, *EMPTY} <= set(PATHS)


@pytest.fixture(scope="module")
def stocked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker with an item in each list."""
    config = "lake.run_spark = false\noverload.enable = false\nlogin_limits.window = 1h\n"
    with serving(tmp_path_factory.mktemp("keyboard") / "data", config=config) as node:
        for name in ("raw", "stopped"):
            node.call("POST", "/streams", {"name": name, "topics": ["kept/#"] * (name == "raw")})
        away = {"name": "away", "type": "mqtt", "server": "127.0.0.1:9"}
        node.call("POST", "/connectors", away)
        for path, spec in OWN.items():
            node.call("POST", f"/{path}", spec)
        node.call("POST", "/sources", OWN["sources"] | {"name": "alarming"})
        node.call("POST", "/streams", {"name": "taken"})
        gate = {"name": "gate", "topics": ["kept/2"], "quarantine": "stopped"}
        never = {"type": "sql", "sql": "SELECT 1 AS one WHERE 1 = 2"}
        deny = {"strategy": "all_pass", "failure_action": "drop", "checks": [never]}
        node.call("POST", "/validations", gate | deny)
        for topic in ("kept/0", "kept/1", "$delayed/3600/later"):
            message = {"topic": topic, "payload": "{}", "qos": 1, "retain": topic[0] == "k"}
            node.call("POST", "/messages:publish", message)
        with node.client() as http:
            stopped = {"topic": "kept/2", "payload": "{}", "qos": 1}
            assert http.post("/messages:publish", json=stopped).status_code == 422
            assert http.get("/status", headers={"Authorization": "Bearer wrong"}).status_code == 401
        node.call("POST", "/retained:clear", {"filter": "kept/0"})
        node.call("POST", "/streams/raw:replay", {"to": "mqtt", "topic": "again/1"}, (200, 202))
        test = {"sql": 'SELECT qos FROM "kept/#"', "stream": "raw"}
        node.call("POST", "/rules:backtest", test, expect=202)
        clients = [connected(node, name, "lamps/+") for name in ("own", "stays")]
        eventually(
            lambda: "alarming" in str(node.call("GET", "/alarms")["items"]),
            what="an alarm that no test ends",
        )
        eventually(lambda: len(node.call("GET", "/subscriptions")["items"]) >= 2)
        yield node
        for client in clients:
            client.loop_stop()
            client.disconnect()


def has_focus(page: Any, selector: str) -> None:
    page.wait_for_function("selector => document.activeElement.matches(selector)", arg=selector)


@pytest.mark.parametrize("path", [path for path in PATHS if path not in EMPTY])
def test_a_list_is_used_with_the_keyboard_alone(
    page: Any, stocked: Node, complaints: list[str], path: str
) -> None:
    entry = ENTRIES[api_path(path)]
    sign_in(page, stocked)
    page.goto(f"{stocked.url}/{path}{SHOWN.get(path, '')}")
    page.wait_for_selector("main section.card tbody td")
    if "writes" in entry or entry["show"]:
        tab_to(page, "main tbody a.name", MOST_TABS)
        address = page.evaluate("document.activeElement.href")
        page.keyboard.press("Enter")
        page.wait_for_url(address)
        page.wait_for_selector("main h1")
        page.go_back()
        page.wait_for_selector("main section.card tbody td")
    verbs = [verb for verb in entry.get("verbs", ()) if verb["place"] != ""]
    if "writes" not in entry and not verbs:
        assert page.locator(MENU).count() == 0
        return
    if path in ENDED:
        page.wait_for_function("menu => !document.querySelector(menu)", arg=MENU)
        assert page.locator("main section.card tbody td >> text=done").count()
        return
    own = f"{MENU}[aria-label$='own']"
    menu = own if page.locator(own).count() else MENU
    tab_to(page, menu, MOST_TABS)
    page.keyboard.press("Enter")
    has_focus(page, "[role=menuitem]")
    page.keyboard.press("Escape")
    has_focus(page, menu)
    word = VERBS.get(path, "Delete")
    if not word:
        return
    for is_done in (False, True):
        page.keyboard.press("Enter")
        has_focus(page, "[role=menuitem]")
        page.keyboard.type(word[:4])
        page.wait_for_function(
            "word => document.activeElement.textContent.startsWith(word)", arg=word
        )
        page.keyboard.press("Enter")
        page.wait_for_selector(CONFIRM)
        assert page.locator(DIALOG).evaluate("dialog => dialog.contains(document.activeElement)")
        if is_done:
            tab_to(page, CONFIRM)
            page.keyboard.press("Enter")
            page.wait_for_selector(DIALOG, state="detached")
            has_focus(page, "main, main *")
        else:
            page.keyboard.press("Escape")
            page.wait_for_selector(DIALOG, state="detached")
            has_focus(page, menu)
    assert complaints == []
