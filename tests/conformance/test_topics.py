"""Topic names and filters: section 4.7 of MQTT 5.0 and 3.1.1, by what a subscriber gets."""

from __future__ import annotations

import pytest

from broker.codec.packets import Publish, SubscriptionRequest, Unsubscribe
from tests.support.mqtt_server import on_loop, running
from tests.support.raw import RawClient, connect, publish, subscribe
from tests.support.restarts import lasting, published, subscribed

MATCHES = {
    "a/#": ("a", "a/", "a/b", "a/b/c", "a//"),
    "#": ("a", "/", "/a", "a/b/c", " ", "\u00e9"),
    "+": ("a", " ", "\u4e2d"),
    "+/b": ("/b", "a/b", "$/b"[1:]),
    "a/+": ("a/", "a/b"),
    "+/+": ("/", "a/b", "/b", "a/"),
    "/+": ("/a", "/"),
    "a/+/c": ("a/b/c", "a//c"),
    "+/#": ("a", "/", "a/b", "/a/b"),
    "/": ("/",),
    "/a": ("/a",),
    "a": ("a",),
    "A": ("A",),
    "a/": ("a/",),
    " a": (" a",),
    "sport/tennis/player1/#": (
        "sport/tennis/player1",
        "sport/tennis/player1/ranking",
        "sport/tennis/player1/score/w",
    ),
    "$SYS2/#": ("$SYS2", "$SYS2/a"),
    "$x/+": ("$x/a", "$x/"),
    "\ufeffa": ("\ufeffa",),
    "name:/x": ("name:/x",),
    "$share:g:a": ("$share:g:a",),
}
MISSES = {
    "a/#": ("b", "/a", "ab", "A/b", "$a"),
    "#": ("$x", "$x/a"),
    "+": ("a/b", "/a", "/", "$x"),
    "+/b": ("b", "a/b/", "$x/b"),
    "a/+": ("a", "a/b/c", "/a"),
    "+/+": ("a", "a/b/c", "$x/y"),
    "+/#": ("$x", "$x/a"),
    "/a": ("a", "//a", "/a/"),
    "a": ("A", "a/", "/a", " a", "a "),
    "sport/tennis/player1/#": ("sport/tennis/player2", "sport/tennis"),
    "\ufeffa": ("a",),
    "$x/+": ("$x", "$x/a/b", "$y/a"),
}
CASES = [(name, topic, True) for name, topics in MATCHES.items() for topic in topics] + [
    (name, topic, False) for name, topics in MISSES.items() for topic in topics
]


@pytest.mark.parametrize("is_retained", [False, True])
@pytest.mark.parametrize(("name", "topic", "expected"), CASES, ids=lambda value: ascii(value))
@pytest.mark.statement(
    "5:4.7.1-1", "3:4.7.1-2", "5:4.7.1-2", "3:4.7.1-3", "5:4.7.2-1", "3:4.7.2-1", "5:4.7.3-4"
)
@pytest.mark.statement(
    "3:4.7.3-4", "5:3.3.2-3", "3:3.3.2-3", "own:N18", "own:N19", "own:M2", "own:choice-empty-levels"
)
@on_loop
async def test_a_filter_matches_what_the_standard_says(
    name: str, topic: str, expected: bool, is_retained: bool
) -> None:
    async with running() as node:
        client = await node.client("s")
        if is_retained:
            await published(node, b"x", topic=topic, retain=True)
        await subscribed(client, (name, 0))
        if not is_retained:
            await published(node, b"x", topic=topic)
        if expected:
            assert (await client.expect(Publish)).topic == topic
        await client.silence()


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("length", [1, 127, 128, 65_535])
@pytest.mark.statement("5:4.7.3-1", "3:4.7.3-1", "5:4.7.3-3", "3:4.7.3-3")
@on_loop
async def test_topics_of_one_to_65535_bytes_arrive(version: int, length: int) -> None:
    topic = "t" * length
    async with running() as node:
        client = await RawClient.connected(node.port, connect(version))
        await client.subscribed(version, (topic, 0))
        client.send(publish(version, topic, b"x"))
        await client.expect(publish(version, topic, b"x"))


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize(
    ("topic", "code"), [(b"a\0", 0x81), (b"", 0x90), (b"+", 0x90), (b"a/#", 0x90), (b"\xff", 0x81)]
)
@pytest.mark.statement("5:4.7.3-1", "3:4.7.3-1", "5:4.7.3-2", "3:4.7.3-2", "5:4.7.0-1", "3:4.7.1-1")
@on_loop
async def test_what_is_no_topic_name_closes(version: int, topic: bytes, code: int) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(version))
        client.send(publish(version, topic, b"x"))
        said = await client.closed()
        if version == 5:
            assert said[0][0] == 0xE0
            assert said[0][2] in (code, 0x82)
        else:
            assert said == []


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("topic", ["$SYS/broker/version", "$SYS/x", "$share/g/a", "$events/x"])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.statement(
    "own:reserved-trees", "own:N19", "own:choice-publish-without-permission", "3:3.3.5-2"
)
@on_loop
async def test_clients_do_not_publish_into_the_brokers_trees(
    version: int, topic: str, qos: int
) -> None:
    async with running() as node:
        watcher = await node.client("w")
        await watcher.subscribe(SubscriptionRequest("$SYS/x", 1), SubscriptionRequest("#", 1))
        client = await RawClient.connected(node.port, connect(version, "c"))
        client.send(publish(version, topic, b"forged", qos=qos, retain=True))
        if qos:
            got = await client.read()
            assert got[0] == (0x40 if qos == 1 else 0x50)
            assert (got[4:5] == b"\x87") == (version == 5)
        await client.silence()
        await watcher.silence()
        assert node.dropped("reserved_topic") == 1
        late = await node.client("late")
        await late.subscribe(SubscriptionRequest("$SYS/x", 1))
        await late.silence()


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.statement("own:N23", "own:N19")
@on_loop
async def test_internal_trees_cannot_be_subscribed(version: int) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(version))
        client.send(
            subscribe(version, 1, ("$events/#", 0), ("$events/client.connected", 1), ("$events", 1))
        )
        assert (await client.read())[-3:] == (b"\x87" * 3 if version == 5 else b"\x80" * 3)
        assert node.server.hub.router.subscription_count == 0


@pytest.mark.statement("5:3.10.4-1", "3:3.10.4-1", "own:M5")
@on_loop
async def test_filters_are_compared_as_text() -> None:
    async with running() as node:
        client = await node.client("s", 5)
        await subscribed(client, ("a/b", 0), ("a/+", 0), ("$share/g/a/b", 0))
        for number, (name, code) in enumerate(
            [
                ("a/#", 0x11),
                ("+/b", 0x11),
                ("a/B", 0x11),
                ("a/+", 0),
                ("$share/h/a/b", 0x11),
                ("$share/g/a/b", 0),
                ("a/b", 0),
            ],
            1,
        ):
            client.send(Unsubscribe(number, [name]))
            assert (await client.receive()).reason_codes == [code]  # type: ignore[union-attr]
        assert node.server.hub.router.subscription_count == 0


@pytest.mark.statement("own:M3", "own:M4")
@on_loop
async def test_the_name_and_the_filter_make_a_share_group() -> None:
    async with running() as node:
        members = [await node.client(name) for name in "abc"]
        await subscribed(members[0], ("$share/consumer1//finance", 1))
        await subscribed(members[1], ("$share/consumer1/finance", 1))
        await subscribed(members[2], ("$share/consumer2//finance", 1))
        await published(node, b"x", topic="/finance")
        for member, count in zip(members, (1, 0, 1), strict=True):
            for _ in range(count):
                assert (await member.expect(Publish)).topic == "/finance"
            await member.silence()


@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.statement("own:M8", "own:M9", "own:M10", "own:M-note-6", "own:M-note-2")
@on_loop
async def test_share_groups_get_no_retained_messages_and_count_a_member_once(
    is_lasting: bool,
) -> None:
    async with running() as node:
        await published(node, b"r", retain=True)
        first = await lasting(node, "a") if is_lasting else await node.client("a")
        await subscribed(first, ("$share/g/t", 1))
        await subscribed(first, ("$share/g/t", 2))
        second = await subscribed(await node.client("b"), ("$share/g/t", 0))
        await first.silence()
        await second.silence()
        await published(node, b"1", b"2", b"3", b"4", qos=2)
        got = [await first.expect(Publish) for _ in range(2)]
        assert [found.qos for found in got] == [2, 2]
        assert [(await second.expect(Publish)).qos for _ in range(2)] == [0, 0]
        first.send(Unsubscribe(9, ["$share/g/t"]))
        await first.receive()
        await published(node, b"5")
        assert (await second.expect(Publish)).payload == b"5"
