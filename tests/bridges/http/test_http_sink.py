"""Rows as requests: what goes out, and what each answer leads to."""

from __future__ import annotations

import asyncio
import json
import time
from email.utils import formatdate
from typing import Any

import pytest

from broker.core.client import Client
from broker.core.message import Message
from tests.support.bridges import Bridges
from tests.support.http_bridge import ACTION, failed, given_up, one_row, run, sent
from tests.support.http_service import Received, Reply, Service
from tests.support.waiting import until

# What goes out


def test_a_row_is_posted_as_json() -> None:
    found = one_row({"n": 1, "text": "æ"}, {"path": "/rows"})
    assert (found.method, found.target, found.json()) == ("POST", "/rows", {"n": 1, "text": "æ"})
    assert found.header("content-type") == "application/json"
    assert found.header("content-length") == str(len(found.body))


def test_every_part_is_a_template() -> None:
    parameters = {
        "method": "put",
        "path": "/devices/${device}/state?kind=${kind}",
        "query": {"at": "${ts}", "site": "${site}"},
        "headers": {"X-Device": "${device}", "X-Site": "${site}", "Content-Type": "text/plain"},
        "body": "${device}=${temp}",
    }
    found = one_row({"device": "m 1", "kind": "a&b", "ts": 17, "temp": 2.5}, parameters)
    assert (found.method, found.target) == ("PUT", "/devices/m%201/state?kind=a%26b&at=17")
    assert (found.header("x-device"), found.header("x-site")) == ("m 1", None)
    assert (found.header("content-type"), found.body) == ("text/plain", b"m 1=2.5")


@pytest.mark.parametrize("method", ["get", "delete"])
def test_get_and_delete_have_no_body(method: str) -> None:
    found = one_row({"id": 5}, {"method": method, "path": "rows/${id}"})
    assert (found.method, found.target, found.body) == (method.upper(), "/rows/5", b"")


def test_paths_stand_behind_that_of_the_connector() -> None:
    assert one_row({"n": 1}, {"path": "rows"}, base="/base/").target == "/base/rows"
    assert one_row({"n": 1}, {}, base="/base").target == "/base"


@pytest.mark.parametrize(
    "value",
    [
        "../../admin",
        "a/b",
        "?x=1",
        "#top",
        "//evil.example/",
        "@evil.example",
        "\r\nHost: evil",
        "%2e%2e%2f",
        "\\..\\",
    ],
    ids=[
        "dots",
        "slash",
        "query",
        "fragment",
        "slashes",
        "userinfo",
        "line",
        "encoded",
        "backslash",
    ],
)
def test_a_value_never_leaves_its_segment(value: str) -> None:
    found = one_row({"v": value}, {"path": "/a/${v}/z"})
    assert found.target.count("/") == 3
    assert found.target.startswith("/a/")
    assert found.target.endswith("/z")
    assert "?" not in found.target
    assert [text for name, text in found.headers if name == "host"] == [found.header("host")]


@pytest.mark.parametrize("value", [".", ".."], ids=["one", "two"])
def test_a_value_that_steps_through_the_tree_has_no_request(value: str) -> None:
    assert "would lead elsewhere" in given_up({"v": value}, {"path": "/a/${v}/z"})


def test_a_row_without_what_the_path_needs_is_given_up() -> None:
    assert given_up({"n": 1}, {"path": "/a/${v}"}) == "the row has no 'v', which the path needs"


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\rb", "a\0b"])
def test_a_header_of_more_than_one_line_fails_the_row(value: str) -> None:
    why = given_up({"v": value}, {"headers": {"X-V": "${v}"}})
    assert why == "header X-V: expected one line of text, got a line break (CR, LF) or NUL"


def test_mqtt_properties_become_headers() -> None:
    properties = {
        "Content-Type": "text/x",
        "Correlation-Data": b"\0\1",
        "Message-Expiry-Interval": 60,
        "User-Property": [("Line No", "7"), ("x", "ü")],
    }

    async def check(bridges: Bridges, _service: Service) -> None:
        sink = bridges.services.endpoints.sinks.find(ACTION)
        assert sink is not None
        message = Message("m/1", b"p", 1, True, Client("c1", "alice"), 1_000_000_000, properties)
        sink.write({"n": 1}, message, bridges.settle)
        await sent(bridges, 1)

    found = run(check, {"mqtt_headers": True}).taken[0]
    told = {name: text for name, text in found.headers if name.startswith("mqtt-")}
    assert told == {
        "mqtt-topic": "m/1",
        "mqtt-clientid": "c1",
        "mqtt-username": "alice",
        "mqtt-qos": "1",
        "mqtt-retain": "true",
        "mqtt-content-type": "text/x",
        "mqtt-correlation-data": "AAE=",
        "mqtt-expires-at": "61000",
        "mqtt-up-line_no": "7",
        "mqtt-up-x": "ü",
    }


@pytest.mark.parametrize(
    ("parameters", "bodies", "kind"),
    [
        ({"batch": "json_array"}, [b'[{"n":0},{"n":1},{"n":2}]'], "application/json"),
        ({"batch": "ndjson", "body": "${n}\n"}, [b"0 \n1 \n2 \n"], "application/x-ndjson"),
        (
            {
                "batch": "joined",
                "body": "v=${n}",
                "batch_separator": ";",
                "batch_prefix": "<",
                "batch_suffix": ">",
            },
            [b"<v=0;v=1;v=2>"],
            "application/octet-stream",
        ),
        (
            {"batch": "json_array", "path": "/${n}"},
            [b'[{"n":0}]', b'[{"n":1}]', b'[{"n":2}]'],
            "application/json",
        ),
    ],
    ids=["array", "lines", "joined", "places"],
)
def test_rows_share_a_request(parameters: dict[str, Any], bodies: list[bytes], kind: str) -> None:
    async def check(bridges: Bridges, _service: Service) -> None:
        bridges.actions.pause("out")
        for number in range(3):
            bridges.send({"n": number}, ACTION)
        bridges.actions.resume("out")
        await sent(bridges, 3)

    service = run(check, parameters, batch_size=10, batch_time="50ms")
    assert [request.body for request in service.taken] == bodies
    assert service.taken[0].header("content-type") == kind


@pytest.mark.parametrize("batch", ["json_array", "ndjson"])
def test_a_row_whose_body_is_not_json_is_left_out_of_the_batch(batch: str) -> None:
    async def check(bridges: Bridges, _service: Service) -> None:
        bridges.actions.pause("out")
        for payload in ('{"n":0}', '1],[{"admin":true}', "", b'"\xff"', '{"n":3}'):
            bridges.send({"payload": payload}, ACTION)
        bridges.actions.resume("out")
        await sent(bridges, 2)
        await bridges.until(lambda: bridges.counts()["failed"] == 3)
        letters = await until(lambda: _letters(bridges), "the dead letters are committed")
        assert (
            f"body: expected JSON in a batch of {batch}, got b'1],[{{"
            in letters[0]["reason"] + letters[-1]["reason"]
        )

    service = run(check, {"batch": batch, "body": "${payload}"}, batch_size=10, batch_time="50ms")
    assert [request.body for request in service.taken] == [
        b'[{"n":0},{"n":3}]' if batch == "json_array" else b'{"n":0}\n{"n":3}\n'
    ]


def test_a_body_that_is_json_stays_json() -> None:
    async def check(bridges: Bridges, _service: Service) -> None:
        bridges.send({"clientid": 'a","admin":true,"x":"', "payload": '{"n":0}'}, ACTION)
        await sent(bridges, 1)

    body = '{"by": "${clientid}", "data": ${payload}, "temp": ${temp}}'
    service = run(check, {"body": body})
    assert service.taken[0].json() == {
        "by": 'a","admin":true,"x":"',
        "data": {"n": 0},
        "temp": None,
    }


# What answers lead to


@pytest.mark.parametrize("status", [500, 503, 408, 425, 429])
def test_some_statuses_are_tried_again(status: int) -> None:
    left = [status, status]

    async def check(bridges: Bridges, _service: Service) -> None:
        bridges.send({"n": 1}, ACTION)
        await sent(bridges, 1)
        assert bridges.counts()["retried"] == 1
        assert str(status) in bridges.actions.get("out")["last_error"]["text"]

    service = run(check, {}, lambda request: Reply(left.pop(), b"later") if left else Reply())
    assert len(service.received) == 3


def test_which_statuses_are_tried_again_is_a_setting() -> None:
    said = given_up(
        {"n": 1}, {"retry_statuses": ["503"]}, answer=lambda request: Reply(500, b"broken")
    )
    assert said.endswith("answers 500 Internal Server Error: broken")


def test_other_refusals_are_final_and_told_with_the_beginning_of_the_answer() -> None:
    said = given_up(
        {"n": 1},
        {"path": "/rows"},
        answer=lambda request: Reply(422, b"no  such\nunit " + b"x" * 500),
    )
    assert "POST http://127.0.0.1:" in said
    assert "/rows answers 422" in said
    assert said.endswith("no such unit " + "x" * 186)


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_a_wait_that_is_asked_for_holds_for_all_lanes(form: str) -> None:
    """No request, of whichever client, before the time is over."""
    times: list[float] = []

    def answer(request: Received) -> Reply:
        times.append(time.time())
        if len(times) > 1:
            return Reply()
        value = "1" if form == "seconds" else formatdate(time.time() + 2, usegmt=True)
        return Reply(429, headers=[("Retry-After", value)])

    async def check(bridges: Bridges, _service: Service) -> None:
        bridges.send({"n": 0}, ACTION)
        await bridges.until(lambda: "asks to wait" in str(bridges.actions.get("out")["last_error"]))
        for number in range(1, 9):
            bridges.send({"n": number}, ACTION, client=f"c{number}")
        await sent(bridges, 9)

    run(check, {}, answer)
    assert times[1] - times[0] > 0.9


def test_a_wait_that_is_asked_for_holds_over_a_new_connection_until_the_action_is_changed() -> None:
    times: list[float] = []

    def answer(request: Received) -> Reply:
        times.append(time.time())
        return (
            Reply(429, headers=[("Retry-After", "2" if len(times) == 1 else "600")])
            if len(times) < 3
            else Reply()
        )

    async def check(bridges: Bridges, _service: Service) -> None:
        bridges.send({"n": 0}, ACTION)
        await bridges.until(lambda: "asks to wait" in str(bridges.actions.get("out")["last_error"]))
        await bridges.connectors.restart("plant")
        bridges.send({"n": 1}, ACTION, client="c2")
        await bridges.until(lambda: len(times) >= 2)
        assert times[1] - times[0] > 1.9
        bridges.actions.replace("out", {**bridges.actions.get("out"), "description": "not to wait"})
        await sent(bridges, 2)

    run(check, {}, answer)


def test_a_storm_of_errors_loses_nothing_and_keeps_the_order() -> None:
    storm = asyncio.Event()

    async def check(bridges: Bridges, service: Service) -> None:
        bridges.send_many(50, action=ACTION)
        await bridges.until(lambda: len(service.received) >= 3)
        assert bridges.actions.get("out")["status"] == "connecting"
        assert "503" in bridges.actions.get("out")["status_reason"]
        storm.set()
        await sent(bridges, 50)
        assert bridges.actions.get("out")["status"] == "connected"

    service = run(check, {}, lambda request: Reply() if storm.is_set() else Reply(503))
    assert [request.json()["n"] for request in service.taken] == list(range(50))


def test_credentials_that_are_refused_stop_the_connector_with_the_reason() -> None:
    async def check(bridges: Bridges, _service: Service) -> None:
        bridges.send({"n": 1}, ACTION)
        await bridges.until(lambda: bridges.connectors.get("plant")["status_reason"])
        assert "answers 401 Unauthorized: who?" in bridges.connectors.get("plant")["status_reason"]
        assert bridges.counts()["failed"] == 0

    run(check, {}, lambda request: Reply(401, b"who?"))


@pytest.mark.parametrize("status", [403, 404, 410])
def test_where_the_path_is_of_the_row_so_is_its_refusal(status: int) -> None:
    said = given_up({"v": 1}, {"path": "/${v}"}, answer=lambda request: Reply(status))
    assert f"answers {status}" in said


def test_a_path_that_is_not_there_is_told_and_waited_for() -> None:
    paths = {"/old"}

    async def check(bridges: Bridges, _service: Service) -> None:
        bridges.send({"n": 1}, ACTION)
        await bridges.until(
            lambda: bridges.actions.get("out")["status_reason"].startswith("unhealthy target: ")
        )
        assert bridges.connectors.get("plant")["status"] == "connected"
        paths.add("/new")
        await sent(bridges, 1)

    run(
        check,
        {"path": "/new"},
        lambda r: Reply() if r.path in paths else Reply(404),
        missing_target="wait",
    )


def test_redirections_are_not_followed_unless_wanted() -> None:
    def answer(request: Received) -> Reply:
        return Reply(308, b"", [("Location", "/new")]) if request.path == "/old" else Reply()

    assert "answers 308 Permanent Redirect to /new" in given_up(
        {"n": 1}, {"path": "/old"}, answer=answer
    )
    found = one_row({"n": 1}, {"path": "/old", "max_redirects": 1}, answer=answer)
    assert (found.method, found.path, found.json()) == ("POST", "/new", {"n": 1})


def test_another_host_gets_none_of_the_connectors_headers() -> None:
    other = Service()

    async def check(bridges: Bridges, _service: Service) -> None:
        async with other:
            bridges.send({"n": 1}, ACTION)
            await sent(bridges, 1)

    connector = {
        "headers": {"X-Key": "secret"},
        "authentication": {"mechanism": "bearer", "token": "abc"},
    }
    place = [("Location", f"http://127.0.0.1:{other.port}/there")]
    service = run(
        check, {"max_redirects": 2}, lambda request: Reply(307, b"", place), connector=connector
    )
    assert service.received[0].header("authorization") == "Bearer abc"
    assert service.received[0].header("x-key") == "secret"
    assert (other.taken[0].header("authorization"), other.taken[0].header("x-key")) == (None, None)
    assert other.taken[0].header("host") == f"127.0.0.1:{other.port}"


def test_what_is_not_http_is_told() -> None:
    assert "is not HTTP" in given_up(
        {"n": 1}, {}, answer=lambda request: Reply(raw=b"SSH-2.0-OpenSSH\r\n\r\n")
    )


def test_a_long_answer_is_not_read_to_its_end() -> None:
    found = one_row(
        {"n": 1}, {"max_answer_size": "1KB"}, answer=lambda request: Reply(200, b"x" * 1_000_000)
    )
    assert found.json() == {"n": 1}


def test_a_row_at_fault_is_found_and_the_others_of_its_batch_are_taken() -> None:
    async def check(bridges: Bridges, _service: Service) -> None:
        bridges.actions.pause("out")
        for number in range(16):
            bridges.send({"n": number}, ACTION)
        bridges.actions.resume("out")
        await bridges.until(lambda: bridges.counts()["success"] + bridges.counts()["failed"] == 16)
        assert bridges.counts()["failed"] == 1

    def answer(request: Received) -> Reply:
        return (
            Reply(400, b"row 11 is bad")
            if any(row["n"] == 11 for row in request.json())
            else Reply()
        )

    service = run(check, {"batch": "json_array"}, answer, batch_size=16, batch_time="50ms")
    assert [row["n"] for request in service.taken for row in request.json()] == [
        n for n in range(16) if n != 11
    ]


async def _letters(bridges: Bridges) -> list[dict[str, Any]]:
    return [dict(letter) for letter in (await bridges.actions.dead_letters("out", 10))["items"]]


def test_an_answer_may_tell_of_each_row() -> None:
    tried: list[int] = []

    def answer(request: Received) -> Reply:
        rows = [row["n"] for row in request.json()]
        tried.extend(rows)
        statuses = [429 if n == 1 and tried.count(1) == 1 else 400 if n == 2 else 201 for n in rows]
        items = [
            {"index": {"status": status, "error": {"reason": f"s{status}"}}} for status in statuses
        ]
        return Reply(200, json.dumps({"items": items}).encode())

    async def check(bridges: Bridges, _service: Service) -> None:
        bridges.actions.pause("out")
        for number in range(4):
            bridges.send({"n": number}, ACTION)
        bridges.actions.resume("out")
        await sent(bridges, 3)
        assert await failed(bridges)
        letters = await until(lambda: _letters(bridges), "the dead letter is committed")
        assert [("s400" in letter["reason"]) for letter in letters] == [True]

    row_answers = {"at": "items", "status": "index.status", "reason": "index.error.reason"}
    parameters = {"batch": "json_array", "row_answers": row_answers}
    run(check, parameters, answer, batch_size=10, batch_time="50ms")
    assert sorted(tried) == [0, 1, 1, 2, 3]


def test_the_idempotency_key_stays_when_a_row_is_sent_again_and_differs_else() -> None:
    left = [503]

    async def check(bridges: Bridges, _service: Service) -> None:
        for _ in range(2):
            bridges.send({"n": 1}, ACTION)
        await sent(bridges, 2)

    service = run(
        check,
        {"idempotency_header": "Idempotency-Key"},
        lambda r: Reply(left.pop()) if left else Reply(),
    )
    keys = [request.header("idempotency-key") for request in service.received]
    assert len(keys) == 3
    assert keys[0] == keys[1] != keys[2]
