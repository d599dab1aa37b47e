"""Clients that an HTTP service decides about, on the wire: its answers, its absence, and the limits of asking it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from broker.auth.backends.http import HttpAuthenticatorSettings
from broker.codec.packets import ConnAck, Connect, PubAck, Publish
from broker.core import jsontext, reason
from tests.support.access import BUILTIN, access
from tests.support.http_service import Received, Reply, Service
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.wire import WireClient

SETTINGS: dict[str, Any] = {"mechanism": "http"}
ALARM = "authenticator_unavailable:http"


def answers(**members: Any) -> Callable[[Received], Reply]:
    """A service that answers every request alike."""
    return lambda request: Reply(body=jsontext.encode(members))


async def code_of(
    node: Node, username: str | None = "ann", password: str | None = "pencil", **connect: Any
) -> int:
    """The code of the CONNACK."""
    wire = await WireClient.open(node.port, 5)
    sent = None if password is None else password.encode()
    wire.send(
        Connect(connect.pop("client_id", "c1"), 5, username=username, password=sent, **connect)
    )
    code = (await wire.expect(ConnAck)).reason_code
    await wire.close()
    return code


def chain(service: Service, **settings: Any) -> dict[str, Any]:
    return {**SETTINGS, "url": f"{service.url}/auth", **settings}


def alarms(node: Node) -> list[str]:
    return [alarm.name for alarm in node.alarms.active()]


@on_loop
async def test_a_client_is_let_in_with_what_the_service_says_of_it() -> None:
    rule = {"permission": "allow", "action": "publish", "topic": "${client_attrs.tenant}/#"}
    allow = answers(result="allow", client_attrs={"tenant": "acme"}, acl=[rule])
    async with (
        Service(allow) as service,
        running(access=access([chain(service)], no_match="deny")) as node,
    ):
        client = await node.client("c1", 5, username="ann", password=b"pencil")
        assert service.received[0].json() == {
            "username": "ann", "password": "pencil", "clientid": "c1", "peerhost": "127.0.0.1",
        }  # fmt: skip
        for number, (topic, code) in enumerate(
            {"acme/a": 0x10, "other/a": reason.NOT_AUTHORIZED}.items(), 1
        ):
            client.send(Publish(topic, b"", 1, packet_id=number))
            assert (await client.expect(PubAck)).reason_code == code
        await client.silence()


@on_loop
@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (Reply(status=204, body=b""), 0),
        (Reply(body=b'{"result": "allow"}'), 0),
        (Reply(body=b'{"result": "allow", "expire_at": 1}'), reason.BAD_USER_NAME_OR_PASSWORD),
        (Reply(body=b'{"result": "deny"}'), reason.BAD_USER_NAME_OR_PASSWORD),
        (Reply(status=500), reason.SERVER_UNAVAILABLE),
        (Reply(status=403), reason.SERVER_UNAVAILABLE),
        (Reply(body=b"{}"), reason.SERVER_UNAVAILABLE),
        (Reply(body=b"not json"), reason.SERVER_UNAVAILABLE),
        (Reply(body=b'{"result": "allow", "acl": 7}'), reason.SERVER_UNAVAILABLE),
        (Reply(body=b'{"result": "allow", "expire_at": "soon"}'), reason.SERVER_UNAVAILABLE),
        (Reply(body=b'{"result": "allow", "client_attrs": {"a": 1}}'), reason.SERVER_UNAVAILABLE),
        (Reply(body=b" " * 300_000), reason.SERVER_UNAVAILABLE),
    ],
)
async def test_an_answer_and_the_code_for_the_client(reply: Reply, code: int) -> None:
    async with (
        Service(lambda request: reply) as service,
        running(access=access([chain(service)])) as node,
    ):
        assert await code_of(node) == code
        assert alarms(node) == []  # it answers


@on_loop
async def test_ignore_asks_the_next_authenticator() -> None:
    async with (
        Service(answers(result="ignore")) as service,
        running(access=access([chain(service), *BUILTIN])) as node,
    ):
        assert await code_of(node) == 0
        assert await code_of(node, password="wrong") == reason.BAD_USER_NAME_OR_PASSWORD


@on_loop
async def test_while_the_service_is_away_clients_are_refused_and_connected_ones_stay() -> None:
    async with (
        Service(answers(result="allow")) as service,
        running(access=access([chain(service)])) as node,
    ):
        connected = await node.client("stays", 5, username="ann", password=b"pencil")
        await service.down()
        assert await code_of(node) == reason.SERVER_UNAVAILABLE
        assert alarms(node) == [ALARM]
        state = node.server.hub.access.authenticators.state_of("http")
        assert state is not None
        assert state["backend"]["status"] == "away"
        await connected.silence()
        await service.up()
        node.pass_time(2)
        await node.until(lambda: alarms(node) == [])
        assert await code_of(node) == 0


@on_loop
async def test_a_service_that_is_away_can_be_passed_over() -> None:
    async with Service(answers(result="deny")) as service:
        settings = chain(service, on_unavailable="ignore")
        async with running(access=access([settings, *BUILTIN])) as node:
            assert await code_of(node) == reason.BAD_USER_NAME_OR_PASSWORD
            await service.down()
            assert await code_of(node) == 0
            assert await code_of(node, password="wrong") == reason.BAD_USER_NAME_OR_PASSWORD


@on_loop
async def test_a_service_that_does_not_answer_is_away_after_the_timeout() -> None:
    never = asyncio.Event()
    async with (
        Service(lambda request: Reply(waits_for=never)) as service,
        running(access=access([chain(service, timeout="100ms")])) as node,
    ):
        assert await code_of(node) == reason.SERVER_UNAVAILABLE
        assert alarms(node) == [ALARM]


@on_loop
async def test_connections_and_waiting_clients_are_limited() -> None:
    go_on = asyncio.Event()
    reply = Reply(body=b'{"result": "allow"}', waits_for=go_on)
    async with Service(lambda request: reply) as service:
        settings = chain(service, pool_size=2, max_waiting=3)
        async with running(access=access([settings])) as node:
            codes = [
                asyncio.create_task(code_of(node, client_id=f"c{number}")) for number in range(8)
            ]
            await node.until(lambda: sum(task.done() for task in codes) == 3)
            assert [task.result() for task in codes if task.done()] == [reason.SERVER_BUSY] * 3
            await node.until(lambda: service.most_at_once == 2)
            go_on.set()
            assert sorted(await asyncio.gather(*codes)) == [0] * 5 + [reason.SERVER_BUSY] * 3
            assert service.most_at_once == 2


@on_loop
async def test_accepted_clients_are_remembered_within_their_time() -> None:
    async with (
        Service(answers(result="allow")) as service,
        running(access=access([chain(service, cache={"ttl": "1m"})])) as node,
    ):
        for _ in range(3):
            assert await code_of(node) == 0
        assert len(service.received) == 1
        service.answer = answers(result="deny")
        for _ in range(2):
            assert await code_of(node, password="other") == reason.BAD_USER_NAME_OR_PASSWORD
        assert len(service.received) == 3
        node.clock.move(61)
        assert await code_of(node) == reason.BAD_USER_NAME_OR_PASSWORD


@on_loop
async def test_results_take_no_more_memory_than_allowed() -> None:
    cache = {"ttl": "1h", "max_bytes": 5000}
    async with (
        Service(answers(result="allow")) as service,
        running(access=access([chain(service, cache=cache)])) as node,
    ):
        for number in range(20):
            assert await code_of(node, client_id=f"c{number}") == 0
        state = node.server.hub.access.authenticators.state_of("http")
        assert state is not None
        assert 600 <= state["backend"]["remembered_bytes"] <= 5000
        assert await code_of(node, client_id="c19") == 0
        assert await code_of(node, client_id="c0") == 0
        assert len(service.received) == 21


@on_loop
async def test_values_are_encoded_for_where_they_are() -> None:
    async with Service(answers(result="allow")) as service:
        hostile = 'a&b=c/../"}'
        settings = chain(
            service,
            url=f"{service.url}/auth/${{username}}?from=${{peerhost}}",
            method="get",
            body={"client": "${clientid}"},
            headers={"x-client": "id ${clientid}"},
        )
        async with running(access=access([settings])) as node:
            assert await code_of(node, username=hostile, client_id="c 1&x=y") == 0
            request = service.received[0]
            assert request.path == "/auth/a%26b%3Dc%2F..%2F%22%7D"
            assert request.query == {"from": "127.0.0.1", "client": "c 1&x=y"}
            assert request.header("x-client") == "id c 1&x=y"
            for step in (".", ".."):  # would lead to another path of the service
                assert (
                    await code_of(node, username=step, client_id="c2") == reason.SERVER_UNAVAILABLE
                )
            assert len(service.received) == 1


@on_loop
async def test_a_form_is_sent_where_the_content_type_says_so() -> None:
    async with Service(answers(result="allow")) as service:
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        async with running(
            access=access([chain(service, headers=headers, body={"user": "${username}"})])
        ) as node:
            assert await code_of(node, username="a&b") == 0
            assert service.received[0].body == b"user=a%26b"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"url": "ftp://host/"}, "expected an address"),
        ({"url": "http://${username}/"}, "fixed host"),
        ({"url": "http://u:p@host/"}, "without a user"),
        ({"url": "http://host/${nothing}"}, "got ${nothing}"),
        ({"url": "http://host/", "body": {"a": "${ username }"}}, "got ${ username }"),
        ({"url": "http://host/", "body": {"a": "${secret:x}"}}, "body.a"),
        ({"url": "http://host/", "headers": {"a b": "c"}}, "name of a header"),
        ({"url": "http://host/", "headers": {"host": "c"}}, "the broker sets it"),
        (
            {"url": "http://host/", "headers": {"a": "Bearer ${secret:x}"}},
            "reference to a secret alone",
        ),
    ],
)
def test_settings_that_cannot_be_used_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError) as raised:
        HttpAuthenticatorSettings.model_validate({**SETTINGS, **settings})
    assert problem in str(raised.value)
