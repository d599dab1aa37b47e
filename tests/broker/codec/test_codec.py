"""The codec against a table of bytes, against itself, against cuts anywhere, and against noise."""

from __future__ import annotations

import time
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.codec.decode import open_subscribe, open_unsubscribe
from broker.codec.encode import encode_fitting, encode_packet
from broker.codec.framing import Decoder, frame_at, plain_publishes
from broker.codec.packets import (
    Packet,
    PubAck,
    Publish,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
)
from broker.codec.primitives import Reader, encode_variable_integer
from broker.codec.properties import (
    CLIENT_PUBLISH,
    MOST_SUBSCRIPTION_IDENTIFIERS,
    MOST_USER_PROPERTIES,
    PUBLISH,
    decode_properties,
)
from broker.core.errors import PeerError
from tests.support.processor import is_within
from tests.support.strategies import VERSIONS, packets
from tests.support.wire import BAD_CASES, CASES, BadCase, Case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bytes_are_the_packet(case: Case) -> None:
    assert list(Decoder(case.version).feed(case.data)) == [case.packet]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_packet_is_the_bytes(case: Case) -> None:
    assert encode_packet(case.packet, case.version) == case.data


@pytest.mark.parametrize("case", BAD_CASES, ids=lambda case: case.name)
def test_bytes_that_break_the_rules_have_the_right_reason_code(case: BadCase) -> None:
    with pytest.raises(PeerError) as caught:
        list(Decoder(case.version).feed(case.data))
    assert caught.value.reason_code == case.reason_code


@given(VERSIONS.flatmap(lambda version: st.tuples(st.just(version), packets(version))))
def test_what_is_encoded_decodes_to_the_same(sent: tuple[int, Packet]) -> None:
    version, packet = sent
    assert list(Decoder(version).feed(encode_packet(packet, version))) == [packet]


PLAIN = st.tuples(st.text("aé/", min_size=1), st.binary(max_size=300), st.integers(0, 2))


@given(st.lists(PLAIN, max_size=5), st.sampled_from([3, 4, 5]))
def test_a_chunk_of_publishes_is_cut_into_topics_and_payloads(
    sent: list[tuple[str, bytes, int]], version: int
) -> None:
    pieces = [
        encode_packet(Publish(topic, data, qos, packet_id=9 if qos else 0), version)
        for topic, data, qos in sent
    ]
    chunk = b"".join(pieces)
    cut = list(plain_publishes(chunk, is_v5=version == 5))
    assert [(topic.decode(), chunk[payload_at:stop]) for _, topic, payload_at, stop in cut] == [
        (topic, data) for topic, data, _ in sent
    ]
    assert [chunk[start:stop] for start, _, _, stop in cut] == pieces


@given(st.lists(packets(5), max_size=5), st.lists(st.integers(0, 2000), max_size=8))
def test_where_the_stream_is_cut_changes_no_packet(sent: list[Packet], cuts: list[int]) -> None:
    stream, decoder = b"".join(encode_packet(packet, 5) for packet in sent), Decoder(5)
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    received: list[Packet] = []
    for start, stop in pairwise(places):
        received += decoder.feed(stream[start:stop])
    assert received == sent


@given(VERSIONS, st.lists(st.binary(max_size=60), max_size=4))
def test_noise_raises_nothing_but_the_peers_error(version: int, pieces: list[bytes]) -> None:
    decoder = Decoder(version)
    with suppress(PeerError):
        for piece in pieces:
            list(decoder.feed(piece))


@given(VERSIONS.flatmap(lambda version: st.tuples(st.just(version), packets(version))), st.data())
def test_a_packet_with_bytes_changed_raises_nothing_but_the_peers_error(
    sent: tuple[int, Packet], data: st.DataObject
) -> None:
    version, packet = sent
    encoded = bytearray(encode_packet(packet, version))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    with suppress(PeerError):
        list(Decoder(version).feed(bytes(encoded)))


def test_packets_before_a_bad_one_are_given() -> None:
    received: list[Packet] = []
    with pytest.raises(PeerError):
        received.extend(Decoder(4).feed(b"\x30\3\0\1a\x36\3\0\1a"))
    packets_before = Decoder(4).feed(b"\x30\3\0\1a\x36\3\0\1a")
    assert next(packets_before) == Publish("a", b"")


def test_a_packet_above_the_maximum_is_refused_by_its_header_alone() -> None:
    header = b"\x30" + encode_variable_integer(1_000_000)
    with pytest.raises(PeerError) as caught:
        frame_at(header, 0, 1000)
    assert caught.value.reason_code == 0x95


@pytest.mark.parametrize("value", [0, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 268_435_455])
def test_variable_integers_take_the_fewest_bytes(value: int) -> None:
    expected = 1 + sum(value >= limit for limit in (128, 16_384, 2_097_152))
    assert len(encode_variable_integer(value)) == expected


def test_an_ack_loses_its_reason_string_before_its_user_properties_and_is_never_left_out() -> None:
    packet = PubAck(1, 0x80, {"Reason-String": "x" * 50, "User-Property": [("a", "b")]})
    assert encode_fitting(packet, 5, 20) == encode_packet(
        PubAck(1, 0x80, {"User-Property": [("a", "b")]}), 5
    )
    assert encode_fitting(packet, 5, 5) == encode_packet(PubAck(1, 0x80), 5)


def test_subscription_identifiers_are_read_only_from_servers_and_only_so_many() -> None:
    one, number = b"\x0b\x01", MOST_SUBSCRIPTION_IDENTIFIERS

    def read(count: int, packet_type: int) -> Reader:
        body = encode_variable_integer(2 * count) + one * count
        reader = Reader(body, 0, len(body), "PUBLISH")
        decode_properties(reader, packet_type)
        return reader

    assert read(number, PUBLISH).remaining == 0
    with pytest.raises(PeerError, match=f"more than {number} subscription identifiers") as caught:
        read(number + 1, PUBLISH)
    assert caught.value.reason_code == 0x97
    used_s = time.process_time()
    with pytest.raises(PeerError, match="must not carry Subscription-Identifier") as caught:
        read(500_000, CLIENT_PUBLISH)
    assert caught.value.reason_code == 0x82
    assert is_within(time.process_time() - used_s, 0.05)


def test_user_properties_are_read_up_to_a_bound() -> None:
    """A packet of a megabyte could hold 200,000, which would be a third of a second of reading."""
    pairs = [("", "")] * MOST_USER_PROPERTIES
    whole = encode_packet(Publish("t", b"", properties={"User-Property": pairs}), 5)
    assert list(Decoder(5).feed(whole)) == [Publish("t", b"", properties={"User-Property": pairs})]
    one_more = encode_packet(
        Publish("t", b"", properties={"User-Property": [*pairs, ("a", "b")]}), 5
    )
    with pytest.raises(PeerError) as caught:
        list(Decoder(5).feed(one_more))
    assert caught.value.reason_code == 0x97


@pytest.mark.parametrize("version", [4, 5])
def test_filters_that_are_read_later_are_those_of_the_packet(version: int) -> None:
    requests = [SubscriptionRequest(f"a/{number}", number % 3) for number in range(5)]
    properties = {"User-Property": [("a", "b")]} if version == 5 else {}
    data = encode_packet(Subscribe(7, requests, properties), version)
    opened = open_subscribe(data, 2, len(data), version)
    assert opened.packet == Subscribe(7, [], properties)
    assert list(opened.items()) == list(opened.items()) == requests
    data = encode_packet(Unsubscribe(8, ["a/1", "b"], properties), version)
    left = open_unsubscribe(data, 2, len(data), version)
    assert left.packet == Unsubscribe(8, [], properties)
    assert list(left.items()) == list(left.items()) == ["a/1", "b"]


@pytest.mark.parametrize("tail", [b"", b"\0\1", b"\0\1a", b"\0\1a\3"])
def test_filters_that_are_read_later_are_held_to_the_same_rules(tail: bytes) -> None:
    body = b"\0\7" + (b"\0\1a\1" if tail else b"") + tail
    with pytest.raises(PeerError) as at_once:
        list(Decoder(4).feed(b"\x82" + bytes((len(body),)) + body))
    opened = open_subscribe(body, 0, len(body), 4)
    with pytest.raises(PeerError) as later:
        list(opened.items())
    assert (later.value.reason_code, str(later.value)) == (
        at_once.value.reason_code,
        str(at_once.value),
    )
