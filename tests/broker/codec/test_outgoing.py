"""A message is encoded once for all subscribers that get the same bytes."""

from __future__ import annotations

import pytest

from broker.codec.outgoing import Outgoing
from broker.core.client import Client
from broker.core.message import Message

NS = 1_000_000_000


def outgoing(**properties: object) -> Outgoing:
    """A message that was published at 100 s."""
    return Outgoing(Message("t", b"x", 1, False, Client("c"), 100 * NS, dict(properties) or None))


@pytest.mark.parametrize("identifiers", [(), (7,), (7, 9)])
@pytest.mark.parametrize("is_v5", [False, True])
def test_subscribers_with_equal_identifiers_share_one_encoding(
    identifiers: tuple[int, ...], is_v5: bool
) -> None:
    message = outgoing()
    one, two = (message.parts_for(is_v5, 1, False, identifiers, 100 * NS) for _ in range(2))
    assert one is two
    assert one is not message.parts_for(is_v5, 1, True, identifiers, 100 * NS)
    others = {message.parts_for(True, 1, False, (number,), 100 * NS) for number in range(1, 5)}
    assert len(others) == 4


def test_what_differs_with_time_or_is_sent_again_is_encoded_anew() -> None:
    message = outgoing(**{"Message-Expiry-Interval": 60})
    fresh = message.parts_for(True, 1, False, (7,), 100 * NS)
    later = message.parts_for(True, 1, False, (7,), 110 * NS)
    again = message.parts_for(True, 1, False, (7,), 100 * NS, dup=True)
    assert len({fresh, later, again}) == 3
    assert message.parts_for(True, 1, False, (7,), 100 * NS) is fresh
    assert b"\x02\0\0\0\x32" in later[1]
