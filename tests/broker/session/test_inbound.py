"""What is remembered of publishes that may be sent again."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from broker.session.inbound import RECENT_LIFE_NS, RECENT_MIN, Inbound, Inbounds, digest


def test_only_the_same_message_under_the_same_identifier_was_taken() -> None:
    inbound = Inbound()
    inbound.remember(5, digest(b"t", b"x"), 1)
    assert inbound.taken_with(5, digest(b"t", b"x"), 2) == 0
    assert inbound.taken_with(5, digest(b"t", b"y"), 2) is None
    assert inbound.taken_with(5, digest(b"tx", b""), 2) is None
    assert inbound.taken_with(6, digest(b"t", b"x"), 2) is None


def test_what_is_remembered_is_bounded_and_grows_old() -> None:
    inbound = Inbound()
    for number in range(1, RECENT_MIN + 3):
        inbound.remember(number, digest(b"t", b"%d" % number), 1)
    assert len(inbound.recent) == RECENT_MIN
    assert inbound.taken_with(1, digest(b"t", b"1"), 2) is None
    assert inbound.taken_with(3, digest(b"t", b"3"), 2) == 0
    assert inbound.taken_with(3, digest(b"t", b"3"), RECENT_LIFE_NS + 2) is None


def test_what_could_not_be_stored_was_not_taken() -> None:
    inbound = Inbound()
    inbound.remember(5, digest(b"t", b"x"), 1)
    inbound.open(6)
    inbound.forget([5, 6])
    assert inbound.taken_with(5, digest(b"t", b"x"), 2) is None
    assert not inbound.open_qos2


@given(
    st.sets(st.integers(1, 65_535), max_size=20),
    st.dictionaries(st.integers(1, 65_535), st.binary(min_size=8, max_size=8), max_size=20),
)
def test_what_is_stored_is_restored(open_qos2: set[int], taken: dict[int, bytes]) -> None:
    inbound = Inbound()
    inbound.open_qos2 = open_qos2
    for packet_id, message_digest in taken.items():
        inbound.remember(packet_id, message_digest, 7)
    recent = inbound.recent
    value = inbound.encode()
    if not open_qos2 and not taken:
        assert value is None
        return
    assert value is not None
    restored = Inbound.decode(value)
    assert (restored.open_qos2, restored.recent, restored.touched_ns) == (
        open_qos2,
        recent,
        inbound.touched_ns,
    )
    assert list(restored.recent) == list(recent)
    assert all(
        restored.taken_with(packet_id, message_digest, 7) == 0
        for packet_id, message_digest in taken.items()
    )


def test_what_was_refused_is_remembered_with_its_reason_code() -> None:
    inbound = Inbound()
    inbound.remember(5, digest(b"t", b"x"), 1, reason_code=0x83)
    value = inbound.encode()
    assert value is not None
    assert Inbound.decode(value).taken_with(5, digest(b"t", b"x"), 2) == 0x83


def test_what_was_stored_before_refusals_were_remembered_is_restored() -> None:
    first_version = bytes.fromhex("010000000000000007000100090005") + digest(b"t", b"x")
    inbound = Inbound.decode(first_version)
    assert (inbound.open_qos2, inbound.taken_with(5, digest(b"t", b"x"), 8)) == ({9}, 0)


def test_who_says_goodbye_with_nothing_open_will_send_nothing_again() -> None:
    inbound = Inbound()
    assert not inbound.settle()
    inbound.remember(1, digest(b"t", b"a"), now_ns=0)
    inbound.open(2)
    assert not inbound.settle(), "an exchange is open"
    inbound.release(2, forget=True)
    assert inbound.settle()
    assert inbound.taken_with(1, digest(b"t", b"a"), 0) is None
    assert inbound.is_changed
    assert inbound.encode() is None


def test_what_is_above_the_bound_is_forgotten_in_parts_and_the_client_that_left_first_goes_first() -> (
    None
):
    later: list[Callable[[], None]] = []
    inbounds = Inbounds(
        10_000_000, 0, lambda client_id: inbounds.__delitem__(client_id), later.append
    )
    names = [f"c{number}" for number in range(2500)]
    for name in names:
        inbounds[name] = Inbound()
        inbounds[name].remember(1, digest(b"t", b"x"), 1)
        inbounds.client_went(name)
    inbounds.client_came("c0")
    whole = inbounds.gone_bytes
    assert whole == sum(inbounds[name].size_bytes(name) for name in names[1:])
    inbounds.max_bytes = 0
    inbounds.forget_oldest()
    assert list(inbounds) == ["c0", *names[1001:]]
    while later:
        later.pop()()
    assert (list(inbounds), inbounds.gone_bytes) == (["c0"], 0)
    inbounds.max_bytes = 1000
    inbounds.client_went("c0")
    assert list(inbounds) == ["c0"]
