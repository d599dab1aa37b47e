"""Stored messages read back as they were, also those of release 0.2.0; damaged bytes are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridges.resource.sending.item import from_bytes, to_bytes
from broker.core import stored
from broker.core.client import Client
from broker.core.message import Message
from broker.core.stored import CorruptMessage, StoredMessage, logged, message_of
from broker.routing import delayed
from broker.routing.retained_record import client_id_of, decode_retained, encode_retained
from broker.session.record import decode_will, encode_will
from broker.session.will import Will
from rules import deferred
from tests.support.examples import examples

texts = st.text(max_size=5)
clients = st.builds(
    Client,
    texts,
    st.one_of(st.none(), texts),
    st.one_of(st.none(), texts),
    st.one_of(st.none(), st.integers(0, 65535)),
    texts,
    st.sampled_from((0, 3, 4, 5)),
    st.dictionaries(texts, texts, max_size=2),
)
properties = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {},
        optional={
            "Content-Type": texts,
            "Correlation-Data": st.binary(max_size=5),
            "Message-Expiry-Interval": st.integers(0, 2**32 - 1),
            "User-Property": st.lists(st.tuples(texts, texts), max_size=3),
        },
    ),
)
messages = st.builds(
    Message,
    texts,
    st.binary(max_size=9),
    st.sampled_from((0, 1, 2)),
    st.booleans(),
    clients,
    st.integers(0, 2**62),
    properties,
    st.booleans(),
    st.lists(texts, max_size=2).map(tuple),
    _id=st.one_of(st.none(), texts),
)


def no_earlier(*members: Any) -> Any:
    raise TypeError("this place is new")


decode = stored.decoder(StoredMessage, "a message", no_earlier)


@given(messages)
def test_a_message_reads_back_as_it_was(message: Message) -> None:
    read = decode(stored.encode(message)).message()
    assert read == message
    assert read._id == message._id


@given(messages)
def test_a_message_in_the_session_log_reads_back_in_microseconds_and_with_its_publishers_names(
    m: Message,
) -> None:
    client = Client(m.client.client_id, m.client.username)
    expected = Message(
        m.topic,
        m.payload,
        m.qos,
        m.retain,
        client,
        m.received_ns // 1000 * 1000,
        m.properties or None,
        via=m.via,
    )
    assert message_of(logged(m, None)) == expected


@given(messages)
def test_a_retained_message_reads_back_for_its_subscribers(m: Message) -> None:
    value = encode_retained(m, 7)
    client = Client(m.client.client_id, m.client.username)
    assert decode_retained(m.topic, value) == Message(
        m.topic, m.payload, m.qos, m.retain, client, m.received_ns, m.properties
    )
    assert client_id_of(value) == client.client_id


READERS: dict[str, tuple[tuple[Any, ...], Callable[[bytes], object]]] = {
    "a message": ((), lambda data: decode(data).message()),
    "a delayed message": ((), lambda data: delayed._decode(data).message()),
    "a retained message": ((), lambda data: decode_retained("t", bytes(17) + data)),
    "a will": ((30,), lambda data: decode_will(data, "meter-7")),
    "a row of an action": (({"payload": "x"}, 5, True), lambda data: from_bytes(data, 3)),
    "an event of a rule": (({"payload": "x"}, 5), lambda data: deferred._decode(data).message()),
}
"""What each place adds to a message, and how it is read."""


@pytest.mark.parametrize("place", READERS)
@given(data=st.data())
@settings(max_examples=examples(200))
def test_damaged_bytes_are_refused_or_read_as_a_message(place: str, data: st.DataObject) -> None:
    beside, read = READERS[place]
    whole = stored.encode(data.draw(messages), *beside)
    read(whole)
    at = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(CorruptMessage, match=rf"^store: expected {place}, got bytes .* Try: "):
        read(whole[:at])
    for damaged in (
        whole[:at] + bytes([data.draw(st.integers(0, 255))]) + whole[at + 1 :],
        data.draw(st.binary(max_size=40)),
    ):
        with suppress(CorruptMessage):
            read(damaged)


CLIENT = Client("meter-7", "ann", "192.0.2.1", 50123, "tcp:default", 5, {"site": "north"})
PROPERTIES = {
    "Content-Type": "text/plain",
    "Correlation-Data": b"\0\xff",
    "User-Property": [("a", "b"), ("a", "c")],
}
MESSAGE = Message(
    "meters/7",
    b"21.5",
    1,
    True,
    CLIENT,
    1_780_000_000_123_456_789,
    PROPERTIES,
    True,
    ("hot",),
    _id="7".rjust(32, "0"),
)
_PROPERTIES = (
    "83ac436f6e74656e742d54797065aa746578742f706c61696eb0436f7272656c6174696f6e2d44617461c40200ff"
    "ad557365722d50726f70657274799292a161a16292a161a163"
)
_CLIENT = "97a76d657465722d37a3616e6ea93139322e302e322e31cdc3cbab7463703a64656661756c740581a473697465a56e6f727468"
_IDENTITY = "c3c3cf18b3d491bb8dcd15d920303030303030303030303030303030303030303030303030303030303030303791a3686f74"
"""Parts of what release 0.2.0 stored."""


def of_0_2_0(*parts: str) -> bytes:
    return bytes.fromhex("".join(parts))


def test_a_retained_message_of_0_2_0_is_read() -> None:
    value = of_0_2_0(
        "020000000000000007", "0000000000000000", "96c40432312e3501cf18b3d491bb8dcd15a76d657465722d37a3616e6e",
        _PROPERTIES,
    )  # fmt: skip
    expected = Message(
        "meters/7",
        b"21.5",
        1,
        True,
        Client("meter-7", "ann"),
        MESSAGE.received_ns,
        MESSAGE.properties,
    )
    assert decode_retained("meters/7", value) == expected


def test_a_delayed_message_of_0_2_0_is_read() -> None:
    value = of_0_2_0(
        "9f01a86d65746572732f37c40432312e3501c3cf18b3d491bb8dcd15", _CLIENT[2:], _PROPERTIES, "91a3686f74"
    )  # fmt: skip
    read = delayed._decode(value).message()
    assert not read.dup
    read.dup = True
    assert read == MESSAGE


def test_a_row_of_an_action_of_0_2_0_is_read() -> None:
    value = of_0_2_0(
        "9d82a17401a77061796c6f6164a432312e3505a86d65746572732f37c001", _IDENTITY, _PROPERTIES, _CLIENT, "c3"
    )  # fmt: skip
    item = from_bytes(value, 3)
    assert (item.row, item.message, item.message.id) == (
        {"t": 1, "payload": "21.5"},
        MESSAGE,
        MESSAGE.id,
    )
    assert item.is_fallback
    now, data = to_bytes(item.row, item.message, 5, True)
    assert from_bytes(data, 3).message == MESSAGE
    assert now == item.row


def test_an_event_of_a_rule_of_0_2_0_is_read() -> None:
    value = of_0_2_0("9cc005a86d65746572732f37c40432312e3501", _IDENTITY, _PROPERTIES, _CLIENT)
    read = deferred._decode(value)
    assert (read.message(), read.message().id, read.columns, read.now_ms) == (
        MESSAGE,
        MESSAGE.id,
        None,
        5,
    )


def test_a_will_of_0_2_0_is_read() -> None:
    value = of_0_2_0("98a86d65746572732f37c40432312e3501c31e", _PROPERTIES, "a3616e6e05")
    client = Client("meter-7", "ann", protocol_version=5)
    will = Will("meters/7", b"21.5", 1, True, client, 30, PROPERTIES)
    assert decode_will(value, "meter-7") == will
    assert decode_will(encode_will(will), "meter-7") == will
