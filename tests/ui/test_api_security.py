"""Who gets in: the token, the one-time code, the session; and from where."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, cast

import httpx
import pytest
from fastapi import FastAPI

from broker.admin.api_settings import ApiSettings
from broker.admin.audit_log import AuditRecord
from broker.core.values import Values
from tests.support.plain_http import NO_TLS
from tests.ui.api_node import TOKEN, Node, Running
from ui.api.application import create_app
from ui.api.audit import UNKNOWN, Auditing
from ui.api.sign_in import CODE_LIFE_S, MAX_SESSIONS, SESSION_LIFE_S, SignIn


class MovedClock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.at_s = 100.0

    def now_ns(self) -> int:
        return int(self.at_s * 1e9)

    def monotonic_s(self) -> float:
        return self.at_s


@pytest.mark.parametrize(
    "authorization",
    [
        b"Bearer wrong",
        b"Bearer",
        f"Basic {TOKEN}".encode(),
        TOKEN.encode(),
        f"Bearer {TOKEN}x".encode(),
        b"Bearer \xff",
    ],
)
def test_a_wrong_token_is_refused_and_told_the_scheme(
    http: httpx.Client, authorization: bytes
) -> None:
    answer = http.get("/api/v1/status", headers={b"Authorization": authorization})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.json()["code"] == "unauthorized"


def test_a_link_opens_one_session_that_no_script_can_read(
    http: httpx.Client, running: Running
) -> None:
    link = running.node.context.new_sign_in_link()
    assert link.startswith(f"{running.url}/?code=")
    page = http.get(link)
    assert page.status_code == 200
    cookie = page.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert http.get("/api/v1/status").status_code == 200
    with httpx.Client(base_url=running.url, verify=NO_TLS) as other:
        assert "set-cookie" not in other.get(link).headers
        assert other.get("/api/v1/status").status_code == 401


def test_the_token_opens_a_session_and_signing_out_ends_it(
    http: httpx.Client, running: Running
) -> None:
    here = {"Origin": running.url}
    assert http.post("/api/v1/session", json={"token": "wrong"}, headers=here).status_code == 401
    assert http.post("/api/v1/session", json={"token": TOKEN}, headers=here).status_code == 204
    assert http.get("/api/v1/status").status_code == 200
    kept = dict(http.cookies)
    assert http.delete("/api/v1/session", headers=here).status_code == 204
    assert httpx.get(f"{running.url}/api/v1/status", cookies=kept, verify=NO_TLS).status_code == 401


def test_refused_sign_ins_of_one_network_are_one_entry_a_minute_that_counts_the_others() -> None:
    class Log:
        records: ClassVar[list[AuditRecord]] = []

        async def recorded(self, record: AuditRecord) -> None:
            self.records.append(record)

    async def scenario() -> None:
        clock = MovedClock()
        context = Node().context
        context.clock = clock
        context.audit_log = cast(Any, Log())
        auditing = Auditing(context)
        for number in range(3000):
            auditing.begin()
            state: dict[str, Any] = {
                "actor": UNKNOWN,
                "opens_session": True,
                "request_id": "r",
                "problem": "wrong",
            }
            scope: dict[str, Any] = {
                "method": "POST",
                "path": "/api/v1/session",
                "headers": [],
                "client": (f"2001:db8:0:7:{number:x}::1", 1),
                "state": state,
            }
            await auditing.record(scope, 401)
            if number == 1999:
                clock.at_s += 61
        assert [record.detail for record in Log.records] == [
            "wrong",
            "wrong; 1,999 more such refusals before",
        ]

    asyncio.run(scenario())


@pytest.mark.parametrize("origin", [None, "http://evil.example", "null", "http://127.0.0.1:1"])
def test_a_session_changes_nothing_from_another_site(
    http: httpx.Client, running: Running, origin: str | None
) -> None:
    http.get(running.node.context.new_sign_in_link())
    elsewhere = {"Origin": origin} if origin else {}
    answer = http.post("/api/v1/rules", json={"name": "a"}, headers=elsewhere)
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden_origin")
    assert running.node.shelves["rules"].list() == []
    assert (
        http.post("/api/v1/rules", json={"name": "a"}, headers={"Origin": running.url}).status_code
        == 201
    )


def test_a_bearer_needs_no_origin(api: httpx.Client) -> None:
    assert (
        api.post(
            "/rules", json={"name": "a"}, headers={"Origin": "http://elsewhere.example"}
        ).status_code
        == 201
    )


def test_codes_work_once_and_for_ten_minutes() -> None:
    clock = MovedClock()
    sign_in = SignIn(clock)
    first, late = sign_in.new_code(), sign_in.new_code()
    assert sign_in.redeem("no such code") is None
    assert sign_in.redeem(first) is not None
    assert sign_in.redeem(first) is None
    clock.at_s += CODE_LIFE_S
    assert sign_in.redeem(late) is None


def test_sessions_last_twelve_hours_and_the_oldest_makes_room() -> None:
    clock = MovedClock()
    sign_in = SignIn(clock)
    sessions = [sign_in.open_session() for _ in range(MAX_SESSIONS + 1)]
    assert not sign_in.is_open(sessions[0])
    assert sign_in.is_open(sessions[1])
    clock.at_s += SESSION_LIFE_S
    assert not sign_in.is_open(sessions[-1])


def test_sessions_survive_a_restart_but_no_other_token() -> None:
    clock, values = MovedClock(), Values()
    before = SignIn(clock, values, TOKEN)
    kept, closed = before.open_session(), before.open_session()
    before.close_session(closed)
    stored = b"".join(values.get(name) or b"" for name in values.names(""))
    assert kept.encode() not in stored
    assert TOKEN.encode() not in stored
    clock.at_s += SESSION_LIFE_S - 1
    after = SignIn(clock, values, TOKEN)
    assert after.is_open(kept)
    assert not after.is_open(closed)
    assert not SignIn(clock, values, "another token").is_open(kept)
    clock.at_s += 1
    assert not after.is_open(kept)
    assert not SignIn(clock, values, TOKEN).is_open(kept)
    clock.at_s -= SESSION_LIFE_S * 3  # the system's clock was set back
    set_back = SignIn(clock, values, TOKEN)
    clock.at_s += SESSION_LIFE_S
    assert not set_back.is_open(kept)


@pytest.fixture(scope="module")
def apps() -> Callable[[dict[str, Any]], FastAPI]:
    """One application for each settings, since building one takes half a second."""
    built: dict[str, FastAPI] = {}

    def app(settings: dict[str, Any]) -> FastAPI:
        key = json.dumps(settings)
        if key not in built:
            built[key] = create_app(Node(**settings).context)
        return built[key]

    return app


@pytest.mark.parametrize(
    ("settings", "host", "status"),
    [
        ({}, "localhost", 200),
        ({}, "127.0.0.1:18083", 200),
        ({}, "127.8.9.10", 200),
        ({}, "[::1]:18083", 200),
        ({}, "sluice.localhost:1", 200),
        ({}, "evil.example", 403),
        ({}, "127.0.0.1.evil.example:18083", 403),
        ({}, "", 403),
        ({}, "[::1", 200),
        ({"allowed_hosts": ["Broker.Example"]}, "broker.example:443", 200),
        ({"allowed_hosts": ["broker.example"]}, "evil.example", 403),
        ({"allowed_hosts": ["*"]}, "evil.example", 200),
        ({"bind": "0.0.0.0:1", "allow_clear_text": True}, "any.example", 200),
        (
            {"bind": "0.0.0.0:1", "allow_clear_text": True, "allowed_hosts": ["a.example"]},
            "b.example",
            403,
        ),
    ],
)
@pytest.mark.parametrize("path", ["/api/v1/status", "/metrics", "/", "/livez"])
def test_which_hosts_a_request_may_name(
    apps: Callable[[dict[str, Any]], FastAPI],
    settings: dict[str, Any],
    host: str,
    status: int,
    path: str,
) -> None:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(apps(settings))
        headers = {"Host": host, "Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get(path, headers=headers)

    answer = asyncio.run(ask())
    assert answer.status_code == status
    if status == 403:
        assert answer.json()["code"] == "forbidden_host"
        assert "api.allowed_hosts" in answer.json()["detail"]


@pytest.mark.parametrize("host", ["http://a.example", "a.example:80", "a/b", ""])
def test_a_host_that_is_none_is_refused_in_settings(host: str) -> None:
    with pytest.raises(ValueError, match="expected a host name without scheme and port"):
        ApiSettings(allowed_hosts=[host])


@pytest.mark.parametrize("bind", ["0.0.0.0:18083", "[::]:18083", "192.0.2.1:1", "broker.example:1"])
def test_clear_text_beyond_this_machine_has_to_be_allowed(bind: str) -> None:
    with pytest.raises(ValueError, match="the API speaks HTTP without TLS"):
        ApiSettings(bind=bind)
    assert ApiSettings(bind=bind, allow_clear_text=True).bind == bind


def test_an_empty_token_is_no_token() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        replace(Node().context, token="")


def test_no_secret_is_shown() -> None:
    context = Node().context
    code = context.new_sign_in_link().rpartition("=")[2]
    assert TOKEN not in repr(context)
    assert code not in repr(context)
