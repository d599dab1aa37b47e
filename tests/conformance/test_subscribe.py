"""SUBSCRIBE and SUBACK: sections 3.8 and 3.9 of MQTT 5.0 and 3.1.1."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.codec.packets import (
    Disconnect,
    PubAck,
    Publish,
    PubRec,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
)
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.raw import (
    PUBLISH,
    SUBACK,
    SUBSCRIBE,
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
from tests.support.restarts import away, lasting, on_disk, payloads, published, subscribed

VERSIONS = pytest.mark.parametrize("version", [3, 4, 5])


def request(
    version: int, *body: bytes, first: int = SUBSCRIBE, properties: tuple[bytes, ...] = ()
) -> bytes:
    """A SUBSCRIBE with packet identifier 9 and any body."""
    return packet(first, b"\0\x09", props(version, *properties), *body)


MALFORMED: dict[str, tuple[int, tuple[bytes, ...], int]] = {
    "flags 0000": (0x80, (text("a"), b"\0"), 0x81),
    "flags 0011": (0x83, (text("a"), b"\0"), 0x81),
    "ill-formed UTF-8": (SUBSCRIBE, (text(b"a\xff"), b"\0"), 0x81),
    "surrogate": (SUBSCRIBE, (text(b"\xed\xa0\x80"), b"\0"), 0x81),
    "U+0000": (SUBSCRIBE, (text(b"a\0"), b"\0"), 0x81),
    "no filter": (SUBSCRIBE, (), 0x82),
    "no option byte": (SUBSCRIBE, (text("a"),), 0x81),
    "QoS 3": (SUBSCRIBE, (text("a"), b"\3"), 0x81),
    "bit 6": (SUBSCRIBE, (text("a"), b"\x40"), 0x81),
    "bit 7": (SUBSCRIBE, (text("a"), b"\x80"), 0x81),
}


USED_IN_3_1 = [name for name in MALFORMED if name not in ("flags 0011", "bit 6", "bit 7")]


@pytest.mark.parametrize(
    ("version", "name"),
    [
        *((3, name) for name in USED_IN_3_1),
        *((version, name) for version in (4, 5) for name in MALFORMED),
    ],
)
@pytest.mark.statement(
    "5:3.8.1-1", "3:3.8.1-1", "5:3.8.3-1", "3:3.8.3-1", "5:3.8.3-2", "3:3.8.3-3", "5:3.8.3-5"
)
@pytest.mark.statement("3:3.8.3-4", "own:M1", "own:M6")
@on_loop
async def test_a_malformed_subscribe_closes_with_its_code_and_subscribes_nothing(
    version: int, name: str
) -> None:
    first, body, code = MALFORMED[name]
    async with running() as node:
        client = await RawClient.connected(node.port, connect(version))
        client.send(request(version, *body, first=first))
        said = await client.closed()
        assert [found[:3] for found in said] == (
            [bytes((0xE0, len(said[0]) - 2, code))] if version == 5 else []
        )
        assert node.server.hub.router.subscription_count == 0


@pytest.mark.parametrize("bits", [4, 8, 16, 32])
@pytest.mark.statement("3:3.8.3-4")
@on_loop
async def test_options_of_version_5_are_reserved_bits_below_it(bits: int) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(4))
        client.send(request(4, text("a"), bytes((bits,))))
        assert await client.closed() == []


@pytest.mark.parametrize(
    ("body", "properties", "code"),
    [
        ((text("a"), b"\x30"), (), 0x81),
        ((text("$share/g/a"), b"\4"), (), 0x82),
        ((text("a"), b"\0"), (b"\x0b\0",), 0x82),
        ((text("a"), b"\0"), (b"\x0b\1", b"\x0b\2"), 0x82),
    ],
    ids=["retain handling 3", "No Local on a share group", "identifier 0", "two identifiers"],
)
@pytest.mark.statement("5:3.8.3-5", "5:3.8.3-4", "5:3.8.2.1.2")
@on_loop
async def test_what_only_version_5_can_get_wrong(
    body: tuple[bytes, ...], properties: tuple[bytes, ...], code: int
) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(5))
        client.send(request(5, *body, properties=properties))
        [said] = await client.closed()
        assert said[0] == 0xE0
        assert said[2] == code


@pytest.mark.parametrize("packet_id", [1, 0x1234, 65_535])
@VERSIONS
@pytest.mark.statement(
    "5:3.8.4-1", "3:3.8.4-1", "5:3.8.4-2", "3:3.8.4-2", "5:3.8.4-5", "3:3.8.4-4", "5:3.8.4-6"
)
@pytest.mark.statement("3:3.8.4-5", "5:3.8.4-7", "5:3.9.3-1", "3:3.9.3-1")
@on_loop
async def test_one_suback_with_the_identifier_and_a_code_for_each_filter_in_order(
    version: int, packet_id: int
) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(version))
        client.send(subscribe(version, packet_id, ("a", 2), ("b/+", 0), ("c/#", 1), ("a", 1)))
        await client.expect(packet(SUBACK, packet_id.to_bytes(2), props(version), b"\2\0\1\1"))
        assert node.server.hub.router.subscription_count == 3


BAD_FILTERS = ["a#", "a/#/b", "a+", "+a/b", "$share//a", "$share/g", "$share/g/", "$share/+/a"]


@pytest.mark.parametrize(
    ("version", "code", "bad"),
    [*((4, 0x80, bad) for bad in BAD_FILTERS), *((5, 0x8F, bad) for bad in ["", *BAD_FILTERS])],
)
@pytest.mark.statement(
    "5:3.8.4-5", "3:3.8.4-4", "5:3.9.3-2", "3:3.9.3-2", "5:4.7.1-1", "3:4.7.1-2", "5:4.7.1-2"
)
@pytest.mark.statement("3:4.7.1-3", "5:4.7.3-1", "own:choice-invalid-filter")
@on_loop
async def test_a_bad_filter_fails_alone(version: int, code: int, bad: str) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(version))
        client.send(subscribe(version, 9, ("good", 1), (bad, 1), ("better", 2)))
        await client.expect(packet(SUBACK, b"\0\x09", props(version), bytes((1, code, 2))))
        client.send(publish(version, "better", b"x"))
        assert (await client.read())[0] == PUBLISH


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("count", [0, 1, 2000])
@pytest.mark.parametrize("kind", ["SUBSCRIBE", "UNSUBSCRIBE"])
@pytest.mark.statement("3:4.7.3-1")
@on_loop
async def test_an_empty_filter_closes_below_version_5_and_nothing_takes_effect(
    version: int, count: int, kind: str
) -> None:
    filters = [f"good/{number}" for number in range(count)] + [""]
    async with running() as node:
        keeper = await RawClient.connected(node.port, connect(version, "keeper"))
        await keeper.subscribed(version, ("good/0", 0))
        client = await RawClient.connected(node.port, connect(version))
        if kind == "SUBSCRIBE":
            client.send(subscribe(version, 9, *((name, 1) for name in filters)))
        else:
            client.send(unsubscribe(version, 9, *filters))
        assert await client.closed() == []
        assert node.server.hub.router.subscription_count == 1


@pytest.mark.statement("3:3.9.3-2")
@on_loop
async def test_version_3_1_has_no_code_for_failure() -> None:
    async with running(max_subscriptions=1) as node:
        client = await RawClient.connected(node.port, connect(3))
        client.send(subscribe(3, 9, ("a", 1), ("b", 2), ("$events/x", 1)))
        await client.expect(packet(SUBACK, b"\0\x09", b"\1\2\1"))
        assert node.server.hub.router.subscription_count == 1
        client.send(subscribe(3, 10, ("a/#/b", 1)))
        assert await client.closed() == []


@pytest.mark.parametrize(("version", "codes"), [(4, b"\1\x80\x80\1"), (5, b"\1\x97\x87\1")])
@pytest.mark.statement("5:3.9.3-2", "3:3.9.3-2", "own:R29", "own:N23")
@on_loop
async def test_what_is_forbidden_and_what_is_too_much_have_codes_of_their_own(
    version: int, codes: bytes
) -> None:
    async with running(max_subscriptions=1) as node:
        client = await RawClient.connected(node.port, connect(version))
        client.send(subscribe(version, 9, ("a", 1), ("b", 1), ("$events/#", 1), ("a", 1)))
        await client.expect(packet(SUBACK, b"\0\x09", props(version), codes))


@on_loop
async def test_shared_subscriptions_of_a_session_have_a_bound_of_their_own() -> None:
    async with running(max_shared_subscriptions=2) as node:
        client = await RawClient.connected(node.port, connect(5))
        asked = ("$share/g/a", "$share/g/b", "$share/g/c", "c", "$share/g/a")
        client.send(subscribe(5, 9, *((text, 1) for text in asked)))
        await client.expect(packet(SUBACK, b"\0\x09", props(5), b"\1\1\x97\1\1"))
        assert node.metrics.value("limits_reached", limit="max_shared_subscriptions") == 1


@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("sent", [0, 1, 2])
@pytest.mark.parametrize("is_retained", [False, True])
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.statement("5:3.8.4-8", "3:3.8.4-6", "own:N11")
@on_loop
async def test_the_lower_of_the_two_qos_is_delivered(
    version: int, is_retained: bool, sent: int, granted: int
) -> None:
    async with running() as node:
        client = await node.client("s", version)
        if is_retained:
            await published(node, b"x", qos=sent, retain=True)
        await subscribed(client, ("t", granted))
        if not is_retained:
            await published(node, b"x", qos=sent)
        got = await client.expect(Publish)
        assert (got.qos, got.retain, got.payload) == (min(sent, granted), is_retained, b"x")


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.statement("5:3.8.4-3", "3:3.8.4-3", "5:3.8.4-4", "own:M-note-6")
@on_loop
async def test_an_identical_filter_replaces_qos_options_and_identifier(version: int) -> None:
    async with running() as node:
        client = await node.client("s", version)
        if version == 5:
            assert await client.subscribe(
                SubscriptionRequest("t", 2, True, True), identifier=7
            ) == [2]
        else:
            await client.subscribe(SubscriptionRequest("t", 2))
        await client.subscribe(SubscriptionRequest("t", 1))
        assert node.server.hub.router.subscription_count == 1
        client.send(Publish("t", b"x", 2, packet_id=5))
        got = [await client.receive() for _ in range(2)]
        [delivered] = [found for found in got if isinstance(found, Publish)]
        assert (delivered.qos, delivered.properties) == (1, {})
        assert any(isinstance(found, PubRec) for found in got)


@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.statement("5:3.8.4-4", "3:3.8.4-3")
@on_loop
async def test_replacing_a_subscription_during_a_storm_loses_nothing(
    version: int, is_lasting: bool
) -> None:
    async with running(max_inflight=8) as node:
        client = (
            await lasting(node, version=version) if is_lasting else await node.client("s", version)
        )
        await subscribed(client, ("t", 1))
        publisher = await node.client("p")
        count, expected = 200, [b"%d" % number for number in range(200)]
        for number in range(count):
            publisher.send(Publish("t", b"%d" % number, 1, packet_id=number + 1))
        got: list[bytes] = []
        for number in range(count):
            if number % 20 == 10:
                options = (
                    SubscriptionRequest("t", 1, False, number % 40 == 10, 2)
                    if version == 5
                    else None
                )
                await client.subscribe(
                    options or SubscriptionRequest("t", 2 if number % 40 == 10 else 1)
                )
            got += await payloads(client, 1)
        assert got == expected


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.statement("5:3.8.4-4", "3:3.8.4-3", "5:3.3.1-9")
@on_loop
async def test_subscribing_again_sends_retained_messages_again(
    version: int, is_lasting: bool
) -> None:
    async with running() as node:
        await published(node, b"r", qos=1, retain=True)
        client = (
            await lasting(node, version=version) if is_lasting else await node.client("s", version)
        )
        for _ in range(2):
            await subscribed(client, ("t", 1))
            assert await payloads(client, 1) == [b"r"]
        await client.silence()


@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.parametrize(
    ("handling", "is_known", "is_sent"),
    [
        (0, False, True),
        (0, True, True),
        (1, False, True),
        (1, True, False),
        (2, False, False),
        (2, True, False),
    ],
)
@pytest.mark.statement(
    "5:3.3.1-9", "5:3.3.1-10", "5:3.3.1-11", "own:R21", "own:choice-retain-handling"
)
@on_loop
async def test_retain_handling_asks_whether_the_filter_was_there(
    handling: int, is_known: bool, is_sent: bool, is_lasting: bool
) -> None:
    async with running() as node:
        client = await lasting(node, version=5) if is_lasting else await node.client("s", 5)
        if is_known:  # the same filter with other options is the same subscription
            await client.subscribe(SubscriptionRequest("t", 0, True, True), identifier=3)
        await published(node, b"r", qos=1, retain=True)
        if is_known:
            assert (await client.expect(Publish)).retain  # as published
        await client.subscribe(SubscriptionRequest("t", 1, retain_handling=handling))
        if is_sent:
            assert (await client.expect(Publish)).retain
        await client.silence()


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.statement("5:3.8.3-3", "own:R22", "own:R25")
@on_loop
async def test_no_local_and_retain_as_published_belong_to_the_stored_subscription(
    tmp_path: Path, is_restarted: bool
) -> None:
    async with on_disk(tmp_path) as node:
        client = await lasting(node, version=5)
        await client.subscribe(SubscriptionRequest("own", 1, no_local=True), identifier=11)
        await client.subscribe(
            SubscriptionRequest("kept", 1, retain_as_published=True), identifier=12
        )
        client.abort()
        await away(node)
        if not is_restarted:
            await _options_hold(node)
    if is_restarted:
        async with on_disk(tmp_path) as node:
            await _options_hold(node)


async def _options_hold(node: Node) -> None:
    client = await lasting(node, version=5)
    client.send(Publish("own", b"mine", 1, packet_id=1))
    assert isinstance(await client.receive(), PubAck)
    await published(node, b"other", topic="own")
    await published(node, b"flag", topic="kept", retain=True)
    got = [await client.expect(Publish) for _ in range(2)]
    assert [(found.payload, found.retain) for found in got] == [(b"other", False), (b"flag", True)]
    assert [found.properties["Subscription-Identifier"] for found in got] == [[11], [12]]
    await client.silence()


@pytest.mark.statement("5:3.8.3-3", "own:R24")
@on_loop
async def test_no_local_keeps_own_messages_out_of_the_store() -> None:
    async with running() as node:
        client = await lasting(node, version=5)
        await client.subscribe(SubscriptionRequest("own", 1, no_local=True))
        before = node.metrics.value("store_records")
        client.send(Publish("own", b"x", 1, packet_id=1))
        assert (await client.expect(PubAck)).reason_code == 0x10
        assert node.metrics.value("store_records") == before
        assert node.metrics.value("deliveries_dropped", reason="no_local") == 1


@pytest.mark.statement("5:3.8.3-3")
@on_loop
async def test_no_local_goes_by_client_identifier_also_for_what_waits_on_disk() -> None:
    async with running() as node:
        client = await lasting(node, version=5)
        await client.subscribe(SubscriptionRequest("t", 1, no_local=True))
        bystander = await subscribed(await lasting(node, "b"), ("t", 1))
        client.send(Publish("t", b"mine", 1, packet_id=1), Disconnect())
        await client.closed()
        await away(node)
        await published(node, b"theirs")
        client = await lasting(node, version=5)
        assert await payloads(client, 1) == [b"theirs"]
        await client.silence()
        assert await payloads(bystander, 2) == [b"mine", b"theirs"]


@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.parametrize("is_away", [False, True])
@pytest.mark.statement("5:3.8.3-3", "5:3.3.4-3")
@on_loop
async def test_own_messages_come_by_the_subscriptions_without_no_local_alone(
    is_lasting: bool, is_away: bool
) -> None:
    async with running() as node:
        client = await lasting(node, version=5) if is_lasting else await node.client("s", 5)
        await client.subscribe(SubscriptionRequest("a/+", 2, no_local=True), identifier=1)
        await client.subscribe(SubscriptionRequest("a/b", 1), identifier=2)
        await client.subscribe(SubscriptionRequest("+/b", 2, no_local=True), identifier=3)
        client.send(Publish("a/b", b"own", 2, packet_id=1))
        if is_lasting and is_away:
            client.abort()
            await away(node)
            client = await lasting(node, version=5)
        found = [await client.receive() for _ in range(1 if is_lasting and is_away else 2)]
        [got] = [packet for packet in found if isinstance(packet, Publish)]
        assert (got.payload, got.qos, got.properties["Subscription-Identifier"]) == (b"own", 1, [2])
        client.send(PubAck(got.packet_id))
        await published(node, b"other", topic="a/b", qos=2)
        got = await client.expect(Publish)
        assert (got.qos, sorted(got.properties["Subscription-Identifier"])) == (2, [1, 2, 3])


@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.statement("5:3.10.4-2", "3:3.10.4-2", "5:3.10.4-3", "3:3.10.4-3")
@on_loop
async def test_what_waits_for_a_removed_filter_alone_is_not_begun(is_lasting: bool) -> None:
    async with running(max_inflight=1) as node:
        client = await lasting(node) if is_lasting else await node.client("s")
        await subscribed(client, ("a/+", 1), ("+/b", 1))
        for topic, payload in (("a/b", b"1"), ("a/c", b"2"), ("a/b", b"3")):
            await published(node, payload, topic=topic)
        first = await client.expect(Publish)
        client.send(Unsubscribe(5, ["a/+"]))
        await client.expect(UnsubAck)
        client.send(PubAck(first.packet_id))
        assert await payloads(client, 1) == [b"3"]
        await client.silence()


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.statement(
    "5:3.3.4-3", "5:3.3.4-4", "5:3.3.4-5", "own:R23", "own:choice-overlapping", "5:3.3.4-2"
)
@on_loop
async def test_one_copy_carries_the_identifiers_of_all_matching_subscriptions(qos: int) -> None:
    async with running() as node:
        client = await node.client("s", 5)
        await client.subscribe(SubscriptionRequest("a/+", qos), identifier=1)
        await client.subscribe(SubscriptionRequest("a/#", qos), identifier=268_435_455)
        await client.subscribe(SubscriptionRequest("a/b", qos))
        await client.subscribe(SubscriptionRequest("+/b", 0), identifier=1)
        await published(node, b"x", topic="a/b", qos=1)
        got = await client.expect(Publish)
        assert sorted(got.properties["Subscription-Identifier"]) == [1, 1, 268_435_455]
        assert got.qos == qos
        await client.silence()


@pytest.mark.statement("5:3.3.4-3")
@on_loop
async def test_an_identifier_lasts_over_reconnections_and_is_on_retained_messages(
    tmp_path: Path,
) -> None:
    async with on_disk(tmp_path) as node:
        await published(node, b"r", retain=True)
        client = await lasting(node, version=5)
        await client.subscribe(SubscriptionRequest("t", 1), identifier=77)
        retained = await client.expect(Publish)
        assert retained.properties["Subscription-Identifier"] == [77]
        client.send(PubAck(retained.packet_id))
        await client.silence()
        await node.written()
    async with on_disk(tmp_path) as node:
        client = await lasting(node, version=5)
        await published(node, b"x", qos=0)
        assert (await client.expect(Publish)).properties["Subscription-Identifier"] == [77]
        await client.subscribe(SubscriptionRequest("t", 1, retain_handling=2))
        await published(node, b"y", qos=0)
        assert "Subscription-Identifier" not in (await client.expect(Publish)).properties


@pytest.mark.statement("5:3.8.4-3", "own:N17")
@on_loop
async def test_going_down_to_qos_0_drops_what_waits_and_finishes_what_is_in_flight() -> None:
    async with running(max_inflight=1) as node:
        client = await subscribed(await lasting(node), ("t", 1), ("u", 1))
        await published(node, b"1", b"2")
        await published(node, b"3", topic="u")
        await published(node, b"4")
        first = await client.expect(Publish)
        await subscribed(client, ("t", 0))
        client.send(PubAck(first.packet_id))
        assert await payloads(client, 1) == [b"3"]
        await client.silence()
        assert node.metrics.value("deliveries_dropped", reason="unsubscribed") == 2


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.statement("own:N17")
@on_loop
async def test_a_backlog_is_gone_once_its_subscription_is_of_qos_0(
    tmp_path: Path, is_restarted: bool
) -> None:
    async with on_disk(tmp_path, max_inflight=2, max_queued_messages=4) as node:
        client = await subscribed(await lasting(node), ("t", 1))
        await published(node, *(b"%d" % number for number in range(50)))
        in_flight = [await client.expect(Publish) for _ in range(2)]
        await subscribed(client, ("t", 0))
        await subscribed(client, ("t", 1))
        if not is_restarted:
            for found in in_flight:
                client.send(PubAck(found.packet_id))
            await published(node, b"new")
            assert await payloads(client, 1) == [b"new"]
            await client.silence()
    if is_restarted:
        async with on_disk(tmp_path, max_inflight=2) as node:
            client = await lasting(node)
            assert await payloads(client, 2) == [b"0", b"1"]
            await client.silence()


@pytest.mark.parametrize("limit", [20, 60])
@pytest.mark.statement("5:3.9.2-1", "5:3.9.2-2")
@on_loop
async def test_a_suback_is_within_the_maximum_packet_size(limit: int) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(5, "c", b"\x27" + limit.to_bytes(4)))
        client.send(subscribe(5, 9, ("a/#/b", 1), ("b", 1)))
        await client.expect(packet(SUBACK, b"\0\x09\0", b"\x8f\1"))


@pytest.mark.statement("5:3.8.4-1", "3:3.8.4-1", "own:N6")
@on_loop
async def test_a_subscription_that_was_acknowledged_is_there_after_a_kill(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as node:
        await subscribed(await lasting(node), ("t", 1))
    async with on_disk(tmp_path) as node:
        await published(node, b"x")
        client = await lasting(node)
        assert client.connack.session_present
        assert await payloads(client, 1) == [b"x"]


@pytest.mark.statement("5:3.8.4-2", "3:3.8.4-2")
@on_loop
async def test_acknowledgements_of_nothing_are_ignored_while_subscribing() -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(4))
        client.send(ack(0x40, 77), subscribe(4, 9, ("a", 1)), ack(0x70, 78))
        await client.expect(packet(SUBACK, b"\0\x09\1"))
        await client.silence()
        assert node.metrics.value("acknowledgements_unknown") == 2
