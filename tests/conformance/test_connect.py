"""Section 2: what a CONNECT may say, and what becomes of the sessions and wills it brings."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.mqtt_server import MovedClock, Node, on_loop, running
from tests.support.raw import (
    CONNACK,
    DISCONNECT,
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
SINCE_4 = pytest.mark.parametrize("version", [4, 5])
WILL, RETAIN, USERNAME, PASSWORD = 0x04, 0x20, 0x80, 0x40
NEVER = b"\x11\xff\xff\xff\xff"


def lasting(version: int, seconds: int = 100) -> tuple[bytes, ...]:
    """Properties of a CONNECT whose session outlives its connection; below version 5 not starting clean is enough."""
    return (b"\x11" + seconds.to_bytes(4),) if version == 5 else ()


def will(version: int, topic: str | bytes, payload: bytes, *properties: bytes) -> bytes:
    """What stands behind the client identifier of a CONNECT with the will flag."""
    return props(version, *properties) + text(topic) + text(payload)


def delayed(version: int, seconds: int) -> tuple[bytes, ...]:
    """The will delay."""
    return (b"\x18" + seconds.to_bytes(4),) if version == 5 else ()


def is_away(node: Node, client_id: str = "c") -> bool:
    """Whether a session waits for its client."""
    session = node.server.hub.sessions.get(client_id)
    return session is not None and session.is_away


async def refusal(
    data: bytes, version: int, code: int, return_code: int | None = None, **settings: Any
) -> None:
    """This CONNECT is refused, and nothing that came behind it is processed."""
    async with running(**settings) as node:
        bystander = await RawClient.connected(node.port, connect(4, "bystander"))
        await bystander.subscribed(4, ("#", 0))
        client = await RawClient.open(node.port)
        client.send(data, publish(version, "behind"))
        await client.refused(version, code, return_code)
        await bystander.silence()


@pytest.mark.statement("5:3.1.0-1", "3:3.1.0-1")
@pytest.mark.parametrize(
    "data",
    [
        PINGREQ,
        publish(4, "t"),
        subscribe(4, 1, ("t", 0)),
        ack(PUBACK, 1),
        b"\xe0\0",
        b"\xf0\0",
        b"\0\0",
        b"\x11\0",
        b"GET ",
    ],
    ids=[
        "PINGREQ",
        "PUBLISH",
        "SUBSCRIBE",
        "PUBACK",
        "DISCONNECT",
        "AUTH",
        "type-0",
        "CONNECT-flags",
        "HTTP",
    ],
)
@on_loop
async def test_anything_but_connect_first_closes_without_a_packet(data: bytes) -> None:
    async with running() as node:
        client = await RawClient.open(node.port)
        client.send(data)
        assert await client.closed() == []


@pytest.mark.statement("5:3.1.0-2", "3:3.1.0-2", "5:3.1.2-8", "3:3.1.2-8")
@VERSIONS
@on_loop
async def test_a_second_connect_is_an_abnormal_end(version: int) -> None:
    async with running() as node:
        watcher = await RawClient.connected(node.port, connect(4, "w"))
        await watcher.subscribed(4, ("will", 0))
        data = connect(version, "c", flags=WILL, rest=will(version, "will", b"gone"))
        client = await RawClient.connected(node.port, data)
        client.send(data)
        await client.ended(version, 0x82)
        await watcher.expect(publish(4, "will", b"gone"))


@pytest.mark.statement("5:3.1.2-1", "3:3.1.2-1", "5:3.1.2-2", "3:3.1.2-2")
@pytest.mark.parametrize(
    ("name", "level", "return_code"),
    [
        ("MQTT", 3, 1),
        ("MQTT", 6, 1),
        ("MQTT", 0, 1),
        ("MQTT", 0x85, 1),
        ("MQTT", 0x83, 1),
        ("MQIsdp", 4, 1),
        ("MQIsdp", 0x84, 1),
        ("mqtt", 4, None),
    ],
)
@on_loop
async def test_other_protocols_and_levels_are_refused(
    name: str, level: int, return_code: int | None
) -> None:
    await refusal(connect(4, name=name, level=level), 4, 0x84, return_code)


@pytest.mark.statement("5:3.1.2-1", "5:3.1.2-2")
@pytest.mark.parametrize("name", ["MQIsdp", "mqtt", "AMQP", ""])
@on_loop
async def test_another_protocol_of_level_5_is_told_so(name: str) -> None:
    await refusal(connect(5, name=name), 5, 0x84)


@pytest.mark.statement("5:3.1.2-2", "3:3.1.2-2")
@on_loop
async def test_versions_side_by_side_are_told_apart() -> None:
    """RMQ-51."""
    async with running() as node:
        clients = [
            await RawClient.connected(node.port, connect(version, f"c{n}"))
            for n, version in enumerate((3, 4, 5, 5))
        ]
        names = {3: "3.1", 4: "3.1.1", 5: "5.0"}
        counts = [
            node.metrics.value("connections_by_version", version=names[version])
            for version in (3, 4, 5)
        ]
        assert counts == [1, 1, 2]
        clients[0].close()
        await node.until(lambda: node.metrics.value("connections_by_version", version="3.1") == 0)


@pytest.mark.statement("5:3.1.2-3", "3:3.1.2-3")
@SINCE_4
@on_loop
async def test_the_reserved_connect_flag_is_refused(version: int) -> None:
    await refusal(connect(version, flags=1), version, 0x81)


@pytest.mark.statement(
    "5:3.1.2-11",
    "5:3.1.2-12",
    "5:3.1.2-13",
    "3:3.1.2-11",
    "3:3.1.2-13",
    "3:3.1.2-14",
    "3:3.1.2-15",
    "3:3.1.2-12",
)
@pytest.mark.parametrize(
    ("version", "flags"),
    [
        (3, WILL | 0x18),
        *(
            (version, flags)
            for version in (4, 5)
            for flags in (0x08, 0x10, 0x18, 0x20, WILL | 0x18)
        ),
    ],
)
@on_loop
async def test_will_flags_that_do_not_fit_are_refused(version: int, flags: int) -> None:
    rest = will(version, "w", b"x") if flags & WILL else b""
    await refusal(connect(version, flags=flags, rest=rest), version, 0x81)


PAYLOADS = {
    "nothing": (0, None),
    "client-identifier-cut-short": (0, b"\0\5ab"),
    "left-over": (0, text("c") + b"x"),
    "will-without-fields": (WILL, text("c")),
    "will-without-payload": (WILL, text("c") + b"PROPS" + text("w")),
    "will-payload-cut-short": (WILL, text("c") + b"PROPS" + text("w") + b"\0\5x"),
    "user-name-missing": (USERNAME, text("c")),
    "user-name-without-flag": (0, text("c") + text("u")),
    "password-missing": (USERNAME | PASSWORD, text("c") + text("u")),
    "password-without-flag": (USERNAME, text("c") + text("u") + text("p")),
    "user-name-not-utf-8": (USERNAME, text("c") + text(b"\xff")),
    "user-name-with-u-0000": (USERNAME, text("c") + text(b"a\0")),
    "will-topic-not-utf-8": (WILL, text("c") + b"PROPS" + text(b"\xc0\x80") + text("x")),
}


@pytest.mark.statement("own:choice-malformed-connect")
@pytest.mark.statement(
    "5:3.1.2-9", "3:3.1.2-9", "5:3.1.2-16", "5:3.1.2-17", "5:3.1.2-18", "5:3.1.2-19", "3:3.1.2-18", "3:3.1.2-19",
    "3:3.1.2-20", "3:3.1.2-21", "5:3.1.3-1", "3:3.1.3-1", "5:3.1.3-3", "3:3.1.3-3", "5:3.1.3-4", "3:3.1.3-4",
    "5:3.1.3-11", "3:3.1.3-10", "5:3.1.3-12", "3:3.1.3-11", "5:3.1.4-1", "3:3.1.4-1", "5:2.1.4", "3:2.2.3",
)  # fmt: skip
@VERSIONS
@pytest.mark.parametrize("case", PAYLOADS)
@on_loop
async def test_a_payload_that_is_not_what_the_flags_say_is_refused(version: int, case: str) -> None:
    flags, payload = PAYLOADS[case]
    head = (
        text("MQIsdp" if version == 3 else "MQTT")
        + bytes((version, 2 | flags))
        + b"\0\0"
        + props(version)
    )
    body = b"" if payload is None else payload.replace(b"PROPS", props(version))
    await refusal(packet(0x10, head, body), version, 0x81)


@VERSIONS
@pytest.mark.parametrize("limit", [65_535, 65_534])
@on_loop
async def test_a_will_has_any_payload_that_fits_its_field_unless_a_limit_says_less(
    version: int, limit: int
) -> None:
    """By default the largest will fits into the largest CONNECT."""
    async with running(max_will_payload=limit) as node:
        client = await RawClient.open(node.port)
        client.send(connect(version, "c", flags=WILL, rest=will(version, "w", bytes(65_535))))
        if limit < 65_535:
            await client.refused(version, 0x97, 3)
        else:
            assert (await client.read())[3] == 0


@pytest.mark.statement("3:3.1.2-22")
@VERSIONS
@on_loop
async def test_a_password_needs_a_user_name_below_version_5(version: int) -> None:
    data = connect(version, flags=PASSWORD, rest=text("p"))
    if version < 5:
        await refusal(data, version, 0x81)
        return
    async with running() as node:
        await RawClient.connected(node.port, data)


PROPERTIES = {
    "receive-maximum-0": ((b"\x21\0\0",), 0x82),
    "maximum-packet-size-0": ((b"\x27\0\0\0\0",), 0x82),
    "response-information-2": ((b"\x19\2",), 0x82),
    "problem-information-2": ((b"\x17\2",), 0x82),
    "authentication-data-alone": ((b"\x16" + text("x"),), 0x82),
    "expiry-twice": ((NEVER, NEVER), 0x82),
    "unknown": ((b"\x7e\1",), 0x81),
    "of-publish": ((b"\1\1",), 0x82),
    "cut-short": ((b"\x11\0\0",), 0x81),
}


@pytest.mark.statement(
    "5:3.1.2.11.3",
    "5:3.1.2.11.4",
    "5:3.1.2.11.6",
    "5:3.1.2.11.7",
    "5:3.1.2.11.10",
    "5:3.1.4-1",
    "5:2.2.2.2",
)
@pytest.mark.parametrize("case", PROPERTIES)
@on_loop
async def test_connect_properties_with_forbidden_values_are_refused(case: str) -> None:
    properties, code = PROPERTIES[case]
    await refusal(connect(5, "c", *properties), 5, code)


@pytest.mark.statement("5:3.1.3-11", "3:3.1.3-10", "5:3.3.2-2", "3:3.3.2-2")
@VERSIONS
@pytest.mark.parametrize("topic", ["", "a/#", "+/b", "#"])
@on_loop
async def test_a_will_topic_is_a_topic_name(version: int, topic: str) -> None:
    await refusal(connect(version, flags=WILL, rest=will(version, topic, b"x")), version, 0x90)


# -- sessions --


@pytest.mark.statement(
    "5:3.1.2-4", "5:3.1.4-4", "3:3.1.2-6", "3:3.1.4-3", "5:3.1.2-5", "3:3.1.2-4", "5:3.1.2-6", "5:3.2.2-2", "3:3.2.2-1",
    "5:3.2.2-3", "3:3.2.2-2", "3:3.2.2-3", "5:3.1.3-2", "3:3.1.3-2", "5:3.1.2-23",
)  # fmt: skip
@VERSIONS
@on_loop
async def test_a_session_is_created_resumed_and_discarded_as_clean_start_says(version: int) -> None:
    async with running() as node:
        kept, fresh = (
            connect(version, "c", *lasting(version), clean=clean) for clean in (False, True)
        )
        publisher = await RawClient.connected(node.port, connect(4, "p"))
        for data, is_present in (
            (kept, 0),
            (kept, 1),
            (fresh, 0),
            (kept, 1 if version == 5 else 0),
            (fresh, 0),
        ):
            client = await RawClient.connected(node.port, data)
            assert client.connack[2] == (is_present if version > 3 else 0)  # 3.1 does not say
            publisher.send(publish(4, "t", b"x", qos=1))
            assert (await publisher.read())[0] == PUBACK
            if is_present:
                await client.expect(publish(version, "t", b"x", qos=1, packet_id=1))
                client.send(ack(PUBACK, 1))
            await client.silence()
            if not is_present:
                await client.subscribed(version, ("t", 1))
            client.send(b"\xe0\0")
            await client.closed()


@pytest.mark.statement("3:3.1.2-5", "5:3.1.2-5", "5:3.1.2-23")
@VERSIONS
@on_loop
async def test_qos_1_and_2_are_kept_while_the_client_is_away(version: int) -> None:
    async with running() as node:
        data = connect(version, "c", *lasting(version), clean=False)
        client = await RawClient.connected(node.port, data)
        await client.subscribed(version, ("t", 2))
        client.abort()
        await node.until(lambda: is_away(node))
        publisher = await RawClient.connected(node.port, connect(4, "p"))
        for qos in (0, 1, 2):
            publisher.send(publish(4, "t", b"%d" % qos, qos=qos, packet_id=qos))
        await publisher.expect(ack(PUBACK, 1), ack(PUBREC, 2))
        client = await RawClient.connected(node.port, data)
        await client.expect(
            publish(version, "t", b"1", qos=1, packet_id=1),
            publish(version, "t", b"2", qos=2, packet_id=2),
        )
        await client.silence()


@pytest.mark.statement("3:3.1.2-6", "5:3.1.2-23")
@VERSIONS
@on_loop
async def test_a_session_that_is_not_to_last_ends_with_its_connection(version: int) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(version, "c", clean=version < 5))
        await client.subscribed(version, ("t", 1))
        client.abort()
        await node.until(lambda: node.server.hub.sessions.get("c") is None)
        again = await RawClient.connected(
            node.port, connect(version, "c", *lasting(version), clean=False)
        )
        assert again.connack[2] == 0


@pytest.mark.statement("5:3.1.2-23")
@on_loop
async def test_a_session_lasts_as_long_as_its_expiry_says_and_for_ever_with_all_bits() -> None:
    async with running(max_session_expiry=0xFFFFFFFF) as node:
        for client_id, expiry in (("short", b"\x11\0\0\0\x0a"), ("endless", NEVER)):
            client = await RawClient.connected(node.port, connect(5, client_id, expiry))
            client.send(b"\xe0\0")
            await client.closed()
        node.pass_time(9)
        assert node.server.hub.sessions.get("short") is not None
        node.pass_time(2)
        assert node.server.hub.sessions.get("short") is None
        node.pass_time(3e9)
        assert node.server.hub.sessions.get("endless") is not None


@pytest.mark.statement("3:3.1.2-7")
@VERSIONS
@on_loop
async def test_retained_messages_outlive_the_session_that_published_them(version: int) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(version, "c"))
        client.send(publish(version, "t", b"kept", retain=True), b"\xe0\0")
        await client.closed()
        client = await RawClient.connected(node.port, connect(version, "c"))
        client.send(subscribe(version, 1, ("t", 0)))
        assert (await client.read())[0] == SUBACK
        await client.expect(publish(version, "t", b"kept", retain=True))


@pytest.mark.statement("5:3.1.4-3", "3:3.1.4-2", "5:3.1.2-8")
@VERSIONS
@on_loop
async def test_a_later_connection_ends_the_older_one_and_its_will_is_due(version: int) -> None:
    async with running() as node:
        watcher = await RawClient.connected(node.port, connect(4, "w"))
        await watcher.subscribed(4, ("will", 0))
        older = await RawClient.connected(
            node.port, connect(version, "c", flags=WILL, rest=will(version, "will", b"gone"))
        )
        newer = await RawClient.connected(node.port, connect(version, "c"))
        await older.ended(version, 0x8E)
        await watcher.expect(publish(4, "will", b"gone"))
        await newer.silence()


# -- wills --


@pytest.mark.statement(
    "5:3.1.2-7", "3:3.1.2-8", "5:3.1.2-8", "5:3.1.2-10", "3:3.1.2-10", "5:3.1.2-14", "5:3.1.2-15", "3:3.1.2-16",
    "3:3.1.2-17",
)  # fmt: skip
@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("is_retained", [False, True])
@on_loop
async def test_a_will_is_published_once_with_its_qos_and_retain(
    version: int, qos: int, is_retained: bool
) -> None:
    async with running() as node:
        watcher = await RawClient.connected(node.port, connect(4, "w"))
        await watcher.subscribed(4, ("will", 2))
        flags = WILL | qos << 3 | (RETAIN if is_retained else 0)
        client = await RawClient.connected(
            node.port, connect(version, flags=flags, rest=will(version, "will", b"gone"))
        )
        client.abort()
        await watcher.expect(publish(4, "will", b"gone", qos=qos))
        node.pass_time(1000)
        await watcher.silence()
        late = await RawClient.connected(node.port, connect(4, "l"))
        late.send(subscribe(4, 1, ("will", 2)))
        assert (await late.read())[0] == SUBACK
        if is_retained:
            await late.expect(publish(4, "will", b"gone", qos=qos, retain=True))
        await late.silence()


@pytest.mark.statement("3:3.1.2-12", "5:3.1.2-8")
@VERSIONS
@on_loop
async def test_without_the_will_flag_nothing_is_published(version: int) -> None:
    async with running() as node:
        watcher = await RawClient.connected(node.port, connect(4, "w"))
        await watcher.subscribed(4, ("#", 2))
        client = await RawClient.connected(node.port, connect(version))
        client.abort()
        await node.until(lambda: node.server.hub.sessions.get("c") is None)
        await watcher.silence()


@pytest.mark.statement("5:3.1.2-8", "5:3.1.3-9", "5:3.1.2-10", "5:3.1.2-14", "5:3.1.2-15")
@pytest.mark.parametrize("is_retained", [False, True])
@on_loop
async def test_a_will_waits_for_its_delay_and_resuming_cancels_it(is_retained: bool) -> None:
    async with running() as node:
        watcher = await RawClient.connected(node.port, connect(4, "w"))
        await watcher.subscribed(4, ("will", 2))
        flags = WILL | (RETAIN if is_retained else 0)
        data = connect(
            5, "c", *lasting(5), clean=False, flags=flags, rest=will(5, "will", b"gone", *delayed(5, 10))
        )  # fmt: skip
        for is_in_time in (True, False):
            client = await RawClient.connected(node.port, data)
            client.abort()
            await node.until(lambda: is_away(node))
            node.pass_time(9)
            await watcher.silence()
            if is_in_time:
                client = await RawClient.connected(
                    node.port, connect(5, "c", *lasting(5), clean=False)
                )
                node.pass_time(1000)
                client.send(b"\xe0\0")
                await client.closed()
                await watcher.silence()
        node.pass_time(2)
        await watcher.expect(publish(4, "will", b"gone"))
        late = await RawClient.connected(node.port, connect(4, "l"))
        late.send(subscribe(4, 1, ("will", 0)))
        assert (await late.read())[0] == SUBACK
        if is_retained:
            await late.expect(publish(4, "will", b"gone", retain=True))
        await late.silence()


@pytest.mark.statement("5:3.1.2-8", "5:3.1.2-4", "5:3.1.4-4")
@pytest.mark.parametrize("end", ["expiry", "clean-start"])
@on_loop
async def test_a_delayed_will_is_due_when_the_session_ends(end: str) -> None:
    async with running() as node:
        watcher = await RawClient.connected(node.port, connect(4, "w"))
        await watcher.subscribed(4, ("will", 0))
        rest = will(5, "will", b"gone", *delayed(5, 1000))
        client = await RawClient.connected(
            node.port, connect(5, "c", *lasting(5, 10), flags=WILL, rest=rest)
        )
        client.abort()
        await node.until(lambda: is_away(node))
        await watcher.silence()
        if end == "expiry":
            node.pass_time(11)
        else:
            await RawClient.connected(node.port, connect(5, "c"))
        await watcher.expect(publish(4, "will", b"gone"))


@pytest.mark.statement(
    "5:3.1.3-10", "5:3.3.2-15", "5:3.3.2-16", "5:3.3.2-17", "5:3.3.2-18", "5:3.3.2-20", "5:3.3.2-4"
)
@on_loop
async def test_a_will_carries_its_properties_in_their_order() -> None:
    async with running() as node:
        watcher = await RawClient.connected(node.port, connect(5, "w"))
        await watcher.subscribed(5, ("will", 0))
        kept = (
            b"\1\1", b"\3" + text("text/plain"), b"\x08" + text("answers"), b"\x09" + text(b"\0\xff"),
            b"\x26" + text("b") + text("1"), b"\x26" + text("a") + text("2"), b"\x26" + text("b") + text("1"),
        )  # fmt: skip
        client = await RawClient.connected(
            node.port, connect(5, flags=WILL, rest=will(5, "will", b"gone", *kept))
        )
        client.abort()
        await watcher.expect(publish(5, "will", b"gone", *kept))


# -- keep alive --


@pytest.mark.statement("5:3.1.2-22", "3:3.1.2-24")
@VERSIONS
@on_loop
async def test_silence_for_one_and_a_half_times_the_keep_alive_is_an_abnormal_end(
    version: int,
) -> None:
    async with running() as node:
        watcher = await RawClient.connected(node.port, connect(4, "w"))
        await watcher.subscribed(4, ("will", 0))
        client = await RawClient.connected(
            node.port,
            connect(version, keep_alive=10, flags=WILL, rest=will(version, "will", b"gone")),
        )
        await client.subscribed(version, ("t", 0))
        for _ in range(3):
            node.pass_time(14.5)
            await client.silence()
        node.pass_time(14.5)
        watcher.send(publish(4, "t"))
        await client.expect(publish(version, "t"))  # packets to the client do not count
        node.pass_time(0.4)
        node.pass_time(1.1)  # enforced within a second
        await client.ended(version, 0x8D)
        await watcher.expect(publish(4, "will", b"gone"))


@pytest.mark.statement("5:3.1.2-22", "3:3.1.2-24")
@VERSIONS
@on_loop
async def test_keep_alive_0_never_closes(version: int) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(version, keep_alive=0))
        node.pass_time(1e7)
        await client.silence()


# -- client identifiers --


@pytest.mark.statement("5:3.1.3-5", "3:3.1.3-5", "5:3.1.3-2", "3:3.1.3-2", "5:3.1.3-4", "3:3.1.3-4")
@VERSIONS
@pytest.mark.parametrize(
    "client_id",
    [
        "c",
        "0123456789abcdefghijklm",
        "ABCDEFGHIJKLMNOPQRSTUVW",
        "n" * 1000,
        "n" * 65_000,
        "../../x",
        "日本 +#/$ é",
    ],
    ids=["1", "23-lower", "23-upper", "1000", "65000", "path", "unicode"],
)
@on_loop
async def test_client_identifiers_of_any_text_are_taken(version: int, client_id: str) -> None:
    async with running(max_packet_size_before_connect=100_000, max_client_id_bytes=65_535) as node:
        await RawClient.connected(node.port, connect(version, client_id))
        assert node.server.hub.sessions.get(client_id) is not None


@pytest.mark.statement("5:3.1.3-6", "5:3.1.3-7", "3:3.1.3-6", "3:3.1.3-7", "5:3.2.2-16")
@SINCE_4
@on_loop
async def test_an_empty_identifier_is_replaced_by_a_new_one(version: int) -> None:
    async with running() as node:
        clients = [
            await RawClient.connected(node.port, connect(version, "", *lasting(version)))
            for _ in range(3)
        ]
        named = {session.client_id for session in node.server.hub.sessions}
        assert len(named) == len(clients)
        assert "" not in named
        if version == 5:
            client_id = next(name for name in named if text(name) in clients[0].connack)
            assert b"\x12" + text(client_id) in clients[0].connack
            again = await RawClient.connected(
                node.port, connect(5, client_id, *lasting(5), clean=False)
            )
            assert again.connack[2] == 1


@pytest.mark.statement("5:3.1.3-6", "5:3.1.3-7")
@on_loop
async def test_version_5_may_leave_out_its_identifier_and_not_start_clean() -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(5, "", clean=False))
        assert b"\x12\0" in client.connack


@pytest.mark.statement("3:3.1.3-8")
@pytest.mark.parametrize(("version", "clean"), [(4, False), (3, False), (3, True)])
@on_loop
async def test_an_empty_identifier_that_cannot_be_resumed_is_refused(
    version: int, clean: bool
) -> None:
    await refusal(connect(version, "", clean=clean), version, 0x85, 2)


@pytest.mark.statement("5:3.1.3-8", "3:3.1.3-9")
@VERSIONS
@on_loop
async def test_an_identifier_that_is_too_long_is_refused(version: int) -> None:
    await refusal(connect(version, "x" * 31), version, 0x85, 2, max_client_id_bytes=30)


# -- order and size --


@pytest.mark.statement(
    "5:3.1.4", "3:3.1.4", "5:3.1.4-5", "3:3.1.4-4", "5:3.2.0-1", "5:3.2.0-2", "3:3.2.0-1"
)
@VERSIONS
@pytest.mark.parametrize("lasts", [False, True])
@on_loop
async def test_what_comes_behind_connect_is_answered_behind_the_connack(
    version: int, lasts: bool
) -> None:
    async with running() as node:
        client = await RawClient.open(node.port)
        data = connect(version, "c", *(lasting(version) if lasts else ()), clean=not lasts)
        client.send(
            data,
            subscribe(version, 1, ("t", 0)),
            publish(version, "t", b"x", qos=1, packet_id=7),
            PINGREQ,
        )
        connack = await client.read()
        assert connack[0] == CONNACK
        got = [await client.read() for _ in range(4)]
        suback = packet(SUBACK, b"\0\1", props(version), b"\0")
        assert set(got) == {suback, publish(version, "t", b"x"), ack(PUBACK, 7), PINGRESP}
        assert got.index(suback) < got.index(ack(PUBACK, 7))


@pytest.mark.statement("5:3.2.0-1", "3:3.2.0-1", "5:3.1.4-5", "3:3.1.4-4")
@VERSIONS
@pytest.mark.parametrize("lasts", [False, True])
@on_loop
async def test_who_says_goodbye_at_once_is_welcomed_all_the_same(version: int, lasts: bool) -> None:
    async with running() as node:
        watcher = await RawClient.connected(node.port, connect(4, "w"))
        await watcher.subscribed(4, ("t", 0))
        client = await RawClient.open(node.port)
        data = connect(version, "c", *(lasting(version) if lasts else ()), clean=not lasts)
        client.send(data, publish(version, "t", b"x"), b"\xe0\0")
        [connack] = await client.closed()
        assert (connack[0], connack[3]) == (CONNACK, 0)
        await watcher.expect(publish(4, "t", b"x"))


@pytest.mark.statement("own:R36")
@pytest.mark.statement("5:3.1.4-6", "3:3.1.4-5", "5:3.1.4-1", "3:3.1.4-1", "5:3.14.0-1")
@VERSIONS
@on_loop
async def test_a_connect_above_its_size_is_refused_by_its_header(version: int) -> None:
    """B-15, RMQ-25: the version is read from the first bytes, and the rest of the packet is not waited for."""
    whole = connect(version, "x" * 2000)
    async with running(max_packet_size_before_connect=1000) as node:
        for sent in (whole, whole[:20]):
            client = await RawClient.open(node.port)
            client.send(sent)
            await client.refused(version, 0x95)
        client = await RawClient.open(node.port)
        for at in range(12):  # no further than the level
            client.send(whole[at : at + 1])
            await client.drain()
        await client.refused(version, 0x95)
        await RawClient.connected(node.port, connect(version, "x" * 900))


@pytest.mark.statement("5:3.1.4-1", "3:3.1.4-1")
@VERSIONS
@on_loop
async def test_a_refusal_of_a_long_will_topic_is_short(version: int) -> None:
    async with running(max_packet_size_before_connect=100_000) as node:
        client = await RawClient.open(node.port)
        client.send(connect(version, flags=WILL, rest=will(version, "\u20ac" * 21_800 + "#", b"x")))
        await client.refused(version, 0x90)


@pytest.mark.statement("5:3.1.4-1", "3:3.1.4-1")
@pytest.mark.parametrize(
    "data", [b"\x10\xff\xff\xff\xff\x7f", b"\x10\x80\x00"], ids=["five-bytes", "too-long"]
)
@on_loop
async def test_a_connect_without_a_readable_length_closes(data: bytes) -> None:
    async with running() as node:
        client = await RawClient.open(node.port)
        client.send(data)
        assert await client.closed() == []


@pytest.mark.one_process(
    "cells keep a connection without a CONNECT elsewhere: tests/cluster/test_steering.py"
)
@pytest.mark.statement("5:3.1.0-1", "3:3.1.0-1")
@on_loop
async def test_who_says_nothing_is_cut_off() -> None:
    clock = MovedClock()
    async with running(clock=clock, connect_timeout=10) as node:
        silent, slow = await RawClient.open(node.port), await RawClient.open(node.port)
        slow.send(connect(4)[:5])
        await node.until(lambda: len(node.server.hub.connections) == 2)
        node.pass_time(9)
        node.pass_time(2)
        assert await silent.closed() == []
        assert await slow.closed() == []


# -- what version 5 clients ask for --


@pytest.mark.statement("5:3.1.2-28")
@pytest.mark.parametrize(
    ("asked", "is_told"), [((), False), ((b"\x19\0",), False), ((b"\x19\1",), True)]
)
@pytest.mark.parametrize("setting", ["", "answers/${clientid}"])
@on_loop
async def test_response_information_is_told_to_who_asks(
    asked: tuple[bytes, ...], is_told: bool, setting: str
) -> None:
    async with running(response_information=setting) as node:
        client = await RawClient.connected(node.port, connect(5, "dev-1", *asked))
        assert (b"\x1a" + text("answers/dev-1") in client.connack) is (is_told and bool(setting))
        assert (b"\x1a" in client.connack[5:]) is (is_told and bool(setting))


@pytest.mark.statement("5:3.1.2-29")
@pytest.mark.parametrize(
    ("asked", "is_told"), [((), True), ((b"\x17\1",), True), ((b"\x17\0",), False)]
)
@on_loop
async def test_reason_strings_are_left_out_for_who_wants_none(
    asked: tuple[bytes, ...], is_told: bool
) -> None:
    async with running(check_payload_format=True) as node:
        client = await RawClient.connected(node.port, connect(5, "c", *asked))
        client.send(publish(5, "t", b"\xff", b"\1\1", qos=1, packet_id=3))
        puback = await client.read()
        assert puback[:1] + puback[2:5] == b"\x40\0\x03\x99"
        assert (len(puback) > 5) is is_told
        client.send(publish(5, "#"))
        [goodbye] = await client.closed()
        assert goodbye[0] == DISCONNECT
        assert b"\x1f" in goodbye  # here it may be told all the same


@pytest.mark.statement("5:3.1.2.11.3", "5:4.9.0-1", "5:3.3.4-9")
@pytest.mark.parametrize(("asked", "window"), [(None, 32), (1, 1), (5, 5), (100, 32), (65_535, 32)])
@on_loop
async def test_the_receive_maximum_of_the_client_bounds_what_is_in_flight(
    asked: int | None, window: int
) -> None:
    """RMQ-23, -24: the lower of the client's and the setting, per connection."""
    async with running() as node:
        properties = () if asked is None else (b"\x21" + asked.to_bytes(2),)
        client = await RawClient.connected(node.port, connect(5, "c", *properties))
        await client.subscribed(5, ("t", 2))
        publisher = await RawClient.connected(node.port, connect(4, "p"))
        publisher.send(*(publish(4, "t", qos=1, packet_id=number) for number in range(1, 51)))
        await publisher.expect(*(ack(PUBACK, number) for number in range(1, 51)))
        await client.expect(
            *(publish(5, "t", qos=1, packet_id=number) for number in range(1, window + 1))
        )
        await client.silence()
        client.send(ack(PUBACK, 1))
        await client.expect(publish(5, "t", qos=1, packet_id=window + 1))
        await client.silence()
