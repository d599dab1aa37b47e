"""The pages Topics and MQTT client in all their states, in a real browser on a real broker."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import pytest

from tests.support import raw
from tests.support.node import Node, eventually
from tests.support.node import running as serving
from tests.support.processor import is_within
from tests.ui.browser import check_look, set_look, sign_in, tab_to, tasks_of, typed
from tests.ui.test_dashboard_mqtt import connect
from tests.ui.test_dashboard_states import CONFIG, NARROW, PASSWORD, SlowBroker

COUNT: Final = 10_000
TREE: Final = "section[aria-label=Tree]"
TAIL: Final = "section[aria-label=Messages]"
LOADING: Final = "[role=status] >> text=Loading…"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker with a viewer."""
    with serving(tmp_path_factory.mktemp("topics") / "data", config=CONFIG) as node:
        node.call("POST", "/accounts", {"name": "vera", "role": "viewer", "password": PASSWORD})
        yield node


def publish(node: Node, topics: list[str]) -> None:
    """Publish on each, and wait until the broker has read them."""
    with closing(socket.create_connection(node.mqtt)) as link:
        link.sendall(raw.connect(4, "filler"))
        for topic in topics:
            link.sendall(raw.publish(4, topic, b'{"t": 1}'))
        link.sendall(raw.PINGREQ)
        answers = b""
        while not answers.endswith(raw.PINGRESP):
            answers += link.recv(4096)


def check_looks(page: Any) -> None:
    for width, scheme in NARROW:
        set_look(page, width, scheme)
        check_look(page, width, scheme)


def test_an_empty_broker_says_that_nothing_was_published(
    page: Any, broker: Node, complaints: list[str]
) -> None:
    slow = SlowBroker(page, "topics", ("tail",))
    sign_in(page, broker)
    page.goto(f"{broker.url}/topics?topic=none/1")
    page.wait_for_selector(f"{TREE} {LOADING}")
    page.wait_for_selector(f"{TAIL} {LOADING}")
    assert page.locator("main .empty", has_text="published").count() == 0
    check_looks(page)
    slow.open()
    page.wait_for_selector(f"{TREE} >> text=Nothing was published here")
    page.wait_for_selector(f"{TAIL} >> text=No message has passed")
    page.wait_for_selector("main >> text=No client subscribes to it.")
    check_looks(page)
    assert complaints == []


def test_a_tree_and_a_tail_that_cannot_be_read_say_why(page: Any, broker: Node) -> None:
    slow = SlowBroker(page, "topics", ("tail",))
    slow.refuse("the node is overloaded")
    slow.open()
    sign_in(page, broker)
    page.goto(f"{broker.url}/topics")
    for part in (TREE, TAIL):
        page.wait_for_selector(f"{part} [role=alert] >> text=the node is overloaded")
        assert page.locator(f"{part} .empty").count() == 0
        assert page.locator(f"{part} {LOADING}").count() == 0
    check_looks(page)
    slow.refuse("")
    page.wait_for_selector(f"{TREE} [role=alert]", state="detached")


def test_thousands_of_topics_are_searched_by_the_server_and_a_tail_is_bounded(
    page: Any, broker: Node, complaints: list[str]
) -> None:
    topics = [f"plant/{number:05}" for number in range(COUNT)]
    broker.call("GET", "/topics")  # the counting begins with the first look

    def are_counted() -> bool:
        publish(broker, topics)  # at a high rate some reads are left out
        return bool(broker.call("GET", "/topics?under=plant&limit=1")["total"] == COUNT)

    eventually(are_counted, what=f"{COUNT} topics")
    sign_in(page, broker)
    with tasks_of(page) as tasks:
        page.goto(f"{broker.url}/topics?under=plant")
        page.wait_for_selector(f"{TREE} td >> text=/^\\d{{5}}$/ >> nth=0")
        page.wait_for_selector(f"{TREE} >> text=10,000 here")
    assert page.locator(f"{TREE} tbody tr").count() <= 50
    page.wait_for_selector(f"{TAIL} >> text=No message has passed")
    publish(broker, topics)
    page.wait_for_selector(f"{TAIL} tbody tr >> nth=10")
    assert page.locator(f"{TAIL} tbody tr").count() <= 50
    page.wait_for_selector(f"{TAIL} >> text=/left out/")
    assert page.evaluate("document.querySelectorAll('*').length") < 3000
    page.get_by_label("Search", exact=True).focus()
    per_key_ms = typed(page, "09999", f"{TREE} tbody tr:only-child >> text=plant/09999")
    print(f"{max(tasks)=:.0f} {per_key_ms=:.0f}")
    assert is_within(per_key_ms / 1000, 0.1)
    check_looks(page)
    assert complaints == []


def test_the_keyboard_alone_leads_from_the_tree_to_an_explanation(
    page: Any, broker: Node, complaints: list[str]
) -> None:
    def is_counted() -> bool:
        publish(broker, ["halls/1"])  # some reads are left out after a high rate
        return any(row["name"] == "halls" for row in broker.call("GET", "/topics")["items"])

    eventually(is_counted, what="the topic in the tree")
    sign_in(page, broker)
    page.goto(f"{broker.url}/topics")
    page.wait_for_selector(f"{TREE} a.name:text-is('halls')")
    tab_to(page, f"{TREE} a.name[href*='halls']")
    page.keyboard.press("Enter")
    page.wait_for_selector(f"{TREE} a.name:text-is('1')")
    tab_to(page, f"{TREE} a.name")
    page.keyboard.press("Enter")
    page.wait_for_selector("main >> text=No client subscribes to it.")

    def is_shown() -> bool:
        publish(broker, ["halls/1"])
        return bool(page.locator(f"{TAIL} td >> text=halls/1").count())

    eventually(is_shown, what="the message in the tail")
    tab_to(page, f"{TAIL} button[aria-haspopup=dialog]")
    page.keyboard.press("Enter")
    page.wait_for_selector("[role=dialog] >> text=It passes all stages.")
    page.keyboard.press("Escape")
    page.wait_for_selector("[role=dialog]", state="detached")
    assert complaints == []


def test_a_viewer_reads_topics(page: Any, broker: Node, complaints: list[str]) -> None:
    publish(broker, ["halls/1"])
    page.request.post(
        f"{broker.url}/api/v1/session",
        data={"name": "vera", "password": PASSWORD},
        headers={"Origin": broker.url},
    )
    page.goto(f"{broker.url}/topics?topic=halls/1")
    page.wait_for_selector(f"{TREE} a.name:text-is('halls')")
    page.wait_for_selector("main >> text=No client subscribes to it.")
    check_looks(page)
    assert complaints == []


def test_the_client_of_the_page_shows_a_bounded_part_of_many_messages(
    page: Any, broker: Node, complaints: list[str]
) -> None:
    connect(page, broker)
    subscriptions = page.locator("section[aria-label=Subscriptions]")
    subscriptions.get_by_label("Topic filter").fill("burst/#")
    subscriptions.get_by_role("button", name="Subscribe", exact=True).click()
    subscriptions.locator("td code:text-is('burst/#')").wait_for()
    publish(broker, [f"burst/{number}" for number in range(2000)])
    page.wait_for_selector(f"{TAIL} >> text=burst/1999")
    assert page.evaluate("document.querySelectorAll('*').length") < 6000
    check_looks(page)
    assert complaints == []
