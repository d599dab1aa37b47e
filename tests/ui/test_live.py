"""The live channel: snapshots, deltas and resuming; who may connect; bounds, slow readers and endings."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import psutil
import pytest
from paho.mqtt.publish import single
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from broker.admin.alarms import AlarmService
from broker.admin.jobs import NoPause
from broker.cli import exit_codes
from broker.cli.main import main
from broker.core.clock import SystemClock
from broker.core.events import Events
from broker.observe.alarms import Alarms
from tests.support.node import TOKEN as NODE_TOKEN
from tests.support.node import Node as Broker
from tests.support.node import eventually
from tests.support.node import running as running_broker
from tests.support.plain_http import NO_TLS
from tests.ui.api_node import TOKEN, Node, Running
from tests.ui.test_api_connections import serving
from ui.api.live import MAX_FRAME_BYTES
from ui.api.models.live import LiveFrame

Frame = dict[str, Any]


def merged(before: dict[str, Any], delta: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**before, **delta}.items() if value is not None}


class Page:
    """What a page does: one connection, its subscriptions, and its state of each, kept by the deltas."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.shown: dict[str, dict[str, Any]] = {}

    def subscribe(
        self, channel: str, id: str = "", after: int | None = None, **parameters: Any
    ) -> Page:
        sent = {
            "kind": "subscribe",
            "id": id or channel,
            "channel": channel,
            "parameters": parameters,
        }
        self.socket.send(json.dumps(sent if after is None else {**sent, "after": after}))
        return self

    def next(self, id: str = "", kind: str = "") -> Frame:
        """The next frame, of this subscription and kind."""
        while True:
            frame: Frame = json.loads(self.socket.recv(timeout=60))
            LiveFrame.model_validate(frame)
            if frame["kind"] == "snapshot":
                self.shown[frame["ch"]] = frame["data"]
            if frame["kind"] == "delta":
                before, data = self.shown.get(frame["ch"], {}), frame["data"]
                if "rows" in data:  # of a list
                    data = {**data, "rows": merged(before.get("rows", {}), data["rows"])}
                self.shown[frame["ch"]] = merged(before, data)
            if id in ("", frame["ch"]) and kind in ("", frame["kind"]):
                return frame

    def until(self, id: str, holds: Callable[[dict[str, Any]], Any]) -> None:
        """Read until this is so of what is shown."""
        while id not in self.shown or not holds(self.shown[id]):
            self.next()

    def ending(self) -> tuple[int, str]:
        """The code and the reason with which the server closes."""
        with pytest.raises(ConnectionClosed) as closed:
            list(iter(lambda: self.socket.recv(timeout=60), None))
        assert closed.value.rcvd is not None
        return closed.value.rcvd.code, closed.value.rcvd.reason


@contextmanager
def page(url: str, token: str = TOKEN, **headers: str) -> Iterator[Page]:
    shown = headers or {"Authorization": f"Bearer {token}"}
    address = f"{url.replace('http', 'ws', 1)}/api/v1/live"
    with connect(
        address,
        additional_headers=shown,
        proxy=None,
        max_size=None,
        open_timeout=60,
        close_timeout=1,
    ) as socket:
        yield Page(socket)


def signed_in(url: str) -> dict[str, str]:
    """The headers of a page with a new session."""
    answer = httpx.post(
        f"{url}/api/v1/session", json={"token": TOKEN}, headers={"Origin": url}, verify=NO_TLS
    )
    return {"Cookie": answer.headers["set-cookie"].partition(";")[0], "Origin": url}


def upgrade(token: str) -> bytes:
    """The request that opens a connection, for clients that do as they like with their socket."""
    return (
        f"GET /api/v1/live HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
    ).encode()


@pytest.fixture
def running() -> Iterator[Running]:
    """A server of its own for each test: feeds outlive their watchers."""
    with serving() as server:
        yield server


# -- on a broker --


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_broker(tmp_path_factory.mktemp("live") / "data") as node:
        yield node


def test_objects_of_a_file_name_it(tmp_path: Path) -> None:
    config = 'rule_engine.rules { filed { sql = "SELECT * FROM \\"t/#\\"" } }'
    with (
        running_broker(tmp_path / "data", config=config) as node,
        page(node.url, NODE_TOKEN) as live,
    ):
        node.call("POST", "/rules", {"name": "made", "sql": 'SELECT * FROM "t/#"'})
        for name, file in (("filed", str(node.data_dir / "sluice.conf")), ("made", None)):
            live.subscribe("object", id=name, kind="rules", name=name)
            assert live.next(name)["data"]["fixed_by"] == file
            node.call("POST", f"/rules/{name}:disable", expect=409 if file else 200)
        live.subscribe("lists", kind="rules")
        rows = live.next("lists")["data"]["rows"]
        assert [rows[name]["fixed_by"] is None for name in ("filed", "made")] == [False, True]


def test_a_page_sees_a_rule_come_change_stop_and_go(broker: Broker) -> None:
    with page(broker.url, NODE_TOKEN) as live:
        live.subscribe("lists", kind="rules").subscribe("object", kind="rules", name="hot")
        assert live.next("lists")["kind"] == "snapshot"
        assert live.next("object")["data"] == {"object": None, "etag": None, "fixed_by": None}
        broker.call("POST", "/rules", {"name": "hot", "sql": 'SELECT * FROM "t/#"'})
        live.until("lists", lambda shown: "hot" in shown["rows"])
        row = live.shown["lists"]["rows"]["hot"]
        assert (row["position"], row["state"], live.shown["lists"]["total"]) == (0, "running", 1)
        with broker.client() as client:
            assert client.get("/rules/hot").headers["etag"] == f'"{row["etag"]}"'
        live.until(
            "object",
            lambda shown: (
                shown["object"] is not None and shown["object"].get("sql") == 'SELECT * FROM "t/#"'
            ),
        )
        broker.call("POST", "/rules/hot:disable")
        live.until(
            "lists",
            lambda shown: (
                (hot := shown["rows"]["hot"])["state"] == "disabled" and hot["etag"] != row["etag"]
            ),
        )
        broker.call("DELETE", "/rules/hot")
        live.until("lists", lambda shown: shown["total"] == 0 and not shown["rows"])
        live.until("object", lambda shown: not shown)


def test_metrics_are_those_of_the_history(broker: Broker) -> None:
    with page(broker.url, NODE_TOKEN) as live:
        live.subscribe("metrics", names=["messages_internal", "connections"])
        live.next("metrics", "snapshot")
        for _ in range(5):
            broker.call("POST", "/messages:publish", {"topic": "t", "payload": "1"})
        live.subscribe("status")
        assert live.next("status", "snapshot")["data"]["ledger"]["residual"] == 0
        live.until("metrics", lambda shown: "messages_internal" in shown)
        seen_s = live.shown["status"]["uptime_s"]
        live.until("status", lambda shown: shown["uptime_s"] > seen_s + 1)
        assert set(live.shown["metrics"]) == {"messages_internal", "connections"}
        assert live.shown["metrics"]["connections"] == [{"labels": {}, "value": 0.0}]


def test_snapshots_are_as_the_document_says(broker: Broker) -> None:
    with broker.client() as client:
        document = client.get("/openapi.json").json()  # before a page, which must subscribe in 10 s
    with page(broker.url, NODE_TOKEN) as live:
        kinds: dict[str, dict[str, Any]] = {
            "lists": {"kind": "listeners"},
            "object": {"kind": "listeners", "name": "tcp:default"},
            "tail": {"filter": "#"},
        }
        assert set(document["x-live-channels"]) == {
            "status",
            "metrics",
            "alarms",
            "lists",
            "object",
            "jobs",
            "tail",
        }
        for name, channel in document["x-live-channels"].items():
            snapshot = live.subscribe(name, **kinds.get(name, {})).next(name, "snapshot")
            schema = document["components"]["schemas"][channel["data"]["$ref"].rsplit("/", 1)[1]]
            assert set(schema.get("required", ())) <= set(snapshot["data"])
            assert schema["description"]


def test_after_a_kill_a_page_gets_a_snapshot(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as node:
        with page(node.url, NODE_TOKEN) as live:
            live.subscribe("lists", kind="rules").next()
            node.call("POST", "/rules", {"name": "a", "sql": 'SELECT * FROM "t"'})
            last = live.next()
            node.kill()
            with pytest.raises(ConnectionClosed):
                live.next()
        node.start()
        with page(node.url, NODE_TOKEN) as live:
            frame = live.subscribe("lists", kind="rules", after=last["seq"]).next()
            assert frame["kind"] == "snapshot"
            assert list(frame["data"]["rows"]) == ["a"]


def test_a_tail_shows_messages_and_counts_those_that_it_skips(broker: Broker) -> None:
    with page(broker.url, NODE_TOKEN) as live:
        live.subscribe("tail", filter="meters/+", messages_per_s=1)
        assert live.next("tail")["data"] == {"messages": [], "matched": 0, "shown": 0, "skipped": 0}
        broker.call("POST", "/messages:publish", {"topic": "meters/1", "payload": '{"n": 0}'})
        messages = live.next("tail", "delta")["data"]["messages"]
        assert [(one["topic"], one["payload"]["data"]) for one in messages] == [
            ("meters/1", {"n": 0})
        ]
        for number in range(20):
            broker.call("POST", "/messages:publish", {"topic": "meters/1", "payload": f"{number}"})
        live.until("tail", lambda shown: shown["matched"] == 21)
        assert live.shown["tail"]["skipped"] == 21 - live.shown["tail"]["shown"] > 0
        assert metric(broker, "sluice_tails") == 1
    eventually(lambda: metric(broker, "sluice_tails") == 0)


def test_a_tail_of_some_publishers_shows_only_their_messages(broker: Broker) -> None:
    with page(broker.url, NODE_TOKEN) as live:
        live.subscribe("tail", filter="meters/+", clientid="meter-*")
        for name in ("gate-1", "meter-1"):
            host, port = broker.mqtt
            single("meters/1", name, 1, hostname=host, port=port, client_id=name)
        messages = live.next("tail", "delta")["data"]["messages"]
        assert [message["clientid"] for message in messages] == ["meter-1"]
        assert live.shown["tail"]["matched"] == 1
    with page(broker.url, NODE_TOKEN) as live:
        error = live.subscribe("tail", filter="meters/+", address="10.0.0.0/99").next()
        assert (error["kind"], error["ch"]) == ("error", "tail")
        assert "expected an address or a network" in error["data"]["detail"]
    url, query = f"{broker.url}/api/v1/topics/tail", {"filter": "a", "clientid": "*" * 9}
    refused = httpx.get(
        url, params=query, headers={"Authorization": f"Bearer {NODE_TOKEN}"}, verify=NO_TLS
    )
    assert (refused.status_code, "at most 8 stars" in refused.text) == (422, True)


def metric(broker: Broker, name: str) -> float:
    text = httpx.get(f"{broker.url}/metrics", verify=NO_TLS, timeout=60).text
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith(f"{name} ")))


def test_the_command_prints_a_line_per_frame_and_says_what_is_wrong(
    broker: Broker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_API_TOKEN", NODE_TOKEN)
    where = ["--url", broker.url]
    assert (
        main(["live", "alarms", "metrics?names=connections&names=sessions", "--count", "2", *where])
        == 0
    )
    alarms, metrics = map(json.loads, capfd.readouterr().out.splitlines())
    assert (alarms["ch"], alarms["kind"]) == ("alarms", "snapshot")
    assert set(metrics["data"]) == {"connections", "sessions"}
    assert main(["live", "lists?kind=cars", *where]) == exit_codes.FAILED
    assert "got 'cars'" in capfd.readouterr().err
    monkeypatch.setenv("SLUICE_API_TOKEN", "another-token")
    assert main(["live", "status", *where]) == exit_codes.NOT_ALLOWED
    assert main(["live", "status", "--url", "http://127.0.0.1:9"]) == exit_codes.NOT_REACHABLE


# -- resuming, and reading slowly --


def test_who_returns_gets_what_it_missed(running: Running) -> None:
    rules = running.node.shelves["rules"]
    with page(running.url) as live:
        last = live.subscribe("lists", kind="rules").next()
    rules.create({"name": "a"})
    with page(running.url) as live:
        frame = live.subscribe("lists", kind="rules", after=last["seq"]).next()
        assert (frame["kind"], frame["seq"], list(frame["data"]["rows"])) == (
            "delta",
            last["seq"] + 1,
            ["a"],
        )
        rules.create({"name": "b"})
        assert list(live.next()["data"]["rows"]) == ["b"]
    with page(running.url) as live:
        frames = [live.subscribe("lists", kind="rules", after=last["seq"]).next(), live.next()]
        assert [frame["seq"] - last["seq"] for frame in frames] == [1, 2]
        assert list(live.shown["lists"]["rows"]) == ["a", "b"]


@pytest.mark.parametrize("distance", [-1, 1, 10**9])
def test_who_names_a_seq_that_is_not_kept_gets_a_snapshot(running: Running, distance: int) -> None:
    with page(running.url) as live:
        last = live.subscribe("lists", kind="schemas").next()
        frame = live.subscribe("lists", "again", after=last["seq"] + distance, kind="schemas").next(
            "again"
        )
        assert frame["kind"] == "snapshot"


def test_a_slow_page_loses_deltas_and_then_gets_a_snapshot_and_others_lose_none(
    running: Running,
) -> None:
    rules = running.node.shelves["rules"]
    rules.create({"name": "a", "sql": ""})
    with page(running.url) as slow, page(running.url) as fast:
        fast.subscribe("object", kind="rules", name="a")
        seqs: list[int] = [fast.next()["seq"]]
        for number in range(40):  # more than what the sockets hold
            slow.subscribe("object", f"copy {number}", kind="rules", name="a")
        for number in range(4):
            rules.replace("a", {"name": "a", "sql": f"{number}" * 1_000_000})
            seqs.append(fast.next("object", "delta")["seq"])
        assert seqs == list(range(seqs[0], seqs[0] + 5))
        sent = dict.fromkeys((f"copy {number}" for number in range(40)), seqs[0])
        skipped = 0
        while min(sent.values()) < seqs[-1]:
            frame = slow.next()
            if frame["kind"] == "skipped":
                skipped += frame["data"]["count"]
                assert sent[frame["ch"]] + frame["data"]["count"] == frame["seq"] <= seqs[-1]
                assert slow.next(frame["ch"])["kind"] == "snapshot"
            sent[frame["ch"]] = frame["seq"]
        assert skipped > 0
        assert running.node.context.metrics.value("api_live_skipped") >= skipped
        assert {shown["object"]["sql"][0] for shown in slow.shown.values()} == {"3"}


# -- alarms, jobs, status --


def test_alarms_are_raised_and_cleared() -> None:
    node = Node()
    alarms = Alarms(SystemClock(), Events(), node.context.metrics)
    node.context.alarms = AlarmService(alarms, SystemClock())
    running = Running(node)
    try:
        with page(running.url) as live:
            assert live.subscribe("alarms").next()["data"] == {}
            alarms.activate("disk_nearly_full", "500 MB are free", free_bytes=5)
            raised = live.next()
            assert raised["kind"] == "delta"
            assert raised["data"]["disk_nearly_full"]["message"] == "500 MB are free"
            alarms.deactivate("disk_nearly_full")
            assert live.next()["data"] == {"disk_nearly_full": None}
    finally:
        running.stop()


class _Runs(NoPause):
    """A source with one job."""

    def __init__(self) -> None:
        self.state = "running"

    def known(self) -> list[dict[str, Any]]:
        return [{"id": "j1", "started_at": "2026-01-01T00:00:00.000Z", "state": self.state}]

    def cancel(self, id: str) -> None:
        self.state = "cancelled"


def test_jobs_show_their_progress() -> None:
    node, runs = Node(), _Runs()
    node.context.jobs.sources.append(runs)
    running = Running(node)
    try:
        with page(running.url) as live:
            assert live.subscribe("jobs").next()["data"]["j1"]["state"] == "running"
            runs.cancel("j1")
            assert live.next()["data"]["j1"]["state"] == "cancelled"
    finally:
        running.stop()


def test_ten_pages_cost_one_look_and_none_costs_none(running: Running) -> None:
    looks = 0
    young = running.node.context.status

    def status() -> Any:
        nonlocal looks
        looks += 1
        return {**young(), "uptime_s": looks}

    running.node.context.status = status
    with ExitStack() as stack:
        pages = [stack.enter_context(page(running.url)).subscribe("status") for _ in range(10)]
        assert {live.next()["data"]["uptime_s"] for live in pages} == {1}
        assert [live.next()["data"] for live in pages] == [{"uptime_s": 2}] * 10
        assert looks == 2
    with page(running.url) as live:
        live.subscribe("lists", kind="rules").next()
        asked = looks
        for name in "abc":  # two seconds, in which status would have been asked
            running.node.shelves["rules"].create({"name": name})
            live.next()
        assert looks == asked <= 3


def test_one_slow_look_and_feeds_without_a_watcher_do_not_delay_updates(running: Running) -> None:
    looks = 0

    def status() -> Any:
        nonlocal looks
        looks += 1
        ends_s = time.thread_time() + (0.3 if looks == 2 else 0)
        while time.thread_time() < ends_s:
            pass
        return {"uptime_s": looks}

    running.node.context.status = status
    with page(running.url) as live:
        for name in map(str, range(20)):
            live.subscribe("object", name, kind="rules", name=name).next(name)
            live.socket.send(json.dumps({"kind": "unsubscribe", "id": name}))
        live.subscribe("status").until("status", lambda shown: shown["uptime_s"] == 3)


# -- who may connect --


def test_a_session_from_its_own_page_may_connect_until_it_is_closed(running: Running) -> None:
    session = signed_in(running.url)
    with page(running.url, **session) as live, page(running.url) as other:
        live.subscribe("status").next()
        httpx.delete(f"{running.url}/api/v1/session", headers=session, verify=NO_TLS)
        assert live.ending() == (4401, "the session is over; sign in again")
        assert other.subscribe("status").next()["kind"] == "snapshot"


@pytest.mark.parametrize(
    ("headers", "code", "words"),
    [
        ({"X-Nothing": "1"}, 4401, "sign in on the dashboard"),
        ({"Authorization": "Bearer wrong"}, 4401, "the token is wrong"),
        ({"Authorization": "Basic YTpi"}, 4401, "expected 'Bearer TOKEN'"),
        ({"Cookie": "sluice_session_0=abc"}, 4401, "sign in on the dashboard"),
    ],
)
def test_who_has_shown_nothing_right_is_closed(
    running: Running, headers: dict[str, str], code: int, words: str
) -> None:
    with page(running.url, **headers) as live:
        ended, reason = live.ending()
        assert ended == code
        assert words in reason


@pytest.mark.parametrize("origin", ["http://evil.example", None])
def test_a_session_from_another_site_is_closed(running: Running, origin: str | None) -> None:
    session = signed_in(running.url) | {"Origin": origin or ""}
    with page(running.url, **{name: value for name, value in session.items() if value}) as live:
        assert live.ending() == (4403, "a session works from the dashboard only; use a token")


def test_a_foreign_host_gets_no_connection(running: Running) -> None:
    address = f"ws://evil.example:{running.port}/api/v1/live"
    with pytest.raises(InvalidStatus) as refused:
        connect(
            address, sock=socket.create_connection((running.host, running.port)), proxy=None
        ).close()
    assert refused.value.response.status_code == 403


# -- frames that are wrong --


@pytest.mark.parametrize(
    ("frame", "id", "words"),
    [
        ("no json", None, "frame: expected JSON"),
        ("[]", None, "frame: expected a JSON object"),
        ('{"kind": "subscribe"}', None, "id is required"),
        ('{"kind": "dance", "id": "x"}', "x", "kind"),
        (
            '{"kind": "unsubscribe", "id": "x"}',
            "x",
            "id: expected a subscribed identifier, got 'x'",
        ),
        (
            '{"kind": "subscribe", "id": "x", "channel": "rain"}',
            "x",
            "channel: expected one of status",
        ),
        (
            '{"kind": "subscribe", "id": "x", "channel": "lists", "parameters": {"kind": "cars"}}',
            "x",
            "got 'cars'",
        ),
        ('{"kind": "subscribe", "id": "x", "channel": "lists"}', "x", "kind is required"),
        (
            '{"kind": "subscribe", "id": "x", "channel": "status", "parameters": {"a": 1}}',
            "x",
            "a is not known",
        ),
        (
            '{"kind": "subscribe", "id": "x", "channel": "status", "since": 1}',
            "x",
            "since is not known",
        ),
    ],
)
def test_a_wrong_frame_gets_one_sentence_and_the_connection_goes_on(
    running: Running, frame: str, id: str | None, words: str
) -> None:
    with page(running.url) as live:
        live.socket.send(frame)
        error = live.next()
        assert (error["kind"], error["ch"]) == ("error", id)
        assert words in error["data"]["detail"]
        assert "\n" not in error["data"]["detail"]
        assert live.subscribe("status").next()["kind"] == "snapshot"


def test_a_subscription_is_made_once_and_can_be_ended(running: Running) -> None:
    with page(running.url) as live:
        live.subscribe("status").next()
        assert (
            "which is subscribed already"
            in live.subscribe("status").next(kind="error")["data"]["detail"]
        )
        live.socket.send('{"kind": "unsubscribe", "id": "status"}')
        live.subscribe("lists", kind="rules").next("lists")
        running.node.shelves["rules"].create({"name": "a"})
        running.node.context.status = dict  # type: ignore[assignment]
        assert live.next()["ch"] == "lists"


def test_a_frame_that_is_too_long_ends_the_connection(running: Running) -> None:
    with page(running.url) as live:
        live.socket.send("x" * (MAX_FRAME_BYTES + 1))
        assert live.ending()[0] == 1009


def test_a_channel_that_fails_ends_alone(running: Running) -> None:
    has_failed = Event()

    def status() -> Any:
        if has_failed.is_set():
            raise KeyError("nobody foresaw this")
        return {"uptime_s": 1}

    running.node.context.status = status
    with page(running.url) as live:
        live.subscribe("lists", kind="rules").next()
        live.subscribe("status").next()
        has_failed.set()
        error = live.next(kind="error")
        assert (error["ch"], error["data"]["code"]) == ("status", "internal")
        running.node.shelves["rules"].create({"name": "a"})
        assert live.next()["ch"] == "lists"


# -- bounds --


def test_connections_and_channels_are_bounded() -> None:
    with (
        serving(live={"max_connections": 1, "max_channels": 2}) as running,
        page(running.url) as live,
    ):
        with page(running.url) as further:
            assert further.ending() == (4429, "api.live.max_connections: all 1 are in use")
        for number in range(3):
            live.subscribe("status", f"s{number}")
        error = live.next(kind="error")
        assert error["ch"] == "s2"
        assert "api.live.max_channels: expected at most 2" in error["data"]["detail"]


def test_what_is_kept_is_bounded() -> None:
    with serving(live={"max_bytes": "3MB"}) as running, page(running.url) as live:
        rules = running.node.shelves["rules"]
        for name in "abcd":
            rules.create({"name": name, "sql": name * 1_000_000})
            live.subscribe("object", name, kind="rules", name=name)
        assert "api.live.max_bytes" in live.next("d", "error")["data"]["detail"]
        rules.replace("a", {"name": "a", "sql": "A" * 1_000_000})
        live.until("a", lambda shown: shown["object"]["sql"][0] == "A")
        rules.create({"name": "huge", "sql": "h" * 2_200_000})
        assert (
            live.subscribe("object", kind="rules", name="huge").next("object")["data"]["code"]
            == "too_large"
        )
        assert running.node.context.metrics.value("api_live_bytes") <= 3 * 1024 * 1024


def test_a_list_is_a_window_of_what_passes_the_filters(running: Running) -> None:
    rules = running.node.shelves["rules"]
    names = [f"r{number:04}" for number in range(3000)]
    rules.section.save(
        {name: {"name": name, "sql": "", "enable": int(name[1:]) % 2 == 0} for name in names}
    )
    with page(running.url) as live:
        filters = {"like_name": "R1", "state": "running"}
        live.subscribe("lists", kind="rules", filters=filters, position=400, limit=50)
        live.until("lists", lambda shown: not shown["total_is_estimate"])
        shown = live.shown["lists"]
        assert shown["total"] == 500
        assert list(shown["rows"]) == [f"r{number:04}" for number in range(1800, 1900, 2)]
        assert shown["rows"]["r1800"]["position"] == 400
        assert shown["rows"]["r1800"]["object"] == {**rules.get("r1800")}
        rules.delete("r1000")
        live.until("lists", lambda shown: shown["total"] == 499 and "r1800" not in shown["rows"])
        assert live.shown["lists"]["rows"]["r1900"]["position"] == 449


def test_rows_of_large_objects_are_without_them(running: Running) -> None:
    rules = running.node.shelves["rules"]
    rules.section.save(
        {f"r{number}": {"name": f"r{number}", "sql": "s" * 300_000} for number in range(10)}
    )
    with page(running.url) as live:
        rows = live.subscribe("lists", kind="rules").next()["data"]["rows"]
        assert [row["object"] is not None for row in rows.values()] == [True] * 3 + [False] * 7


def test_a_connection_has_a_place_among_those_of_the_api_and_makes_no_room() -> None:
    with serving(max_connections=2) as running, page(running.url) as live, ExitStack() as held:
        for _ in range(4):
            held.enter_context(socket.create_connection((running.host, running.port)))
        answer = httpx.get(f"{running.url}/metrics", verify=NO_TLS, timeout=60)
        assert answer.status_code == 200
        assert running.node.context.metrics.value("api_connections") <= 2
        assert live.subscribe("status").next()["kind"] == "snapshot"
    assert running.node.context.metrics.value("api_connections") == 0


@pytest.mark.parametrize(
    ("opcode", "content"),
    [(0x81, b'{"kind": "subscribe", "id": "x", "channel": "nothing"}'), (0x89, b"x" * 125)],
)
def test_frames_of_a_client_that_reads_no_answers_take_no_memory(
    broker: Broker, opcode: int, content: bytes
) -> None:
    """The broker stops reading wrong frames, and pings, where their answers are not read."""
    frames = (bytes([opcode, 0x80 | len(content)]) + bytes(4) + content) * 1000
    # the first time loads what a broker needs later
    sizes = [_size_when_flooded(broker, frames) for _ in range(2)]
    assert sizes[1] - sizes[0] < 16 * 1024 * 1024


def _size_when_flooded(broker: Broker, frames: bytes) -> int:
    with socket.create_connection(broker.api) as link:
        link.sendall(upgrade(NODE_TOKEN))
        assert link.recv(4096).startswith(b"HTTP/1.1 101")
        link.settimeout(0.5)
        with pytest.raises(TimeoutError):
            link.sendall(frames * 200)
        broker.call("GET", "/status")
        size: int = psutil.Process(broker.pid).memory_info().rss
        return size


# -- endings --


def test_a_connection_without_a_subscription_ends() -> None:
    with serving(header_timeout=0.2) as running, page(running.url) as live:
        assert live.ending() == (4408, "no channel was subscribed for 0.2 s")


def test_a_client_that_answers_no_ping_is_gone() -> None:
    with (
        serving(body_timeout=0.2) as running,
        socket.create_connection((running.host, running.port)) as link,
    ):
        link.sendall(upgrade(TOKEN))
        link.settimeout(60)
        pieces = []
        while piece := link.recv(4096):
            pieces.append(piece)
        assert b"keepalive ping timeout" in b"".join(pieces)
        eventually(lambda: running.node.context.metrics.value("api_live_connections") == 0)


def test_a_server_that_stops_says_so() -> None:
    running = Running(Node())
    with page(running.url) as live:
        live.subscribe("status").next()
        running.stop()
        assert live.ending() == (1012, "the broker stops")
