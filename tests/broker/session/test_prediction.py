"""What leaves at once since the record on disk foretells its identifier, and what waits for a record that does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.codec.packets import Publish, PubRel
from broker.core.subscription import Subscription
from broker.core.topic import TopicFilter
from broker.session import acks, sending
from broker.session.delivery import NO_OFFSET, Delivery, SharedDelivery
from broker.session.prediction import PREDICTED_MAX
from tests.support.session_bench import SessionBench, outgoing


class Group:
    """The least that a message of a share group needs of one."""

    def settle(self, delivery: Delivery) -> None:
        """Nothing is to be done."""

    def offer_room(self) -> None:
        """There is nothing to give."""


def connected(window: int = 100) -> SessionBench:
    bench = SessionBench(is_durable=True, window=window, max_queue=100)
    bench.connect(max_packet_bytes=200)
    return bench


def payloads(packets: list[Publish | PubRel]) -> list[bytes]:
    return [packet.payload for packet in packets if isinstance(packet, Publish)]


def is_held(bench: SessionBench, offset: int) -> bool:
    """Whether a QoS 1 message at this offset waits for a record."""
    bench.left()
    bench.log(offset)
    return bench.left() == []


def test_a_message_of_qos_1_from_the_log_leaves_at_once_and_its_record_follows() -> None:
    bench = connected()
    for offset in range(3):
        bench.log(offset)
    assert payloads(bench.left()) == [b"0", b"1", b"2"]
    assert set(bench.asked) == {"moved"}
    number, held = bench.make_record()
    assert (number, held) == (1, [])


def test_acknowledgements_in_order_change_nothing_of_what_is_foretold() -> None:
    bench = connected()
    for offset in range(5):
        bench.log(offset)
        [packet] = bench.left()
        assert acks.puback(bench.session, packet.packet_id)
    assert not is_held(bench, 5)


def after_qos_2(bench: SessionBench) -> None:
    bench.log(0, qos=2)


def after_an_expired_one(bench: SessionBench) -> None:
    bench.log(0, message=outgoing(0, {"Message-Expiry-Interval": 1}))
    assert bench.session.dropped == {"expired": 1}


def after_one_that_is_too_large(bench: SessionBench) -> None:
    bench.log(0, message=outgoing(0, payload=bytes(300)))
    assert bench.session.dropped == {"packet_too_large": 1}


def after_one_that_nobody_wants_any_more(bench: SessionBench) -> None:
    bench.session.accept_logged(0, outgoing(0), 1, False, ())
    bench.session.subscriptions_changed([TopicFilter.parse("t")])
    assert bench.session.dropped == {"unsubscribed": 1}


def after_one_that_the_client_refused(bench: SessionBench) -> None:
    bench.log(0)
    assert acks.refusal(bench.session, 1, 1)


def after_an_identifier_that_was_in_flight(bench: SessionBench) -> None:
    bench.session.window.inflight[1] = Delivery(outgoing(0), 1, False, (), 0)
    bench.log(1)
    assert [packet.packet_id for packet in bench.left()] == []
    assert list(bench.session.window.inflight) == [1, 2]


def after_an_identifier_ahead_is_free_again(bench: SessionBench) -> None:
    bench.session.window.inflight[5] = Delivery(outgoing(0), 1, False, (), 0)
    assert acks.puback(bench.session, 5)


def after_a_message_of_a_share_group(bench: SessionBench) -> None:
    delivery = SharedDelivery(outgoing(0), None, NO_OFFSET, 1)
    delivery.qos, delivery.holder = 1, Group()
    assert sending.send_shared(bench.session, delivery, dup=False)


def after_a_retained_message(bench: SessionBench) -> None:
    bench.session.send_ahead("#", iter([Delivery(outgoing(0), 1, True, ())]))


def after_as_many_as_are_foretold(bench: SessionBench) -> None:
    for offset in range(PREDICTED_MAX - 1):
        bench.log(offset)
        [packet] = bench.left()
        assert acks.puback(bench.session, packet.packet_id)


def after_a_record_that_could_not_be_written(bench: SessionBench) -> None:
    bench.log(0)
    bench.commit(bench.make_record(), is_written=False)


CASES: list[Callable[[SessionBench], None]] = [
    after_qos_2,
    after_an_expired_one,
    after_one_that_is_too_large,
    after_one_that_nobody_wants_any_more,
    after_one_that_the_client_refused,
    after_an_identifier_that_was_in_flight,
    after_an_identifier_ahead_is_free_again,
    after_a_message_of_a_share_group,
    after_a_retained_message,
    after_as_many_as_are_foretold,
    after_a_record_that_could_not_be_written,
]


@pytest.mark.parametrize("happens", CASES, ids=lambda case: case.__name__)
def test_what_no_record_foretells_waits_for_one_that_does(
    happens: Callable[[SessionBench], None],
) -> None:
    bench = connected()
    happens(bench)
    offset = PREDICTED_MAX + 1
    assert is_held(bench, offset)
    assert "changed" in bench.asked, "a record is asked for at once"
    record = bench.make_record()
    assert bench.left() == []
    bench.commit(record)
    assert payloads(bench.left())[-1] == b"%d" % offset
    assert not is_held(bench, offset + 1)


@pytest.mark.parametrize(
    "kind", [after_a_message_of_a_share_group, after_a_retained_message, after_qos_2]
)
def test_what_is_not_foretold_itself_waits_too(kind: Callable[[SessionBench], None]) -> None:
    bench = connected()
    kind(bench)
    assert bench.left() == []
    assert payloads(bench.take()) == [b"0"]


def test_the_newest_record_counts() -> None:
    bench = connected()
    bench.log(0, qos=2)
    first = bench.make_record()
    bench.log(1, qos=2)
    second = bench.make_record()
    bench.commit(first)
    assert is_held(bench, 2)
    third = bench.make_record()
    bench.commit(second)
    assert is_held(bench, 3)
    bench.commit(third)
    assert payloads(bench.left()) == [b"2"]
    assert is_held(bench, 4), "what follows one that waits does not overtake it"
    bench.commit(bench.make_record())
    assert payloads(bench.left()) == [b"3", b"4"]
    assert not is_held(bench, 5)


def test_a_record_of_nothing_new_does_not_stand_for_the_one_before_it() -> None:
    bench = connected()
    bench.log(0, qos=2)
    bench.make_record()
    bench.make_record()
    assert is_held(bench, 1)


def test_while_a_record_that_foretells_anew_is_written_nothing_leaves() -> None:
    bench = connected()
    bench.session.count_dropped("queue_full", 1)
    record = bench.make_record()
    assert is_held(bench, 0)
    bench.commit(record)
    bench.commit(bench.make_record())
    assert payloads(bench.left()) == [b"0"]


def test_a_record_of_what_was_foretold_holds_nothing_up() -> None:
    bench = connected()
    bench.log(0)
    record = bench.make_record()
    assert not is_held(bench, 1)
    bench.commit(record)
    assert not is_held(bench, 2)


def test_identifiers_are_counted_from_the_last_record_on() -> None:
    bench = connected()
    for offset in range(PREDICTED_MAX):
        bench.log(offset)
        [packet] = bench.left()
        acks.puback(bench.session, packet.packet_id)
        if offset == 100:
            bench.commit(bench.make_record())
    assert not is_held(bench, PREDICTED_MAX)


def test_a_session_that_ends_with_its_connection_waits_for_no_record() -> None:
    bench = SessionBench(window=100)
    bench.connect()
    bench.session.subscriptions["t"] = Subscription(TopicFilter.parse("t"), 2)
    for number, qos in enumerate((2, 1, 2, 1)):
        bench.session.deliver(outgoing(number), qos, False, ())
    assert payloads(bench.left()) == [b"0", b"1", b"2", b"3"]
    assert bench.asked == []
