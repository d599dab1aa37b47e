"""A message that goes into quarantine comes out as it was."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from broker.core.client import Client
from broker.core.message import Message
from broker.core.quarantine import TAKEN_AGAIN, message_of, quarantine, quarantined
from broker.core.stream import StreamRecord

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=30)
PROPERTIES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "User-Property": st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=3),
        "Content-Type": TEXT,
        "Correlation-Data": st.binary(max_size=20),
        "Message-Expiry-Interval": st.integers(0, 2**32 - 1),
        "Payload-Format-Indicator": st.integers(0, 1),
    },
)
CLIENTS = st.builds(
    Client,
    TEXT,
    st.none() | TEXT,
    st.sampled_from([None, "10.0.0.7", "::1"]),
    st.just(4711),
    attributes=st.dictionaries(TEXT.filter(bool), TEXT, max_size=3),
)
MESSAGES = st.builds(
    Message,
    TEXT.filter(bool),
    st.binary(max_size=200) | TEXT.map(str.encode),
    st.integers(0, 2),
    st.booleans(),
    CLIENTS,
    st.integers(0, 2**40).map(lambda milliseconds: milliseconds * 1_000_000),
    PROPERTIES.map(lambda found: found or None),
)


@given(MESSAGES, TEXT, TEXT)
def test_what_is_kept_comes_back(message: Message, reason: str, path: str) -> None:
    back = message_of(quarantined(message, "validation", "v", reason, path, "drop"))
    assert back is not None
    for member in ("topic", "payload", "qos", "retain", "received_ns", "properties"):
        assert getattr(back, member) == getattr(message, member)
    client, came = back.client, message.client
    assert (client.client_id, client.username, dict(client.attributes)) == (
        came.client_id,
        came.username,
        dict(came.attributes),
    )
    assert client.peer_host == came.peer_host
    assert TAKEN_AGAIN in back.via


@given(st.binary(max_size=50))
def test_a_record_that_is_no_such_row_is_none(payload: bytes) -> None:
    kept: list[StreamRecord] = []
    message = Message("t", b"", 0, False, Client("c"), 0)
    assert quarantine(kept.append, "validation", "v")(message, "r", "p", "drop")
    [row] = kept
    broken = row._replace(payload=payload)
    assert message_of(broken) is None
