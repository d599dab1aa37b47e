"""Live data of the dashboard: one connection for all that a tab shows. It pauses, resumes, and survives a sign-in."""

from __future__ import annotations

import json
from typing import Any

from tests.support.node import TOKEN, Node
from tests.ui.browser import sign_in
from tests.ui.test_dashboard import broker, publish

__all__ = ["broker"]
Frame = dict[str, Any]


class Sockets:
    """The WebSockets that a page opens, and their frames."""

    def __init__(self, page: Any) -> None:
        self.opened: list[Any] = []
        self.sent: list[Frame] = []
        self.received: list[Frame] = []
        page.on("websocket", self._opened)

    def _opened(self, socket: Any) -> None:
        self.opened.append(socket)
        socket.on("framesent", lambda text: self.sent.append(json.loads(text)))
        socket.on("framereceived", lambda text: self.received.append(json.loads(text)))

    def channels(self, kind: str) -> list[str]:
        """The channels of the frames of this kind, sorted."""
        names = {frame["id"]: frame["channel"] for frame in self.sent if frame["kind"] == "subscribe"}
        return sorted(names[frame["id"]] for frame in self.sent if frame["kind"] == kind)


def test_all_pages_of_a_tab_share_one_connection(page: Any, broker: Node) -> None:
    sockets, asked = Sockets(page), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    sign_in(page, broker)
    page.goto(f"{broker.url}/")
    page.wait_for_selector("text=No message has arrived")
    publish(broker, ("meters/7", '{"t": 7}'))
    page.wait_for_selector(".messages >> text=meters/7")
    assert sockets.channels("subscribe") == ["alarms", "status", "tail"]
    page.keyboard.press("g")
    page.keyboard.press("o")
    page.wait_for_selector("text=every message is accounted for")
    before = broker.call("GET", "/status")["counters"]["received"]
    with sockets.opened[0].expect_event("framesent", lambda text: '"unsubscribe"' in text):
        publish(broker, ("meters/7", '{"t": 8}'))
        page.wait_for_selector(f"text={before + 1} in all")
    assert sockets.channels("unsubscribe") == ["tail"]
    assert len(sockets.opened) == 1
    assert not [url for url in asked if url.endswith(("/status", "/alarms")) or "/tail" in url]


def test_a_page_that_resumes_gets_what_it_missed(page: Any, broker: Node) -> None:
    sockets = Sockets(page)
    sign_in(page, broker)
    page.goto(f"{broker.url}/")
    page.wait_for_selector(".link-state:has-text('Live')")
    page.wait_for_selector("text=/\\d so far/")
    with sockets.opened[0].expect_event("close"):
        page.click("#pause")
    page.wait_for_selector(".link-state:has-text('Paused')")
    before = broker.call("GET", "/status")["counters"]["received"]
    publish(broker, ("meters/8", '{"t": 8}'))
    sockets.received.clear()
    page.click("#pause")
    page.wait_for_selector(".link-state:has-text('Live')")
    page.wait_for_selector(f"text={before + 1} so far")
    resumed = next(frame for frame in sockets.sent[::-1] if frame.get("channel") == "status")
    first = next(frame for frame in sockets.received if frame["ch"] == resumed["id"])
    assert (first["kind"], first["seq"]) == ("delta", resumed["after"] + 1)


def test_a_session_that_is_over_asks_to_sign_in_and_keeps_the_page(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/")
    page.wait_for_selector(".link-state:has-text('Live')")
    page.fill("#filter", "typed/but/not/sent")
    page.request.delete(f"{broker.url}/api/v1/session", headers={"Origin": broker.url})  # as another tab does
    page.wait_for_selector("text=The session is over")
    assert not page.is_visible("#filter")
    page.fill("#token", TOKEN)
    page.click("text=Sign in >> nth=-1")
    page.wait_for_selector(".link-state:has-text('Live')")
    assert page.input_value("#filter") == "typed/but/not/sent"
    before = broker.call("GET", "/status")["counters"]["received"]
    publish(broker, ("meters/9", '{"t": 9}'))
    page.wait_for_selector(f"text={before + 1} so far")


def test_a_filter_that_is_wrong_says_so_and_a_better_one_works(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/")
    page.fill("#filter", "a/#/b")
    page.click("text=Follow >> nth=-1")
    page.wait_for_selector("[role=alert] >> text=/#/")
    page.fill("#filter", "meters/+")
    page.click("text=Follow >> nth=-1")
    page.wait_for_selector("text=No message has arrived on meters/+")
    assert page.locator("[role=alert] >> text=/#/").count() == 0
    publish(broker, ("meters/10", '{"t": 1}'))
    page.wait_for_selector(".messages >> text=meters/10")


def test_updates_that_a_slow_page_missed_are_counted(page: Any, broker: Node) -> None:
    """The server sends such a frame to pages that do not read for long; here it is put between its own."""

    def between(socket: Any) -> None:
        server = socket.connect_to_server()

        def pass_on(text: str) -> None:
            socket.send(text)
            frame = json.loads(text)
            if frame["kind"] == "snapshot":
                socket.send(json.dumps({**frame, "kind": "skipped", "data": {"count": 12}}))

        server.on_message(pass_on)

    page.route_web_socket("**/api/v1/live", between)
    sign_in(page, broker)
    page.goto(f"{broker.url}/overview")
    page.wait_for_selector(".link-state:has-text('updates skipped')")
    page.wait_for_selector("text=every message is accounted for")
