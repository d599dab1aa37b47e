"""A session without a socket: window, queue, place in the log."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from broker.codec.encode import qos0_packets
from broker.codec.outgoing import Outgoing
from broker.codec.packets import Publish, PubRel
from broker.core.client import Client
from broker.core.message import Message
from broker.core.subscription import Subscription
from broker.core.topic import TopicFilter
from broker.session import acks, qos0
from broker.session.outbox import Outbox
from broker.session.qos0_queue import Qos0Item
from broker.session.record import (
    encode_session,
    encode_subscriptions,
    restore_session,
    restore_subscriptions,
)
from broker.session.session import Session
from broker.session.subscriptions import Subscriptions
from tests.support.session_bench import SessionBench, outgoing


def test_a_full_queue_of_a_clean_session_loses_its_oldest() -> None:
    bench = SessionBench(window=1, max_queue=2, slow_subscriber="drop")
    bench.connect()
    for number in range(5):
        bench.session.deliver(outgoing(number), 1, False, ())
    assert [packet.payload for packet in bench.take() if isinstance(packet, Publish)] == [b"0"]
    assert bench.metrics.value("dropped", why="queue_full") == 2
    for _ in range(3):
        acks.puback(bench.session, next(iter(bench.session.window.inflight), 0))
    assert [packet.payload for packet in bench.take() if isinstance(packet, Publish)] == [
        b"3",
        b"4",
    ]


@pytest.mark.parametrize("seed", range(40))
def test_acknowledgements_taken_in_runs_do_what_each_by_itself_does(seed: int) -> None:
    """Some are of messages of which nothing is needed again, some of others, some of nothing."""
    chance = Random(seed)
    one, other = (
        SessionBench(window=chance_window, max_queue=400)
        for chance_window in (chance.randint(1, 80),) * 2
    )
    for bench in (one, other):
        bench.connect()
    number = in_runs = 0
    while number < 600:
        for _ in range(chance.randint(1, 90)):
            number += 1
            qos, properties = chance.choice(
                [(0, None), (1, None), (1, None), (1, {"Response-Topic": "r"}), (2, None)]
            )
            is_as_received = chance.random() < 0.7
            for bench in (one, other):
                message = outgoing(number, properties)
                if qos == 1 and properties is None and is_as_received:
                    message.adopt(False, *message.parts(False, 1, False))
                bench.session.deliver(message, qos, False, ())
        known = list(one.session.window.inflight)
        answered = [*known[: chance.randint(0, len(known))], *chance.choice([[], [60_000]])]
        if chance.random() < 0.3:
            chance.shuffle(answered)
        data = (
            b"".join(b"\x40\x02" + packet_id.to_bytes(2) for packet_id in answered)
            + b"\x40"[: chance.randint(0, 1)]
        )
        position = 0
        while len(data) - position > 1:
            taken = acks.puback_run(other.session, data, position)
            in_runs += taken > position
            if taken == position:
                acks.puback(other.session, int.from_bytes(data[position + 2 : position + 4]))
                taken += 4
            position = taken
        for packet_id in answered:
            acks.puback(one.session, packet_id)
        assert one.left() == other.left()
        assert list(one.session.window.inflight) == list(other.session.window.inflight)
        assert one.session.window.quota == other.session.window.quota
        assert one.session.queue_bytes == other.session.queue_bytes
    assert in_runs
    assert one.metrics.value("sent", qos="1") == other.metrics.value("sent", qos="1") > 0


def test_a_durable_session_with_a_full_queue_falls_behind_and_asks_for_the_rest() -> None:
    bench = SessionBench(is_durable=True, window=1, max_queue=2)
    bench.connect()
    for offset in range(5):
        bench.session.accept_logged(offset, outgoing(offset), 1, False, ())
        bench.session.pump()
    assert bench.session.is_behind
    assert bench.session.next_offset == 3
    for _ in range(3):
        acks.puback(bench.session, next(iter(bench.session.window.inflight)))
    assert bench.refills == 1
    assert bench.metrics.value("dropped", why="queue_full") == 0


def test_what_waits_for_sessions_alike_is_one_object_and_what_they_have_in_flight_their_own() -> (
    None
):
    bench = SessionBench(window=1)
    bench.connect()
    other = Session("other", bench.services, is_durable=False)
    other.attach(bench, Client("other", protocol_version=4), Outbox(bench.turn, bytes), 65_535, 0)
    other.resume()
    for number in range(2):
        message = outgoing(number)
        for session in (bench.session, other):
            session.deliver(message, 2, False, ())
    assert bench.session.queue[0] is other.queue[0]
    waiting = bench.session.queue[0]
    assert acks.pubrec(bench.session, 1)
    assert acks.pubcomp(bench.session, 1)
    assert acks.pubrec(bench.session, 2)
    assert bench.session.window.inflight[2].is_released
    assert not waiting.is_released
    assert list(other.window.inflight) == [1]
    assert not other.window.inflight[1].is_released


def test_sessions_that_get_a_message_otherwise_have_their_own() -> None:
    bench = SessionBench(window=1)
    bench.connect()
    bench.session.deliver(outgoing(0), 1, False, ())
    message = outgoing(1)
    for qos, retain, identifiers in (
        (2, False, ()),
        (2, True, ()),
        (2, True, (7,)),
        (2, True, (7,)),
    ):
        bench.session.deliver(message, qos, retain, identifiers)
    waiting = list(bench.session.queue)
    assert [(one.qos, one.retain, one.identifiers) for one in waiting] == [
        (2, False, ()), (2, True, ()), (2, True, (7,)), (2, True, (7,))
    ]  # fmt: skip
    assert waiting[2] is waiting[3]


def test_packets_of_a_durable_session_are_held_until_their_record_is_committed() -> None:
    bench = SessionBench(is_durable=True)
    bench.connect()
    bench.session.accept_logged(0, outgoing(0), 2, False, ())
    bench.session.pump()
    assert bench.left() == []
    assert [type(packet) for packet in bench.take()] == [Publish]


def test_what_was_released_is_resent_as_pubrel() -> None:
    bench = SessionBench(is_durable=True)
    bench.connect()
    for offset in range(2):
        bench.session.accept_logged(offset, outgoing(offset), 2, False, ())
    bench.session.pump()
    first, second = bench.take()
    assert acks.pubrec(bench.session, first.packet_id)
    bench.session.detach(2)
    bench.connect()
    resent = bench.take()
    assert isinstance(resent[0], PubRel)
    assert isinstance(resent[1], Publish)
    assert isinstance(second, Publish)
    assert resent[1] == replace(second, dup=True)
    assert not acks.pubrec(bench.session, 999)


def test_a_session_is_restored_as_it_was_stored() -> None:
    bench = SessionBench(is_durable=True)
    bench.connect()
    bench.session.expiry_s = 60
    subscription = Subscription(TopicFilter.parse("a/+"), 2, True, True, 1, 5, 17)
    bench.session.subscriptions["a/+"] = subscription
    bench.session.accept_logged(20, outgoing(1), 2, False, (5,))
    bench.session.pump()
    restored = SessionBench(is_durable=True).session
    assert restore_session(restored, encode_session(bench.session, 21)) is True
    restore_subscriptions(restored, encode_subscriptions(bench.session))
    assert restored.subscriptions == {"a/+": subscription}
    [(packet_id, delivery)] = restored.window.inflight.items()
    assert (packet_id, delivery.offset, delivery.qos, delivery.identifiers) == (1, 20, 2, (5,))
    assert (
        restored.next_offset,
        restored.is_behind,
        restored.expiry_s,
        restored.window.next_id,
    ) == (21, True, 60, 2)


@pytest.mark.parametrize(("since", "offset", "expected"), [(5, 4, False), (5, 5, True)])
def test_a_subscription_holds_for_the_log_from_its_offset_on(
    since: int, offset: int, expected: bool
) -> None:
    session = SessionBench(is_durable=True).session
    session.subscriptions["t"] = Subscription(TopicFilter.parse("t"), 1, since_offset=since)
    assert (
        session.subscriptions.match_logged(offset, outgoing(1).message, "s", None) is not None
    ) is expected


def test_a_record_for_another_session_is_passed_over() -> None:
    subscriptions = Subscriptions()
    subscriptions["$share/g/t"] = Subscription(TopicFilter.parse("$share/g/t"), 1)
    assert subscriptions.match_logged(0, outgoing(1).message, "s", None) is None
    assert subscriptions.match_logged(0, outgoing(1).message, "s", "other") is None
    assert subscriptions.match_logged(0, outgoing(1).message, "s", "s") is not None


@pytest.mark.parametrize("is_v5", [False, True])
def test_of_what_waits_in_memory_a_client_loses_what_it_may_not_have(is_v5: bool) -> None:
    bench = SessionBench(window=1, max_queue=20)
    bench.connect()
    session = bench.session
    session.set_slow(is_slow=True)
    raw = [
        (Message(topic, b"x" * 200, 0, False, Client("p"), 0), topic.encode())
        for topic in ("open", "secret", "open")
    ]
    qos0.keep(session, Qos0Item(qos0_packets(raw, is_v5=is_v5), 3))
    for topic in ("open", "secret", "open"):
        for qos in (0, 1):
            session.deliver(
                Outgoing(Message(topic, b"x", qos, False, Client("p"), 0)), qos, False, ()
            )
    session.withhold(lambda topic, _qos: topic == "open")
    assert [topic for item in session.qos0_queue.take() for topic, _ in item.single()] == [
        "open"
    ] * 4
    assert [one.outgoing.message.topic for one in session.queue if one.outgoing is not None] == [
        "open"
    ]
    assert bench.metrics.value("dropped", why="not_authorized") == 3
