"""Receivers of alarms, each with a real target: an HTTP service, a broker, an SMTP server."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email import message_from_bytes, policy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from broker.admin.alarm_receivers import AlarmReceivers
from broker.codec.packets import Publish, SubscriptionRequest
from broker.config.allowed import AllowedSettings, confine
from broker.config.ssrf import AddressGuard, SsrfSettings
from broker.core.errors import Invalid
from broker.core.objects import MemorySection, Spec
from tests.support.certificates import Authority
from tests.support.http_service import Reply, Service
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.waiting import until

WARNING, CRITICAL = "table_late:rooms", "table_failed:rooms"


def service_of(node: Node, section: MemorySection | None = None, **ssrf: Any) -> AlarmReceivers:
    return AlarmReceivers(
        section or MemorySection(),
        node.alarms,
        AddressGuard(SsrfSettings(**ssrf)),
        node.server.publisher,
        node.clock,
        "plant",
        node.metrics,
    )


@asynccontextmanager
async def receiving(spec: Spec, **ssrf: Any) -> AsyncIterator[tuple[Node, AlarmReceivers]]:
    async with running() as node:
        receivers = service_of(node, **ssrf)
        receivers.create({"name": "duty", **spec})
        try:
            yield node, receivers
        finally:
            receivers.stop()


@asynccontextmanager
async def webhook(**spec: Any) -> AsyncIterator[tuple[Node, AlarmReceivers, Service]]:
    service = Service()
    await service.up()
    try:
        async with receiving({"type": "webhook", "url": service.url, **spec}) as (node, receivers):
            yield node, receivers, service
    finally:
        await service.down()


def sent(service: Service) -> list[tuple[str, str]]:
    return [(body["event"], body["name"]) for body in (taken.json() for taken in service.taken)]


@on_loop
async def test_a_webhook_is_told_of_alarms_that_begin_and_end() -> None:
    async with webhook(headers={"Authorization": "Bearer of bad news"}) as (
        node,
        receivers,
        service,
    ):
        node.alarms.activate(CRITICAL, "it is not filled", table="rooms")
        await until(lambda: len(service.taken) == 1)
        node.alarms.activate(CRITICAL, "it is still not filled", table="rooms")
        node.alarms.deactivate(CRITICAL)
        await until(lambda: len(service.taken) == 2)
        assert sent(service) == [("activated", CRITICAL), ("deactivated", CRITICAL)]
        first = service.taken[0]
        assert (first.method, first.header("authorization")) == ("POST", "Bearer of bad news")
        body = first.json()
        assert body["text"] == f"{CRITICAL} is active (critical): it is not filled"
        assert (body["node"], body["page"]) == ("plant", "/lake/tables/rooms")
        assert body["details"] == {"table": "rooms"}
        await until(lambda: receivers.get("duty")["state"] == "idle")
        shown = receivers.get("duty")
        assert (shown["sent"], shown["failed"], shown["waiting"]) == (2, 0, 0)
        assert shown["headers"] == {"Authorization": "******"}
        assert node.metrics.value("alarm_notifications_sent") == 2


@on_loop
async def test_the_url_of_a_webhook_may_be_a_secret_and_is_in_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_SECRET_CHAT", "http://127.0.0.1:9/T0/hidden-part")
    confine(AllowedSettings(), tmp_path)
    try:
        url = "${env:SLUICE_SECRET_CHAT}"
        async with receiving({"type": "webhook", "url": url}) as (_, receivers):
            tested = await receivers.test("duty")
            assert not tested["ok"]
            assert receivers.get("duty")["url"] == url
            assert "hidden-part" not in str(tested)
            service = Service()
            await service.up()
            monkeypatch.setenv("SLUICE_SECRET_CHAT", f"{service.url}/T0/hidden-part")
            assert (await receivers.test("duty"))["ok"]
            assert service.taken[0].path == "/T0/hidden-part"
            await service.down()
            monkeypatch.setenv("SLUICE_SECRET_CHAT", "not a URL with hidden-part")
            tested = await receivers.test("duty")
            assert (tested["ok"], "hidden-part" in str(tested)) == (False, False)
            with pytest.raises(Invalid, match="cannot be saved") as caught:
                receivers.create({"name": "o", "type": "webhook", "url": "${env:HOME}"})
            assert "allowed.env_prefixes" in str(caught.value.problems)
            with pytest.raises(Invalid, match="cannot be saved") as caught:
                receivers.create({"name": "o", "type": "webhook", "url": "http://x/${secret:y}"})
            assert "other text around it" in str(caught.value.problems)
    finally:
        confine(AllowedSettings(), None)


@on_loop
async def test_filters_choose_by_name_and_severity_and_leave_ends_out() -> None:
    spec = {"alarms": ["table_*"], "min_severity": "critical", "send_resolved": False}
    async with webhook(**spec) as (node, _, service):
        for name in (WARNING, "overload", CRITICAL):
            node.alarms.activate(name, "it happened")
            node.alarms.deactivate(name)
        node.alarms.activate("table_audit:last", "it happened")
        await until(lambda: len(service.taken) == 2)
        assert sent(service) == [("activated", CRITICAL), ("activated", "table_audit:last")]


@on_loop
async def test_a_receiver_hears_of_alarms_that_were_active_before_it_was_made() -> None:
    async with webhook() as (node, receivers, service):
        node.alarms.activate(WARNING, "it is late")
        await until(lambda: len(service.taken) == 1)
        receivers.create({"name": "other", "type": "webhook", "url": f"{service.url}/other"})
        await until(lambda: receivers.get("other")["sent"] == 1)
        receivers.replace("other", {"type": "webhook", "url": f"{service.url}/third"})
        node.alarms.activate("overload", "too much")
        await until(lambda: len(service.taken) == 4)
        assert sorted((taken.path, taken.json()["name"]) for taken in service.taken) == [
            ("/", "overload"),
            ("/", WARNING),
            ("/other", WARNING),
            ("/third", "overload"),
        ]


def _has_taken(service: Service, number: int) -> bool:
    return len(service.taken) == number


@on_loop
async def test_an_alarm_is_repeated_until_someone_acknowledges_it() -> None:
    async with webhook(repeat_interval="1s") as (node, _, service):
        node.alarms.activate(WARNING, "it is late")
        await until(lambda: len(service.taken) == 1)
        for number in (2, 3):
            node.clock.move(1)
            await until(partial(_has_taken, service, number))
        assert sent(service)[1:] == [("repeated", WARNING)] * 2
        node.alarms.acknowledge(WARNING, "ann")
        node.clock.move(1)
        node.alarms.activate(CRITICAL, "it failed")
        await until(lambda: len(service.taken) == 4)
        node.clock.move(1)
        await until(lambda: len(service.taken) == 5)
        assert sent(service)[3:] == [("activated", CRITICAL), ("repeated", CRITICAL)]


@on_loop
async def test_while_the_service_is_away_only_the_latest_of_each_alarm_waits() -> None:
    async with webhook(max_queue=2) as (node, receivers, service):
        service.answer = lambda request: Reply(status=503)
        node.alarms.activate("overload", "too much")
        await until(lambda: receivers.get("duty")["state"] == "retrying")
        shown = receivers.get("duty")
        assert shown["reason"] == shown["last_error"] == "the service answered with status 503"
        [failing] = [
            alarm for alarm in node.alarms.active() if alarm.name.startswith("alarm_receiver")
        ]
        assert (failing.name, failing.page) == (
            "alarm_receiver_failing:duty",
            "/alarm-receivers/duty",
        )
        node.alarms.activate(CRITICAL, "it failed")
        for _ in range(10):
            node.alarms.deactivate(CRITICAL)
            node.alarms.activate(CRITICAL, "it failed again")
        node.alarms.deactivate(CRITICAL)
        assert receivers.get("duty")["waiting"] == 2
        node.alarms.activate(WARNING, "it is late")
        assert (receivers.get("duty")["waiting"], receivers.get("duty")["dropped"]) == (2, 1)
        service.answer = lambda request: Reply()
        await until(lambda: len(service.taken) == 2)
        assert sent(service) == [("deactivated", CRITICAL), ("activated", WARNING)]
        await until(lambda: receivers.get("duty")["last_error"] is None)
        assert {alarm.name for alarm in node.alarms.active()} == {WARNING, "overload"}


@on_loop
async def test_a_request_that_is_refused_is_dropped_and_does_not_hold_up_others() -> None:
    async with webhook() as (node, receivers, service):
        service.answer = lambda request: Reply(
            status=400 if request.json()["name"] == WARNING else 200
        )
        node.alarms.activate(WARNING, "it is late")
        node.alarms.activate(CRITICAL, "it failed")
        await until(lambda: service.taken)
        assert receivers.get("duty")["dropped"] == 1
        assert node.metrics.value("alarm_notifications_dropped") == 1


@on_loop
async def test_a_template_makes_the_body() -> None:
    body = '{"text": "${text}", "table": ${details.table}, "gone": ${details.gone}}'
    async with webhook(body=body) as (node, _, service):
        node.alarms.activate(WARNING, 'it is "late"', table='ro"oms')
        await until(lambda: service.taken)
        assert service.taken[0].json() == {
            "text": f'{WARNING} is active (warning): it is "late"',
            "table": 'ro"oms',
            "gone": None,
        }


@on_loop
async def test_a_topic_gets_notifications_that_later_subscribers_see_too() -> None:
    spec = {"type": "topic", "topic": "alarms/${name}", "qos": 1, "retain": True}
    async with receiving(spec) as (node, _):
        client = await node.client("phone")
        await client.subscribe(SubscriptionRequest("alarms/#", qos=1))
        node.alarms.activate(WARNING, "it is late")
        message = await client.expect(Publish)
        assert message.topic == f"alarms/{WARNING}"
        assert b'"event":"activated"' in message.payload
        assert node.server.hub.retained.get(f"alarms/{WARNING}") is not None


class Mailbox:
    """Keeps what a real SMTP server accepts."""

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        self.envelopes.append(envelope)
        return "250 kept"


def _check_login(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
    is_right = isinstance(data, LoginPassword) and data.password == b"pencil"
    return AuthResult(success=is_right, handled=False)


@asynccontextmanager
async def mail_server(directory: Path) -> AsyncIterator[tuple[Mailbox, dict[str, Any]]]:
    authority = Authority(directory)
    files = authority.sign("smtp", {"CN": "localhost"}, ["localhost"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.cert, files.key)
    mailbox = Mailbox()
    loop = asyncio.get_running_loop()

    def protocol() -> SMTP:
        return SMTP(
            mailbox,
            hostname="127.0.0.1",
            tls_context=context,
            require_starttls=True,
            authenticator=_check_login,
            auth_required=True,
            loop=loop,
        )

    server = await loop.create_server(protocol, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        yield (
            mailbox,
            {
                "type": "email",
                "host": "localhost",
                "port": port,
                "ssl": {"cacertfile": str(authority.file)},
                "username": "plant",
                "password": "pencil",
                "sender": "broker@example.com",
                "to": ["ann@example.com", "bob@example.com"],
            },
        )
    finally:
        server.close()
        await server.wait_closed()


@on_loop
async def test_an_email_goes_by_starttls_and_login_to_all_addresses(tmp_path: Path) -> None:
    async with (
        mail_server(tmp_path) as (mailbox, spec),
        receiving(spec) as (node, receivers),
    ):
        node.alarms.activate(CRITICAL, "it is not filled: größer", table="rooms")
        await until(lambda: mailbox.envelopes or receivers.get("duty")["last_error"])
        assert receivers.get("duty")["last_error"] is None
        [envelope] = mailbox.envelopes
        assert envelope.rcpt_tos == ["ann@example.com", "bob@example.com"]
        assert isinstance(envelope.content, bytes)
        mail = message_from_bytes(envelope.content, policy=policy.default)
        assert mail["Subject"] == f"[plant] critical: {CRITICAL} is active"
        text = mail.get_content()
        assert "it is not filled: größer" in text
        assert "table: rooms" in text


@on_loop
async def test_tests_say_step_by_step_what_is_wrong_and_repeat_no_password(tmp_path: Path) -> None:
    async with (
        mail_server(tmp_path) as (mailbox, spec),
        receiving(spec) as (_, receivers),
    ):
        tested = await receivers.test("duty")
        assert [step["result"] for step in tested["steps"]] == ["ok", "ok"]
        assert len(mailbox.envelopes) == 1
        wrong = {**receivers.get("duty"), "password": "a wrong pencil"}
        tested = await receivers.probe(wrong)
        assert not tested["ok"]
        resolve, send = tested["steps"]
        assert (resolve["result"], send["result"]) == ("ok", "failed")
        assert "535" in send["message"]
        assert "pencil" not in str(tested)
        # stars stand for the stored password, but not at another server
        assert (await receivers.probe(receivers.get("duty")))["ok"]
        with pytest.raises(Invalid) as caught:
            await receivers.probe({**receivers.get("duty"), "port": 1})
        assert "send the secret again" in caught.value.problems[0].message
        untrusted = {**wrong, "name": "new", "password": "pencil", "ssl": {}}
        _, send = (await receivers.probe(untrusted))["steps"]
        assert "certificate verify failed" in send["message"]


@on_loop
async def test_addresses_that_the_broker_must_not_call_are_refused() -> None:
    for spec in (
        {"type": "webhook", "url": "http://127.0.0.1:9/"},
        {"type": "email", "host": "127.0.0.1", "sender": "a@b.c", "to": ["a@b.c"]},
    ):
        async with receiving(spec, enable=True) as (_, receivers):
            [failed, *_] = [
                step for step in (await receivers.test("duty"))["steps"] if step["message"]
            ]
            assert "rule_engine.ssrf.deny_cidrs" in failed["message"]


@on_loop
async def test_a_server_that_never_answers_is_given_up_after_the_timeout() -> None:
    service = Service()
    await service.up()  # waits for a request, as an SMTP server never does
    spec = {"host": "127.0.0.1", "port": service.port, "sender": "a@b.c", "to": ["a@b.c"]}
    try:
        async with receiving({"type": "email", **spec, "timeout": 0.2}) as (_, receivers):
            [_, send] = (await receivers.test("duty"))["steps"]
            assert send["message"] in ("no answer within 0.2 s", "timed out")
    finally:
        await service.down()


@on_loop
async def test_a_receiver_that_is_disabled_or_deleted_sends_nothing() -> None:
    async with webhook() as (node, receivers, service):
        assert receivers.enable("duty", False)["state"] == "disabled"
        node.alarms.activate(WARNING, "it is late")
        assert receivers.get("duty")["waiting"] == 0
        receivers.enable("duty", True)
        await until(lambda: service.taken)
        receivers.delete("duty")
        node.alarms.activate(CRITICAL, "it failed")
        assert len(receivers.list()) == 0
        assert len(service.taken) == 1


@pytest.mark.parametrize(
    ("spec", "pointer", "text"),
    [
        ({"type": "pigeon"}, "/type", "expected webhook, topic or email, got 'pigeon'"),
        ({}, "/type", "expected webhook, topic or email, got None"),
        ({"type": "webhook", "url": "ftp://x"}, "/url", "Try: https://host/path"),
        ({"type": "webhook", "url": "http://[x"}, "/url", "Try: https://host/path"),
        ({"type": "webhook", "url": "http://ann:pw@x"}, "/url", "without a user"),
        ({"type": "webhook", "url": "http://x", "headers": {"a b": "c"}}, "/headers", "header"),
        ({"type": "webhook", "url": "http://x", "body": "${a[1]}"}, "/body", "placeholder"),
        ({"type": "webhook", "url": "http://x", "repeat_interval": 0.5}, "/repeat_interval", "0 or"),
        ({"type": "webhook", "url": "http://x", "min_severity": "bad"}, "/min_severity", "critical"),
        ({"type": "topic", "topic": "a/#"}, "/topic", "#"),
        ({"type": "topic", "topic": "$SYS/x"}, "/topic", "clients may use"),
        ({"type": "topic", "topic": "a", "payload": "${secret:x}"}, "/payload", "secret"),
        ({"type": "email", "host": "x", "sender": "a", "to": ["a@b.c"]}, "/sender", "e-mail"),
        (
            {
                "type": "email", "host": "x", "sender": "a@b.c", "to": ["a@b.c"],
                "username": "u", "password": "p", "encryption": "none",
            },
            "/password",
            "readable",
        ),
    ],
)  # fmt: skip
@on_loop
async def test_settings_that_cannot_be_used_are_refused_with_their_place(
    spec: Spec, pointer: str, text: str
) -> None:
    async with running() as node:
        with pytest.raises(Invalid) as caught:
            service_of(node).create({"name": "duty", **spec})
        assert any(
            (problem.pointer or "").startswith(pointer) and text in problem.message
            for problem in caught.value.problems
        ), caught.value.problems
