"""Clients that log in with a token: what they are told, what they may, and what becomes of them when it ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.codec.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    Publish,
    SubscriptionRequest,
    Will,
)
from broker.core import reason
from tests.support.access import BUILTIN, access
from tests.support.http_service import Reply
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.tokens import NOW_S, SECRET, Issuer, jwk, of_issuer, signed
from tests.support.wire import WireClient

JWT: dict[str, Any] = {"mechanism": "jwt", "secret": SECRET}
METHOD, DATA = "Authentication-Method", "Authentication-Data"


async def answer(node: Node, token: str | None, version: int = 5, **connect: Any) -> int:
    """The code of the CONNACK to a client with this token."""
    wire = await WireClient.open(node.port, version)
    password = None if token is None else token.encode()
    wire.send(
        Connect(
            connect.pop("client_id", "c1"), version, password=password, username="ann", **connect
        )
    )
    code = (await wire.expect(ConnAck)).reason_code
    await wire.close()
    return code


async def logged_in(node: Node, token: str, method: str = "JWT", **connect: Any) -> WireClient:
    """A client that logged in by enhanced authentication."""
    wire = await WireClient.open(node.port, 5)
    wire.send(Connect("c1", 5, properties={METHOD: method, DATA: token.encode()}, **connect))
    connack = await wire.expect(ConnAck)
    assert (connack.reason_code, connack.properties[METHOD]) == (0, method)
    return wire


def renew(token: str, method: str = "JWT") -> Auth:
    return Auth(reason.REAUTHENTICATE, {METHOD: method, DATA: token.encode()})


@on_loop
async def test_a_token_logs_in_and_others_are_refused() -> None:
    async with running(access=access([JWT])) as node:
        for version, (good, bad, forbidden) in {4: (0, 4, 5), 5: (0, 0x86, 0x87)}.items():
            assert await answer(node, signed(), version) == good
            assert await answer(node, signed(key=SECRET + "x"), version) == bad
            assert await answer(node, signed({"exp": NOW_S - 60}), version) == bad
            assert await answer(node, signed({"acl": 7}), version) == forbidden
            assert await answer(node, "pencil", version) == bad
        assert node.metrics.value("jwt_refused", reason="signature") == 2
        assert node.metrics.value("jwt_refused", reason="expired") == 2
        assert node.metrics.value("authentication_denied") == 6
        assert node.metrics.value("authentication_undecided") == 2


@on_loop
async def test_users_with_passwords_stand_beside_clients_with_tokens() -> None:
    async with running(access=access([JWT, *BUILTIN])) as node:
        await node.client("c1", 5, username="ann", password=b"pencil")
        await node.client("c2", 5, username="ann", password=signed().encode())
        assert await answer(node, "guessed") == reason.BAD_USER_NAME_OR_PASSWORD
        assert await answer(node, signed(key="x" * 40)) == reason.BAD_USER_NAME_OR_PASSWORD


@on_loop
async def test_the_rules_of_a_token_restrict_its_client_and_no_other() -> None:
    token = signed({"acl": {"pub": ["up/#"], "sub": ["down/#"]}})
    async with running(access=access([JWT])) as node:
        wire = await node.client("c1", 5, password=token.encode())
        wire.send(Publish("up/1", b"x", 1, packet_id=1), Publish("other", b"x", 1, packet_id=2))
        assert (await wire.expect(PubAck)).reason_code == reason.NO_MATCHING_SUBSCRIBERS
        assert (await wire.expect(PubAck)).reason_code == reason.NOT_AUTHORIZED
        assert await wire.subscribe(SubscriptionRequest("down/1"), SubscriptionRequest("#")) == [
            0,
            0x87,
        ]
        assert node.dropped("not_authorized") == 1
        free = await node.client("c2", 5, password=signed().encode())
        assert await free.subscribe(SubscriptionRequest("#")) == [0]
        assert (
            await answer(node, token, will=Will("other", b"x"), client_id="c3")
            == reason.NOT_AUTHORIZED
        )


@on_loop
async def test_the_rules_of_a_token_stand_before_others() -> None:
    rules = [{"permission": "deny", "topics": ["a/#"]}, {"permission": "allow", "topics": ["b/#"]}]
    own = [{"permission": "allow", "topic": "a/1"}, {"permission": "deny", "topic": "b/1"}]
    async with running(access=access([JWT], rules=rules)) as node:
        wire = await node.client("c1", 5, password=signed({"acl": own}).encode())
        asked = ["a/1", "a/2", "b/1", "b/2", "c"]
        assert await wire.subscribe(*map(SubscriptionRequest, asked)) == [0, 0x87, 0x87, 0, 0x87]
        root = await node.client(
            "c2", 5, password=signed({"acl": own, "is_superuser": True}).encode()
        )
        assert await root.subscribe(*map(SubscriptionRequest, asked)) == [0] * 5


@on_loop
async def test_attributes_of_a_token_are_the_clients() -> None:
    rules = [{"permission": "allow", "topics": ["site/${client_attrs.site}/#"]}]
    async with running(access=access([JWT], rules=rules)) as node:
        wire = await node.client(
            "c1", 5, password=signed({"client_attrs": {"site": "berlin"}}).encode()
        )
        asked = [SubscriptionRequest("site/berlin/#"), SubscriptionRequest("site/rome/#")]
        assert await wire.subscribe(*asked) == [0, 0x87]


@on_loop
async def test_no_event_shows_the_token() -> None:
    token, names = signed(), frozenset(("client.connack", "client.connected", "client.ping"))
    async with running(access=access([JWT])) as node:
        node.events.want(names)
        client = await logged_in(node, token)
        await client.silence()
        refused = await WireClient.open(node.port, 5)
        refused.send(Connect("c2", 5, properties={METHOD: "JWT", DATA: b"secret-of-nobody"}))
        assert (await refused.expect(ConnAck)).reason_code == reason.BAD_USER_NAME_OR_PASSWORD
        told = [columns for name, columns in node.seen if name in names]
        assert len(told) >= 4
        assert all(
            columns["conn_props"][METHOD] == "JWT" and DATA not in columns["conn_props"]
            for columns in told
        )
        assert not any(secret in str(told) for secret in (token, "secret-of-nobody"))


# -- the end of a token --


@on_loop
async def test_a_client_is_disconnected_when_its_token_ends() -> None:
    async with running(access=access([{**JWT, "leeway": 0}])) as node:
        watcher = await node.client("watcher", 5, password=signed({"exp": NOW_S + 9999}).encode())
        await watcher.subscribe(SubscriptionRequest("will"))
        password, will = signed({"exp": NOW_S + 60}).encode(), Will("will", b"gone")
        five = await node.client("five", 5, password=password, will=will)
        three = await node.client("three", 4, username="three", password=password)
        assert node.metrics.value("credentials_watched") == 3
        node.pass_time(59)
        await five.silence()
        await three.silence()
        node.pass_time(1)
        assert (await five.expect(Disconnect)).reason_code == reason.MAXIMUM_CONNECT_TIME
        assert await three.closed() == []
        assert (await watcher.expect(Publish)).payload == b"gone"
        assert node.metrics.value("credentials_expired") == 2
        assert node.metrics.value("credentials_watched") == 1
        assert await answer(node, signed({"exp": NOW_S + 60})) == reason.BAD_USER_NAME_OR_PASSWORD


@on_loop
async def test_a_client_may_stay_where_that_was_said() -> None:
    async with running(access=access([{**JWT, "disconnect_after_expire": False}])) as node:
        wire = await node.client("c1", 5, password=signed().encode())
        node.pass_time(10_000)
        await wire.silence()


@on_loop
async def test_many_that_end_at_once_end_in_turns() -> None:
    async with running(access=access([JWT])) as node:
        wires = [
            await node.client(f"c{number}", 5, password=signed().encode()) for number in range(250)
        ]
        node.pass_time(71)
        assert node.metrics.value("credentials_expired") == 200
        await node.until(lambda: node.metrics.value("credentials_expired") == 250)
        for wire in wires:
            assert (await wire.expect(Disconnect)).reason_code == reason.MAXIMUM_CONNECT_TIME
        assert node.metrics.value("credentials_watched") == 0


@on_loop
async def test_one_that_is_gone_is_not_watched() -> None:
    async with running(access=access([JWT])) as node:
        wire = await node.client("c1", 5, password=signed().encode())
        wire.send(Disconnect())
        await wire.closed()
        await node.until(lambda: node.metrics.value("credentials_watched") == 0)
        node.pass_time(100)
        assert node.metrics.value("credentials_expired") == 0


# -- enhanced authentication --


@on_loop
async def test_a_client_renews_its_token_while_it_is_connected() -> None:
    async with running(access=access([JWT])) as node:
        wire = await logged_in(node, signed({"acl": {"pub": ["a"]}}))
        node.pass_time(50)
        wire.send(
            renew(signed({"exp": NOW_S + 200, "acl": {"pub": ["b"]}})),
            Publish("a", b"x", 1, packet_id=1),
        )
        assert (await wire.expect(Auth)).reason_code == reason.SUCCESS
        assert (await wire.expect(PubAck)).reason_code == reason.NOT_AUTHORIZED  # by the new rules
        wire.send(Publish("b", b"x", 1, packet_id=2))
        assert (await wire.expect(PubAck)).reason_code == reason.NO_MATCHING_SUBSCRIBERS
        node.pass_time(100)
        await wire.silence()
        node.pass_time(100)
        assert (await wire.expect(Disconnect)).reason_code == reason.MAXIMUM_CONNECT_TIME


@on_loop
async def test_a_subscription_that_the_new_token_does_not_allow_is_taken_away() -> None:
    async with running(access=access([JWT])) as node:
        wire = await logged_in(node, signed({"acl": {"all": ["a", "b"]}}))
        assert await wire.subscribe(SubscriptionRequest("a"), SubscriptionRequest("b")) == [0, 0]
        wire.send(renew(signed({"acl": {"all": ["b"]}})))
        await wire.expect(Auth)
        other = await node.client("c2", 5, password=signed().encode())
        other.send(Publish("a", b"1"), Publish("b", b"2"))
        assert (await wire.expect(Publish)).topic == "b"


@pytest.mark.parametrize(
    "token", ["pencil", signed(key="x" * 40), signed({"sub": "bob"})], ids=["none", "bad", "bob"]
)
def test_a_renewal_that_fails_ends_the_connection(token: str) -> None:
    @on_loop
    async def check() -> None:
        async with running(access=access([{**JWT, "username_claim": "sub"}])) as node:
            wire = await logged_in(node, signed({"sub": "ann"}))
            wire.send(renew(token))
            assert (await wire.expect(Disconnect)).reason_code == reason.NOT_AUTHORIZED

    check()


@on_loop
async def test_the_token_may_come_as_sasl_carries_it_or_when_it_is_asked_for() -> None:
    async with running(access=access([JWT])) as node:
        await logged_in(node, f"n,a=ann,\x01auth=Bearer {signed()}\x01\x01", "OAUTHBEARER")
        wire = await WireClient.open(node.port, 5)
        wire.send(Connect("c1", 5, properties={METHOD: "JWT"}))
        assert (await wire.expect(Auth)).reason_code == reason.CONTINUE_AUTHENTICATION
        wire.send(Auth(reason.CONTINUE_AUTHENTICATION, {METHOD: "JWT", DATA: signed().encode()}))
        assert (await wire.expect(ConnAck)).reason_code == 0


@pytest.mark.parametrize(
    ("method", "data", "code"),
    [
        ("JWT", b"\xff", reason.NOT_AUTHORIZED), ("JWT", b"pencil", reason.BAD_USER_NAME_OR_PASSWORD),
        ("JWT", signed(key="x" * 40).encode(), reason.BAD_USER_NAME_OR_PASSWORD),
        ("OAUTHBEARER", signed().encode(), reason.NOT_AUTHORIZED),
        ("OAUTHBEARER", b"p=tls-unique,,\x01auth=Bearer x\x01\x01", reason.NOT_AUTHORIZED),
        ("OAUTHBEARER", b"n,,\x01host=x\x01\x01", reason.NOT_AUTHORIZED),
        ("OTHER", b"x", reason.BAD_AUTHENTICATION_METHOD),
    ],
    ids=["bytes", "text", "signature", "bare", "binding", "none", "method"],
)  # fmt: skip
def test_authentication_data_that_is_no_token_is_refused(
    method: str, data: bytes, code: int
) -> None:
    @on_loop
    async def check() -> None:
        async with running(access=access([JWT])) as node:
            wire = await WireClient.open(node.port, 5)
            wire.send(Connect("c1", 5, properties={METHOD: method, DATA: data}))
            assert (await wire.expect(ConnAck)).reason_code == code

    check()


@on_loop
async def test_methods_that_are_not_offered_are_not_known() -> None:
    async with running(access=access([{**JWT, "methods": []}])) as node:
        assert await answer(node, None, properties={METHOD: "JWT", DATA: signed().encode()}) == 0x8C
        assert await answer(node, signed()) == 0


# -- keys that have to be waited for --


@on_loop
async def test_logins_wait_for_the_issuers_keys_and_others_do_not() -> None:
    issuer = Issuer(jwk("a"))
    chain = [{"mechanism": "jwt", "jwks_url": issuer.url, "allow_http": True}, *BUILTIN]
    async with issuer.service, running(access=access(chain)) as node:
        node.server.hub.tick()
        await node.until(lambda: node.metrics.value("jwks_keys") == 1)
        issuer.keys = [jwk("b")]
        node.pass_time(10)
        gate = issuer.reply = Reply(waits_for=asyncio.Event())
        wire = await WireClient.open(node.port, 5)
        wire.send(
            Connect("c1", 5, password=of_issuer("b").encode()),
            Publish("t", b"early", 1, packet_id=1),
        )
        await node.until(lambda: node.metrics.value("logins_waiting") == 1)
        await node.client("c2", 5, username="ann", password=b"pencil")
        issuer.reply = None
        gate.body = issuer.body
        assert gate.waits_for is not None
        gate.waits_for.set()
        assert (await wire.expect(ConnAck)).reason_code == 0
        assert (await wire.expect(PubAck)).reason_code == reason.NO_MATCHING_SUBSCRIBERS
        node.server.hub.access.authenticators.close()


@on_loop
async def test_a_renewal_may_wait_for_the_issuers_keys() -> None:
    issuer = Issuer(jwk("a"))
    chain = [{"mechanism": "jwt", "jwks_url": issuer.url, "allow_http": True}]
    async with issuer.service, running(access=access(chain)) as node:
        wire = await logged_in(node, of_issuer("a"))
        issuer.keys = [jwk("b")]
        node.pass_time(10)
        wire.send(
            renew(of_issuer("b", {"acl": {"pub": ["b"]}})), Publish("a", b"x", 1, packet_id=1)
        )
        assert (await wire.expect(Auth)).reason_code == reason.SUCCESS
        assert (await wire.expect(PubAck)).reason_code == reason.NOT_AUTHORIZED
        node.pass_time(10)
        wire.send(renew(of_issuer("made-up")))
        assert (await wire.expect(Disconnect)).reason_code == reason.NOT_AUTHORIZED
        node.server.hub.access.authenticators.close()
