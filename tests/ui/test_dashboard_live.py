"""Live data of the dashboard: one connection for all that a tab shows. It pauses, resumes, and survives a sign-in."""

from __future__ import annotations

import json
from typing import Any

import psutil

from tests.support.node import TOKEN, Node, eventually
from tests.support.processes import free_port, pause
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
        names = {
            frame["id"]: frame["channel"] for frame in self.sent if frame["kind"] == "subscribe"
        }
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


def test_a_connection_that_is_silent_is_opened_again(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.clock.install()
    page.goto(f"{broker.url}/")
    page.wait_for_selector("text=/\\d so far/")
    process = psutil.Process(broker.pid)
    pause(process.pid)
    try:
        with page.expect_websocket():
            page.clock.run_for(20_000)
    finally:
        process.resume()
    before = broker.call("GET", "/status")["counters"]["received"]
    publish(broker, ("meters/11", '{"t": 11}'))
    page.wait_for_selector(f"text={before + 1} so far")


def test_a_session_that_is_over_asks_to_sign_in_and_keeps_the_page(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/")
    page.wait_for_selector(".link-state:has-text('Live')")
    page.fill("#filter", "typed/but/not/sent")
    # as another tab does
    page.request.delete(f"{broker.url}/api/v1/session", headers={"Origin": broker.url})
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
    page.wait_for_selector(".link-state:has-text('skipped')")
    page.wait_for_selector("text=every message is accounted for")


# -- Overview --


def test_what_the_api_publishes_is_received_too(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/overview")
    for _ in range(3):
        broker.call(
            "POST", "/messages:publish", {"topic": "meters/1", "payload": '{"t": 1}', "qos": 1}
        )
    status = broker.call("GET", "/status")
    received = status["ledger"]["received"]
    assert status["counters"]["received"] == received
    page.wait_for_selector(f".figure:has-text('Received') >> text={received} in all")
    page.wait_for_selector(f"section[aria-label=Ledger] >> text={received} received")


def test_latency_is_shown_by_stage(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/overview?tab=charts")
    publish(broker, ("meters/1", '{"t": 30}'))
    for title in ("Latency by stage", "Latency by stage, median"):
        for stage in ("routing", "rules", "validation"):
            page.wait_for_selector(
                f"section[aria-label='{title}'] .legend >> text=/{stage} [\\d.]+ [µm]s/"
            )


def test_numbers_lead_to_the_lists_that_they_count(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/overview?tz=UTC")
    for link, heading in (("1 rule", "Rules"), ("1 stream", "Streams")):
        page.click(f"main >> role=link[name='{link}']")
        page.wait_for_selector(f"h1:has-text('{heading}')")
        assert page.url.endswith(f"/{heading.lower()}?tz=UTC")
        page.go_back()
    page.click("section[aria-label='Refused messages'] td >> role=link >> nth=0")
    page.wait_for_selector("h1:has-text('reading')")
    page.go_back()
    page.click("section[aria-label='Refused messages'] >> role=link[name='the newest']")
    page.wait_for_selector("h1:has-text('Refused messages')")


def test_a_chart_is_saved_as_figures_and_as_a_picture(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/overview")
    page.wait_for_selector("section[aria-label=Messages] canvas")
    page.wait_for_selector("section[aria-label=Messages] .legend >> text=/received \\d/")
    with page.expect_download() as figures:
        page.click("[aria-label='Messages as CSV']")
    lines = figures.value.path().read_text().splitlines()
    assert figures.value.suggested_filename == "messages.csv"
    assert lines[0] == 'time,"received","delivered","dropped"'
    assert len(lines) > 250
    with page.expect_download() as picture:
        page.click("[aria-label='Messages as PNG']")
    assert picture.value.suggested_filename == "messages.png"
    assert picture.value.path().read_bytes().startswith(b"\x89PNG")


def test_disk_and_what_waits_for_a_target_are_shown(page: Any, broker: Node) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    broker.call("POST", "/connectors", {"name": "away", "type": "http", "url": url})
    broker.call("POST", "/actions", {"name": "away", "type": "http", "connector": "away"})
    rule = {"name": "away", "sql": 'SELECT topic FROM "away/#"', "actions": ["http:away"]}
    broker.call("POST", "/rules", rule)
    publish(broker, *[(f"away/{number}", '{"t": 1}') for number in range(5)])
    sign_in(page, broker)
    page.goto(f"{broker.url}/overview")
    page.wait_for_selector("section[aria-label=Bridges] td >> text=/\\d+ s/")
    assert "5" in page.inner_text("section[aria-label=Bridges] tbody tr")
    page.click("text=This node")
    assert "free of" in page.inner_text("section[aria-label=Disk]")


# -- Start --


def test_a_rule_is_tried_on_the_latest_messages(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/")
    page.fill("#sql", 'SELECT payload.t AS t FROM "tried/#" WHERE payload.t > 1')
    page.fill("#filter", "tried/#")
    page.click("text=Follow >> nth=-1")
    page.wait_for_selector("text=No message has arrived on tried/#")
    for number in range(4):  # of those that come at once, a tail shows some

        def is_shown(number: int = number) -> bool:
            publish(broker, ("tried/1", json.dumps({"t": number})))
            return bool(page.locator(f".messages li:has-text('{number}}}')").count())

        eventually(is_shown, every_s=0.5)

    def is_counted(least: int) -> bool:
        shown = page.locator(".messages li code.muted").all_inner_texts()
        matching = sum(json.loads(text)["t"] > least for text in shown)
        return bool(page.inner_text("#matches") == f"{matching} of the last {len(shown)} match")

    eventually(lambda: is_counted(1))
    page.fill("#sql", 'SELECT payload.t AS t FROM "tried/#" WHERE payload.t > 2')
    eventually(lambda: is_counted(2))


def test_rows_go_to_another_topic_and_to_kafka(page: Any, broker: Node) -> None:
    broker.call("POST", "/rules", {"name": "sent", "sql": 'SELECT payload.t AS t FROM "sent/#"'})
    sign_in(page, broker)
    page.goto(f"{broker.url}/")
    page.click("button:text('Another topic')")
    page.select_option("#forward-rule", "sent")
    page.fill("#forward-topic", "rows/of/sent")
    page.click("text=Publish rows there")
    page.wait_for_selector("text=Rule sent publishes its rows on topic rows/of/sent.")
    page.wait_for_selector("section[aria-label='Keep the result'] >> text=Done")
    page.fill("#filter", "rows/#")
    page.click("text=Follow >> nth=-1")
    page.wait_for_selector("text=No message has arrived on rows/#")
    publish(broker, ("sent/1", '{"t": 7}'))
    page.wait_for_selector(".messages >> text=rows/of/sent")
    page.click("button:text('Kafka')")
    page.select_option("#forward-rule", "sent")
    page.fill("#servers", f"127.0.0.1:{free_port()}")
    page.fill("#forward-topic", "meters")
    page.click("text=Send rows to Kafka")
    page.wait_for_selector("text=Rule sent sends its rows to topic meters of Kafka.")
    assert broker.call("GET", "/rules/sent")["actions"][1] == {
        "type": "bridge",
        "bridge": "kafka:sent",
    }
    assert broker.call("GET", "/actions/sent")["parameters"]["topic"] == "meters"
    page.click("text=Send rows to Kafka")
    page.wait_for_selector("[role=status] >> text=/sent.*already|exists/")


def test_start_shows_recent_objects_in_place_of_its_steps(page: Any, broker: Node) -> None:
    broker.call("POST", "/rules", {"name": "recent", "sql": 'SELECT * FROM "recent"'})
    broker.call("POST", "/rules", {"name": "gone", "sql": 'SELECT * FROM "recent"'})
    broker.call("DELETE", "/rules/gone")
    sign_in(page, broker)
    page.goto(f"{broker.url}/")
    page.click("text=Hide the steps")
    page.wait_for_selector("section[aria-label='Recent objects'] >> role=link[name='recent']")
    assert "gone" not in page.inner_text("section[aria-label='Recent objects']")
    page.reload()
    page.click("section[aria-label='Recent objects'] >> role=link[name='reading'] >> nth=-1")
    page.wait_for_selector("h1:has-text('reading')")
    page.go_back()
    page.click("text=Show the first steps")
    page.wait_for_selector("text=Your broker is running")
