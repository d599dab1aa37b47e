"""Section 3: what a CONNACK says, and that the broker holds to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from broker.connection.settings import MqttSettings
from broker.core.client import Client
from broker.core.message import Message
from tests.support.mqtt_server import GatedStore, on_loop, running
from tests.support.raw import (
    CONNACK,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBREC,
    SUBACK,
    RawClient,
    ack,
    connect,
    packet,
    props,
    publish,
    subscribe,
    text,
)

VERSIONS = pytest.mark.parametrize("version", [3, 4, 5])
BEFORE_5 = pytest.mark.parametrize("version", [3, 4])
WILL = 0x04
SIZES: dict[int, int | None] = {
    0x11: 4, 0x12: None, 0x13: 2, 0x1A: None, 0x1F: None, 0x21: 2, 0x22: 2, 0x24: 1, 0x25: 1, 0x27: 4, 0x28: 1, 0x29: 1,
    0x2A: 1,
}  # fmt: skip


def told(connack: bytes) -> dict[int, bytes]:
    """The properties of a CONNACK by number."""
    assert connack[0] == CONNACK
    assert connack[1] < 128
    assert connack[4] == len(connack) - 5
    return dict(_properties(connack[5:]))


def _properties(data: bytes) -> Iterator[tuple[int, bytes]]:
    while data:
        size = SIZES[data[0]]
        length = 2 + int.from_bytes(data[1:3]) if size is None else size
        yield data[0], data[1 : 1 + length]
        data = data[1 + length :]


async def answer(data: bytes, **settings: Any) -> bytes:
    """The CONNACK of an accepted CONNECT."""
    async with running(**settings) as node:
        return (await RawClient.connected(node.port, data)).connack


@pytest.mark.statement("5:3.2.2-1", "5:3.2.0-1", "5:3.2.0-2", "3:3.2.0-1", "5:2.2.2-1")
@VERSIONS
@on_loop
async def test_a_connack_has_flags_code_and_in_version_5_properties(version: int) -> None:
    connack = await answer(connect(version))
    if version < 5:
        assert connack == b"\x20\2\0\0"
    else:
        assert connack[2:4] == b"\0\0"
        assert told(connack) == {
            0x21: b"\xff\xff",
            0x27: (1024 * 1024).to_bytes(4),
            0x22: b"\0\x40",
        }


@pytest.mark.statement("5:3.2.2-6", "5:3.2.2-7", "3:3.2.2-4", "3:3.2.2-5", "5:3.2.2-3", "3:3.2.2-2")
@VERSIONS
@on_loop
async def test_a_refusal_says_that_no_session_is_present_and_closes(version: int) -> None:
    async with running(max_client_id_bytes=30) as node:
        client = await RawClient.open(node.port)
        client.send(connect(version, "x" * 31, clean=False))
        await client.refused(version, 0x85, 2)


@pytest.mark.statement("3:3.2.2-6", "5:3.2.2-8")
@VERSIONS
@on_loop
async def test_what_3_1_1_has_no_return_code_for_just_closes(version: int) -> None:
    async with running(maximum_qos=1) as node:
        client = await RawClient.open(node.port)
        client.send(
            connect(version, flags=WILL | 0x10, rest=props(version) + text("w") + text("x"))
        )
        await client.refused(version, 0x9B, None)


# -- maximum QoS, retain --


@pytest.mark.statement("own:R34")
@pytest.mark.statement("5:3.2.2-9", "5:3.2.2-10")
@pytest.mark.parametrize("maximum", [0, 1, 2])
@on_loop
async def test_maximum_qos_is_announced_and_subscriptions_are_granted_no_more(maximum: int) -> None:
    """B-14: without a limit nothing is said."""
    async with running(maximum_qos=maximum) as node:
        client = await RawClient.connected(node.port, connect(5))
        assert told(client.connack).get(0x24) == (None if maximum == 2 else bytes((maximum,)))
        for version in (3, 4, 5):
            other = await RawClient.connected(node.port, connect(version, f"s{version}"))
            other.send(subscribe(version, 1, ("a", 0), ("b", 1), ("c", 2)))
            granted = bytes((0, min(1, maximum), min(2, maximum)))
            await other.expect(packet(SUBACK, b"\0\1", props(version), granted))


@pytest.mark.statement("own:R34")
@pytest.mark.statement("5:3.2.2-11")
@VERSIONS
@pytest.mark.parametrize(("maximum", "qos"), [(0, 1), (0, 2), (1, 2)])
@on_loop
async def test_a_publish_above_the_maximum_qos_closes(version: int, maximum: int, qos: int) -> None:
    """RMQ-29."""
    async with running(maximum_qos=maximum) as node:
        other = await RawClient.connected(node.port, connect(4, "s"))
        await other.subscribed(4, ("t", 2))
        client = await RawClient.connected(node.port, connect(version))
        client.send(
            publish(version, "t", b"fits", qos=maximum),
            publish(version, "t", b"x", qos=qos, packet_id=2),
        )
        said = await client.closed()
        assert (said[-1][2] == 0x9B) if version == 5 else all(each[0] == PUBACK for each in said)
        await other.expect(publish(4, "t", b"fits", qos=maximum))
        await other.silence()


@pytest.mark.statement("own:R31")
@pytest.mark.statement("5:3.2.2-12", "5:3.2.2-13")
@pytest.mark.parametrize(
    ("flags", "setting", "code"),
    [
        (0x08, {"maximum_qos": 0}, 0x9B),
        (0x10, {"maximum_qos": 1}, 0x9B),
        (0x20, {"retain_available": False}, 0x9A),
    ],
    ids=["qos-1", "qos-2", "retain"],
)
@VERSIONS
@on_loop
async def test_a_will_above_what_is_offered_is_refused(
    version: int, flags: int, setting: dict[str, Any], code: int
) -> None:
    """RMQ-28."""
    async with running(**setting) as node:
        client = await RawClient.open(node.port)
        client.send(
            connect(version, flags=WILL | flags, rest=props(version) + text("w") + text("x"))
        )
        await client.refused(version, code)


@pytest.mark.statement("5:3.2.2-14")
@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
@on_loop
async def test_a_retained_publish_while_retain_is_off_closes(version: int, qos: int) -> None:
    async with running(retain_available=False) as node:
        client = await RawClient.connected(node.port, connect(version))
        if version == 5:
            assert told(client.connack)[0x25] == b"\0"
        client.send(publish(version, "t", b"x", qos=qos, retain=True))
        await client.ended(version, 0x9A)


@VERSIONS
@on_loop
async def test_while_retain_is_off_nothing_is_retained_and_nothing_retained_is_sent(
    version: int,
) -> None:
    async with running() as node:
        hub = node.server.hub
        publisher = await RawClient.connected(node.port, connect(4, "publisher"))
        publisher.send(publish(4, "t", b"before", retain=True), PINGREQ)
        await publisher.expect(PINGRESP)
        await node.settled()
        hub.use_settings(MqttSettings(retain_available=False))
        client = await RawClient.connected(node.port, connect(version, "c"))
        await client.subscribed(version, ("t", 0))
        await client.silence()
        hub.pipeline.publish(
            Message("t", b"of a rule", 0, True, Client("rule"), node.clock.now_ns())
        )
        await client.expect(publish(version, "t", b"of a rule"))
        kept = hub.retained.get("t")
        assert kept is not None
        assert kept.payload == b"before"
        hub.pipeline.publish(Message("t", b"", 0, True, Client("rule"), node.clock.now_ns()))
        await node.until(lambda: hub.retained.count == 0)


# -- size --


@pytest.mark.statement("own:R36", "own:R38")
@pytest.mark.statement("5:3.2.2-15")
@VERSIONS
@pytest.mark.parametrize("is_whole", [True, False])
@on_loop
async def test_a_packet_above_the_announced_size_closes_by_its_header(
    version: int, is_whole: bool
) -> None:
    """RMQ-25."""
    async with running(max_packet_size=1000) as node:
        client = await RawClient.connected(node.port, connect(version))
        if version == 5:
            assert told(client.connack)[0x27] == (1000).to_bytes(4)
        fits = publish(version, "t", b"x" * (1000 - 6 - (version == 5)))
        assert len(fits) == 1000
        client.send(fits)
        await client.silence()
        large = publish(version, "t", b"x" * 3_000_000)
        client.send(large if is_whole else large[:5])
        await client.ended(version, 0x95)


@pytest.mark.statement("5:3.2.2-19", "5:3.2.2-20", "5:3.1.2-24")
@on_loop
async def test_a_refusal_leaves_its_reason_string_out_for_who_takes_no_more() -> None:
    async with running() as node:
        for maximum, is_told in (((), True), ((b"\x27\0\0\0\x10",), False)):
            client = await RawClient.open(node.port)
            client.send(connect(5, "c", *maximum, b"\x16" + text("data without method")))
            [connack] = await client.closed()
            assert connack[2:4] == b"\0\x82"
            assert (0x1F in told(connack)) is is_told


@pytest.mark.statement("5:3.1.2-24")
@pytest.mark.parametrize(("maximum", "size"), [(1, 0), (4, 0), (5, 5)])
@pytest.mark.parametrize("properties", [(), (b"\x27\0\0\0\0",)], ids=["accepted", "refused"])
@on_loop
async def test_a_connack_above_the_clients_maximum_is_not_sent(
    maximum: int, size: int, properties: tuple[bytes, ...]
) -> None:
    """Not even one that says so. Where the properties cannot be read, nobody knows the maximum."""
    async with running() as node:
        client = await RawClient.open(node.port)
        client.send(connect(5, "c", b"\x27" + maximum.to_bytes(4), *properties))
        said = await client.closed()
        assert [len(packet) for packet in said] == ([5] if size or properties else [])


@pytest.mark.statement("5:3.1.2-24", "5:3.2.2-20")
@on_loop
async def test_a_client_that_takes_less_than_must_be_told_is_refused() -> None:
    async with running() as node:
        client = await RawClient.open(node.port)
        client.send(connect(5, "c", b"\x27\0\0\0\x0a"))
        assert await client.closed() == [b"\x20\3\0\x95\0"]
        client = await RawClient.connected(node.port, connect(5, "c", b"\x27\0\0\0\x14"))
        # its answer would take 37 bytes
        client.send(subscribe(5, 1, *((f"{n}", 0) for n in range(30))))
        await client.ended(5, 0x95)


# -- aliases, keep alive, expiry --


@pytest.mark.statement("own:R14")
@pytest.mark.statement("5:3.2.2-17", "5:3.2.2-18", "5:3.3.2-9")
@pytest.mark.parametrize(("maximum", "alias"), [(0, 1), (5, 6), (5, 65_535)])
@on_loop
async def test_an_alias_above_the_announced_maximum_closes(maximum: int, alias: int) -> None:
    """RMQ-27."""
    async with running(topic_alias_maximum=maximum) as node:
        client = await RawClient.connected(node.port, connect(5))
        assert told(client.connack).get(0x22) == (maximum.to_bytes(2) if maximum else None)
        client.send(publish(5, "t", b"x", b"\x23" + alias.to_bytes(2)))
        await client.ended(5, 0x94)


@pytest.mark.statement("5:3.2.2-21", "5:3.2.2-22")
@pytest.mark.parametrize(
    ("maximum", "asked", "in_force"),
    [(0, 100, None), (60, 60, None), (60, 61, 60), (60, 0, 60), (60, 10, None)],
)
@on_loop
async def test_the_server_keep_alive_is_told_when_it_differs_and_holds(
    maximum: int, asked: int, in_force: int | None
) -> None:
    async with running(max_keep_alive=maximum) as node:
        client = await RawClient.connected(node.port, connect(5, keep_alive=asked))
        assert told(client.connack).get(0x13) == (
            None if in_force is None else in_force.to_bytes(2)
        )
        limit = 1.5 * (in_force or asked)
        node.pass_time(limit - 0.5)
        await client.silence()
        node.pass_time(limit + 0.6)
        node.pass_time(0.5)
        await client.ended(5, 0x8D)


@pytest.mark.statement("3:3.1.2-24")
@BEFORE_5
@pytest.mark.parametrize("asked", [0, 61, 65_535])
@pytest.mark.parametrize("policy", ["refuse", "shorten"])
@on_loop
async def test_a_keep_alive_that_cannot_be_told_is_refused_or_shortened(
    version: int, asked: int, policy: str
) -> None:
    async with running(max_keep_alive=60, keep_alive_above_max=policy) as node:
        await RawClient.connected(node.port, connect(version, "within", keep_alive=60))
        client = await RawClient.open(node.port)
        client.send(connect(version, keep_alive=asked))
        if policy == "refuse" and asked:
            await client.refused(version, 0, 2)
            return
        await client.expect(b"\x20\2\0\0")
        node.pass_time(92)
        assert await client.closed() == []


@pytest.mark.statement("5:3.2.2.3.2", "5:3.1.2-23")
@pytest.mark.parametrize(
    ("asked", "in_force"), [(None, None), (100, None), (101, 100), (0xFFFFFFFF, 100)]
)
@on_loop
async def test_the_session_expiry_is_told_when_it_differs(
    asked: int | None, in_force: int | None
) -> None:
    properties = () if asked is None else (b"\x11" + asked.to_bytes(4),)
    connack = await answer(connect(5, "c", *properties), max_session_expiry=100)
    assert told(connack).get(0x11) == (None if in_force is None else in_force.to_bytes(4))


# -- features that are off --

OFF: dict[str, Any] = {
    "wildcard-#": ("wildcard_subscription_available", 0x28, ("a/#", 0), (), 0xA2),
    "wildcard-+": ("wildcard_subscription_available", 0x28, ("a/+/b", 0), (), 0xA2),
    "identifiers": ("subscription_identifier_available", 0x29, ("a", 0), (b"\x0b\1",), 0xA1),
    "shared": ("shared_subscription_available", 0x2A, ("$share/g/a", 0), (), 0x9E),
}


@pytest.mark.statement("5:3.2.2.3.11", "5:3.2.2.3.12", "5:3.2.2.3.13")
@pytest.mark.parametrize("feature", OFF)
@on_loop
async def test_a_feature_that_is_off_is_announced_and_using_it_closes(feature: str) -> None:
    setting, number, wanted, properties, code = OFF[feature]
    assert number not in told(await answer(connect(5)))
    switched_off: dict[str, Any] = {setting: False}
    async with running(**switched_off) as node:
        client = await RawClient.connected(node.port, connect(5, "c", b"\x11\0\0\0\x64"))
        assert told(client.connack)[number] == b"\0"
        await client.subscribed(5, ("fine", 1))
        client.send(subscribe(5, 1, ("also-fine", 0), wanted, properties=properties))
        await client.ended(5, code)
        session = node.server.hub.sessions.get("c")
        assert session is not None
        assert list(session.subscriptions) == ["fine"]


@pytest.mark.statement("5:3.2.2.3.11", "5:3.2.2.3.13")
@BEFORE_5
@pytest.mark.parametrize("feature", ["wildcard-#", "wildcard-+", "shared"])
@on_loop
async def test_a_feature_that_is_off_fails_the_subscription_of_older_versions(
    version: int, feature: str
) -> None:
    setting, _, wanted, _, _ = OFF[feature]
    switched_off: dict[str, Any] = {setting: False}
    async with running(**switched_off) as node:
        client = await RawClient.connected(node.port, connect(version))
        client.send(subscribe(version, 1, ("fine", 1), wanted))
        assert (await client.read())[:5] == b"\x90\4\0\1\1"
        await client.silence()


@pytest.mark.statement("5:3.2.2-11", "5:3.2.2-14", "5:3.2.2-17", "5:3.3.4-7")
@on_loop
async def test_who_is_connected_is_held_to_what_it_was_told_when_settings_change() -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(5))
        await client.subscribed(5, ("t", 0))
        hub = node.server.hub
        changed = {
            "maximum_qos": 0, "retain_available": False, "topic_alias_maximum": 0, "receive_maximum": 1,
            "wildcard_subscription_available": False,
        }  # fmt: skip
        node.server.use_settings(hub.context.settings.model_copy(update=changed))
        client.send(
            publish(5, "t", b"x", b"\x23\0\x09", qos=2, retain=True),
            publish(5, "t", b"y", qos=2, packet_id=2, retain=True),
        )
        got = {await client.read() for _ in range(4)}
        assert got == {publish(5, "t", b"x"), publish(5, "t", b"y"), ack(PUBREC, 1), ack(PUBREC, 2)}
        await client.subscribed(5, ("a/#", 0))
        later = await RawClient.connected(node.port, connect(5, "later"))
        assert told(later.connack).keys() >= {0x24, 0x25, 0x28}
        assert 0x22 not in told(later.connack)
        later.send(publish(5, "t", b"x", qos=1))
        await later.ended(5, 0x9B)


# -- always the answer --


@pytest.mark.statement("5:3.2.0-1", "3:3.2.0-1", "5:3.14.0-1", "5:3.2.2-7", "3:3.2.2-5")
@VERSIONS
@on_loop
async def test_a_store_that_cannot_keep_the_session_is_told_in_the_connack(version: int) -> None:
    """NATS-05."""
    store = GatedStore()
    async with running(store) as node:
        store.fails = True
        client = await RawClient.open(node.port)
        expiry = (b"\x11\0\0\0\x64",) if version == 5 else ()
        client.send(connect(version, "c", *expiry, clean=False))
        await client.refused(version, 0x88, 3)


@pytest.mark.statement("5:3.2.0-1", "5:3.14.0-1", "3:3.2.0-1")
@VERSIONS
@on_loop
async def test_who_breaks_the_protocol_before_the_welcome_hears_it_in_the_connack(
    version: int,
) -> None:
    store = GatedStore()
    async with running(store) as node:
        store.allow.clear()
        client = await RawClient.open(node.port)
        expiry = (b"\x11\0\0\0\x64",) if version == 5 else ()
        client.send(connect(version, "c", *expiry, clean=False), publish(version, "#"))
        await client.refused(version, 0x90)
        store.allow.set()


@pytest.mark.one_process("breaks the registry of one cell")
@pytest.mark.statement("5:3.2.0-1", "3:3.2.0-1")
@VERSIONS
@on_loop
async def test_a_fault_of_the_broker_is_told_in_the_connack(version: int) -> None:
    """NATS-05: a step before the session breaks."""
    async with running() as node:

        def broken(*_arguments: object) -> None:
            raise RuntimeError("broken")

        node.server.hub.sessions.get = broken  # type: ignore[method-assign,assignment]
        client = await RawClient.open(node.port)
        client.send(connect(version))
        await client.refused(version, 0x88, 3)


@pytest.mark.statement("5:4.9.0-1", "5:3.3.4-7")
@pytest.mark.parametrize("qos", [1, 2])
@on_loop
async def test_the_receive_maximum_is_announced_and_held_to(qos: int) -> None:
    store = GatedStore()
    async with running(store, receive_maximum=3) as node:
        client = await RawClient.connected(node.port, connect(5))
        assert told(client.connack)[0x21] == b"\0\3"
        other = await RawClient.connected(node.port, connect(5, "s", b"\x11\0\0\0\x64"))
        await other.subscribed(5, ("t", 2))
        store.allow.clear()
        client.send(*(publish(5, "t", qos=qos, packet_id=number) for number in range(1, 4)))
        await client.silence()
        store.allow.set()
        first = PUBACK if qos == 1 else PUBREC
        await client.expect(*(ack(first, number) for number in range(1, 4)))
        store.allow.clear()
        client.send(*(publish(5, "t", qos=qos, packet_id=number) for number in range(11, 15)))
        await client.ended(5, 0x93)
        store.allow.set()
