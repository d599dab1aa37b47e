"""The dashboard of a broker with many clients, topics, retained messages and objects, in a real browser.

A page draws what is in view, whatever there is; a key is painted soon; and no look at a page holds the broker's loop.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import httpx
import pytest

from tests.support import raw
from tests.support.node import Node, eventually
from tests.support.plain_http import NO_TLS
from tests.support.processor import is_within
from tests.support.sessions import fill
from tests.ui.browser import is_shown, sign_in, tasks_of, typed
from tests.ui.test_dashboard_lists import saved

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(3600)]

COUNT = 100_000
MOST_ELEMENTS = 3000
"""Of any page."""
CONFIG = "overload { interval = 1s, max_loop_lag = 1h, max_run_queue = 0 }\n"
OWN_LAG = re.compile(r"^sluice_event_loop_own_lag_seconds ([\d.e-]+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker with ``COUNT`` sessions, topics with a retained message, and schemas."""
    directory = tmp_path_factory.mktemp("crowd") / "data"
    specs = [
        {"name": f"schema-{number:06}", "type": "json", "source": "{}"} for number in range(COUNT)
    ]
    saved(directory, "schema_registry.schemas", specs)
    fill(directory, COUNT)
    node = Node(directory, config=CONFIG).start(timeout_s=600)
    try:
        retain(node, COUNT)
        yield node
    finally:
        node.stop()


def retain(node: Node, count: int) -> None:
    """Publish a retained message on each of so many topics, and wait until the broker has read them."""
    with socket.create_connection(node.mqtt) as link:
        link.sendall(raw.connect(4, "filler"))
        for number in range(count):
            topic = f"plant/{number % 100}/line/{number // 100}"
            link.sendall(raw.publish(4, topic, b'{"temp": %d}' % number, retain=True))
        link.sendall(raw.PINGREQ)
        answers = b""
        while not answers.endswith(raw.PINGRESP):
            answers += link.recv(4096)


@contextmanager
def loop_watched(node: Node) -> Iterator[list[float]]:
    """The most that the broker's loop worked at a stretch in each second of the block, in seconds of processor time."""
    found: list[float] = []
    is_over = Event()

    def look() -> None:
        with httpx.Client(base_url=node.url, verify=NO_TLS, timeout=60) as http:
            while not is_over.wait(0.4):
                found.extend(float(text) for text in OWN_LAG.findall(http.get("/metrics").text))

    thread = Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()


def wait_for_looks(held: list[float], count: int = 6) -> None:
    """Wait until the loop was looked at that many times more."""
    least = len(held) + count
    eventually(lambda: len(held) >= least)


PAGES = {
    "/": "text=/ so far/",
    "/overview": "text=every message is accounted for",
    "/validations": ".pipeline, main >> text=What happens to a message",
    "/validations?on=plant/7/line/7": "main >> text=/Payload:/",
    "/new/rules": ".cm-content[aria-label=SQL]",
    "/schemas": ".list tbody tr[aria-rowindex]",
}


def test_pages_of_a_crowded_broker_are_small_and_quick_and_do_not_hold_its_loop(
    page: Any, crowded: Node, complaints: list[str]
) -> None:
    sign_in(page, crowded)
    longest: dict[str, float] = {}
    elements: dict[str, int] = {}
    with loop_watched(crowded) as held:
        for path, ready in PAGES.items():
            with tasks_of(page) as tasks:
                page.goto(f"{crowded.url}{path}")
                page.wait_for_selector(ready)
                page.wait_for_selector("text=Live")
                wait_for_looks(held)  # what a page asks for regularly
            longest[path] = max(tasks)
            elements[path] = page.evaluate("document.querySelectorAll('*').length")
    figures = {"longest task, ms": longest, "elements": elements, "loop held, s": max(held)}
    print(figures)
    assert max(longest.values()) < 200, figures
    assert max(elements.values()) < MOST_ELEMENTS, figures
    assert max(held) < 0.1, figures
    assert complaints == []


def test_an_object_among_many_is_found_by_its_name(page: Any, crowded: Node) -> None:
    sign_in(page, crowded)
    page.goto(f"{crowded.url}/overview")
    page.wait_for_selector("text=Live")
    last = f"schema-{COUNT - 1:06}"
    with loop_watched(crowded) as held:
        page.keyboard.press("Control+k")
        page.wait_for_selector("[role=menuitem]:has-text('schema-000000')")
        per_key_ms = typed(page, last, f"[role=menuitem]:has-text('{last}')")
    shown = page.locator("[role=menuitem]").count()
    print(f"{per_key_ms=} {shown=} {max(held)=}")
    assert shown < 30
    assert is_within(per_key_ms / 1000, 0.1)
    assert max(held) < 0.1
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/schemas/{last}")


def test_a_topic_is_suggested_and_followed_among_many(page: Any, crowded: Node) -> None:
    sign_in(page, crowded)
    page.goto(f"{crowded.url}/new/rules")
    editor = page.locator(".cm-content[aria-label=SQL]")
    editor.click()
    with loop_watched(crowded) as held:
        page.keyboard.press("Control+a")
        per_key_ms = typed(page, 'SELECT * FROM "plant/7/', ".cm-content >> text=plant/7/")

        def is_suggested() -> bool:
            retain(crowded, 2000)  # topics are known since the rules changed last
            page.keyboard.press("Control+Space")
            return is_shown(page, "[role=option] >> text=plant/7/line/#")

        eventually(is_suggested)
        shown = page.locator("[role=option]").count()
        page.goto(f"{crowded.url}/")
        page.fill("#filter", "plant/#")
        page.click("text=Follow >> nth=-1")
        page.wait_for_selector("text=No message has arrived on plant/#")
        retain(crowded, 2000)
        page.wait_for_selector(".messages >> text=plant/")
    print(f"{per_key_ms=} {shown=} {max(held)=}")
    assert shown <= 100
    assert is_within(per_key_ms / 1000, 0.1)
    assert max(held) < 0.1
