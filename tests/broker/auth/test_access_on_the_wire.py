"""What clients are told when they may not: passwords, rules, bans, and identifiers that go to and fro."""

from __future__ import annotations

from threading import Event
from typing import Any

import pytest

from broker.auth.passwords import hashed
from broker.codec.packets import (
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    Publish,
    PubRec,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from broker.core import reason
from broker.core.errors import Invalid, Unavailable
from broker.observe.ledger import ledger
from broker.storage.memory import MemoryStore
from tests.support.access import BUILTIN, USERS, access, from_afar, proxied, use_rules
from tests.support.lateness import observed
from tests.support.mqtt_server import GatedStore, Node, on_loop, running
from tests.support.processor import is_within
from tests.support.wire import WireClient

ANN: dict[str, Any] = {"username": "ann", "password": b"pencil"}
ROOT: dict[str, Any] = {"username": "root", "password": b"paper"}
BAD = reason.BAD_USER_NAME_OR_PASSWORD
RULES: list[dict[str, Any]] = [
    {
        "permission": "allow",
        "action": "publish",
        "qos": [0, 1],
        "retain": False,
        "topics": ["up/${username}/#"],
    },
    {"permission": "allow", "action": "subscribe", "topics": ["down/${username}/#", "all/#"]},
    {"permission": "deny", "topics": ["all/#"]},
]
RESTRICTED = access(BUILTIN, rules=RULES)


async def refused(node: Node, connect: Connect) -> int:
    """The code of the CONNACK that closes."""
    wire = await WireClient.open(node.port, connect.version)
    wire.send(connect)
    code = (await wire.expect(ConnAck)).reason_code
    with pytest.raises(ConnectionError):
        await wire.receive()
    return code


# -- passwords --


@on_loop
async def test_a_client_with_the_password_is_taken_and_others_are_refused() -> None:
    async with running(access=access(BUILTIN)) as node:
        for version in (4, 5):
            await node.client(f"c{version}", version, **ANN)
            wrong, unknown = {**ANN, "password": b"x"}, {**ANN, "username": "nobody"}
            bad, anonymous = (BAD, reason.NOT_AUTHORIZED) if version == 5 else (4, 5)
            assert await refused(node, Connect("d", version, **wrong)) == bad
            assert await refused(node, Connect("d", version, **unknown)) == bad
            assert await refused(node, Connect("d", version)) == anonymous


@on_loop
async def test_a_password_that_takes_long_to_check_is_checked_beside_other_traffic() -> None:
    users = [await made_user("slow", "secret", 4096)]
    async with running(access=access(BUILTIN, users=[*users, *USERS])) as node:
        slow = await WireClient.open(node.port, 5)
        slow.send(Connect("s", 5, username="slow", password=b"secret"), Publish("t", b"early"))
        await slow.expect(ConnAck)
        assert await refused(node, Connect("s2", 5, username="slow", password=b"wrong")) == BAD
        await node.client("s3", 5, username="slow", password=b"secret")  # remembered
        assert node.metrics.value("messages_received", qos="0") == 1


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    "password", ["\u0301\u0316" * 11_000, "\ufdfa" * 15_000, "\u0301\u0316" * 256, "é" * 512]
)
@on_loop
async def test_no_name_or_password_keeps_the_loop_busy(password: str, version: int) -> None:
    made = [await made_user("slow", "secret", 4096), {"name": "generated", "password": "x"}]
    async with running(access=access(BUILTIN, users=made)) as node, observed() as lateness:
        bad = BAD if version == 5 else 4
        for name, said in [
            *((name, password) for name in ("slow", "generated", "nobody")),
            (password, "x"),
        ]:
            assert (
                await refused(node, Connect("d", version, username=name, password=said.encode()))
                == bad
            )
        if version == 5:
            first = {
                "Authentication-Method": "SCRAM-SHA-256",
                "Authentication-Data": f"n,,n={password},r=x".encode(),
            }
            wire = await WireClient.open(node.port, 5)
            wire.send(Connect("d", 5, properties=first))
            await wire.receive()
        assert is_within(await lateness.take(), 0.03)


@on_loop
async def test_a_password_of_1024_bytes_is_right_and_a_longer_one_is_wrong() -> None:
    async with running(
        access=access(BUILTIN, users=[{"name": "long", "password": "é" * 512}])
    ) as node:
        await node.client("c", 5, username="long", password=("é" * 512).encode())
        for longer in (
            "é" * 512 + "x",
            "é" * 512 + "\u00ad",
        ):
            # the soft hyphen means nothing in SASLprep
            assert (
                await refused(node, Connect("d", 5, username="long", password=longer.encode()))
                == BAD
            )


@on_loop
async def test_a_login_that_waits_ends_with_its_connection_or_in_time() -> None:
    users = [await made_user("slow", "secret", 4096)]
    async with running(access=access(BUILTIN, users=users)) as node:
        block = Blocker(node)
        wire = await WireClient.open(node.port, 5)
        wire.send(Connect("s", 5, username="slow", password=b"secret"))
        await node.until(lambda: node.metrics.value("logins_waiting") == 1)
        node.pass_time(11)
        with pytest.raises(ConnectionError):
            await wire.receive()
        assert node.metrics.value("logins_waiting") == 0
        block.go_on()


@on_loop
async def test_logins_beyond_what_may_wait_are_told_that_the_broker_is_busy() -> None:
    users = [await made_user("slow", "secret", 4096)]
    async with running(
        access=access(BUILTIN, users=users, hashing={"threads": 1, "max_waiting": 1})
    ) as node:
        block = Blocker(node)
        waiting = [await WireClient.open(node.port, 5) for _ in range(2)]
        for number, wire in enumerate(waiting):
            wire.send(Connect(f"w{number}", 5, username="slow", password=b"secret"))
        await node.until(lambda: node.metrics.value("password_hashing") == 2)
        assert (
            await refused(node, Connect("s", 5, username="slow", password=b"secret"))
            == reason.SERVER_BUSY
        )
        block.go_on()
        for wire in waiting:
            await wire.expect(ConnAck)


@on_loop
async def test_a_user_with_a_client_identifier_may_use_no_other() -> None:
    async with running(access=access(BUILTIN)) as node:
        await node.client("dev-1", 5, username="dev", password=b"ruler")
        assert await refused(node, Connect("dev-2", 5, username="dev", password=b"ruler")) == BAD


@on_loop
async def test_users_may_be_found_by_the_client_identifier() -> None:
    chain = [{"mechanism": "builtin", "user_id_type": "clientid"}]
    rules = [
        {"permission": "allow", "topics": ["${clientid}/#"]},
        {"permission": "allow", "topics": ["u/${username}"]},
    ]
    async with running(access=access(chain, rules=rules)) as node:
        client = await node.client("ann", 5, username="root", password=b"pencil")
        assert await client.subscribe(
            SubscriptionRequest("ann/x"), SubscriptionRequest("u/root")
        ) == [0, 0x87]


# -- publishing --


@on_loop
async def test_publishes_that_are_not_allowed_are_answered_counted_and_go_nowhere() -> None:
    async with running(access=RESTRICTED) as node:
        reader = await node.client("r", 5, **ROOT)
        await reader.subscribe(SubscriptionRequest("#", 2))
        client = await node.client("a", 5, **ANN)
        client.send(
            Publish("up/ann/x", b"ok"),
            Publish("up/bob/x", b"no"),
            Publish("up/ann/x", b"kept", retain=True),
        )
        kinds: list[tuple[int, Any]] = [(1, PubAck), (2, PubRec)]
        for qos, kind in kinds:
            client.send(Publish("up/bob/x", b"no", qos, packet_id=qos))
            assert (await client.expect(kind)).reason_code == reason.NOT_AUTHORIZED
        client.send(Publish("up/ann/x", b"q1", 1, packet_id=3))
        assert (await client.expect(PubAck)).reason_code == 0
        assert [(await reader.expect(Publish)).payload for _ in range(2)] == [b"ok", b"q1"]
        assert node.dropped("not_authorized") == 4
        assert ledger(node.metrics).residual == 0


@on_loop
async def test_a_client_of_3_1_1_is_acknowledged_and_what_it_says_is_dropped() -> None:
    async with running(access=RESTRICTED) as node:
        client = await node.client("a", 4, **ANN)
        client.send(Publish("up/bob/x", b"no", 1, packet_id=1))
        assert (await client.expect(PubAck)).reason_code == 0
        assert await client.subscribe(
            SubscriptionRequest("down/bob/x"), SubscriptionRequest("down/ann/x", 1)
        ) == [
            0x80,
            1,
        ]
        assert node.dropped("not_authorized") == 1


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("what", ["qos 0", "qos 1", "subscribe"])
@on_loop
async def test_a_client_is_closed_for_it_where_that_is_set(version: int, what: str) -> None:
    async with running(access=access(BUILTIN, rules=RULES, deny_action="disconnect")) as node:
        client = await node.client("a", version, **ANN)
        if what == "subscribe":
            client.send(
                Subscribe(1, [SubscriptionRequest("down/ann/x"), SubscriptionRequest("down/bob/x")])
            )
        else:
            client.send(Publish("up/bob/x", b"no", int(what[-1]), packet_id=int(what[-1])))
        if version == 5:
            assert (await client.expect(Disconnect)).reason_code == reason.NOT_AUTHORIZED
        with pytest.raises(ConnectionError):
            await client.receive()
        assert node.dropped("not_authorized") == (what != "subscribe")


@on_loop
async def test_topics_are_remembered_within_bounds_and_verdicts_do_not_change_with_them() -> None:
    async with running(access=access(BUILTIN, rules=RULES, cache={"max_size": 2})) as node:
        client = await node.client("a", 5, **ANN)
        for turn in range(3):
            for name in ("up/ann/1", "up/bob/1", "up/ann/2", "up/bob/2"):
                client.send(Publish(name, b"x", 1, packet_id=1))
                code = (await client.expect(PubAck)).reason_code
                assert code == (
                    reason.NOT_AUTHORIZED if "bob" in name else reason.NO_MATCHING_SUBSCRIBERS
                ), turn
        permits = next(iter(node.server.hub.connections)).permits
        assert permits is not None
        assert max(len(verdicts) for verdicts in permits._verdicts) == 2


@on_loop
async def test_what_is_published_later_is_decided_over_by_its_own_topic() -> None:
    async with running(access=RESTRICTED) as node:
        client = await node.client("a", 5, **ANN)
        client.send(Publish("$delayed/1/up/ann/x", b"x", 1, packet_id=1))
        assert (await client.expect(PubAck)).reason_code < 0x80
        client.send(Publish("$delayed/1/up/bob/x", b"x", 1, packet_id=1))
        assert (await client.expect(PubAck)).reason_code == reason.NOT_AUTHORIZED


@on_loop
async def test_a_will_that_the_client_may_not_leave_refuses_it() -> None:
    async with running(access=RESTRICTED) as node:
        await node.client("a", 5, will=Will("up/ann/gone", b"x"), **ANN)
        assert (
            await refused(node, Connect("b", 5, will=Will("up/bob/gone", b"x"), **ANN))
            == reason.NOT_AUTHORIZED
        )
        assert await refused(node, Connect("b", 4, will=Will("up/ann/gone", b"x", 2), **ANN)) == 5


# -- subscribing --


@pytest.mark.statement("5:3.8.4-5", "own:R29")
@on_loop
async def test_filters_are_granted_one_by_one_and_permission_is_told_from_quota() -> None:
    async with running(access=RESTRICTED, max_subscriptions=2) as node:
        client = await node.client("a", 5, **ANN)
        asked = ["down/ann/#", "down/#", "$share/g/down/ann/x", "$share/g/down/bob/x", "down/ann/z"]
        codes = await client.subscribe(*(SubscriptionRequest(text) for text in asked))
        assert codes == [0, 0x87, 0, 0x87, 0x97]


@on_loop
async def test_a_superuser_is_not_asked() -> None:
    async with running(access=RESTRICTED) as node:
        client = await node.client("r", 5, **ROOT)
        assert await client.subscribe(SubscriptionRequest("#")) == [0]
        assert all(connection.permits is None for connection in node.server.hub.connections)


@on_loop
async def test_rules_count_at_once_for_those_who_are_connected() -> None:
    async with running(access=access(trusts_anonymous=True)) as node:
        client, other = (
            await node.client("a", 5, will=Will("gone/a", b"x")),
            await node.client("b", 5),
        )
        assert await client.subscribe(SubscriptionRequest("x/#"), SubscriptionRequest("y/#")) == [
            0,
            0,
        ]
        other.send(Publish("x/1", b"1"))
        await client.expect(Publish)
        use_rules(
            node,
            {"permission": "allow", "topics": ["y/#"]},
            {"permission": "allow", "topics": ["x/1"]},
        )
        assert node.metrics.value("subscriptions_revoked") == 1
        other.send(Publish("x/1", b"2"), Publish("x/2", b"3"), Publish("y/1", b"4"))
        assert (await client.expect(Publish)).payload == b"4"
        assert node.dropped("not_authorized") == 1
        client._writer.close()
        await node.until(lambda: len(node.server.hub.connections) == 1)
        assert node.metrics.value("messages_internal") == 0  # the will was not kept
        use_rules(node)
        other.send(Publish("x/2", b"5", 1, packet_id=1))
        assert (await other.expect(PubAck)).reason_code == reason.NO_MATCHING_SUBSCRIBERS


@on_loop
async def test_who_comes_back_to_a_session_keeps_of_it_what_it_may_have() -> None:
    async with running(access=access(BUILTIN, rules=RULES), session_takeover="any_user") as node:
        kept = {"Session-Expiry-Interval": 100}
        first = await node.client("s", 5, **ROOT, properties=kept)
        await first.subscribe(
            SubscriptionRequest("down/ann/x", 1), SubscriptionRequest("down/bob/x", 1)
        )
        first._writer.close()
        await node.until(lambda: not node.server.hub.connections)
        await node.client("s", 5, **ANN, properties=kept, clean_start=False)
        session = node.server.hub.sessions.get("s")
        assert session is not None
        assert list(session.subscriptions) == ["down/ann/x"]


@on_loop
async def test_decisions_are_told_to_those_who_want_to_know() -> None:
    async with running(access=RESTRICTED) as node:
        names = frozenset(("client.check_authn_complete", "client.check_authz_complete"))
        node.events.want(names)
        client = await node.client("a", 5, **ANN)
        await client.subscribe(SubscriptionRequest("down/bob/x"))
        client.send(
            *[Publish("up/ann/x", b"x", 1, packet_id=1)] * 2, *[Publish("up/ann/x", b"x")] * 2
        )
        for _ in range(2):
            await client.expect(PubAck)
        await client.silence()
        authn, *authz = [columns for name, columns in node.seen if name in names]
        assert (authn["clientid"], authn["reason_code"], authn["is_superuser"], authn["is_anonymous"]) == (
            "a", "success", False, False,
        )  # fmt: skip
        told = [(one["action"], one["topic"], one["result"], one["authz_source"]) for one in authz]
        assert told == [
            ("subscribe", "down/bob/x", "deny", "no_match"),
            *[("publish", "up/ann/x", "allow", "file")] * 4,
        ]


@pytest.mark.parametrize("checks", [True, False])
@on_loop
async def test_retained_messages_of_those_who_lost_the_right_are_kept_back_where_that_is_set(
    checks: bool,
) -> None:
    async with running(access=access(trusts_anonymous=True, check_retain_source=checks)) as node:
        for name in ("a", "b"):
            client = await node.client(name, 5)
            client.send(Publish(f"t/{name}", b"x", 1, True, packet_id=1))
            await client.expect(PubAck)
        use_rules(
            node,
            {
                "permission": "deny",
                "who": {"clientid": "b"},
                "action": "publish",
                "topics": ["t/#"],
            },
            {"permission": "allow", "topics": ["#"]},
        )
        reader = await node.client("r", 5)
        await reader.subscribe(SubscriptionRequest("t/#"))
        assert (await reader.expect(Publish)).topic == "t/a"
        if not checks:
            assert (await reader.expect(Publish)).topic == "t/b"
        await reader.silence()


# -- no rules --


@on_loop
async def test_a_deny_that_was_asked_for_holds_without_rules_and_after_the_last_one_is_gone() -> (
    None
):
    async with running(access=access(trusts_anonymous=True, no_match="deny")) as node:
        client = await node.client("a", 5)
        client.send(Publish("t", b"x", 1, packet_id=1))
        assert (await client.expect(PubAck)).reason_code == reason.NOT_AUTHORIZED
        assert await client.subscribe(SubscriptionRequest("t")) == [0x87]
        use_rules(node, {"permission": "allow", "topics": ["t"]})
        assert await client.subscribe(SubscriptionRequest("t")) == [0]
        use_rules(node)
        assert node.metrics.value("subscriptions_revoked") == 1
        client.send(Publish("t", b"x", 1, packet_id=1))
        assert (await client.expect(PubAck)).reason_code == reason.NOT_AUTHORIZED
        assert node.dropped("not_authorized") == 2


_WIDE = [
    SubscriptionRequest(text) for text in ("#", "+/#", "$SYS/#", "$SYS/broker/uptime", "$share/g/#")
]
_UNNAMED = [
    SubscriptionRequest(text)
    for text in (
        "+",
        "/#",
        "+/+",
        "+/+/#",
        "/",
        "//#",
        "/+/#",
        "+/",
        "$share/h/+/+/#",
        "$share/h/+",
        "$share/h//#",
    )
]
_DEAD = [
    SubscriptionRequest(text)
    for text in ("$dead/#", "$dead/+/#", "$dead/expired/#", "$dead/+/+/+", "$share/g/$dead/#")
]


@pytest.mark.parametrize("address", ["192.0.2.7", "2001:db8::7"])
@on_loop
async def test_subscriptions_to_everything_are_for_this_machine_and_superusers(
    address: str,
) -> None:
    async with running(access=access(BUILTIN)) as node, proxied(node) as port:
        ann = await from_afar(port, Connect("a", 5, **ANN), address)
        assert await ann.subscribe(*_WIDE, SubscriptionRequest("a/#")) == [0x87] * 5 + [0]
        assert await ann.subscribe(*_UNNAMED, *_DEAD) == [0x87] * (len(_UNNAMED) + len(_DEAD))
        named = [
            SubscriptionRequest(text)
            for text in ("+/a", "a/+", "/a/#", "+/+/a", "$dead/+/a/#", "$share/h/+/a")
        ]
        assert await ann.subscribe(*named) == [0] * len(named)
        root = await from_afar(port, Connect("r", 5, **ROOT), address)
        assert await root.subscribe(*_WIDE) == [0] * 5
        for local in ("127.0.0.1", "127.8.0.1", "::1", "::ffff:127.0.0.1"):
            near = await from_afar(port, Connect(f"n{local}", 5, **ANN), local)
            assert await near.subscribe(*_WIDE) == [0] * 5
        assert await (await node.client("l", 4, **ANN)).subscribe(*_WIDE) == [0] * 5


@on_loop
async def test_a_rule_or_the_setting_allows_subscriptions_to_everything() -> None:
    rules = [{"permission": "allow", "action": "subscribe", "topics": ["#"]}]
    async with (
        running(access=access(rules=rules, trusts_anonymous=True)) as node,
        proxied(node) as port,
    ):
        client = await from_afar(port, Connect("a", 5))
        assert await client.subscribe(*_WIDE) == [0, 0, 0x87, 0x87, 0]
    async with (
        running(access=access(deny_wide_subscriptions=False, trusts_anonymous=True)) as node,
        proxied(node) as port,
    ):
        client = await from_afar(port, Connect("a", 5))
        assert await client.subscribe(*_WIDE) == [0] * 5
    async with (
        running(access=access(no_match="allow", trusts_anonymous=True)) as node,
        proxied(node) as port,
    ):
        client = await from_afar(port, Connect("a", 5))
        assert await client.subscribe(*_WIDE) == [0x87] * 5


@on_loop
async def test_a_session_from_this_machine_loses_its_subscription_to_everything_elsewhere() -> None:
    kept = {"Session-Expiry-Interval": 100}
    async with running(access=access(trusts_anonymous=True)) as node, proxied(node) as port:
        near = await node.client("s", 5, properties=kept)
        await near.subscribe(SubscriptionRequest("#"), SubscriptionRequest("a"))
        near.send(Disconnect())
        await node.until(lambda: not node.server.hub.connections)
        await from_afar(port, Connect("s", 5, clean_start=False, properties=kept))
        session = node.server.hub.sessions.get("s")
        assert session is not None
        assert list(session.subscriptions) == ["a"]


# -- bans --


@pytest.mark.parametrize(
    ("kind", "who"),
    [
        ("clientid", "b"), ("username", "u"), ("peerhost", "127.0.0.1"), ("clientid_re", "[ab]"),
        ("username_re", "u.*"), ("peerhost_net", "127.0.0.0/8"),
    ],
)  # fmt: skip
@on_loop
async def test_who_is_banned_is_closed_and_refused_until_the_ban_ends(kind: str, who: str) -> None:
    store = MemoryStore()
    async with running(store) as node:
        client = await node.client("b", 5, username="u")
        bans = node.server.hub.access.bans
        bans.create({"as": kind, "who": who, "reason": "noise", "until": "2023-11-14T22:15:00Z"})
        assert (await client.expect(Disconnect)).reason_code == reason.ADMINISTRATIVE_ACTION
        assert await refused(node, Connect("b", 5, username="u")) == reason.BANNED
        assert await refused(node, Connect("b", 4, username="u")) == 5
        assert [ban["who"] for ban in bans.list()] == [who]
        await node.writer.committed()
    async with running(store) as node:
        assert await refused(node, Connect("b", 5, username="u")) == reason.BANNED
        node.pass_time(200)
        await node.client("b", 5, username="u")
        bans = node.server.hub.access.bans
        assert bans.list() == []
        bans.forget_over()
        assert len(bans) == 0


@on_loop
async def test_others_are_not_banned_and_a_ban_can_be_lifted() -> None:
    async with running() as node:
        bans = node.server.hub.access.bans
        bans.create({"as": "clientid_re", "who": "b"})
        await node.client("bb", 5)
        bans.delete("clientid_re", "b")
        await node.client("b", 5)


@pytest.mark.parametrize(
    ("kind", "who", "text"),
    [
        (
            "peerhost",
            "999.1.1.1",
            "who: '999.1.1.1' is not an address; write it as '10.0.0.1' or '2001:db8::1'",
        ),
        (
            "peerhost",
            "gateway.example",
            "who: 'gateway.example' is not an address; write it as '10.0.0.1' or '2001:db8::1'",
        ),
        ("clientid_re", "(", "who: '(' is not a regular expression (RE2): missing ): ("),
    ],
)
@on_loop
async def test_a_ban_that_could_never_hold_is_refused_with_a_sentence(
    kind: str, who: str, text: str
) -> None:
    async with running() as node:
        with pytest.raises(Invalid) as told:
            node.server.hub.access.bans.create({"as": kind, "who": who})
    assert [problem.message for problem in told.value.problems] == [text]


@pytest.mark.parametrize(
    "until", ["1970-01-01T00:00:00Z", "1969-12-31T00:00:00Z", "2023-11-14T22:13:19Z"]
)
@on_loop
async def test_a_ban_that_is_over_is_refused_and_not_forever(until: str) -> None:
    async with running() as node:
        with pytest.raises(Invalid) as refused:
            node.server.hub.access.bans.create({"as": "clientid", "who": "a", "until": until})
        assert node.server.hub.access.bans.list() == []
    assert [problem.pointer for problem in refused.value.problems] == ["/until"]


@on_loop
async def test_an_address_is_banned_and_lifted_however_it_is_written() -> None:
    async with running() as node:
        bans = node.server.hub.access.bans
        assert bans.create({"as": "peerhost", "who": "2001:DB8:0::1"})["who"] == "2001:db8::1"
        bans.delete("peerhost", "2001:0db8::1")
        assert bans.list() == []


@on_loop
async def test_bans_are_what_the_store_has_when_it_cannot_be_written() -> None:
    store = GatedStore()
    async with running(store) as node:
        bans = node.server.hub.access.bans
        bans.create({"as": "clientid", "who": "old"})
        bans.create({"as": "clientid_re", "who": "old.*"})
        await node.writer.committed()
        store.fails = True
        bans.create({"as": "clientid", "who": "new"})
        bans.create({"as": "clientid_re", "who": "new.*"})
        bans.delete("clientid", "old")
        bans.delete("clientid_re", "old.*")
        with pytest.raises(Unavailable):
            await node.writer.committed()
        store.fails = False
        assert {ban["who"] for ban in bans.list()} == {"old", "old.*"}
        assert await refused(node, Connect("old-meter", 5)) == reason.BANNED
        await node.client("new-meter", 5)


# -- flapping --


@on_loop
async def test_a_client_that_comes_and_goes_is_banned_for_a_while() -> None:
    flapping = {"enable": True, "max_count": 3, "window_time": "10s", "ban_time": "60s"}
    async with running(access=access(flapping=flapping)) as node:
        for _ in range(3):
            client = await node.client("f", 5)
            client.send(Disconnect())
            await node.until(lambda: not node.server.hub.connections)
        assert await refused(node, Connect("f", 5)) == reason.BANNED
        node.pass_time(61)
        await node.client("f", 5)


@pytest.mark.statement("own:N3")
@on_loop
async def test_an_identifier_goes_from_one_connection_to_the_next_once_a_second() -> None:
    async with running() as node:
        first = await node.client("x", 5)
        second = await node.client("x", 5)
        assert (await first.expect(Disconnect)).reason_code == reason.SESSION_TAKEN_OVER
        third, fourth = await WireClient.open(node.port, 5), await WireClient.open(node.port, 5)
        third.send(Connect("x", 5))
        await node.until(lambda: any(c.is_parked for c in node.server.hub.connections))
        await second.silence()
        fourth.send(Connect("x", 5), Publish("t", b"early"))
        assert (await third.expect(ConnAck)).reason_code == reason.SERVER_BUSY
        await second.silence()
        node.pass_time(1.1)
        assert (await second.expect(Disconnect)).reason_code == reason.SESSION_TAKEN_OVER
        assert (await fourth.expect(ConnAck)).reason_code == 0
        await node.until(lambda: node.metrics.value("messages_received", qos="0") == 1)


@on_loop
async def test_one_that_waits_for_an_identifier_may_go_away() -> None:
    async with running() as node:
        first, second = await node.client("x", 5), await node.client("x", 5)
        assert (await first.expect(Disconnect)).reason_code == reason.SESSION_TAKEN_OVER
        third = await WireClient.open(node.port, 5)
        third.send(Connect("x", 5))
        await node.until(lambda: any(c.is_parked for c in node.server.hub.connections))
        third._writer.close()
        await node.until(lambda: len(node.server.hub.connections) == 1)
        node.pass_time(2)
        await second.silence()


class Blocker:
    """Keeps the only thread of a server that hashes until it is let go."""

    def __init__(self, node: Node) -> None:
        self._event = Event()
        link: Any = node.server.hub.access.authenticators._links[0]
        link.authenticator._pool._threads.submit(self)

    def __call__(self) -> None:
        self._event.wait(60)

    def go_on(self) -> None:
        """Let it end."""
        self._event.set()


async def made_user(name: str, password: str, iterations: int) -> dict[str, Any]:
    """A user as the broker keeps one with a chosen password."""
    return {
        "name": name,
        "credentials": [hashed(password.encode(), "pbkdf2_sha256", iterations).as_spec()],
    }
