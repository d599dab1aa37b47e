"""The in-flight window: identifiers, and what is taken back from it."""

from __future__ import annotations

from broker.session.delivery import RAW, Delivery
from broker.session.window import MAX_PACKET_ID, Window


class Group:
    """The least that a message of a share group needs of one."""

    def settle(self, delivery: Delivery) -> None:
        """Nothing is to be done."""

    def offer_room(self) -> None:
        """There is nothing to give."""


def given_by(group: Group | None, qos: int = 1) -> Delivery:
    delivery = Delivery(None, qos, False, ())
    delivery.holder = group
    return delivery


def test_identifiers_go_round_and_skip_those_in_flight() -> None:
    window = Window(5)
    window.inflight = dict.fromkeys((MAX_PACKET_ID, 1), RAW)
    window.next_id = MAX_PACKET_ID - 1
    assert [window.next_packet_id() for _ in range(2)] == [MAX_PACKET_ID - 1, 2]


def test_what_a_group_takes_back_keeps_its_identifier_while_the_client_may_acknowledge_it() -> None:
    group, other = Group(), Group()
    window = Window(5)
    mine, qos2, others, put_off = (
        given_by(group),
        given_by(group, qos=2),
        given_by(other),
        given_by(group),
    )
    window.inflight = {1: mine, 2: qos2, 3: others, 4: put_off}
    window.put_off(4)
    assert window.take_back(group, lambda _delivery: True, is_away=False) == [mine, put_off]
    assert window.inflight == {1: RAW, 2: qos2, 3: others}
    assert not window.unsent


def test_what_a_group_takes_back_from_a_client_that_is_away_is_in_flight_no_more() -> None:
    group = Group()
    window = Window(5)
    wanted, unwanted = given_by(group), given_by(group)
    window.inflight = {1: wanted, 2: unwanted}
    assert window.take_back(group, lambda delivery: delivery is wanted, is_away=True) == [wanted]
    assert window.give_up(group) == [unwanted]
    assert window.inflight == {}


def test_a_new_connection_has_no_quota_before_its_connack() -> None:
    window = Window(5)
    window.open(3)
    assert (window.size, window.is_open) == (3, False)
    assert window.quota + MAX_PACKET_ID < 0
