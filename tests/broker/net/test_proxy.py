"""The PROXY protocol, from headers to the address that the broker believes."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.auth.attempt import Certificate
from broker.codec.packets import ConnAck, Connect, SubscriptionRequest
from broker.core import reason
from broker.net.listener import Listener
from broker.net.proxy import BadProxyHeader, Origin, parse_v1, parse_v2
from broker.net.settings import ListenerSettings, NamedListener
from tests.support.access import access
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.wire import WireClient

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
V1 = b"PROXY TCP4 192.0.2.7 10.0.0.1 56324 443\r\n"


def tlv(kind: int, value: bytes) -> bytes:
    return struct.pack(">BH", kind, len(value)) + value


def v2(body: bytes, command: int = 0x21, family: int = 0x11) -> bytes:
    return SIGNATURE + bytes((command, family)) + len(body).to_bytes(2) + body


ADDRESSES = bytes((192, 0, 2, 7, 10, 0, 0, 1)) + struct.pack(">HH", 56324, 443)
ADDRESSES_6 = (
    bytes.fromhex("20010db8000000000000000000000007") + bytes(16) + struct.pack(">HH", 1, 2)
)
CLIENT_CERTIFICATE = struct.pack(">BI", 0x07, 0) + tlv(0x21, b"TLSv1.3") + tlv(0x22, b"dev-7")
FULL = ADDRESSES + tlv(0x02, b"mqtt.example") + tlv(0x20, CLIENT_CERTIFICATE)


@pytest.mark.parametrize(
    ("line", "host"),
    [
        (V1, "192.0.2.7"),
        (b"PROXY TCP6 2001:db8::7 ::1 1 2\r\n", "2001:db8::7"),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None),
    ],
)
def test_header_lines(line: bytes, host: str | None) -> None:
    assert parse_v1(line).host == host


@pytest.mark.parametrize(
    "line",
    [
        b"PROXY TCP4 192.0.2.7 10.0.0.1 56324\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 56324 65536\r\n",
        b"PROXY TCP4 192.0.2.7 ::1 1 2\r\n",
        b"PROXY TCP6 192.0.2.7 10.0.0.1 1 2\r\n",
        b"PROXY TCP4 300.0.2.7 10.0.0.1 1 2\r\n",
        b"PROXY UDP4 192.0.2.7 10.0.0.1 1 2\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 +6275 2\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 06275 2\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 1 -0\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 1_0 2\r\n",
        b"PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n",
        b"PROXY \xff\r\n",
        b"PROXY \r\n",
    ],
)
def test_broken_header_lines(line: bytes) -> None:
    with pytest.raises(BadProxyHeader):
        parse_v1(line)


@pytest.mark.parametrize(
    ("data", "origin"),
    [
        (v2(ADDRESSES), Origin("192.0.2.7", 56324)),
        (v2(ADDRESSES_6, family=0x21), Origin("2001:db8::7", 1)),
        (v2(b"", command=0x20, family=0), Origin()),
        (v2(b"\0" * 216, family=0x31), Origin(is_unknown=True)),
        (
            v2(b"\0" * 216 + tlv(0x02, b"mqtt.example"), family=0x31),
            Origin(server_name="mqtt.example", is_unknown=True),
        ),
        (v2(b"\xff", command=0x20, family=0xF0), Origin()),
        (v2(b"\xff", family=0), Origin(is_unknown=True)),
        (v2(FULL), Origin("192.0.2.7", 56324, "mqtt.example", Certificate("CN=dev-7", "dev-7"))),
        (
            v2(ADDRESSES + tlv(0x20, struct.pack(">BI", 7, 1) + tlv(0x22, b"x"))),
            Origin("192.0.2.7", 56324),
        ),
        (v2(ADDRESSES + tlv(0x20, struct.pack(">BI", 1, 0))), Origin("192.0.2.7", 56324)),
        (v2(ADDRESSES + tlv(0x04, bytes(60_000))), Origin("192.0.2.7", 56324)),
    ],
)
def test_binary_headers(data: bytes, origin: Origin) -> None:
    assert parse_v2(data[12:16], data[16:]) == origin


@pytest.mark.parametrize(
    "data",
    [
        v2(ADDRESSES, command=0x11),
        v2(ADDRESSES, command=0x22),
        v2(ADDRESSES[:-1]),
        v2(ADDRESSES + b"\x04"),
        v2(ADDRESSES + b"\x04\0\x05abc"),
        v2(ADDRESSES + tlv(0x20, b"\x07")),
        v2(bytes(215), family=0x31),
        v2(bytes(216) + b"\x04\0\x05abc", family=0x31),
        v2(bytes(216), family=0x41),
        v2(ADDRESSES, family=0x13),
    ],
)
def test_broken_binary_headers(data: bytes) -> None:
    with pytest.raises(BadProxyHeader):
        parse_v2(data[12:16], data[16:])


@given(st.binary(min_size=4, max_size=4), st.binary(max_size=80))
def test_whatever_a_header_holds_nothing_but_its_error_comes_out(head: bytes, body: bytes) -> None:
    for first in (head, b"\x21\x11" + head[2:]):
        with suppress(BadProxyHeader):
            parse_v2(first, body)
    with suppress(BadProxyHeader):
        parse_v1(b"PROXY " + body)


@asynccontextmanager
async def listening(node: Node, **options: Any) -> AsyncIterator[int]:
    settings = ListenerSettings.model_validate(
        {"bind": "127.0.0.1:0", "proxy_protocol": "auto", **options}
    )
    listener = Listener(NamedListener(settings, "p"), node.server.hub, node.metrics)
    _, port = await listener.open()
    try:
        yield port
    finally:
        listener.close()


@pytest.mark.parametrize(
    ("mode", "header", "peer"),
    [
        ("auto", V1, "192.0.2.7:56324"),
        ("auto", v2(FULL), "192.0.2.7:56324"),
        ("v1", V1, "192.0.2.7:56324"),
        ("v2", v2(ADDRESSES), "192.0.2.7:56324"),
        ("v2", v2(ADDRESSES + tlv(0x04, bytes(65_000))), "192.0.2.7:56324"),
        ("auto", v2(b"", command=0x20), "127.0.0.1"),
    ],
)
@pytest.mark.parametrize("pieces", [1, 3])
@on_loop
async def test_the_broker_sees_the_clients_address(
    mode: str, header: bytes, peer: str, pieces: int
) -> None:
    async with (
        running(access=access(trusts_anonymous=True)) as node,
        listening(node, proxy_protocol=mode) as port,
    ):
        client = await WireClient.open(port, 5)
        size = -(-len(header) // pieces)
        for at in range(0, len(header), size):
            client.send_bytes(header[at : at + size])
            await client._writer.drain()
        client.send(Connect("c", 5))
        assert (await client.expect(ConnAck)).reason_code == 0
        found = node.server.hub.sessions.by_client_id["c"].client.peer_name
        assert found is not None
        assert found.startswith(peer)


@pytest.mark.parametrize(
    ("options", "header", "reason"),
    [
        ({}, b"\x10\x0d\0\4MQTT\5\2\0\0\0\0\1c", "proxy_header"),
        ({}, b"PROXY TCP4 x\r\n", "proxy_header"),
        ({}, b"PROXY " + b"x" * 200, "proxy_header"),
        ({}, v2(ADDRESSES[:4]), "proxy_header"),
        ({"proxy_protocol": "v2"}, V1, "proxy_header"),
        ({"proxy_protocol": "v1"}, v2(ADDRESSES), "proxy_header"),
        ({"proxy_protocol_timeout": 0.05}, V1[:20], "proxy_timeout"),
        ({"trusted_proxies": ["10.0.0.0/8"]}, V1, "untrusted_proxy"),
    ],
)
@on_loop
async def test_connections_without_a_good_header_are_ended_and_counted(
    options: dict[str, Any], header: bytes, reason: str
) -> None:
    async with running() as node, listening(node, **options) as port:
        client = await WireClient.open(port)
        client.send_bytes(header)
        assert await client.closed() == []
        assert (
            node.metrics.value("listener_connections_refused", listener="tcp:p", reason=reason) == 1
        )
        assert node.metrics.value("connections_refused", reason=reason) == 1


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (V1, reason.NOT_AUTHORIZED),
        (v2(ADDRESSES_6, family=0x21), reason.NOT_AUTHORIZED),
        (b"PROXY TCP6 ::ffff:192.0.2.7 ::1 1 2\r\n", reason.NOT_AUTHORIZED),
        (b"PROXY UNKNOWN\r\n", reason.NOT_AUTHORIZED),
        (v2(b"\xff", family=0), reason.NOT_AUTHORIZED),
        (v2(b"\0" * 216, family=0x31), reason.NOT_AUTHORIZED),
        (b"PROXY TCP4 127.0.0.2 127.0.0.1 1 2\r\n", 0),
        (b"PROXY TCP6 ::ffff:127.0.0.1 ::1 1 2\r\n", 0),
        (v2(b"", command=0x20), 0),
    ],
)
@on_loop
async def test_without_an_authenticator_only_clients_of_this_machine_come_through_a_proxy_on_it(
    header: bytes, code: int
) -> None:
    async with running(access=access()) as node, listening(node) as port:
        client = await WireClient.open(port, 5)
        client.send_bytes(header)
        client.send(Connect("c", 5, username="ann"))
        assert (await client.expect(ConnAck)).reason_code == code
    async with running(access=access(trusts_anonymous=True)) as node, listening(node) as port:
        client = await WireClient.open(port, 5)
        client.send_bytes(header)
        client.send(Connect("c", 5))
        assert (await client.expect(ConnAck)).reason_code == 0


@on_loop
async def test_a_client_whose_address_the_proxy_does_not_say_is_none_of_this_machine() -> None:
    async with running(access=access(trusts_anonymous=True)) as node, listening(node) as port:
        client = await WireClient.open(port, 5)
        client.send_bytes(b"PROXY UNKNOWN\r\n")
        client.send(Connect("c", 5))
        await client.expect(ConnAck)
        assert await client.subscribe(SubscriptionRequest("#")) == [0x87]
