"""Section 5: PUBACK, PUBREC, PUBREL and PUBCOMP."""

from __future__ import annotations

import pytest

from tests.support.mqtt_server import on_loop, running
from tests.support.raw import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    RawClient,
    ack,
    connect,
    packet,
    props,
    publish,
    text,
)

VERSIONS = pytest.mark.parametrize("version", [3, 4, 5])
PUBLISH_CODES = {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}
RELEASE_CODES = {0x00, 0x92}
CODES = {
    PUBACK: PUBLISH_CODES,
    PUBREC: PUBLISH_CODES,
    PUBREL: RELEASE_CODES,
    PUBCOMP: RELEASE_CODES,
}
NAMES = {PUBACK: "PUBACK", PUBREC: "PUBREC", PUBREL: "PUBREL", PUBCOMP: "PUBCOMP"}
KIND = pytest.mark.parametrize("kind", NAMES, ids=list(NAMES.values()))
LASTING = b"\x11\0\0\0\x64"
REASON = props(5, b"\x1f" + text("why"), b"\x26" + text("k") + text("v"))


@pytest.mark.statement("5:3.4.2-1", "5:3.5.2-1", "5:3.6.2-1", "5:3.7.2-1")
@KIND
@on_loop
async def test_codes_that_the_packet_may_carry_are_taken(kind: int) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(5))
        for code in CODES[kind]:
            client.send(ack(kind, 500, bytes((code,))), ack(kind, 500, bytes((code,)), REASON))
            if kind == PUBREC and code < 0x80:
                await client.expect(ack(PUBREL, 500, b"\x92"), ack(PUBREL, 500, b"\x92"))
            elif kind == PUBREL:
                await client.expect(ack(PUBCOMP, 500, b"\x92"), ack(PUBCOMP, 500, b"\x92"))
        await client.silence()


@pytest.mark.statement("5:3.4.2-1", "5:3.5.2-1", "5:3.6.2-1", "5:3.7.2-1")
@KIND
@on_loop
async def test_every_other_code_closes(kind: int) -> None:
    async with running() as node:
        for code in [
            code for code in (*range(0x20), *range(0x80, 0xA4), 0xFF) if code not in CODES[kind]
        ]:
            client = await RawClient.connected(node.port, connect(5))
            client.send(ack(kind, 1, bytes((code,))))
            await client.ended(5, 0x81, 0x82)


@pytest.mark.statement(
    "5:3.4.2-2",
    "5:3.4.2-3",
    "5:3.5.2-2",
    "5:3.5.2-3",
    "5:3.6.2-2",
    "5:3.6.2-3",
    "5:3.7.2-2",
    "5:3.7.2-3",
)
@pytest.mark.parametrize("maximum", [20, 60, 1000])
@on_loop
async def test_acknowledgements_fit_the_clients_maximum_and_are_never_left_out(
    maximum: int,
) -> None:
    async with running(check_payload_format=True) as node:
        client = await RawClient.connected(
            node.port, connect(5, "c", b"\x27" + maximum.to_bytes(4))
        )
        for qos, first in ((1, PUBACK), (2, PUBREC)):
            client.send(publish(5, "t", b"\xff", b"\1\1", qos=qos, packet_id=5))
            got = await client.read()
            assert (got[0], got[2:5]) == (first, b"\0\5\x99")
            assert len(got) <= maximum
            assert (b"\x1f" in got) is (maximum == 1000)
        client.send(ack(PUBREC, 5), ack(PUBREL, 6))
        await client.expect(ack(PUBREL, 5, b"\x92"), ack(PUBCOMP, 6, b"\x92"))


@pytest.mark.statement("5:3.6.1-1", "3:3.6.1-1")
@pytest.mark.parametrize(
    ("version", "flags"),
    [
        (3, 0),
        (3, 6),
        (3, 15),
        *((version, flags) for version in (4, 5) for flags in (0, 1, 3, 6, 15)),
    ],
)
@on_loop
async def test_a_pubrel_has_header_flags_2(version: int, flags: int) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(version))
        client.send(publish(version, "t", qos=2), packet(0x60 | flags, b"\0\1"))
        said = await client.closed()
        assert said[0][0] == PUBREC
        assert said[1:] == [] if version < 5 else said[1][2] == 0x81


@pytest.mark.statement("own:unknown-pubrel")
@VERSIONS
@on_loop
async def test_a_pubrel_for_nothing_is_completed(version: int) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(version))
        client.send(ack(PUBREL, 9), publish(version, "t", qos=2), ack(PUBREL, 1), ack(PUBREL, 1))
        unknown = (b"\x92",) if version == 5 else ()
        nobody = (b"\x10",) if version == 5 else ()
        await client.expect(ack(PUBCOMP, 9, *unknown), ack(PUBREC, 1, *nobody))
        await client.expect(ack(PUBCOMP, 1), ack(PUBCOMP, 1, *unknown))
        await client.silence()


@pytest.mark.statement("own:unknown-pubrec")
@VERSIONS
@on_loop
async def test_a_pubrec_for_nothing_is_released(version: int) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(version))
        client.send(ack(PUBREC, 9))
        await client.expect(ack(PUBREL, 9, *((b"\x92",) if version == 5 else ())))
        await client.silence()


@pytest.mark.statement("own:unknown-acknowledgements")
@VERSIONS
@pytest.mark.parametrize("kind", [PUBACK, PUBCOMP], ids=["PUBACK", "PUBCOMP"])
@on_loop
async def test_acknowledgements_for_nothing_are_ignored(version: int, kind: int) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(version, "c"))
        await client.subscribed(version, ("t", 2))
        publisher = await RawClient.connected(node.port, connect(4, "p"))
        publisher.send(publish(4, "t", b"x", qos=1 if kind == PUBACK else 2))
        await client.expect(publish(version, "t", b"x", qos=1 if kind == PUBACK else 2))
        client.send(ack(kind, 9))
        await client.silence()
        session = node.server.hub.sessions.get("c")
        assert session is not None
        assert list(session.window.inflight) == [1]
        assert node.metrics.value("acknowledgements_unknown") == 1


@pytest.mark.statement(
    "5:4.3.2-3", "5:4.3.3-4", "5:4.3.3-6", "3:4.3.2-1", "3:4.3.3-1", "own:wrong-acknowledgements"
)
@VERSIONS
@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.parametrize(
    ("qos", "answers", "wrong"),
    [
        (1, (), PUBREC),
        (1, (), PUBCOMP),
        (2, (), PUBACK),
        (2, (), PUBCOMP),
        (2, (PUBREC,), PUBACK),
    ],
)
@on_loop
async def test_an_acknowledgement_of_the_wrong_type_closes_and_the_message_comes_again(
    version: int, is_lasting: bool, qos: int, answers: tuple[int, ...], wrong: int
) -> None:
    data = connect(
        version, "c", *((LASTING,) if version == 5 and is_lasting else ()), clean=not is_lasting
    )
    async with running() as node:
        client = await RawClient.connected(node.port, data)
        await client.subscribed(version, ("t", 2))
        publisher = await RawClient.connected(node.port, connect(4, "p"))
        publisher.send(publish(4, "t", b"x", qos=qos))
        await client.expect(publish(version, "t", b"x", qos=qos))
        for kind in answers:
            client.send(ack(kind, 1))
            await client.expect(ack(PUBREL, 1))
        client.send(ack(wrong, 1))
        await client.ended(version, 0x82)
        if is_lasting:
            client = await RawClient.connected(node.port, data)
            again = ack(PUBREL, 1) if answers else publish(version, "t", b"x", qos=qos, dup=True)
            await client.expect(again)


@pytest.mark.statement("own:wrong-acknowledgements")
@pytest.mark.parametrize(("qos", "wrong"), [(1, PUBREC), (2, PUBACK)])
@on_loop
async def test_a_refusal_of_the_wrong_type_closes(qos: int, wrong: int) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(5))
        await client.subscribed(5, ("t", 2))
        client.send(publish(5, "t", b"x", qos=qos))
        got = [await client.read() for _ in range(2)]
        assert publish(5, "t", b"x", qos=qos) in got
        client.send(ack(wrong, 1, b"\x97"))
        await client.ended(5, 0x82)


@pytest.mark.statement("5:2.2.1-3", "3:2.3.1-1")
@VERSIONS
@KIND
@on_loop
async def test_an_acknowledgement_has_an_identifier_other_than_0(version: int, kind: int) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(version))
        client.send(ack(kind, 0))
        await client.ended(version, 0x81)


@pytest.mark.statement("5:4.4.0-2")
@pytest.mark.parametrize("kind", [PUBACK, PUBREC], ids=["PUBACK", "PUBREC"])
@pytest.mark.parametrize("code", [0x80, 0x83, 0x87, 0x90, 0x97, 0x99])
@on_loop
async def test_a_refused_delivery_is_done_and_frees_its_place(kind: int, code: int) -> None:
    qos = 1 if kind == PUBACK else 2
    data = connect(5, "c", LASTING, b"\x21\0\1", clean=False)
    async with running() as node:
        client = await RawClient.connected(node.port, data)
        await client.subscribed(5, ("t", 2))
        publisher = await RawClient.connected(node.port, connect(4, "p"))
        publisher.send(publish(4, "t", b"1", qos=qos), publish(4, "t", b"2", qos=qos, packet_id=2))
        await client.expect(publish(5, "t", b"1", qos=qos, packet_id=1))
        client.send(ack(kind, 1, bytes((code,))))
        await client.expect(publish(5, "t", b"2", qos=qos, packet_id=2))
        await client.silence()  # no PUBREL
        client.abort()
        client = await RawClient.connected(node.port, data)
        await client.expect(publish(5, "t", b"2", qos=qos, packet_id=2, dup=True))
        await client.silence()


@pytest.mark.statement("5:4.4.0-1", "3:4.4.0-1", "5:3.3.1-1", "3:3.3.1-1")
@VERSIONS
@on_loop
async def test_a_pubrel_that_was_not_answered_comes_again(version: int) -> None:
    """NATS-23, NATS-24: one identifier through all four steps, whatever happens between."""
    data = connect(version, "c", *((LASTING,) if version == 5 else ()), clean=False)
    async with running() as node:
        client = await RawClient.connected(node.port, data)
        await client.subscribed(version, ("t", 2))
        publisher = await RawClient.connected(node.port, connect(4, "p"))
        publisher.send(publish(4, "t", b"x", qos=2, packet_id=3))
        await client.expect(publish(version, "t", b"x", qos=2, packet_id=1))
        client.send(ack(PUBREC, 1))
        await client.expect(ack(PUBREL, 1))
        client.abort()
        for _ in range(2):
            client = await RawClient.connected(node.port, data)
            await client.expect(ack(PUBREL, 1))
            await client.silence()
            client.abort()
        client = await RawClient.connected(node.port, data)
        await client.expect(ack(PUBREL, 1))
        client.send(ack(PUBCOMP, 1))
        await client.silence()
        client.abort()
        client = await RawClient.connected(node.port, data)
        await client.silence()
