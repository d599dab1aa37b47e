"""WebSocket frames and the request before them, without a socket."""

from __future__ import annotations

import os
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.codec.websocket import (
    BadFrame,
    Closed,
    FrameReader,
    binary_frame_head,
    close_frame,
    masked,
)
from broker.core.hosts import AllowedHosts
from broker.net import upgrade
from broker.net.settings import WebSocketSettings
from broker.net.upgrade import UpgradeRefused

MASK = b"\x01\x80\xff\x7e"


def frame(payload: bytes, first: int = 0x82, mask: bytes = MASK) -> bytes:
    """A frame of a client."""
    head = binary_frame_head(len(payload))
    return bytes((first, head[1] | 0x80)) + head[2:] + mask + masked(payload, mask)


@given(st.lists(st.binary(max_size=300)), st.lists(st.integers(min_value=1, max_value=70)))
def test_where_frames_are_cut_changes_no_byte(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(frame(payload, mask=os.urandom(4)) for payload in payloads)
    reader, got, at = FrameReader(1024), b"", 0
    for cut in [*cuts, len(stream)]:
        got += reader.receive(stream[at : at + cut])
        at += cut
    assert got == b"".join(payloads)


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536, 200_000])
def test_frames_of_every_form_of_length_are_read_byte_by_byte_and_whole(size: int) -> None:
    payload = os.urandom(size)
    assert FrameReader(1 << 20).receive(frame(payload)) == payload
    reader, stream = FrameReader(1 << 20), frame(payload)
    pieces = [reader.receive(stream[at : at + 1]) for at in range(14)]
    assert b"".join(pieces) + reader.receive(stream[14:]) == payload


def test_fragments_are_one_stream_and_control_frames_may_stand_between_them() -> None:
    reader = FrameReader(1024)
    stream = (
        frame(b"ab", 0x02)
        + frame(b"?", 0x89)
        + frame(b"cd", 0x00)
        + frame(b"", 0x8A)
        + frame(b"e", 0x80)
    )
    assert reader.receive(stream + frame(b"f")) == b"abcdef"
    assert reader.replies == [b"\x8a\x01?"]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(b"hello", 0x81), 1003),  # text [MQTT-6.0.0-1]
        (b"\x82\x02ab", 1002),  # not masked
        (frame(b"a", 0xC2), 1002),  # a reserved bit, as compression sets it
        (frame(b"a", 0x80), 1002),  # goes on with nothing
        (frame(b"a", 0x02) + frame(b"b", 0x82), 1002),  # starts a new message within a message
        (frame(b"a", 0x83), 1002),  # an opcode of nobody
        (frame(b"a", 0x8B), 1002),
        (frame(b"a", 0x09), 1002),  # a ping in fragments
        (frame(b"x" * 126, 0x89), 1002),  # a ping too long
        (b"\x82\xfe\0\x05" + MASK, 1002),  # a length in more bytes than needed
        (b"\x82\xff\0\0\0\0\0\0\0\x05" + MASK, 1002),
        (b"\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff" + MASK, 1009),
        (frame(b"x" * 1025), 1009),
        (b"\x82\xfe\x04\x01", 1009),  # said before its bytes came
        (frame(b"\x03", 0x88), 1002),  # half a status
        (frame(b"\x03\xed", 0x88), 1002),  # 1005 is never sent
        (frame(b"\x03\xe8\xff", 0x88), 1007),
    ],
)
def test_frames_that_break_the_rules_end_it_with_the_status_that_says_how(
    data: bytes, code: int
) -> None:
    with pytest.raises(BadFrame) as broken:
        FrameReader(1024).receive(data)
    assert broken.value.code == code


@pytest.mark.parametrize(
    ("payload", "code"), [(b"", 1000), (b"\x03\xe9", 1001), (b"\x0f\xa0bye", 4000)]
)
def test_a_close_frame_is_answered_with_its_status(payload: bytes, code: int) -> None:
    with pytest.raises(Closed) as farewell:
        FrameReader(1024).receive(frame(b"last") + frame(payload, 0x88))
    assert (farewell.value.code, farewell.value.data) == (code, b"last")
    assert close_frame(code)[:1] == b"\x88"


@given(st.binary(max_size=200))
def test_whatever_comes_nothing_but_the_clients_errors_comes_out(data: bytes) -> None:
    reader = FrameReader(64)
    with suppress(BadFrame, Closed):
        for at in range(0, len(data), 7):
            reader.receive(data[at : at + 7])


ANY_HOST = AllowedHosts(loopback=False)
REQUEST = {
    "Host": "broker.example:8083",
    "Upgrade": "websocket",
    "Connection": "keep-alive, Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Protocol": "chat, mqtt",
}


def request(line: str = "GET /mqtt HTTP/1.1", **changed: str | None) -> bytes:
    """A request; ``changed`` headers have ``_`` for ``-``, None leaves one out."""
    headers: dict[str, str | None] = {
        **REQUEST,
        **{name.replace("_", "-"): value for name, value in changed.items()},
    }
    lines = [line, *(f"{name}: {value}" for name, value in headers.items() if value is not None)]
    return "\r\n".join(lines).encode() + upgrade.END


def test_the_response_is_that_of_the_standard() -> None:
    response = upgrade.accept(request(), WebSocketSettings(), ANY_HOST).decode()
    assert response.startswith("HTTP/1.1 101 ")
    assert "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in response  # RFC 6455, section 1.3
    assert "Sec-WebSocket-Protocol: mqtt\r\n" in response  # [MQTT-6.0.0-4]


@pytest.mark.parametrize(
    ("offered", "answered"), [("mqttv3.1", "mqttv3.1"), ("mqttv3.1, mqtt", "mqtt")]
)
def test_names_of_the_subprotocol(offered: str, answered: str) -> None:
    response = upgrade.accept(
        request(Sec_WebSocket_Protocol=offered), WebSocketSettings(), ANY_HOST
    )
    assert f"Sec-WebSocket-Protocol: {answered}\r\n".encode() in response


@pytest.mark.parametrize(
    ("head", "status", "text"),
    [
        (request("GET / HTTP/1.1"), 404, "MQTT over WebSocket is at /mqtt"),
        (request("POST /mqtt HTTP/1.1"), 405, "GET"),
        (request(Upgrade=None, Connection=None), 426, "not a page"),
        (request(Sec_WebSocket_Version="8"), 426, "Version 13"),
        (request(Sec_WebSocket_Key="c2hvcnQ="), 400, "Sec-WebSocket-Key"),
        (request(Sec_WebSocket_Key="?"), 400, "Sec-WebSocket-Key"),
        (request(Sec_WebSocket_Protocol=None), 400, "subprotocol mqtt"),
        (request(Sec_WebSocket_Protocol="wamp"), 400, "subprotocol mqtt"),
        (request("GET /mqtt HTTP/1.0"), 505, "HTTP/1.1"),
        (request(Origin="https://evil.example"), 403, "allowed_origins"),
        (b"\x10\x0c\0\4MQTT\4\2\0\0\0\0" + upgrade.END, 400, "not an HTTP request"),
        (b"GET /mqtt HTTP/1.1\r\n: x" + upgrade.END, 400, "header"),
    ],
)
def test_requests_that_open_nothing_are_told_why(head: bytes, status: int, text: str) -> None:
    with pytest.raises(UpgradeRefused, match=text) as refused:
        upgrade.accept(head, WebSocketSettings(path="/mqtt"), ANY_HOST)
    first, _, rest = refused.value.response.decode().partition("\r\n")
    assert first.split(" ")[1] == str(status)
    assert rest.endswith(f"{refused.value}\n")


@pytest.mark.parametrize(
    ("allowed", "origin", "is_taken"),
    [
        ([], None, True),
        ([], "http://broker.example:3000", True),
        ([], "https://app.example", False),
        ([], "null", False),
        (["*"], "null", True),
        (["https://app.example"], "https://APP.example", True),
        (["https://app.example"], "https://broker.example", False),
    ],
)
def test_pages_of_other_sites_need_permission(
    allowed: list[str], origin: str | None, is_taken: bool
) -> None:
    settings = WebSocketSettings(allowed_origins=allowed)
    if is_taken:
        upgrade.accept(request(Origin=origin), settings, ANY_HOST)
    else:
        with pytest.raises(UpgradeRefused):
            upgrade.accept(request(Origin=origin), settings, ANY_HOST)


@pytest.mark.parametrize(
    ("allowed", "host", "is_taken"),
    [
        ([], "localhost:8083", True),
        ([], "[::1]:8083", True),
        ([], "127.0.0.1", True),
        ([], None, True),  # no browser
        ([], "evil.example:8083", False),
        ([], "localhost, evil.example", False),
        (["mqtt.example"], "MQTT.example", True),
        (["mqtt.example"], "evil.example", False),
        (["*"], "evil.example", True),
    ],
)
def test_names_that_lead_to_loopback_need_permission(
    allowed: list[str], host: str | None, is_taken: bool
) -> None:
    """A page whose own name has the address 127.0.0.1 is of one origin with it: DNS rebinding."""
    head = request(Host=host, Origin=f"http://{host}")
    settings = WebSocketSettings(allowed_hosts=allowed, allowed_origins=["*"])
    hosts = AllowedHosts(settings.allowed_hosts)
    if is_taken:
        upgrade.accept(head, settings, hosts)
    else:
        with pytest.raises(UpgradeRefused, match=r"websocket\.allowed_hosts") as refused:
            upgrade.accept(head, settings, hosts)
        assert b" 403 " in refused.value.response
