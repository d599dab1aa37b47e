"""Section 4: PUBLISH both ways: flags, retain, properties, aliases, flow control."""

from __future__ import annotations

import pytest

from tests.support.mqtt_server import on_loop, running
from tests.support.raw import (
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
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
LASTING = b"\x11\0\0\0\x64"
NO_LOCAL, AS_PUBLISHED, IF_NEW, NEVER = 0x04, 0x08, 0x10, 0x20


def lasting(version: int, client_id: str = "c") -> bytes:
    """A CONNECT whose session outlives its connection."""
    return connect(version, client_id, *((LASTING,) if version == 5 else ()), clean=False)


def alias(number: int) -> bytes:
    """The topic alias property."""
    return b"\x23" + number.to_bytes(2)


def alias_of(data: bytes) -> tuple[bytes, int, bytes]:
    """Topic, alias (0 for none) and payload of a short QoS 0 PUBLISH of version 5 that has no other property."""
    size = int.from_bytes(data[2:4])
    topic, rest = data[4 : 4 + size], data[4 + size :]
    if rest[0] == 0:
        return topic, 0, rest[1:]
    assert rest[:2] == b"\3\x23"
    return topic, int.from_bytes(rest[2:4]), rest[4:]


# -- flags --


@pytest.mark.statement("5:3.3.1-2", "3:3.3.1-2", "5:3.3.1-4", "3:3.3.1-4")
@VERSIONS
@pytest.mark.parametrize("first", [0x38, 0x39, 0x36, 0x37, 0x3E, 0x3F])
@on_loop
async def test_dup_with_qos_0_and_qos_3_close(version: int, first: int) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(version))
        client.send(packet(first, text("t"), b"\0\1", props(version)))
        await client.ended(version, 0x81)


@pytest.mark.statement("5:3.3.1-1", "3:3.3.1-1", "5:3.3.1-3", "3:3.3.1-3")
@VERSIONS
@pytest.mark.parametrize("qos", [1, 2])
@on_loop
async def test_dup_is_set_when_resending_whatever_the_publisher_set(version: int, qos: int) -> None:
    """NATS-25: with the same identifier."""
    async with running() as node:
        client = await RawClient.connected(node.port, lasting(version))
        await client.subscribed(version, ("t", 2))
        publisher = await RawClient.connected(node.port, connect(4, "p"))
        publisher.send(publish(4, "t", b"x", qos=qos, packet_id=9, dup=True))
        await client.expect(publish(version, "t", b"x", qos=qos, packet_id=1))
        client.abort()
        client = await RawClient.connected(node.port, lasting(version))
        await client.expect(publish(version, "t", b"x", qos=qos, packet_id=1, dup=True))


@pytest.mark.statement("5:3.3.4-1", "3:3.3.4-1", "5:3.3.2-3", "3:3.3.2-3", "5:3.8.4-8", "3:3.8.4-6")
@pytest.mark.parametrize("sent", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize(("version", "to_version"), [(3, 4), (4, 5), (5, 3), (5, 5)])
@on_loop
async def test_each_qos_is_answered_and_delivered_at_the_lower_one(
    sent: int, granted: int, version: int, to_version: int
) -> None:
    """NATS-23, NATS-26."""
    async with running() as node:
        subscriber = await RawClient.connected(node.port, connect(to_version, "s"))
        await subscriber.subscribed(to_version, ("t", granted), ("other", 2))
        publisher = await RawClient.connected(node.port, connect(version, "p"))
        publisher.send(
            publish(version, "t", b"x", qos=sent, packet_id=77), publish(version, "unmatched")
        )
        if sent == 1:
            await publisher.expect(ack(PUBACK, 77))
        elif sent == 2:
            await publisher.expect(ack(PUBREC, 77))
            publisher.send(ack(PUBREL, 77))
            await publisher.expect(ack(PUBCOMP, 77))
        await publisher.silence()
        qos = min(sent, granted)
        await subscriber.expect(publish(to_version, "t", b"x", qos=qos))
        if qos == 1:
            subscriber.send(ack(PUBACK, 1))
        elif qos == 2:
            subscriber.send(ack(PUBREC, 1))
            await subscriber.expect(ack(PUBREL, 1))
            subscriber.send(ack(PUBCOMP, 1))
        await subscriber.silence()


# -- retain --


@pytest.mark.statement(
    "5:3.3.1-5", "3:3.3.1-5", "3:3.3.1-7", "5:3.3.1-6", "5:3.3.1-7", "3:3.3.1-10", "3:3.3.1-11", "5:3.3.1-8",
    "3:3.3.1-12", "5:3.3.1-9", "3:3.3.1-6", "3:3.3.1-8", "5:3.3.1-12", "3:3.3.1-9",
)  # fmt: skip
@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
@on_loop
async def test_the_last_retained_message_is_kept_replaced_and_deleted(
    version: int, qos: int
) -> None:
    async with running() as node:
        watcher = await RawClient.connected(node.port, connect(version, "w"))
        await watcher.subscribed(version, ("t", 0))
        publisher = await RawClient.connected(node.port, connect(version, "p"))

        async def kept_after(payload: bytes, *, retain: bool) -> list[bytes]:
            publisher.send(publish(version, "t", payload, qos=qos, retain=retain, packet_id=5))
            if qos:
                assert (await publisher.read())[0] in (PUBACK, PUBREC)
            if qos == 2:
                publisher.send(ack(PUBREL, 5))
                assert (await publisher.read())[0] == PUBCOMP
            await publisher.silence()
            await watcher.expect(publish(version, "t", payload))  # live: never with RETAIN
            late = await RawClient.connected(node.port, connect(version, "late"))
            late.send(subscribe(version, 1, ("t", 2)))
            assert (await late.read())[0] == SUBACK
            late.send(PINGREQ)
            got = []
            while (data := await late.read()) != PINGRESP:
                got.append(data)
            late.close()
            return got

        first = publish(version, "t", b"one", qos=qos, retain=True)
        assert await kept_after(b"one", retain=True) == [first]
        assert await kept_after(b"live", retain=False) == [first]
        assert await kept_after(b"two", retain=True) == [
            publish(version, "t", b"two", qos=qos, retain=True)
        ]
        assert await kept_after(b"", retain=True) == []


@pytest.mark.statement("5:3.3.1-9", "5:3.3.1-10", "5:3.3.1-11")
@pytest.mark.parametrize(
    ("handling", "expected"), [(0, [True, True]), (IF_NEW, [True, False]), (NEVER, [False, False])]
)
@on_loop
async def test_retain_handling_says_when_retained_messages_are_sent(
    handling: int, expected: list[bool]
) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(5))
        client.send(publish(5, "t", b"kept", retain=True))
        for is_sent in expected:
            client.send(subscribe(5, 1, ("t", handling)))
            assert (await client.read())[0] == SUBACK
            if is_sent:
                await client.expect(publish(5, "t", b"kept", retain=True))
            await client.silence()


@pytest.mark.statement("5:3.3.1-12", "5:3.3.1-13")
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("option", [0, AS_PUBLISHED])
@pytest.mark.parametrize("qos", [0, 1])
@on_loop
async def test_retain_as_published_keeps_the_flag(retain: bool, option: int, qos: int) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(5))
        await client.subscribed(5, ("t", option | qos))
        publisher = await RawClient.connected(node.port, connect(5, "p"))
        publisher.send(publish(5, "t", b"x", qos=qos, retain=retain))
        await client.expect(publish(5, "t", b"x", qos=qos, retain=retain and option > 0))


# -- topics --


@pytest.mark.statement("5:3.3.2-2", "3:3.3.2-2", "5:4.7.0-1", "3:4.7.1-1")
@VERSIONS
@pytest.mark.parametrize("topic", ["#", "+", "a/#", "a/+/b", "a+", "a#b"])
@pytest.mark.parametrize("qos", [0, 1, 2])
@on_loop
async def test_a_topic_with_wildcards_closes(version: int, topic: str, qos: int) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(version))
        client.send(publish(version, topic, b"x", qos=qos))
        await client.ended(version, 0x90)


@pytest.mark.statement("own:alias-unknown")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(
    "properties", [(), (b"\1\0",), (alias(3),)], ids=["none", "no-alias", "alias-never-set"]
)
@on_loop
async def test_no_topic_and_no_alias_that_stands_for_one_closes(
    qos: int, properties: tuple[bytes, ...]
) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(5))
        client.send(publish(5, "t", b"x", alias(2)), publish(5, "", b"x", *properties, qos=qos))
        await client.ended(5, 0x82)


@pytest.mark.statement("own:R15")
@pytest.mark.parametrize(
    ("topic", "number"), [("t", 77), ("", 7)], ids=["above-the-maximum", "never-set"]
)
@on_loop
async def test_an_alias_that_is_not_valid_is_told_with_its_number(topic: str, number: int) -> None:
    async with running(topic_alias_maximum=10) as node:
        client = await RawClient.connected(node.port, connect(5))
        client.send(publish(5, topic, b"x", alias(number)))
        [goodbye] = await client.closed()
        assert f"topic alias {number} ".encode() in goodbye  # the log line has the same text


@pytest.mark.statement("5:3.3.2-8")
@pytest.mark.parametrize("topic", ["t", ""])
@on_loop
async def test_alias_0_closes(topic: str) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(5))
        client.send(publish(5, topic, b"x", alias(0)))
        await client.ended(5, 0x94)


@pytest.mark.statement("own:R13")
@pytest.mark.statement("5:3.3.2-10", "5:3.3.2-12", "5:3.3.2-7", "5:3.3.2-18")
@pytest.mark.parametrize("qos", [0, 1])
@on_loop
async def test_every_alias_up_to_the_maximum_may_be_set_and_set_again(qos: int) -> None:
    async with running(topic_alias_maximum=20) as node:
        watcher = await RawClient.connected(node.port, connect(5, "w"))
        await watcher.subscribed(5, ("#", 0))
        client = await RawClient.connected(node.port, lasting(5))
        for number in range(1, 21):
            client.send(publish(5, f"t/{number}", b"set", alias(number), qos=qos))
        for number in range(1, 21):
            client.send(publish(5, "", b"used", alias(number), qos=qos))
        client.send(
            publish(5, "new", b"set", alias(7), qos=qos), publish(5, "", b"used", alias(7), qos=qos)
        )
        await watcher.expect(*(publish(5, f"t/{number}", b"set") for number in range(1, 21)))
        await watcher.expect(*(publish(5, f"t/{number}", b"used") for number in range(1, 21)))
        await watcher.expect(publish(5, "new", b"set"), publish(5, "new", b"used"))
        client.abort()
        client = await RawClient.connected(node.port, lasting(5))
        client.send(publish(5, "", b"x", alias(7)))  # it ended with the connection
        await client.ended(5, 0x82)


# -- aliases of the broker --


@pytest.mark.statement("own:R12")
@pytest.mark.statement("5:3.1.2-26", "5:3.1.2-27", "5:3.3.2-11")
@pytest.mark.parametrize(
    ("asked", "setting", "most"), [(None, 64, 0), (0, 64, 0), (2, 64, 2), (100, 3, 3), (100, 0, 0)]
)
@on_loop
async def test_the_first_topics_get_an_alias_and_keep_it(
    asked: int | None, setting: int, most: int
) -> None:
    """RMQ-26, R12."""
    async with running(topic_alias_maximum_out=setting) as node:
        properties = () if asked is None else (b"\x22" + asked.to_bytes(2),)
        client = await RawClient.connected(node.port, connect(5, "c", *properties))
        await client.subscribed(5, ("#", 0))
        publisher = await RawClient.connected(node.port, connect(4, "p"))
        for turn in range(60):
            publisher.send(*(publish(4, f"topic/{number}", b"x") for number in range(1, 6)))
            for number in range(1, 6):
                topic = b"topic/%d" % number
                known = number <= most and turn > 0
                expected = (b"" if known else topic, number if number <= most else 0, b"x")
                assert alias_of(await client.read()) == expected


@pytest.mark.statement("5:3.1.2-26", "5:3.3.2-11")
@on_loop
async def test_a_topic_that_is_hot_late_gets_the_alias_of_one_that_went_cold() -> None:
    """B-11."""
    async with running() as node:
        client = await RawClient.connected(node.port, connect(5, "c", b"\x22\0\2"))
        await client.subscribed(5, ("#", 0))
        publisher = await RawClient.connected(node.port, connect(4, "p"))
        names: dict[int, bytes] = {}
        topics = (
            ["cold", "warm"] * 10
            + ["hot", "warm"] * 50
            + [f"once/{n}" for n in range(500)]
            + ["hot", "warm"]
        )
        last: dict[str, bytes] = {}
        for topic in topics:
            publisher.send(publish(4, topic, topic.encode()))
            name, number, payload = alias_of(await client.read())
            assert payload == topic.encode()
            assert number <= 2
            if number and name:
                names[number] = name
            assert (
                names[number] if number else name
            ) == payload  # it is always read as the topic it is
            last[topic] = name
        assert last["warm"] == last["hot"] == b""
        assert all(last[f"once/{n}"] for n in range(500))


@pytest.mark.statement("5:3.1.2-26", "5:3.3.2-7", "5:3.3.2-11")
@pytest.mark.parametrize("qos", [0, 1, 2])
@on_loop
async def test_aliases_end_with_the_connection_and_resent_messages_have_their_topic(
    qos: int,
) -> None:
    async with running() as node:
        data = connect(5, "c", LASTING, b"\x22\0\5", clean=False)
        publisher = await RawClient.connected(node.port, connect(5, "p"))
        client = await RawClient.connected(node.port, data)
        await client.subscribed(5, ("t", 2))
        for is_first in (True, False):
            kept, number = b"\3" + text("text/plain"), 1 if is_first else 3
            publisher.send(publish(5, "t", b"x", kept, qos=qos, packet_id=number))
            publisher.send(publish(5, "t", b"y", qos=qos, packet_id=number + 1))
            if qos and not is_first:
                await client.expect(
                    publish(5, "t", b"x", alias(1), kept, qos=qos, packet_id=1, dup=True),
                    publish(5, "", b"y", alias(1), qos=qos, packet_id=2, dup=True),
                    publish(5, "", b"x", alias(1), kept, qos=qos, packet_id=3),
                )
                return
            await client.expect(
                publish(5, "t", b"x", alias(1), kept, qos=qos, packet_id=1),
                publish(5, "", b"y", alias(1), qos=qos, packet_id=2),
            )
            client.abort()
            client = await RawClient.connected(node.port, data)


@pytest.mark.statement("5:3.1.2-24", "5:3.3.2-11")
@on_loop
async def test_an_alias_never_makes_a_packet_larger_than_the_client_takes() -> None:
    async with running() as node:
        client = await RawClient.connected(
            node.port, connect(5, "c", b"\x22\0\5", b"\x27\0\0\0\x64")
        )
        await client.subscribed(5, ("t", 0))
        exact = publish(5, "t", b"x" * 94)
        assert len(exact) == 100
        client.send(exact, publish(5, "t", b"y"), exact)
        await client.expect(exact, publish(5, "t", b"y", alias(1)))
        assert len(await client.read()) <= 100
        assert node.metrics.value("deliveries_dropped", reason="packet_too_large") == 0


# -- properties --


@pytest.mark.statement(
    "5:3.3.2-15", "5:3.3.2-16", "5:3.3.2-17", "5:3.3.2-18", "5:3.3.2-20", "5:3.3.2-4"
)
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("lasts", [False, True])
@on_loop
async def test_properties_of_a_message_pass_unaltered(qos: int, lasts: bool) -> None:
    """RMQ-10: byte for byte, in their order, and nothing of the publisher's connection."""
    kept = (
        b"\1\1", b"\x08" + text("answers/é"), b"\x09" + text(bytes(range(256))), b"\3" + text("text/plain"),
        b"\x26" + text("b") + text("1"), b"\x26" + text("a") + text(""), b"\x26" + text("b") + text("1"),
        b"\x26" + text("") + text("2"),
    )  # fmt: skip
    async with running() as node:
        client = await RawClient.connected(node.port, lasting(5) if lasts else connect(5))
        await client.subscribed(5, ("t", 2))
        older = await RawClient.connected(node.port, connect(4, "older"))
        await older.subscribed(4, ("t", 2))
        publisher = await RawClient.connected(node.port, connect(5, "p"))
        publisher.send(publish(5, "t", b"x", *kept, alias(4), qos=qos))
        await client.expect(publish(5, "t", b"x", *kept, qos=qos))
        await older.expect(publish(4, "t", b"x", qos=qos))


BAD_PROPERTIES = {
    "format-2": (b"\1\2", 0x82),
    "response-topic-empty": (b"\x08\0\0", 0x82),
    "response-topic-+": (b"\x08" + text("a/+"), 0x82),
    "response-topic-#": (b"\x08" + text("#"), 0x82),
    "response-topic-not-utf-8": (b"\x08" + text(b"\xff"), 0x81),
    "response-topic-u-0000": (b"\x08" + text(b"\0"), 0x81),
    "content-type-not-utf-8": (b"\3" + text(b"\xed\xb0\x80"), 0x81),
    "subscription-identifier": (b"\x0b\1", 0x82),
    "subscription-identifier-0": (b"\x0b\0", 0x82),
    "subscription-identifiers": (b"\x0b\1" * 100_000, 0x82),
}


@pytest.mark.statement(
    "5:3.3.2-4", "5:3.3.2-13", "5:3.3.2-14", "5:4.7.3-1", "5:3.3.2-19", "5:3.3.4-6"
)
@pytest.mark.parametrize("case", BAD_PROPERTIES)
@pytest.mark.parametrize("qos", [0, 1])
@on_loop
async def test_properties_with_forbidden_values_close(case: str, qos: int) -> None:
    bad, code = BAD_PROPERTIES[case]
    async with running() as node:
        client = await RawClient.connected(node.port, connect(5))
        client.send(publish(5, "t", b"x", bad, qos=qos))
        await client.ended(5, code)


@pytest.mark.statement("5:3.3.2-13", "5:3.3.2-14")
@pytest.mark.parametrize(("topic", "code"), [(b"", 0x82), (b"a/+", 0x82), (b"\xff", 0x81)])
@on_loop
async def test_the_response_topic_of_a_will_is_a_topic_name(topic: bytes, code: int) -> None:
    async with running() as node:
        client = await RawClient.open(node.port)
        client.send(
            connect(5, flags=0x04, rest=props(5, b"\x08" + text(topic)) + text("w") + text("x"))
        )
        await client.refused(5, code)


@pytest.mark.statement("5:3.3.2-4")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("is_checked", [False, True])
@on_loop
async def test_a_payload_that_is_not_the_text_it_claims_may_be_refused(
    qos: int, is_checked: bool
) -> None:
    async with running(check_payload_format=is_checked) as node:
        watcher = await RawClient.connected(node.port, connect(5, "w"))
        await watcher.subscribed(5, ("t", 0))
        client = await RawClient.connected(node.port, connect(5, "c", b"\x17\0"))
        client.send(
            publish(5, "t", b"\xff", b"\1\1", qos=qos),
            publish(5, "t", b"\xff", b"\1\0"),
            publish(5, "t", b"\xff"),
        )
        client.send(publish(5, "t", "é".encode(), b"\1\1"))
        if qos:
            await client.expect(
                ack((0, PUBACK, PUBREC)[qos], 1, *((b"\x99",) if is_checked else ()))
            )
        if not is_checked:
            await watcher.expect(publish(5, "t", b"\xff", b"\1\1"))
        await watcher.expect(publish(5, "t", b"\xff", b"\1\0"), publish(5, "t", b"\xff"))
        await watcher.expect(publish(5, "t", "é".encode(), b"\1\1"))
        await client.silence()
        assert node.dropped("payload_format_invalid") == is_checked
        assert node.metrics.value("messages_refused", reason="payload_format_invalid") == is_checked


@pytest.mark.statement("5:3.3.2-4")
@on_loop
async def test_a_will_that_is_not_the_text_it_claims_may_be_refused() -> None:
    async with running(check_payload_format=True) as node:
        client = await RawClient.open(node.port)
        client.send(connect(5, flags=0x04, rest=props(5, b"\1\1") + text("w") + text(b"\xff")))
        await client.refused(5, 0x99)


@pytest.mark.statement("5:3.3.2-5", "5:3.3.2-6")
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("kind", ["away", "retained"])
@on_loop
async def test_expiry_is_counted_while_a_message_waits(version: int, kind: str) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, lasting(version))
        await client.subscribed(version, ("t/#", 1))
        client.send(b"\xe0\0")
        await client.closed()
        publisher = await RawClient.connected(node.port, connect(5, "p"))
        for packet_id, seconds in ((1, 10), (2, 60)):
            expiry = b"\2" + seconds.to_bytes(4)
            publisher.send(
                publish(
                    5,
                    f"t/{seconds}",
                    b"x",
                    expiry,
                    qos=1,
                    retain=kind == "retained",
                    packet_id=packet_id,
                )
            )
            assert (await publisher.read())[0] == PUBACK
        node.pass_time(20)
        left = (b"\2" + (40).to_bytes(4),) if version == 5 else ()
        if kind == "away":
            client = await RawClient.connected(node.port, lasting(version))
            await client.expect(publish(version, "t/60", b"x", *left, qos=1, packet_id=1))
        else:
            client = await RawClient.connected(node.port, connect(version, "late"))
            client.send(subscribe(version, 1, ("t/#", 0)))
            assert (await client.read())[0] == SUBACK
            await client.expect(publish(version, "t/60", b"x", *left, retain=True))
        await client.silence()


# -- subscriptions and their identifiers --


@pytest.mark.statement("5:3.3.4-2", "3:3.3.5-1", "5:3.3.4-3", "5:3.3.4-4", "5:3.3.4-5")
@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
@on_loop
async def test_overlapping_subscriptions_give_one_copy_with_the_highest_qos(
    version: int, qos: int
) -> None:
    """RMQ-31: and the identifiers of all of them, equal ones repeated."""
    async with running() as node:
        client = await RawClient.connected(node.port, connect(version))
        identified = (
            (lambda number: (b"\x0b" + bytes((number,)),)) if version == 5 else (lambda number: ())
        )
        for number, topic_filter, granted in ((7, "a/b", 0), (5, "a/+", 2), (7, "#", 1)):
            await client.subscribed(version, (topic_filter, granted), properties=identified(number))
        await client.subscribed(version, ("+/b", 0))
        publisher = await RawClient.connected(node.port, connect(version, "p"))
        publisher.send(publish(version, "a/b", b"x", qos=qos))
        got = await client.read()
        assert got[0] >> 1 & 3 == qos
        if version == 5:
            at = 2 + 5 + (2 if qos else 0)
            assert got[at] == 6
            block = got[at + 1 : at + 7]
            assert sorted(block[n : n + 2] for n in (0, 2, 4)) == [b"\x0b\5", b"\x0b\7", b"\x0b\7"]
        await client.silence()


# -- flow --


@pytest.mark.statement("5:3.3.4-9", "5:3.3.4-10", "5:3.3.4-7")
@on_loop
async def test_nothing_but_publish_is_delayed_for_the_receive_maximum() -> None:
    """QoS 0 may be too (section 4.9), and is behind what waits."""
    async with running() as node:
        client = await RawClient.connected(node.port, connect(5, "c", b"\x21\0\1"))
        await client.subscribed(5, ("t", 2))
        publisher = await RawClient.connected(node.port, connect(4, "p"))
        publisher.send(
            publish(4, "t", b"1", qos=1),
            publish(4, "t", b"2", qos=1, packet_id=2),
            publish(4, "t", b"0"),
        )
        await client.expect(publish(5, "t", b"1", qos=1, packet_id=1))
        client.send(subscribe(5, 5, ("u", 0)), publish(5, "v", b"x", qos=1, packet_id=9))
        await client.expect(packet(SUBACK, b"\0\5\0\0"), ack(PUBACK, 9, b"\x10"))
        await client.silence()
        client.send(ack(PUBACK, 1))
        await client.expect(publish(5, "t", b"2", qos=1, packet_id=2), publish(5, "t", b"0"))


@pytest.mark.statement("5:3.1.2-25", "5:3.1.2-24")
@pytest.mark.parametrize("lasts", [False, True])
@on_loop
async def test_a_publish_above_the_clients_size_is_dropped_and_counts_as_delivered(
    lasts: bool,
) -> None:
    """RMQ-44: it frees the quota, blocks nothing and does not come back."""
    limits = (b"\x27\0\0\0\x64", b"\x21\0\1")
    data = connect(5, "c", *limits, *((LASTING,) if lasts else ()), clean=not lasts)
    async with running() as node:
        client = await RawClient.connected(node.port, data)
        await client.subscribed(5, ("t", 2))
        publisher = await RawClient.connected(node.port, connect(5, "p"))
        for number, qos in enumerate((0, 1, 2, 0, 1, 2), 1):
            publisher.send(publish(5, "t", b"x" * 200, qos=qos, packet_id=number))
            if qos:
                await publisher.expect(ack((0, PUBACK, PUBREC)[qos], number))
        publisher.send(publish(5, "t", b"small", qos=1, packet_id=9))
        await publisher.expect(ack(PUBACK, 9))
        got = await client.read()
        assert got == publish(5, "t", b"small", qos=1, packet_id=int.from_bytes(got[5:7]))
        assert node.metrics.value("deliveries_dropped", reason="packet_too_large") == 6
        if lasts:
            client.abort()
            client = await RawClient.connected(node.port, data)
            assert (await client.read())[0] == PUBLISH | 2 | 8
        await client.silence()


@pytest.mark.statement("5:3.1.2-25", "5:3.1.2-24")
@on_loop
async def test_what_is_in_flight_and_too_large_for_the_next_connection_does_not_block_it() -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(5, "c", LASTING, clean=False))
        await client.subscribed(5, ("t", 2))
        publisher = await RawClient.connected(node.port, connect(5, "p"))
        publisher.send(
            publish(5, "t", b"x" * 200, qos=1), publish(5, "t", b"y", qos=1, packet_id=2)
        )
        await client.expect(
            publish(5, "t", b"x" * 200, qos=1, packet_id=1),
            publish(5, "t", b"y", qos=1, packet_id=2),
        )
        client.abort()
        limits = (b"\x27\0\0\0\x64", b"\x21\0\1")
        client = await RawClient.connected(
            node.port, connect(5, "c", LASTING, *limits, clean=False)
        )
        await client.expect(publish(5, "t", b"y", qos=1, packet_id=2, dup=True))
        client.send(ack(PUBACK, 2))
        publisher.send(publish(5, "t", b"z", qos=1, packet_id=3))
        assert b"z" in await client.read()


@pytest.mark.statement("own:no-matching-subscribers")
@VERSIONS
@pytest.mark.parametrize("qos", [1, 2])
@on_loop
async def test_who_publishes_to_nobody_is_told_in_version_5(version: int, qos: int) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(version))
        first = (0, PUBACK, PUBREC)[qos]
        client.send(publish(version, "t", qos=qos, packet_id=3))
        await client.expect(ack(first, 3, *((b"\x10",) if version == 5 else ())))
        await client.subscribed(version, ("t", 0))
        client.send(publish(version, "t", b"x", qos=qos, packet_id=4))
        assert {await client.read(), await client.read()} == {
            ack(first, 4),
            publish(version, "t", b"x"),
        }


@pytest.mark.statement("5:3.1.2-6", "5:3.1.2-5", "3:3.1.2-4")
@on_loop
async def test_a_session_moves_between_versions_and_loses_nothing() -> None:
    """RMQ-39: options and identifiers hold in version 5 only; messages wait whatever the version."""
    async with running() as node:
        client = await RawClient.connected(node.port, lasting(5))
        await client.subscribed(5, ("t", 1 | AS_PUBLISHED), properties=(b"\x0b\x09",))
        publisher = await RawClient.connected(node.port, connect(5, "p"))
        for number, version in enumerate((4, 5, 3, 5), 1):
            client.send(b"\xe0\0")
            await client.closed()
            kept = b"\3" + text("text/plain")
            publisher.send(publish(5, "t", b"%d" % number, kept, qos=1, packet_id=number))
            await publisher.expect(ack(PUBACK, number))
            client = await RawClient.connected(node.port, lasting(version))
            assert client.connack[2] == (0 if version == 3 else 1)
            properties = (kept, b"\x0b\x09") if version == 5 else ()
            await client.expect(
                publish(version, "t", b"%d" % number, *properties, qos=1, packet_id=number)
            )
            client.send(ack(PUBACK, number))
            await client.silence()
