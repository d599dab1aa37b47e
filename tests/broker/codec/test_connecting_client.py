"""The client identifier of a CONNECT is found without reading the rest, and is that of the whole packet."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.codec.decode import connecting_client, decode_packet
from broker.codec.encode import encode_packet
from broker.codec.framing import frame_at
from broker.codec.packets import Connect, Will
from broker.core.errors import PeerError

_texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
_properties = st.fixed_dictionaries(
    {},
    optional={
        "Session-Expiry-Interval": st.integers(0, 2**32 - 1),
        "Receive-Maximum": st.integers(1, 65_535),
        "User-Property": st.lists(st.tuples(_texts, _texts), min_size=1, max_size=5),
    },
)


@st.composite
def connects(draw: st.DrawFn) -> bytes:
    version = draw(st.sampled_from((3, 4, 5)))
    packet = Connect(
        draw(_texts),
        version,
        draw(st.booleans()),
        draw(st.integers(0, 65_535)),
        draw(st.none() | st.builds(Will, topic=st.just("gone"), payload=st.binary(max_size=9))),
        draw(st.just("user") | st.none()),
        None,
        draw(_properties) if version == 5 else {},
    )
    return encode_packet(packet, version)


@given(connects(), st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=3))
def test_it_is_that_of_the_whole_packet_or_none(
    data: bytes, changes: list[tuple[int, int]]
) -> None:
    sent = bytearray(data)
    for at, value in changes:
        sent[at % len(sent)] = value
    data = bytes(sent)
    try:
        frame = frame_at(data, 0, 100_000)
    except PeerError:
        return
    if frame is None or frame[1] > len(data) or data[0] >> 4 != 1:
        return
    identifier = connecting_client(data, *frame)
    try:
        packet = decode_packet(data[0], data, *frame, 0)
    except PeerError:
        return  # its own cell says what is wrong with it
    assert isinstance(packet, Connect)
    assert identifier == packet.client_id


@given(st.binary(max_size=300))
def test_other_bytes_raise_nothing(data: bytes) -> None:
    connecting_client(data, 0, len(data))
