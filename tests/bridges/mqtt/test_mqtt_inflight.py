"""Messages on their way, without a connection: windows, identifiers, what is sent again, who confirms what."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridges.mqtt.errors import publish_error
from bridges.mqtt.inbound import Delivery, InboundMessages, Inbox, Releases
from bridges.mqtt.inflight import Batch, InflightWindow
from bridges.mqtt.loops import Echoes, marked, marks_of
from bridges.resource.errors import NeverAgain, TargetMissing, TryAgain
from broker.codec.packets import Publish


class Sender:
    """A inflight with messages ``m0``, ``m1``, ..."""

    def __init__(self, limit: int = 4, window: int = 100) -> None:
        self.inflight = InflightWindow(limit)
        self.inflight.connected(is_resumed=False, window=window)

    def batch(self, count: int = 1) -> Batch:
        return Batch(count, lambda: None)

    def send(self, batch: Batch, *names: str, qos: int = 1) -> list[int]:
        sent = []
        for place, name in enumerate(names):
            packet = Publish(name, b"x", qos, packet_id=self.inflight.next_id)
            self.inflight.send(packet, name, batch, place)
            sent.append(packet.packet_id)
        return sent


def test_window_is_the_smaller_of_both_sides() -> None:
    made = Sender(limit=4, window=2)
    made.send(made.batch(2), "a", "b")
    assert not made.inflight.has_room
    made.inflight.done(1)
    assert made.inflight.has_room


def test_batch_is_settled_by_the_last_answer_and_gives_each() -> None:
    told: list[str] = []
    batch = Batch(2, lambda: told.append("settled"))
    batch.settle(1, error := NeverAgain("too large"))
    assert told == []
    batch.settle(0, None)
    assert told == ["settled"]
    assert batch.result == [None, error]


def test_resumed_session_sends_again_in_order_and_keeps_identifiers() -> None:
    made = Sender()
    batch = made.batch(3)
    made.send(batch, "a", "b", qos=2)
    made.inflight.received(1)
    made.inflight.leave(batch)
    made.inflight.connected(is_resumed=True, window=10)
    assert [(one.packet.packet_id, one.is_received) for one in made.inflight.to_resend()] == [
        (1, True),
        (2, False),
    ]
    assert made.inflight.to_resend() == []


def test_message_that_is_brought_again_takes_its_old_place() -> None:
    made = Sender()
    first, again = made.batch(), made.batch()
    made.send(first, "a", qos=2)
    made.inflight.leave(first)
    made.inflight.connected(is_resumed=True, window=10)
    made.inflight.to_resend()
    assert made.inflight.reclaim("a", again, 0)
    assert not made.inflight.reclaim("a", made.batch(), 0), "it was on the way once"
    made.inflight.received(1)
    made.inflight.completed(1)
    assert (again.left, again.result) == (0, None)


def test_message_that_is_confirmed_before_it_is_brought_again_is_done_at_once() -> None:
    made = Sender()
    first, again = made.batch(), made.batch()
    made.send(first, "a")
    made.inflight.leave(first)
    made.inflight.connected(is_resumed=True, window=10)
    made.inflight.to_resend()
    made.inflight.done(1)
    assert made.inflight.reclaim("a", again, 0)
    assert again.left == 0


def test_new_session_forgets_what_was_on_the_way() -> None:
    made = Sender()
    first = made.batch()
    made.send(first, "a")
    made.inflight.leave(first)
    made.inflight.connected(is_resumed=False, window=10)
    assert len(made.inflight) == 0
    assert not made.inflight.reclaim("a", made.batch(), 0)


def test_smaller_window_after_a_reconnect_sends_again_as_there_is_room() -> None:
    made = Sender()
    batch = made.batch(3)
    made.send(batch, "a", "b", "c")
    made.inflight.connected(is_resumed=True, window=2)
    assert [one.packet.topic for one in made.inflight.to_resend()] == ["a", "b"]
    assert not made.inflight.has_room
    made.inflight.done(1)
    assert [one.packet.topic for one in made.inflight.to_resend()] == ["c"]


def test_pubcomp_for_an_older_message_ends_no_new_one() -> None:
    made = Sender()
    batch = made.batch()
    made.send(batch, "a", qos=2)
    made.inflight.completed(1)
    assert batch.left == 1


def test_done_messages_that_nobody_brings_again_are_forgotten() -> None:
    made = Sender(limit=2)
    for number in range(20):
        batch = made.batch()
        [packet_id] = made.send(batch, f"m{number}")
        made.inflight.leave(batch)
        made.inflight.done(packet_id)
    assert not made.inflight.reclaim("m0", made.batch(), 0)
    assert made.inflight.reclaim("m19", made.batch(), 0)


@given(st.lists(st.integers(0, 3), max_size=60))
def test_identifiers_are_never_used_twice_at_once(steps: list[int]) -> None:
    made, flying = Sender(limit=5), list[int]()
    for step in steps:
        if step and made.inflight.has_room:
            [packet_id] = made.send(made.batch(), "t")
            assert packet_id not in flying
            flying.append(packet_id)
        elif flying:
            made.inflight.done(flying.pop(step % len(flying)))
        assert len(made.inflight) == len(flying) <= 5


class Acknowledged:
    def __init__(self) -> None:
        self.ids: list[int] = []
        self.dropped: list[str] = []

    def acknowledge(self, packet: Publish) -> None:
        self.ids.append(packet.packet_id)

    def inbound(self) -> InboundMessages:
        return InboundMessages(self.acknowledge, self.dropped.append)


def delivery(packet_id: int, topic: str = "a", qos: int = 1) -> Delivery:
    return Delivery(Publish(topic, b"", qos, packet_id=packet_id), 0.0)


def inbox(name: str = "in", *levels: str) -> Inbox:
    return Inbox(name, [levels or ("a",)], lambda: None)


def test_messages_are_acknowledged_in_the_order_in_which_they_came() -> None:
    said = Acknowledged()
    flow, box = said.inbound(), inbox()
    flow.attach(box)
    came = [delivery(number) for number in (1, 2, 3)]
    for one in came:
        flow.take(one)
    assert box.take(10) == came
    flow.committed([came[1], came[2]])
    assert said.ids == []
    flow.committed([came[0]])
    assert said.ids == [1, 2, 3]


def test_message_for_two_sources_is_acknowledged_after_both() -> None:
    said = Acknowledged()
    flow = said.inbound()
    flow.attach(inbox("one"))
    flow.attach(inbox("two", "#"))
    flow.take(one := delivery(1))
    flow.committed([one])
    assert said.ids == []
    flow.committed([one])
    assert said.ids == [1]


def test_message_without_a_source_waits_for_one() -> None:
    said = Acknowledged()
    flow, box = said.inbound(), inbox()
    flow.take(one := delivery(1))
    assert flow.nobody_reads_since() == 0.0
    flow.attach(box)
    assert box.take(10) == [one]
    assert said.ids == []
    flow.committed([one])
    assert said.ids == [1]


def test_what_a_source_has_not_taken_is_there_for_the_next() -> None:
    said = Acknowledged()
    flow, again = said.inbound(), inbox()
    flow.attach(inbox())
    flow.take(one := delivery(1))
    flow.detach("in")
    flow.attach(again)
    assert again.take(10) == [one]


def test_what_nobody_wants_is_given_up_and_counted() -> None:
    said = Acknowledged()
    flow = said.inbound()
    flow.take(delivery(1, "elsewhere"))
    flow.give_up_unclaimed()
    assert (said.ids, said.dropped) == ([1], ["nobody_reads"])


def test_qos_2_keeps_its_position_until_it_is_released() -> None:
    releases = Releases(session=1000)
    first = releases.position(7, lambda: None, 2000)
    assert releases.position(7, lambda: None, 3000) == first
    releases.release(7)
    assert releases.position(7, lambda: first, 2000) > first


def test_qos_2_is_known_after_a_crash_in_the_same_session_only() -> None:
    assert Releases(session=1000).position(7, lambda: 1500, 9000) == 1500
    assert Releases(session=2000).position(7, lambda: 1500, 9000) == 9000


def test_session_that_begins_is_behind_every_position_of_earlier_ones() -> None:
    releases = Releases(session=1000)
    last = releases.position(7, lambda: None, 5000)
    for earlier in (releases, Releases(session=1000, last=last)):
        assert earlier.next_session(2000).position(7, lambda: last, 2000) > last


def test_release_that_comes_first_makes_the_next_message_a_new_one() -> None:
    releases = Releases(session=1000)
    releases.release(7)
    assert releases.position(7, lambda: 1500, 9000) == 9000


def test_echo_is_left_out_as_often_as_it_was_sent() -> None:
    echoes = Echoes(lambda: 0.0)
    echoes.expect("t", b"x")
    assert not echoes.is_echo("t", b"y")
    assert echoes.is_echo("t", b"x")
    assert not echoes.is_echo("t", b"x")


def test_echo_that_takes_too_long_is_a_message() -> None:
    now_s = [0.0]
    echoes = Echoes(lambda: now_s[0])
    echoes.expect("t", b"x")
    now_s[0] = 31.0
    assert not echoes.is_echo("t", b"x")


def test_marks_are_added_behind_what_was_there() -> None:
    before: dict[str, Any] = {"User-Property": [("k", "1"), ("sluice-bridge", "a"), ("k", "2")]}
    made = marked(before, "b")
    assert made["User-Property"] == [*before["User-Property"], ("sluice-bridge", "b")]
    assert marks_of(made) == ["a", "b"]
    assert marks_of(marked(before, "b", is_new=True)) == ["b"]


@pytest.mark.parametrize(
    ("code", "kind"),
    [(0x87, TargetMissing), (0x90, TargetMissing), (0x97, TryAgain), (0x91, TryAgain), (0x99, NeverAgain),
     (0x80, NeverAgain), (0x83, NeverAgain)],
)  # fmt: skip
def test_refusals_say_what_is_to_be_done(code: int, kind: type[Exception]) -> None:
    error = publish_error(code, {"Reason-String": "because"}, "far:1883", "plant/a")
    assert type(error) is kind
    assert "far:1883" in str(error)
    assert "'plant/a'" in str(error)
    assert "because" in str(error)
