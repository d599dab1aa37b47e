"""From CONNECT to the end: limits, wills, taking over, keep-alive, and every way to break the protocol."""

from __future__ import annotations

import pytest

from broker.codec.encode import encode_packet
from broker.codec.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    SubscriptionRequest,
    Will,
)
from tests.support.mqtt_server import on_loop, running
from tests.support.wire import BAD_CASES, BadCase, WireClient

BAD_CONNECTS = [case for case in BAD_CASES if case.name.startswith("CONNECT")]
BAD_LATER = [case for case in BAD_CASES if case not in BAD_CONNECTS]


@pytest.mark.parametrize(
    "case",
    [case for case in BAD_CASES if not case.name.startswith("CONNECT")],
    ids=lambda c: c.name,
)
@on_loop
async def test_what_breaks_the_protocol_closes_with_its_reason_code_and_harms_nobody(
    case: BadCase,
) -> None:
    async with running() as node:
        bystander, client = await node.client("b"), await node.client("c", case.version)
        await bystander.subscribe(SubscriptionRequest("ok"))
        client.send(Publish("ok", b"before"))
        client.send_bytes(case.data)
        said = await client.closed()
        assert (await bystander.expect(Publish)).payload == b"before"
        await bystander.silence()
        if case.version == 5:
            [packet] = said
            assert isinstance(packet, Disconnect)
            assert packet.reason_code == case.reason_code
            assert packet.properties["Reason-String"]
        else:
            assert said == []


@pytest.mark.parametrize("case", BAD_CONNECTS, ids=lambda case: case.name)
@on_loop
async def test_a_bad_connect_is_refused_as_its_version_allows(case: BadCase) -> None:
    async with running() as node:
        client = await WireClient.open(node.port, case.version)
        client.send_bytes(case.data)
        said = await client.closed()
        if case.version == 5:
            assert isinstance(said[0], ConnAck)
            assert said[0].reason_code == case.reason_code
        elif case.reason_code == 0x84:
            assert said == [ConnAck(False, 1)]
        else:
            assert said == []


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", b"\x30\x03\0\1a", b"\xc0\0", b"\x16\3\1"]
)
@on_loop
async def test_anything_but_connect_first_closes_without_a_packet(data: bytes) -> None:
    async with running() as node:
        client = await WireClient.open(node.port)
        client.send_bytes(data)
        assert await client.closed() == []


@pytest.mark.parametrize(
    ("connect", "code"),
    [
        (Connect("", 4, clean_start=False), 2),
        (Connect("", 3), 2),
        (Connect("c", 5, properties={"Authentication-Method": "X"}), 0x8C),
    ],
)
@on_loop
async def test_a_connect_that_is_well_formed_may_still_be_refused(
    connect: Connect, code: int
) -> None:
    async with running() as node:
        client = await WireClient.open(node.port, connect.version)
        client.send(connect)
        assert (await client.expect(ConnAck)).reason_code == code
        assert await client.closed() == []


@on_loop
async def test_an_empty_identifier_is_replaced_by_one_that_can_be_resumed() -> None:
    async with running() as node:
        client = await node.client("", 5, properties={"Session-Expiry-Interval": 100})
        assigned = client.connack.properties["Assigned-Client-Identifier"]
        await client.close()
        again = await node.client(assigned, 5, clean_start=False)
        assert again.connack.session_present


@on_loop
async def test_what_comes_behind_connect_is_handled_after_the_connack() -> None:
    async with running() as node:
        client = await WireClient.open(node.port)
        connect = encode_packet(Connect("c", 4, clean_start=False))
        client.send_bytes(
            connect + encode_packet(PingReq()) + encode_packet(Publish("a", b"", 1, packet_id=1))
        )
        kinds = [type(await client.receive()) for _ in range(3)]
        assert kinds[0] is ConnAck
        assert set(kinds[1:]) == {PingResp, PubAck}


@on_loop
async def test_a_second_connect_is_a_protocol_error() -> None:
    async with running() as node:
        client = await node.client("c", 5)
        client.send(Connect("c", 5))
        assert [getattr(packet, "reason_code", None) for packet in await client.closed()] == [0x82]


@on_loop
async def test_a_later_connection_takes_the_session_over() -> None:
    async with running() as node:
        first = await node.client(
            "c", 5, clean_start=False, properties={"Session-Expiry-Interval": 100}
        )
        await first.subscribe(SubscriptionRequest("t"))
        second = await node.client("c", 4, clean_start=False)
        assert second.connack.session_present
        assert [getattr(packet, "reason_code", None) for packet in await first.closed()] == [0x8E]
        second.send(Publish("t", b"x"))
        assert (await second.expect(Publish)).payload == b"x"


@on_loop
async def test_the_will_is_published_when_the_connection_ends_badly_and_not_after_goodbye() -> None:
    async with running() as node:
        watcher = await node.client("w")
        await watcher.subscribe(SubscriptionRequest("will/#", 1))
        polite = await node.client("polite", will=Will("will/polite", b"x"))
        polite.send(Disconnect())
        assert await polite.closed() == []
        rude = await node.client("rude", will=Will("will/rude", b"y", 1, retain=True))
        rude.abort()
        got = await watcher.expect(Publish)
        assert (got.topic, got.payload, got.qos) == ("will/rude", b"y", 1)
        with_will = await node.client(
            "with", 5, will=Will("will/with", b"z", properties={"Content-Type": "t"})
        )
        with_will.send(Disconnect(0x04))
        assert (await watcher.expect(Publish)).topic == "will/with"
        await watcher.silence()


@on_loop
async def test_resuming_in_time_cancels_a_delayed_will() -> None:
    async with running() as node:
        watcher = await node.client("w")
        await watcher.subscribe(SubscriptionRequest("w"))
        properties = {"Session-Expiry-Interval": 100}
        will = Will("w", b"x", properties={"Will-Delay-Interval": 10})
        client = await node.client("c", 5, clean_start=False, will=will, properties=properties)
        client.abort()
        await node.until(lambda: node.server.hub.sessions.by_client_id["c"].is_away)
        node.pass_time(5)
        await node.client("c", 5, clean_start=False, properties=properties)
        node.pass_time(20)
        await watcher.silence()


@on_loop
async def test_a_silent_client_is_cut_off_after_one_and_a_half_times_its_keep_alive() -> None:
    async with running() as node:
        silent, free = await node.client("s", 5, keep_alive_s=10), await node.client("f", 5)
        node.pass_time(14)
        await silent.silence()
        node.pass_time(14)
        node.pass_time(3)
        assert [getattr(packet, "reason_code", None) for packet in await silent.closed()] == [0x8D]
        await free.silence()


@on_loop
async def test_no_connect_in_time_closes() -> None:
    async with running() as node:
        client = await WireClient.open(node.port)
        await node.until(lambda: node.server.hub.connections)
        node.pass_time(11)
        assert await client.closed() == []


@on_loop
async def test_limits_are_told_and_enforced() -> None:
    async with running(receive_maximum=2, max_packet_size=1000, topic_alias_maximum=3) as node:
        client = await node.client("c", 5)
        assert client.connack.properties == {
            "Receive-Maximum": 2,
            "Maximum-Packet-Size": 1000,
            "Topic-Alias-Maximum": 3,
        }
        for packets, code in (
            ([Publish("t", b"", 2, packet_id=number) for number in (1, 2, 3)], 0x93),
            ([Publish("t", b"x" * 1000)], 0x95),
            ([Publish("t", b"", properties={"Topic-Alias": 4})], 0x94),
            ([Publish("t", b"", properties={"Topic-Alias": 0})], 0x94),
            ([Publish("", b"", properties={"Topic-Alias": 2})], 0x82),
            ([Publish("t", b"", properties={"Subscription-Identifier": [1]})], 0x82),
            ([Auth(0x18)], 0x82),
            ([ConnAck()], 0x82),
        ):
            client = await node.client("c", 5)
            client.send(*packets)
            last = (await client.closed())[-1]
            assert isinstance(last, Disconnect)
            assert last.reason_code == code, packets


@on_loop
async def test_raising_the_expiry_from_zero_with_disconnect_is_an_error() -> None:
    async with running() as node:
        client = await node.client("c", 5)
        client.send(Disconnect(0, {"Session-Expiry-Interval": 10}))
        assert [getattr(packet, "reason_code", None) for packet in await client.closed()] == [0x82]


@on_loop
async def test_disconnect_may_end_the_session_at_once() -> None:
    async with running() as node:
        client = await node.client("c", 5, properties={"Session-Expiry-Interval": 100})
        client.send(Disconnect(0, {"Session-Expiry-Interval": 0}))
        await client.closed()
        assert node.server.hub.sessions.get("c") is None


@on_loop
async def test_a_kicked_client_is_told_why() -> None:
    async with running() as node:
        client = await node.client("c", 5)
        node.kick("c")
        assert [getattr(packet, "reason_code", None) for packet in await client.closed()] == [0x98]


@on_loop
async def test_events_are_emitted_when_they_are_wanted() -> None:
    async with running() as node:
        wanted = (
            "client.connected", "client.disconnected", "session.subscribed", "session.unsubscribed",
            "message.dropped", "message.delivered", "message.acked",
        )  # fmt: skip
        node.events.want(frozenset(wanted))
        client = await node.client("c", 5)
        await client.subscribe(SubscriptionRequest("t", 1))
        client.send(Publish("t", b"x", 1, packet_id=1), Publish("nobody", b""))
        packets = [await client.receive() for _ in range(2)]
        client.send(
            *[PubAck(packet.packet_id) for packet in packets if isinstance(packet, Publish)]
        )
        await client.silence()
        client.send(Disconnect())
        await client.closed()
        names = [name for name, _ in node.seen]
        assert names == [
            "client.connected", "session.subscribed", "message.delivered", "message.dropped", "message.acked",
            "client.disconnected",
        ]  # fmt: skip
        columns = dict(node.seen)
        assert columns["message.delivered"]["from_clientid"] == "c"
        assert columns["client.disconnected"]["reason"] == "normal"
        assert columns["message.dropped"]["reason"] == "no_subscribers"
