"""Every list of the navigation in all its states, in a real browser on a real broker.

Loading (an answer that is slow), failed, empty, and without the right to change it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest

from broker.admin.rights import Actor
from tests.support.node import Node
from tests.support.node import running as serving
from tests.ui.browser import check_look, set_look, sign_in
from tests.ui.test_dashboard_declared import DECLARED, PATHS

PASSWORD: Final = "a long password"
CONFIG: Final = "overload.enable = false\n"
RETRY_MS: Final = 10_000
"""A page asks again for a list that it did not get."""
NARROW: Final = ((390, "dark"), (1280, "light"))
WRITES: Final = re.compile(r"(?!Copy as|History|Explain|Previous|Next|Download|Check$|Show$)")
"""Labels of buttons that change something."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker without objects, with a viewer."""
    with serving(tmp_path_factory.mktemp("states") / "data", config=CONFIG) as node:
        viewer = {"name": "vera", "role": "viewer", "password": PASSWORD}
        node.call("POST", "/accounts", viewer)
        yield node


class SlowBroker:
    """Holds back, or refuses, what a page asks for: requests, and these channels of its live connection."""

    def __init__(
        self, page: Any, path: str, channels: tuple[str, ...] = ("lists", "object")
    ) -> None:
        self._channels = channels
        self._is_open = False
        self._held: list[Any] = []
        self._ids: set[str] = set()
        self._problem = ""
        page.route(re.compile(rf"/api/v1/{re.escape(path)}(\?|$)"), self._request)
        page.route_web_socket(re.compile("/api/v1/live"), self._live)

    def open(self) -> None:
        """Let pass what was held back, and everything from now on."""
        self._is_open = True
        for go in self._held:
            go()
        self._held.clear()

    def refuse(self, problem: str) -> None:
        self._problem = problem

    def _request(self, route: Any) -> None:
        body = json.dumps({"code": "unavailable", "detail": self._problem})
        if self._problem:
            route.fulfill(status=503, content_type="application/problem+json", body=body)
        elif self._is_open:
            route.continue_()
        else:
            self._held.append(route.continue_)

    def _live(self, page_side: Any) -> None:
        server_side = page_side.connect_to_server()

        def up(message: str) -> None:
            frame = json.loads(message)
            if frame.get("channel") in self._channels:
                self._ids.add(frame["id"])
                if self._problem:
                    error = {"code": "unavailable", "detail": self._problem}
                    shown = {"ch": frame["id"], "seq": 0, "kind": "error", "data": error}
                    page_side.send(json.dumps(shown))
                    return
            server_side.send(message)

        def down(message: str) -> None:
            if self._is_open or json.loads(message).get("ch") not in self._ids:
                page_side.send(message)
            else:
                self._held.append(lambda: page_side.send(message))

        page_side.on_message(up)
        server_side.on_message(down)


def api_path(path: str) -> str:
    return "config" if path == "settings" else path


def empty(page: Any) -> Any:
    """Texts of the list without rows. The question for a topic, below lists of stages, is another part of the page."""
    return page.locator("main .empty", has_not_text="Name a topic")


@pytest.mark.parametrize("path", PATHS)
def test_a_list_says_that_it_is_loading_and_shows_what_arrives(
    page: Any, broker: Node, complaints: list[str], path: str
) -> None:
    slow = SlowBroker(page, api_path(path))
    sign_in(page, broker)
    page.goto(f"{broker.url}/{path}")
    for width, scheme in NARROW:
        set_look(page, width, scheme)
        page.wait_for_selector("main [role=status] >> text=Loading…")
        assert empty(page).count() == 0
        check_look(page, width, scheme)
    slow.open()
    page.wait_for_selector("main [role=status] >> text=Loading…", state="detached")
    page.wait_for_selector("main section.card :is(td, .empty)")
    rows = page.locator("main section.card td").count()
    assert (empty(page).count() == 0) == (rows > 0)
    assert complaints == []


@pytest.mark.parametrize("path", PATHS)
def test_a_list_that_cannot_be_read_says_why(page: Any, broker: Node, path: str) -> None:
    slow = SlowBroker(page, api_path(path))
    slow.refuse("the store takes nothing")
    slow.open()
    sign_in(page, broker)
    page.clock.install()
    page.goto(f"{broker.url}/{path}")
    for width, scheme in NARROW:
        set_look(page, width, scheme)
        page.wait_for_selector("main [role=alert] >> text=the store takes nothing")
        assert page.locator("main [role=status] >> text=Loading…").count() == 0
        assert empty(page).count() == 0
        check_look(page, width, scheme)
    slow.refuse("")
    page.clock.fast_forward(RETRY_MS)
    page.wait_for_selector("main section.card :is(td, .empty)")
    page.wait_for_selector("main [role=alert] >> text=the store takes nothing", state="detached")


@pytest.mark.parametrize("path", PATHS)
def test_a_viewer_reads_a_list_and_gets_no_button_that_changes_it(
    page: Any, broker: Node, complaints: list[str], path: str
) -> None:
    page.request.post(
        f"{broker.url}/api/v1/session",
        data={"name": "vera", "password": PASSWORD},
        headers={"Origin": broker.url},
    )
    page.goto(f"{broker.url}/{path}")
    page.wait_for_selector("main :is(td, .empty, [role=alert] .err)")
    right = next(
        entry["right"]
        for entry in (*DECLARED["kinds"], *DECLARED["resources"])
        if entry["path"] == api_path(path)
    )
    may_read = Actor("vera", "viewer").may(right, "read")
    assert (page.locator("main [role=alert] .err").count() == 0) == may_read
    if not may_read:
        assert "role 'viewer'" in page.inner_text("main [role=alert]")
    for button in page.locator("main :is(button, a.button):visible").all_inner_texts():
        assert not WRITES.match(button), button
    check_look(page, 1280, "light")
    if may_read:
        assert complaints == []


def test_a_session_that_ends_leads_to_signing_in_and_back_to_the_page(
    page: Any, broker: Node
) -> None:
    guest = {"name": "guest", "role": "viewer", "password": PASSWORD}
    broker.call("POST", "/accounts", guest)
    page.goto(f"{broker.url}/audit-log?name=guest")
    page.fill("#name", "guest")
    page.fill("#password", PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_selector("main tbody tr")
    broker.call("DELETE", "/accounts/guest")
    page.wait_for_selector("#password")
    broker.call("POST", "/accounts", guest)
    page.fill("#name", "guest")
    page.fill("#password", PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_selector("main tbody tr:nth-child(3)")
    assert page.url.endswith("/audit-log?name=guest")
