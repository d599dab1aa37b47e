"""Section 1: data types, fixed headers, packet identifiers, properties, and what becomes of who breaks the rules."""

from __future__ import annotations

import pytest

from tests.support.mqtt_server import on_loop, running
from tests.support.raw import (
    AUTH,
    CONNACK,
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    RawClient,
    ack,
    connect,
    packet,
    props,
    publish,
    subscribe,
    text,
    unsubscribe,
)

VERSIONS = pytest.mark.parametrize("version", [3, 4, 5])
BAD_TEXTS = {
    "ill-formed": b"a\xff",
    "truncated": b"a\xe2\x82",
    "overlong": b"\xc0\xaf",
    "surrogate": b"\xed\xa0\x80",
    "above-U+10FFFF": b"\xf4\x90\x80\x80",
}
BAD_TEXT = pytest.mark.parametrize("bad", BAD_TEXTS.values(), ids=BAD_TEXTS)
PLACES = {
    "topic": lambda version, bad: publish(version, bad),
    "topic-qos-1": lambda version, bad: publish(version, bad, qos=1),
    "filter": lambda version, bad: packet(SUBSCRIBE, b"\0\1", props(version), text(bad), b"\0"),
    "unsubscribed-filter": lambda version, bad: packet(
        UNSUBSCRIBE, b"\0\1", props(version), text(bad)
    ),
}
PLACE = pytest.mark.parametrize("place", PLACES)


async def breaks(version: int, data: bytes, *codes: int) -> None:
    """This ends the connection with one of the codes, and harms nobody else."""
    async with running() as node:
        bystander = await RawClient.connected(node.port, connect(version, "b"))
        await bystander.subscribed(version, ("ok", 0))
        client = await RawClient.connected(node.port, connect(version, "c"))
        client.send(publish(version, "ok"), data, publish(version, "ok"))
        await client.ended(version, *codes)
        await bystander.expect(publish(version, "ok"))
        await bystander.silence()


@pytest.mark.statement("5:1.5.4-1", "3:1.5.3-1")
@VERSIONS
@PLACE
@BAD_TEXT
@on_loop
async def test_text_that_is_not_utf_8_closes(version: int, place: str, bad: bytes) -> None:
    await breaks(version, PLACES[place](version, bad), 0x81)


@pytest.mark.statement("5:1.5.4-2", "3:1.5.3-2")
@VERSIONS
@PLACE
@on_loop
async def test_text_with_u_0000_closes(version: int, place: str) -> None:
    await breaks(version, PLACES[place](version, b"a\0b"), 0x81)


@pytest.mark.statement("5:1.5.4-1", "5:1.5.4-2", "3:1.5.3-1", "3:1.5.3-2")
@VERSIONS
@pytest.mark.parametrize("bad", [*BAD_TEXTS.values(), b"\0"], ids=[*BAD_TEXTS, "U+0000"])
@on_loop
async def test_bad_text_in_a_connect_refuses_it(version: int, bad: bytes) -> None:
    async with running() as node:
        client = await RawClient.open(node.port)
        client.send(connect(version, bad))
        await client.refused(version, 0x81)


@pytest.mark.statement("5:1.5.4-3", "3:1.5.3-3")
@VERSIONS
@pytest.mark.parametrize("topic", ["\ufeff", "\ufeffa/b", "a/\ufeff/b", "a\ufeff"])
@on_loop
async def test_u_feff_is_kept_wherever_it_stands(version: int, topic: str) -> None:
    async with running() as node:
        subscriber = await RawClient.connected(node.port, connect(version, "s"))
        await subscriber.subscribed(
            version, (topic, 1), (topic.replace("\ufeff", ""), 1) if len(topic) > 1 else ("x", 0)
        )
        publisher = await RawClient.connected(node.port, connect(version, "p"))
        publisher.send(publish(version, topic, b"\xef\xbb\xbfx"))
        await subscriber.expect(publish(version, topic, b"\xef\xbb\xbfx"))
        await subscriber.silence()


@pytest.mark.statement("5:1.5.5-1")
@pytest.mark.parametrize("size", [0, 100, 127 - 5, 128 - 5, 16_383 - 5, 16_384 - 5, 200_000])
@on_loop
async def test_lengths_are_written_in_the_fewest_bytes(size: int) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(5))
        await client.subscribed(5, ("t", 1))
        client.send(publish(5, "t", b"x" * size))
        await client.expect(publish(5, "t", b"x" * size))


@pytest.mark.statement("5:1.5.5-1")
@VERSIONS
@pytest.mark.parametrize(
    "data",
    [
        b"\x30\x84\x80\x80\x80\x00\0\1tx",
        b"\x30\xff\xff\xff\xff\x01",
        b"\x30\x83\x00\0\1t",
        b"\xc0\x80\x00",
    ],
    ids=["five-bytes", "five-bytes-large", "two-for-one", "ping-two-for-one"],
)
@on_loop
async def test_a_remaining_length_that_is_too_long_closes(version: int, data: bytes) -> None:
    await breaks(version, data, 0x81)


@pytest.mark.statement("5:1.5.5-1")
@pytest.mark.parametrize(
    "length", [b"\x80\x00", b"\x80\x80\x80\x80\x00"], ids=["two-for-one", "five"]
)
@on_loop
async def test_a_property_length_that_is_too_long_closes(length: bytes) -> None:
    await breaks(5, packet(PUBLISH, text("t"), length, b"x"), 0x81)


@pytest.mark.statement("5:1.5.7-1")
@pytest.mark.parametrize("half", [0, 1], ids=["name", "value"])
@pytest.mark.parametrize("bad", [*BAD_TEXTS.values(), b"\0"], ids=[*BAD_TEXTS, "U+0000"])
@on_loop
async def test_both_halves_of_a_user_property_are_utf_8(half: int, bad: bytes) -> None:
    pair = text(bad) + text("v") if half == 0 else text("k") + text(bad)
    await breaks(5, publish(5, "t", b"", b"\x26" + pair), 0x81)


FLAGGED = {
    "PUBACK": ack(0x40, 1),
    "PUBREC": ack(0x50, 1),
    "PUBREL": ack(0x62, 1),
    "PUBCOMP": ack(0x70, 1),
    "SUBSCRIBE": subscribe(4, 1, ("a", 0)),
    "UNSUBSCRIBE": unsubscribe(4, 1, "a"),
    "PINGREQ": PINGREQ,
    "DISCONNECT": b"\xe0\0",
}


@pytest.mark.statement("own:choice-reserved-bits", "own:R38")
@pytest.mark.statement(
    "5:2.1.3-1", "3:2.2.2-1", "3:2.2.2-2", "5:3.6.1-1", "3:3.6.1-1", "5:3.8.1-1", "3:3.8.1-1", "5:3.10.1-1",
    "3:3.10.1-1", "5:3.14.1-1", "3:3.14.1-1",
)  # fmt: skip
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("kind", FLAGGED)
@on_loop
async def test_every_other_value_of_reserved_header_flags_closes(version: int, kind: str) -> None:
    data = FLAGGED[kind]
    async with running() as node:
        for flags in range(16):
            if flags == data[0] & 15:
                continue
            client = await RawClient.connected(node.port, connect(version, f"c{flags}"))
            client.send(bytes((data[0] & 0xF0 | flags,)) + data[1:])
            await client.ended(version, 0x81)


@pytest.mark.statement("5:2.1.3-1", "3:2.2.2-1", "3:2.2.2-2")
@VERSIONS
@pytest.mark.parametrize("first", [0x00, 0x0F, 0xF0, 0xFF])
@on_loop
async def test_packet_types_that_do_not_exist_close(version: int, first: int) -> None:
    await breaks(version, bytes((first, 0)), 0x81, *([0x82] if first == AUTH else []))


@pytest.mark.statement("5:2.2.1-2", "3:2.3.1-5")
@VERSIONS
@pytest.mark.parametrize(("sent", "granted"), [(0, 2), (1, 0), (2, 0)])
@on_loop
async def test_qos_0_carries_no_packet_identifier(version: int, sent: int, granted: int) -> None:
    async with running() as node:
        subscriber = await RawClient.connected(node.port, connect(version, "s"))
        await subscriber.subscribed(version, ("t", granted))
        publisher = await RawClient.connected(node.port, connect(version, "p"))
        publisher.send(publish(version, "t", b"x", qos=sent))
        await subscriber.expect(publish(version, "t", b"x"))


@pytest.mark.statement("5:2.2.1-3", "3:2.3.1-1")
@VERSIONS
@pytest.mark.parametrize("kind", ["SUBSCRIBE", "UNSUBSCRIBE", "PUBLISH-1", "PUBLISH-2"])
@on_loop
async def test_packet_identifier_0_closes(version: int, kind: str) -> None:
    data = {
        "SUBSCRIBE": subscribe(version, 0, ("a", 0)),
        "UNSUBSCRIBE": unsubscribe(version, 0, "a"),
        "PUBLISH-1": publish(version, "a", qos=1, packet_id=0),
        "PUBLISH-2": publish(version, "a", qos=2, packet_id=0),
    }[kind]
    await breaks(version, data, 0x81, 0x82)


@pytest.mark.statement("5:2.2.1-4", "3:2.3.1-4")
@VERSIONS
@on_loop
async def test_identifiers_of_the_two_directions_are_independent(version: int) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(version))
        await client.subscribed(version, ("t", 1))
        for number in (1, 2):  # our identifiers meet those of the broker, which are in flight
            client.send(publish(version, "t", qos=1, packet_id=number))
            got = {await client.read(), await client.read()}
            assert got == {publish(version, "t", qos=1, packet_id=number), ack(PUBACK, number)}


@pytest.mark.statement("5:2.2.1-4", "3:2.3.1-4")
@on_loop
async def test_no_identifier_is_used_while_it_is_outstanding() -> None:
    """NATS-22: more messages than there are identifiers, with one that is never acknowledged."""
    total, window = 70_000, 5000
    async with running(max_inflight=window, max_queued_messages=total) as node:
        subscriber = await RawClient.connected(node.port, connect(4, "s"))
        await subscriber.subscribed(4, ("t", 1))
        publisher = await RawClient.connected(node.port, connect(4, "p"))
        size = len(publish(4, "t", qos=1))
        open_ids: set[int] = set()
        received = sent = 0
        while received < total:
            batch = min(window - len(open_ids), total - sent)
            publisher.send(
                b"".join(publish(4, "t", qos=1, packet_id=n % 65_000 + 1) for n in range(batch))
            )
            sent += batch
            data = await subscriber.read_bytes(size * batch)
            await publisher.read_bytes(4 * batch)
            ids = [int.from_bytes(data[at - 2 : at]) for at in range(size, len(data) + 1, size)]
            assert 0 not in ids
            assert len(set(ids)) == len(ids)
            assert open_ids.isdisjoint(ids)
            received += batch
            open_ids |= set(ids)
            done = open_ids - {1}
            subscriber.send(b"".join(ack(PUBACK, number) for number in done))
            await subscriber.silence()
            open_ids -= done


@pytest.mark.statement("5:2.2.1-5", "3:2.3.1-6", "5:3.3.4-1", "3:3.3.4-1")
@VERSIONS
@pytest.mark.parametrize("packet_id", [1, 255, 256, 65_535])
@on_loop
async def test_acknowledgements_have_the_identifier_of_the_publish(
    version: int, packet_id: int
) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(version))
        other = await RawClient.connected(node.port, connect(version, "s"))
        await other.subscribed(version, ("t", 0))
        client.send(publish(version, "t", qos=0))
        client.send(publish(version, "t", qos=1, packet_id=packet_id))
        await client.expect(ack(PUBACK, packet_id))
        client.send(publish(version, "t", qos=2, packet_id=packet_id))
        await client.expect(ack(PUBREC, packet_id))
        client.send(ack(PUBREL, packet_id))
        await client.expect(ack(PUBCOMP, packet_id))
        await client.silence()


@pytest.mark.statement("5:2.2.1-6", "3:2.3.1-7", "5:2.2.2-1")
@VERSIONS
@pytest.mark.parametrize("packet_id", [1, 255, 256, 65_535])
@on_loop
async def test_suback_and_unsuback_have_the_identifier_of_the_request(
    version: int, packet_id: int
) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(version))
        client.send(subscribe(version, packet_id, ("a", 1)))
        await client.expect(packet(SUBACK, packet_id.to_bytes(2), props(version), b"\1"))
        client.send(unsubscribe(version, packet_id, "a"))
        await client.expect(
            packet(UNSUBACK, packet_id.to_bytes(2), props(version), b"\0" if version == 5 else b"")
        )


PROPERTIES = {
    "unknown": (publish(5, "t", b"", b"\x7f\0"), 0x81),
    "unknown-long": (publish(5, "t", b"", b"\xff\x7f\0"), 0x81),
    "of-connect": (publish(5, "t", b"", b"\x21\0\1"), 0x82),
    "of-connack": (subscribe(5, 1, ("t", 0), properties=(b"\x24\1",)), 0x82),
    "reason-string-of-a-publish": (publish(5, "t", b"", b"\x1f\0\1x"), 0x82),
    "expiry-in-subscribe": (subscribe(5, 1, ("t", 0), properties=(b"\x02\0\0\0\1",)), 0x82),
    "will-delay-in-publish": (publish(5, "t", b"", b"\x18\0\0\0\1"), 0x82),
    "format-twice": (publish(5, "t", b"", b"\1\0", b"\1\0"), 0x82),
    "expiry-twice": (publish(5, "t", b"", b"\2\0\0\0\1", b"\2\0\0\0\1"), 0x82),
    "content-type-twice": (publish(5, "t", b"", b"\3\0\1x", b"\3\0\1x"), 0x82),
    "alias-twice": (publish(5, "t", b"", b"\x23\0\1", b"\x23\0\1"), 0x82),
    "reason-string-twice": (ack(PUBACK, 1, b"\0", props(5, b"\x1f\0\1x", b"\x1f\0\1x")), 0x82),
    "cut-short": (publish(5, "t", b"", b"\2\0\0"), 0x81),
    "longer-than-the-packet": (packet(PUBLISH, text("t"), b"\x10\1\0"), 0x81),
    "no-length": (packet(PUBLISH, text("t")), 0x81),
}


@pytest.mark.statement("5:2.2.2.2", "5:2.2.2-1")
@pytest.mark.parametrize("case", PROPERTIES)
@on_loop
async def test_properties_without_a_place_close(case: str) -> None:
    data, code = PROPERTIES[case]
    await breaks(5, data, code)


@pytest.mark.statement("5:2.2.2.2")
@on_loop
async def test_user_properties_may_come_many_times_and_twice_the_same() -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(5))
        await client.subscribed(5, ("t", 0))
        pair = b"\x26" + text("k") + text("v")
        client.send(publish(5, "t", b"x", pair, pair, pair))
        await client.expect(publish(5, "t", b"x", pair, pair, pair))


@pytest.mark.statement("5:4.2-1", "3:7.1.1-1")
@VERSIONS
@pytest.mark.parametrize("size", [1, 2, 3, 7])
@on_loop
async def test_packets_may_be_cut_and_joined_anywhere(version: int, size: int) -> None:
    async with running() as node:
        stream = (
            connect(version)
            + subscribe(version, 1, ("t", 1))
            + publish(version, "t", b"x" * 200, qos=1)
            + PINGREQ
        )
        client = await RawClient.open(node.port)
        for at in range(0, len(stream), size):
            client.send(stream[at : at + size])
            await client.drain()
        assert (await client.read())[0] == CONNACK
        await client.expect(packet(SUBACK, b"\0\1", props(version), b"\1"))
        got = {await client.read(), await client.read()}
        assert got == {publish(version, "t", b"x" * 200, qos=1), ack(PUBACK, 1)}
        await client.expect(PINGRESP)


CUT_SHORT = {
    "PUBLISH": lambda v: packet(PUBLISH, b"\0\5ab"),
    "PUBLISH-no-identifier": lambda v: packet(PUBLISH | 2, text("t"), b"\0"),
    "PUBLISH-empty": lambda v: packet(PUBLISH),
    "PUBACK": lambda v: packet(PUBACK, b"\1"),
    "PUBREC": lambda v: packet(PUBREC),
    "PUBREL": lambda v: packet(PUBREL, b"\1"),
    "PUBCOMP": lambda v: packet(PUBCOMP, b"\1"),
    "SUBSCRIBE": lambda v: packet(SUBSCRIBE, b"\1"),
    "SUBSCRIBE-filter": lambda v: packet(SUBSCRIBE, b"\0\1", props(v), b"\0\5ab"),
    "SUBSCRIBE-options": lambda v: packet(SUBSCRIBE, b"\0\1", props(v), text("a")),
    "UNSUBSCRIBE": lambda v: packet(UNSUBSCRIBE, b"\0\1", props(v), b"\0\5ab"),
}
LEFT_OVER = {
    "PUBACK": lambda v: ack(PUBACK, 1, *((b"\0", b"\0", b"x") if v == 5 else (b"x",))),
    "PUBREC": lambda v: ack(PUBREC, 1, *((b"\0", b"\0", b"x") if v == 5 else (b"x",))),
    "PUBREL": lambda v: ack(PUBREL, 1, *((b"\0", b"\0", b"x") if v == 5 else (b"x",))),
    "PUBCOMP": lambda v: ack(PUBCOMP, 1, *((b"\0", b"\0", b"x") if v == 5 else (b"x",))),
    "PINGREQ": lambda v: packet(0xC0, b"x"),
    "DISCONNECT": lambda v: packet(DISCONNECT, *((b"\0", b"\0", b"x") if v == 5 else (b"x",))),
}


@pytest.mark.statement("5:2.1.4", "3:2.2.3", "5:3.3.2-1", "3:3.3.2-1")
@VERSIONS
@pytest.mark.parametrize("case", CUT_SHORT)
@on_loop
async def test_a_packet_that_ends_before_its_fields_closes(version: int, case: str) -> None:
    await breaks(version, CUT_SHORT[case](version), 0x81)


@pytest.mark.statement("5:2.1.4", "3:2.2.3")
@VERSIONS
@pytest.mark.parametrize("case", LEFT_OVER)
@on_loop
async def test_a_packet_with_bytes_left_over_closes(version: int, case: str) -> None:
    await breaks(version, LEFT_OVER[case](version), 0x81)


@pytest.mark.statement("5:4.13.1-1", "5:4.13.2-1", "3:4.8.0-1", "3:4.8.0-2", "own:server-packets")
@VERSIONS
@pytest.mark.parametrize("kind", ["CONNACK", "SUBACK", "UNSUBACK", "PINGRESP"])
@on_loop
async def test_packets_that_only_a_server_sends_close(version: int, kind: str) -> None:
    data = {
        "CONNACK": packet(CONNACK, b"\0\0", props(version)),
        "SUBACK": packet(SUBACK, b"\0\1", props(version), b"\0"),
        "UNSUBACK": packet(UNSUBACK, b"\0\1", props(version), b"\0" if version == 5 else b""),
        "PINGRESP": PINGRESP,
    }[kind]
    await breaks(version, data, 0x82)


@pytest.mark.statement("5:4.13.1-1", "3:4.8.0-1")
@VERSIONS
@on_loop
async def test_a_length_above_the_maximum_is_refused_by_the_header_alone(version: int) -> None:
    await breaks(version, b"\x30\xff\xff\xff\x7f", 0x95)


@pytest.mark.parametrize("size", [126, 127, 128, 129, 131, 300])
@VERSIONS
@on_loop
async def test_the_maximum_counts_every_byte_of_a_packet(version: int, size: int) -> None:
    """MQTT 5, section 3.1.2.11.4: "the total number of bytes in an MQTT Control Packet"."""
    for qos in (0, 1):
        # its length has two bytes then
        room = size - len(publish(version, "t", b"", qos=qos)) - (size > 129)
        whole = publish(version, "t", b"x" * room, qos=qos)
        assert len(whole) == size
        async with running(max_packet_size=128) as node:
            client = await RawClient.connected(node.port, connect(version))
            client.send(whole)
            if size > 128:
                await client.ended(version, 0x95)
                continue
            client.send(PINGREQ)
            if qos:
                assert (await client.read())[0] == PUBACK
            await client.expect(PINGRESP)
