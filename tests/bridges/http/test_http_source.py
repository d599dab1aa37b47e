"""What is posted to ``/ingest/NAME``: who may, what becomes of it, and what is answered."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import hmac
import json
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from bridges.http_server.authentication import guard_of
from bridges.http_server.settings import (
    BasicAuthentication,
    HmacAuthentication,
    TokenAuthentication,
)
from bridges.resource.errors import BadSettings
from broker.core.errors import Invalid
from broker.core.message import Message
from broker.core.schema import SchemaError, SchemaLookup
from broker.core.stage import Outcome, Refusal
from tests.support.bridges import Bridges
from tests.support.plain_http import NO_TLS
from tests.ui.api_node import Pipeline, status_of_a_young_node
from ui.api.application import create_app
from ui.api.context import ApiContext
from ui.api.server import ApiServer

TOKEN = "let me in"
WITH_TOKEN = {"Authorization": f"Bearer {TOKEN}"}
TOKENS = {"mechanism": "token", "tokens": ["old one", TOKEN]}
DEADLINE_S = 120.0


class Temperatures(SchemaLookup):
    """A schema that takes ``t=<number>``, in place of the registry."""

    def serde(self, name: str) -> Temperatures:
        return self

    def decode(self, data: bytes, message_type: str | None = None) -> Any:
        name, _, value = data.decode().partition("=")
        if name != "t" or not value.isdecimal():
            raise SchemaError("schema 'temps': expected t=<number>")
        return {"t": int(value)}

    def encode(self, value: Any, message_type: str | None = None) -> bytes:
        return f"t={value['t']}".encode()

    def payload_type(self, topic_filter: str) -> None:
        return None


class Site:
    """A source ``in`` with the API's real server before it."""

    def __init__(self, bridges: Bridges, url: str) -> None:
        self.bridges, self.url = bridges, url
        self.http = httpx.AsyncClient(
            base_url=url, headers=WITH_TOKEN, trust_env=False, verify=NO_TLS
        )

    async def post(self, content: Any = b"hello", path: str = "in", **named: Any) -> httpx.Response:
        if not isinstance(content, (bytes, str)):
            content = json.dumps(content)
        return await self.http.post(f"/ingest/{path}", content=content, **named)

    @property
    def messages(self) -> list[Message]:
        return self.bridges.published.messages

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.messages]

    def counts(self) -> dict[str, Any]:
        found: dict[str, Any] = self.bridges.sources.get("in")["metrics"]
        return found


@asynccontextmanager
async def site(
    parameters: Mapping[str, Any] | None = None,
    connector: Mapping[str, Any] | None = None,
    again: Bridges | None = None,
) -> AsyncIterator[Site]:
    bridges = Bridges() if again is None else Bridges(store=again.store, sections=again.sections)
    bridges.services.schemas = Temperatures()
    context = ApiContext(
        token="admin",
        services={"sources": bridges.sources},
        section=bridges.sections.__getitem__,
        publisher=Pipeline(),
        status=status_of_a_young_node,
        metrics_text=str,
        receivers=bridges.services.endpoints.receivers,
    )
    server = ApiServer(create_app(context), "127.0.0.1", 0)
    host, port = await server.start()
    made = Site(bridges, f"http://{host}:{port}")
    bridges.begin()
    try:
        async with asyncio.timeout(DEADLINE_S):
            if again is None:
                bridges.connectors.create(
                    {
                        "authentication": TOKENS,
                        **(connector or {}),
                        "name": "web",
                        "type": "http_server",
                    }
                )
                parameters = {"topic": "in/${path}", **(parameters or {})}
                spec = {
                    "name": "in",
                    "type": "http_server",
                    "connector": "web",
                    "parameters": parameters,
                }
                bridges.sources.create(spec)
            await bridges.until(lambda: bridges.services.endpoints.receivers.find("in"))
            yield made
    finally:
        await made.http.aclose()
        await server.stop()
        await bridges.end()


def run(
    check: Callable[[Site], Any], parameters: Mapping[str, Any] | None = None, **connector: Any
) -> None:
    async def whole() -> None:
        async with site(parameters, connector) as made:
            await check(made)

    asyncio.run(whole())


def refused_requests(made: Site, reason: str) -> int:
    counted = made.bridges.services.monitoring.metrics.counter(
        "source_requests_refused", source="http_server:in", reason=reason
    )
    return int(counted.value)


def problem(response: httpx.Response, status: int, code: str) -> str:
    """The detail of a problem document."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    found = response.json()
    assert (found["status"], found["code"]) == (status, code)
    detail: str = found["detail"]
    return detail


# What becomes of a body


def test_a_body_is_one_message_as_it_came() -> None:
    async def check(made: Site) -> None:
        answer = await made.post(
            b"\x00\xff", "in/plant/7", headers={"Content-Type": "application/x; a=b"}
        )
        assert (answer.status_code, answer.json()) == (
            200,
            {"accepted": 1, "refused": [], "refused_count": 0},
        )
        [message] = made.messages
        assert (message.topic, message.payload, message.qos, message.retain) == (
            "in/plant/7",
            b"\x00\xff",
            1,
            False,
        )
        assert message.properties == {"Content-Type": "application/x"}
        assert message.client.client_id == "http_server:in"
        assert made.counts()["success"] == 1

    run(check)


def test_every_part_is_a_template() -> None:
    async def check(made: Site) -> None:
        await made.post({"id": "m7", "v": 1.5}, "in?site=north", headers={"X-Unit": "C"})
        [message] = made.messages
        assert (message.topic, message.payload) == ("m/north/m7", b"1.5 C")
        assert message.properties == {"User-Property": [("unit", "C")]}
        assert (message.qos, message.retain) == (0, True)

    parameters = {
        "topic": "m/${query.site}/${payload.id}",
        "payload": "${payload.v} ${headers.x_unit}",
        "user_properties": {"unit": "${headers.x_unit}", "none": "${headers.x_none}"},
        "qos": 0,
        "retain": True,
    }
    run(check, parameters)


@pytest.mark.parametrize("text", ["a\\u0000b", "x" * 65_536], ids=["null character", "long"])
def test_a_user_property_that_no_packet_can_hold_is_refused(text: str) -> None:
    async def check(made: Site) -> None:
        answer = await made.post(b'{"v": "%s"}' % text.encode())
        assert answer.status_code == 422
        assert "the user property 'v' would" in answer.json()["detail"]
        assert made.payloads == []

    run(check, {"topic": "in", "user_properties": {"v": "${payload.v}"}})


def test_a_token_in_a_header_of_its_own_is_in_no_column() -> None:
    async def check(made: Site) -> None:
        answer = await made.post(b"hello", headers={"X-Api-Key": TOKEN, "X-Unit": "C"})
        assert answer.status_code == 200
        assert made.payloads == [b"C undefined"]

    way_in = {"mechanism": "token", "tokens": [TOKEN], "header": "X-Api-Key"}
    run(
        check,
        {"topic": "in", "payload": "${headers.x_unit} ${headers.x_api_key}"},
        authentication=way_in,
    )


@pytest.mark.parametrize(
    ("form", "kind", "body", "payloads"),
    [
        ("json_array", "application/json", b'[{"n": 1}, 2.0, "x"]', [b'{"n":1}', b"2.0", b'"x"']),
        ("ndjson", "text/plain", b'{"n": 1}\r\n\n{"n": 2}', [b'{"n": 1}', b'{"n": 2}']),
        ("auto", "application/x-ndjson; charset=utf-8", b"1\n2\n", [b"1", b"2"]),
        ("auto", "application/json", b"[1, 2]", [b"[1, 2]"]),
    ],
    ids=["array", "lines", "lines by type", "one"],
)
def test_a_body_may_hold_many_messages(
    form: str, kind: str, body: bytes, payloads: list[bytes]
) -> None:
    async def check(made: Site) -> None:
        answer = await made.post(body, headers={"Content-Type": kind})
        assert answer.json()["accepted"] == len(payloads)
        assert made.payloads == payloads

    run(check, {"body_format": form, "topic": "in"})


def test_messages_stay_in_order_however_many_there_are() -> None:
    async def check(made: Site) -> None:
        answer = await made.post(b"\n".join(b"%d" % number for number in range(1000)))
        assert answer.json()["accepted"] == 1000
        assert made.payloads == [b"%d" % number for number in range(1000)]

    run(check, {"body_format": "ndjson", "topic": "in"})


def test_each_message_that_is_refused_is_told_with_its_reason() -> None:
    async def check(made: Site) -> None:
        answer = await made.post(b'{"id": "a"}\nnonsense\n{"x": 1}\n{"id": "b/#"}\n{"id": "$SYS"}')
        found = answer.json()
        assert (answer.status_code, found["accepted"], found["refused_count"]) == (200, 1, 4)
        told = {one["index"]: one["reason"] for one in found["refused"]}
        assert told[1].startswith("the line is not JSON: ")
        assert told[2] == "the row has no 'payload.id', which the topic needs"
        assert "must not contain" in told[3]
        assert "the broker's" in told[4]

    run(check, {"body_format": "ndjson", "topic": "${payload.id}"})


def test_a_body_none_of_whose_messages_is_taken_is_refused() -> None:
    async def check(made: Site) -> None:
        answer = await made.post(b"x\ny")
        assert problem(answer, 422, "message_refused").startswith(
            "all 2 messages are refused; the first: "
        )
        assert [one["pointer"] for one in answer.json()["errors"]] == ["/0", "/1"]

    run(check, {"body_format": "ndjson"})


def test_a_stage_that_refuses_is_named() -> None:
    async def check(made: Site) -> None:
        refusal = Refusal(
            "schema_validation", "meters", "validation_failed", 0x99, "temp is no number"
        )
        made.bridges.published.publish = lambda message: Outcome(0, refusal)  # type: ignore[method-assign]
        detail = problem(await made.post(b"{}"), 422, "message_refused")
        assert detail == "schema_validation 'meters': temp is no number"
        assert made.counts()["refused"] == 1

    run(check)


def test_payloads_must_fit_the_schema_and_are_decoded_by_it() -> None:
    async def check(made: Site) -> None:
        assert (await made.post(b"t=41")).status_code == 200
        assert [(m.topic, m.payload) for m in made.messages] == [("t/41", b"t=41")]
        assert (
            problem(await made.post(b"t=warm"), 422, "message_refused")
            == "schema 'temps': expected t=<number>"
        )

    run(check, {"schema": "temps", "topic": "t/${payload.t}"})


def test_rules_read_what_is_posted() -> None:
    seen: list[tuple[str, Mapping[str, Any]]] = []

    async def check(made: Site) -> None:
        events = made.bridges.services.messaging.events
        events.want(frozenset({"$bridges/http_server:in"}))
        events.listen(lambda name, columns, message: seen.append((name, columns)))
        await made.post({"n": 1}, "in/a/b?x=1", headers={"X-Y": "z", "Cookie": "c=1"})
        assert made.messages == []
        [(name, columns)] = seen
        assert name == "$bridges/http_server:in"
        assert (columns["path"], columns["query"], columns["payload"]) == (
            "a/b",
            {"x": "1"},
            '{"n": 1}',
        )
        assert (columns["headers"]["x_y"], columns["peerhost"], columns["index"]) == (
            "z",
            "127.0.0.1",
            0,
        )
        assert "authorization" not in columns["headers"]
        assert "cookie" not in columns["headers"]

    run(check, {"topic": ""})


# Who may


def signed(body: bytes, secret: str = "s3cret", **more: str) -> dict[str, str]:
    prefix = more.pop("before", "")
    digest = hmac.new(secret.encode(), prefix.encode() + body, hashlib.sha256).hexdigest()
    return {"X-Hub-Signature-256": f"sha256={digest}", **more}


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic bGV0IG1lIGlu"}]
)
def test_a_token_is_asked_for(headers: dict[str, str]) -> None:
    async def check(made: Site) -> None:
        made.http.headers.pop("authorization")
        answer = await made.post(headers=headers)
        assert "Authorization: Bearer TOKEN" in problem(answer, 401, "unauthorized")
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert (await made.post(headers={"Authorization": "Bearer old one"})).status_code == 200
        assert (await made.post(headers={"Authorization": "Bearer admin"})).status_code == 401

    run(check)


def test_a_token_may_have_a_header_of_its_own() -> None:
    async def check(made: Site) -> None:
        assert (await made.post()).status_code == 401
        assert (await made.post(headers={"X-Token": TOKEN})).status_code == 200

    run(check, authentication={**TOKENS, "header": "X-Token"})


def test_passwords() -> None:
    async def check(made: Site) -> None:
        def login(text: str) -> dict[str, str]:
            return {"Authorization": f"Basic {b64encode(text.encode()).decode()}"}

        assert (await made.post(headers=login("alice:wonder:land"))).status_code == 200
        for text in ("alice:other", "bob:wonder:land", "alice"):
            assert (await made.post(headers=login(text))).status_code == 401
        assert (await made.post(headers={"Authorization": "Basic ***"})).status_code == 401

    run(check, authentication={"mechanism": "basic", "users": {"alice": "wonder:land"}})


def test_signatures_are_of_the_body() -> None:
    async def check(made: Site) -> None:
        assert (await made.post(b"hello", headers=signed(b"hello"))).status_code == 200
        assert (await made.post(b"hello", headers=signed(b"hello", "older"))).status_code == 200
        wrong = await made.post(b"hullo", headers=signed(b"hello"))
        assert "does not fit the body" in problem(wrong, 401, "unauthorized")
        assert (await made.post(b"hello", headers=signed(b"hello", "guess"))).status_code == 401
        assert "not signed" in problem(await made.post(), 401, "unauthorized")
        assert made.payloads == [b"hello", b"hello"]

    run(check, authentication={"mechanism": "hmac", "secrets": ["s3cret", "older"]})


@pytest.mark.parametrize(
    "settings",
    [
        HmacAuthentication.model_validate(
            {"mechanism": "hmac", "secrets": ["s3cret", "${env:SLUICE_SECRET_EMPTY}"]}
        ),
        BasicAuthentication.model_validate({"mechanism": "basic", "users": {"alice": ""}}),
        TokenAuthentication.model_validate(
            {"mechanism": "token", "tokens": ["${env:SLUICE_SECRET_EMPTY}"]}
        ),
    ],
)
def test_an_empty_secret_lets_nobody_in(
    settings: HmacAuthentication | BasicAuthentication | TokenAuthentication,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLUICE_SECRET_EMPTY", "")
    with pytest.raises(BadSettings, match="expected a secret, got an empty one"):
        guard_of(settings)


def test_signed_requests_are_not_taken_once_they_are_old() -> None:
    async def check(made: Site) -> None:
        for age_s, status in ((0, 200), (50, 200), (70, 401), (-70, 401)):
            at = str(int(time.time()) - age_s)
            headers = signed(b"hello", before=f"{at}.", **{"X-Time": at})
            assert (await made.post(b"hello", headers=headers)).status_code == status
        assert (
            await made.post(b"hello", headers=signed(b"hello", **{"X-Time": "soon"}))
        ).status_code == 401
        assert (await made.post(b"hello", headers=signed(b"hello"))).status_code == 401

    hmac_settings = {
        "mechanism": "hmac",
        "secrets": ["s3cret"],
        "timestamp_header": "X-Time",
        "tolerance": "60s",
    }
    run(check, authentication=hmac_settings)


def test_whoever_reaches_the_port_where_that_is_said() -> None:
    async def check(made: Site) -> None:
        made.http.headers.pop("authorization")
        assert (await made.post()).status_code == 200

    run(check, authentication={"mechanism": "none"})


def test_who_may_send_has_to_be_said() -> None:
    async def check(made: Site) -> None:
        for authentication, said in (
            (None, "authentication"),
            ({"mechanism": "tokens"}, "authentication.mechanism is"),
        ):
            members = {} if authentication is None else {"authentication": authentication}
            with pytest.raises(Invalid, match=said):
                made.bridges.connectors.create({"name": "open", "type": "http_server", **members})

    run(check)


# Bounds


def test_bodies_are_bounded() -> None:
    async def check(made: Site) -> None:
        assert (await made.post(b"x" * 1000)).status_code == 200
        assert "larger than 1000 bytes" in problem(await made.post(b"x" * 1001), 413, "too_large")
        assert refused_requests(made, "too_large") == 1
        packed = await made.post(
            gzip.compress(b"0" * 50_000_000), headers={"Content-Encoding": "gzip"}
        )
        problem(packed, 413, "too_large")
        bomb = await made.post(gzip.compress(b"0" * 500_000), headers={"Content-Encoding": "gzip"})
        assert "when it is unpacked" in problem(bomb, 413, "too_large")

    run(check, max_body_size=1000)


@pytest.mark.parametrize(
    ("body", "encoding", "status", "code"),
    [
        (gzip.compress(b"he") + gzip.compress(b"llo"), "gzip", 200, ""),
        (gzip.compress(b"hello")[:-9], "gzip", 400, "malformed_body"),
        (b"hello", "gzip", 400, "malformed_body"),
        (gzip.compress(b"") * 100, "gzip", 413, "too_large"),
        (b"hello", "br", 415, "unknown_encoding"),
    ],
    ids=["members", "cut", "plain", "empty members", "brotli"],
)
def test_packed_bodies(body: bytes, encoding: str, status: int, code: str) -> None:
    async def check(made: Site) -> None:
        answer = await made.post(body, headers={"Content-Encoding": encoding})
        if status == 200:
            assert made.payloads == [b"hello"]
        else:
            problem(answer, status, code)

    run(check)


def test_content_types_may_be_asked_for() -> None:
    async def check(made: Site) -> None:
        assert (
            await made.post(b"1", headers={"Content-Type": "application/json; charset=utf-8"})
        ).status_code == 200
        assert "takes application/json" in problem(await made.post(b"1"), 415, "wrong_content_type")

    run(check, {"content_types": ["application/json"]})


def test_bodies_of_another_form_are_refused() -> None:
    async def check(made: Site) -> None:
        problem(await made.post(b"[1, 2"), 400, "malformed_json")
        problem(await made.post(b"{}"), 400, "malformed_body")
        problem(await made.post(b"[1, 2, 3]"), 413, "too_many")
        assert (await made.post(b"[]")).json()["accepted"] == 0

    run(check, {"body_format": "json_array", "max_messages": 2})


def test_no_more_requests_than_allowed_at_once() -> None:
    async def check(made: Site) -> None:
        release = asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield b"a"
            await release.wait()
            yield b"b"

        first = asyncio.create_task(made.http.post("/ingest/in", content=slow()))
        receiver: Any = made.bridges.services.endpoints.receivers.find("in")
        await made.bridges.until(lambda: receiver._under_way)
        answer = await made.post()
        assert answer.headers["retry-after"] == "1"
        problem(answer, 429, "too_many_requests")
        release.set()
        assert (await first).status_code == 200
        assert made.payloads == [b"ab"]
        assert refused_requests(made, "too_many_requests") == 1

    run(check, max_requests=1)


def test_a_body_that_does_not_arrive_is_not_waited_for() -> None:
    async def check(made: Site) -> None:
        url = httpx.URL(made.url)
        reader, writer = await asyncio.open_connection(url.host, url.port)
        head = "POST /ingest/in HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
        head += f"Authorization: Bearer {TOKEN}\r\n\r\n"
        writer.write(head.encode() + b"a")
        assert b"408" in await reader.readline()
        assert b"did not arrive within 0.1 s" in await reader.read(10_000)
        assert refused_requests(made, "body_timeout") == 1
        writer.close()

    run(check, body_timeout="100ms")


def test_while_it_does_not_run_senders_are_told_to_come_again() -> None:
    async def check(made: Site) -> None:
        await made.bridges.sources.stop("in")
        answer = await made.post()
        assert int(answer.headers["retry-after"]) >= 1
        problem(answer, 503, "unavailable")
        await made.bridges.sources.start("in")
        await made.bridges.until(lambda: made.bridges.services.endpoints.receivers.find("in"))
        assert (await made.post()).status_code == 200
        made.bridges.sources.pause("in")
        assert "paused" in problem(await made.post(), 503, "unavailable")
        problem(await made.post(path="other"), 404, "not_found")
        problem(await made.http.get("/ingest/in"), 405, "method_not_allowed")

    run(check)


# Once


def test_a_key_that_comes_again_is_answered_as_before_also_after_a_restart() -> None:
    key = {"Idempotency-Key": "k1"}

    async def whole() -> None:
        async with site({"topic": "in"}) as made:
            first = (await made.post(headers=key)).json()
            assert (await made.post(headers=key)).json() == {**first, "duplicate": True}
            problem(await made.post(b"other", headers=key), 422, "key_reused")
            assert (await made.post(headers={"Idempotency-Key": "k2"})).json() == first
            assert len(made.messages) == 2
        async with site(again=made.bridges) as again:
            assert (await again.post(headers=key)).json() == {**first, "duplicate": True}
            assert again.messages == []

    asyncio.run(whole())


def test_only_so_many_keys_are_remembered() -> None:
    async def check(made: Site) -> None:
        for key in ("a", "b", "c", "a", "c"):
            await made.post(headers={"Idempotency-Key": key})
        assert len(made.messages) == 4
        assert (
            len(made.bridges.services.storage.values.names("bridges/positions/http_server:in/"))
            == 2
        )

    run(check, {"idempotency_keys": 2})


def test_two_requests_with_one_key_at_once_are_taken_once() -> None:
    async def check(made: Site) -> None:
        answers = await asyncio.gather(
            *(made.post(headers={"Idempotency-Key": "k"}) for _ in range(5))
        )
        assert (
            sorted(bool(answer.json().get("duplicate")) for answer in answers)
            == [False] + [True] * 4
        )
        assert len(made.messages) == 1

    run(check)


def test_what_was_refused_may_come_again_with_its_key() -> None:
    async def check(made: Site) -> None:
        key = {"Idempotency-Key": "k"}
        assert (await made.post(b"t=x", headers=key)).status_code == 422
        assert (await made.post(b"t=1", headers=key)).status_code == 200

    run(check, {"schema": "temps"})
