"""Enhanced authentication on the wire: sections 3.15 and 4.12 of MQTT 5.0."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from broker.codec.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubscriptionRequest,
    Will,
)
from broker.core import reason
from tests.support.access import BUILTIN, access
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.scram import ScramClient
from tests.support.wire import WireClient

METHOD, DATA = "Authentication-Method", "Authentication-Data"
SERVER = access(BUILTIN)


def connect(client: ScramClient | None, client_id: str = "c", **more: Any) -> Connect:
    """A CONNECT that begins the exchange of a client."""
    properties = {} if client is None else {METHOD: client.method, DATA: client.first()}
    return Connect(client_id, 5, properties=properties | more.pop("properties", {}), **more)


async def challenged(node: Node, client: ScramClient, **more: Any) -> tuple[WireClient, Auth]:
    """A client that got the first AUTH."""
    wire = await WireClient.open(node.port, 5)
    wire.send(connect(client, **more))
    return wire, await wire.expect(Auth)


async def logged_in(node: Node, client: ScramClient, **more: Any) -> tuple[WireClient, ConnAck]:
    """A client that was accepted."""
    wire, auth = await challenged(node, client, **more)
    wire.send(answer(client, auth))
    connack = await wire.expect(ConnAck)
    assert connack.reason_code == 0, connack
    return wire, connack


def answer(client: ScramClient, auth: Auth) -> Auth:
    """The client's proof."""
    return Auth(0x18, {METHOD: client.method, DATA: client.answer(auth.properties[DATA])})


async def closed_with(wire: WireClient, kind: type[Packet], code: int) -> None:
    """The server says why, and closes."""
    packet: Any = await wire.expect(kind)
    assert packet.reason_code == code, packet
    with pytest.raises(ConnectionError):
        await wire.receive()


@pytest.mark.statement("5:4.12.0-2", "5:4.12.0-3", "5:4.12.0-5", "5:3.15.2-1")
@pytest.mark.parametrize("method", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@on_loop
async def test_a_client_logs_in_by_scram_and_every_packet_names_the_method(method: str) -> None:
    async with running(access=SERVER) as node:
        client = ScramClient("ann", "pencil", method)
        wire, auth = await challenged(node, client)
        assert (auth.reason_code, auth.properties[METHOD]) == (0x18, method)
        wire.send(answer(client, auth))
        connack = await wire.expect(ConnAck)
        assert (connack.reason_code, connack.properties[METHOD]) == (0, method)
        assert client.is_server(connack.properties[DATA])
        assert next(iter(node.server.hub.sessions)).client.username == "ann"


@on_loop
async def test_the_connect_is_not_kept_for_as_long_as_the_connection() -> None:
    async with running(access=SERVER) as node:
        will = Will("left/by/ann", b"x" * 60_000)
        wire, _ = await logged_in(node, ScramClient("ann", "pencil"), will=will)
        del will
        gc.collect()
        assert [
            one for one in gc.get_objects() if type(one) is Will and one.topic == "left/by/ann"
        ] == []
        await wire.close()


@pytest.mark.statement("5:4.12.0-4", "5:3.1.4-2")
@pytest.mark.parametrize(("name", "password"), [("ann", "pen"), ("nobody", "pencil")])
@on_loop
async def test_a_wrong_proof_and_an_unknown_name_are_refused_alike(
    name: str, password: str
) -> None:
    async with running(access=SERVER) as node:
        client = ScramClient(name, password)
        wire, auth = await challenged(node, client)
        wire.send(answer(client, auth))
        await closed_with(wire, ConnAck, reason.BAD_USER_NAME_OR_PASSWORD)
        assert node.metrics.value("authentication_denied") == 1


@pytest.mark.statement("5:3.1.2-24")
@pytest.mark.parametrize(("maximum", "is_told"), [(4, False), (5, True), (60, True)])
@on_loop
async def test_an_auth_that_is_too_large_for_the_client_is_not_sent(
    maximum: int, is_told: bool
) -> None:
    async with running(access=SERVER) as node:
        wire = await WireClient.open(node.port, 5)
        wire.send(
            connect(ScramClient("ann", "pencil"), properties={"Maximum-Packet-Size": maximum})
        )
        if is_told:
            await closed_with(wire, ConnAck, reason.PACKET_TOO_LARGE)
        else:
            with pytest.raises(ConnectionError):
                await wire.receive()


@pytest.mark.statement("5:4.12.0-1", "own:R11")
@pytest.mark.parametrize("server", [SERVER, None], ids=["users", "nobody asked"])
@on_loop
async def test_an_unknown_method_is_refused(server: Any) -> None:
    async with running(access=server) as node:
        wire = await WireClient.open(node.port, 5)
        wire.send(Connect("c", 5, properties={METHOD: "GS2-KRB5"}))
        await closed_with(wire, ConnAck, reason.BAD_AUTHENTICATION_METHOD)


@pytest.mark.statement("5:3.1.2-30")
@pytest.mark.parametrize(
    "packet",
    [PingReq(), Publish("t", b"x"), Connect("d", 5), PubRel(1)],
    ids=["PINGREQ", "PUBLISH", "CONNECT", "PUBREL"],
)
@on_loop
async def test_until_the_connack_only_auth_and_disconnect_are_taken(packet: Packet) -> None:
    async with running(access=SERVER) as node:
        wire, _ = await challenged(node, ScramClient("ann", "pencil"))
        wire.send(packet)
        await closed_with(wire, ConnAck, reason.PROTOCOL_ERROR)


@on_loop
async def test_a_client_may_give_up_before_the_connack() -> None:
    async with running(access=SERVER) as node:
        wire, _ = await challenged(node, ScramClient("ann", "pencil"))
        wire.send(Disconnect())
        with pytest.raises(ConnectionError):
            await wire.receive()
        assert not list(node.server.hub.sessions)


@pytest.mark.statement("5:4.12.0-6", "5:4.12.0-7")
@on_loop
async def test_without_a_method_in_connect_auth_is_a_protocol_error() -> None:
    async with running() as node:
        wire = await node.client("c", 5)
        wire.send(Auth(0x19, {METHOD: "SCRAM-SHA-256"}))
        await closed_with(wire, Disconnect, reason.PROTOCOL_ERROR)


@pytest.mark.statement("5:4.12.0-5")
@on_loop
async def test_another_method_on_the_way_is_a_protocol_error() -> None:
    async with running(access=SERVER) as node:
        client = ScramClient("ann", "pencil")
        wire, auth = await challenged(node, client)
        wire.send(Auth(0x18, {METHOD: "SCRAM-SHA-512", DATA: client.answer(auth.properties[DATA])}))
        await closed_with(wire, ConnAck, reason.PROTOCOL_ERROR)


@pytest.mark.statement("5:3.15.2-1")
@pytest.mark.parametrize("code", [0x00, 0x19])
@on_loop
async def test_a_code_that_the_client_may_not_send_now_is_a_protocol_error(code: int) -> None:
    async with running(access=SERVER) as node:
        client = ScramClient("ann", "pencil")
        wire, auth = await challenged(node, client)
        wire.send(Auth(code, {METHOD: client.method, DATA: client.answer(auth.properties[DATA])}))
        await closed_with(wire, ConnAck, reason.PROTOCOL_ERROR)


@pytest.mark.statement("5:3.15.1-1")
@on_loop
async def test_flags_of_auth_are_zero() -> None:
    async with running(access=SERVER) as node:
        wire, _ = await challenged(node, ScramClient("ann", "pencil"))
        wire.send_bytes(b"\xf1\x02\x18\x00")
        await closed_with(wire, ConnAck, reason.MALFORMED_PACKET)


@on_loop
async def test_auth_is_held_to_the_size_that_holds_before_authentication() -> None:
    async with running(access=SERVER, max_packet_size_before_connect=512) as node:
        client = ScramClient("ann", "pencil")
        wire, _ = await challenged(node, client)
        wire.send(Auth(0x18, {METHOD: client.method, DATA: b"x" * 600}))
        await closed_with(wire, ConnAck, reason.PACKET_TOO_LARGE)


@on_loop
async def test_an_exchange_that_does_not_go_on_ends() -> None:
    async with running(access=SERVER, connect_timeout=10) as node:
        wire, _ = await challenged(node, ScramClient("ann", "pencil"))
        node.pass_time(11)
        with pytest.raises(ConnectionError):
            await wire.receive()


@pytest.mark.statement("5:3.15.2-2", "5:3.15.2-3")
@on_loop
async def test_what_auth_says_stays_below_the_clients_maximum() -> None:
    async with running(access=SERVER) as node:
        client = ScramClient("ann", "pencil")
        _, auth = await challenged(node, client, properties={"Maximum-Packet-Size": 256})
        assert set(auth.properties) == {METHOD, DATA}  # neither a reason string nor user properties


@on_loop
async def test_the_exchange_may_begin_empty() -> None:
    async with running(access=SERVER) as node:
        client = ScramClient("ann", "pencil")
        wire = await WireClient.open(node.port, 5)
        wire.send(Connect("c", 5, properties={METHOD: client.method}))
        assert (await wire.expect(Auth)).properties.get(DATA, b"") == b""
        wire.send(Auth(0x18, {METHOD: client.method, DATA: client.first()}))
        wire.send(answer(client, await wire.expect(Auth)))
        assert (await wire.expect(ConnAck)).reason_code == 0


@on_loop
async def test_what_follows_the_proof_in_one_piece_is_taken_after_the_connack() -> None:
    async with running(access=SERVER) as node:
        client = ScramClient("ann", "pencil")
        wire, auth = await challenged(node, client)
        wire.send(answer(client, auth), PingReq())
        await wire.expect(ConnAck)
        await wire.expect(PingResp)


@pytest.mark.statement("5:4.12.1-1")
@on_loop
async def test_a_client_authenticates_again_while_traffic_goes_on() -> None:
    async with running(access=SERVER) as node:
        client = ScramClient("ann", "pencil")
        wire, _ = await logged_in(node, client)
        await wire.subscribe(SubscriptionRequest("t", 0))
        again = ScramClient("ann", "pencil", nonce="another")
        wire.send(Auth(0x19, {METHOD: again.method, DATA: again.first()}), Publish("t", b"1"))
        challenge = await wire.expect(Auth)
        assert challenge.reason_code == 0x18
        assert (await wire.expect(Publish)).payload == b"1"
        wire.send(Publish("t", b"2", 2, packet_id=1))
        await wire.expect(Publish)
        await wire.expect(PubRec)
        wire.send(answer(again, challenge), PubRel(1))
        success = await wire.expect(Auth)
        assert (success.reason_code, success.properties[METHOD]) == (0, again.method)
        assert again.is_server(success.properties[DATA])
        await wire.expect(PubComp)


@pytest.mark.statement("5:4.12.1-2")
@pytest.mark.parametrize(("name", "password"), [("ann", "wrong"), ("root", "paper")])
@on_loop
async def test_authenticating_again_fails_by_a_wrong_proof_and_as_somebody_else(
    name: str, password: str
) -> None:
    async with running(access=SERVER) as node:
        wire, _ = await logged_in(node, ScramClient("ann", "pencil"))
        again = ScramClient(name, password)
        wire.send(Auth(0x19, {METHOD: again.method, DATA: again.first()}))
        wire.send(answer(again, await wire.expect(Auth)))
        await closed_with(wire, Disconnect, reason.NOT_AUTHORIZED)
        assert node.metrics.value("reauthentication_failed") == 1


@pytest.mark.statement("5:4.12.1-1")
@on_loop
async def test_authenticating_again_is_by_the_same_method() -> None:
    async with running(access=SERVER) as node:
        wire, _ = await logged_in(node, ScramClient("ann", "pencil"))
        again = ScramClient("ann", "pencil", "SCRAM-SHA-512")
        wire.send(Auth(0x19, {METHOD: again.method, DATA: again.first()}))
        await closed_with(wire, Disconnect, reason.PROTOCOL_ERROR)


@pytest.mark.parametrize("codes", [[0x18], [0x00], [0x19, 0x19]], ids=["go on", "success", "twice"])
@on_loop
async def test_auth_out_of_turn_is_a_protocol_error(codes: list[int]) -> None:
    async with running(access=SERVER) as node:
        client = ScramClient("ann", "pencil")
        wire, _ = await logged_in(node, client)
        wire.send(*(Auth(code, {METHOD: client.method, DATA: client.first()}) for code in codes))
        if codes == [0x19, 0x19]:
            await wire.expect(Auth)
        await closed_with(wire, Disconnect, reason.PROTOCOL_ERROR)


@on_loop
async def test_authenticating_again_ends_in_time() -> None:
    async with running(access=SERVER, connect_timeout=10) as node:
        client = ScramClient("ann", "pencil")
        wire, _ = await logged_in(node, client)
        wire.send(Auth(0x19, {METHOD: client.method, DATA: client.first()}))
        await wire.expect(Auth)
        node.pass_time(11)
        await closed_with(wire, Disconnect, reason.NOT_AUTHORIZED)
