"""Which connection makes room for another."""

from __future__ import annotations

from broker.core.room import Lobby, Room


class Guest:
    """A connection that notes that it was closed."""

    def __init__(self, *, is_busy: bool = False) -> None:
        self.is_busy, self.is_closed = is_busy, False

    def make_room(self) -> None:
        self.is_closed = True


def test_the_oldest_of_the_address_with_the_most_makes_room() -> None:
    lobby = Lobby[Guest](6)
    known, many = Guest(), [Guest() for _ in range(3)]
    lobby.enter(known, "10.0.0.1")
    for guest in many:
        lobby.enter(guest, "10.0.0.2")
    for number in range(3, 20):
        lobby.enter(Guest(), f"10.0.0.{number % 4 + 2}")
        assert len(lobby) <= 6
    assert not known.is_closed
    assert all(guest.is_closed for guest in many)


def test_one_address_has_at_most_half() -> None:
    lobby = Lobby[Guest](8)
    guests = [Guest() for _ in range(10)]
    for guest in guests:
        lobby.enter(guest, "::1")
    assert [guest.is_closed for guest in guests] == [True] * 6 + [False] * 4
    assert list(lobby) == guests[6:]


def test_one_that_says_nothing_goes_before_one_whose_request_is_under_way() -> None:
    lobby = Lobby[Guest](4)
    busy, idle = Guest(is_busy=True), Guest()
    for guest in (busy, idle, Guest()):
        lobby.enter(guest, "a")
    assert (busy.is_closed, idle.is_closed) == (False, True)
    assert lobby.leave(busy)
    assert not lobby.leave(busy)
    assert lobby.make_room()
    assert not lobby.make_room()


def test_members_keep_their_places_while_there_are_strangers() -> None:
    room = Room[Guest](3)
    members = [Guest(), Guest()]
    for member in members:
        assert room.enter(member, "a")
        room.authenticated(member)
    strangers = [Guest() for _ in range(9)]
    for stranger in strangers:
        assert room.enter(stranger, "a")
    assert [stranger.is_closed for stranger in strangers] == [True] * 8 + [False]
    assert not any(member.is_closed for member in members)


def test_without_strangers_the_member_idle_for_longest_makes_room_and_busy_ones_never() -> None:
    room = Room[Guest](2)
    first, second = Guest(), Guest()
    for member in (first, second):
        room.enter(member, None)
        room.authenticated(member)
    room.answered(first)
    assert room.enter(Guest(), None)
    assert (first.is_closed, second.is_closed) == (False, True)
    first.is_busy = True
    third = Guest(is_busy=True)
    assert room.enter(third, None)
    room.authenticated(third)
    assert not room.enter(Guest(), None)
    room.leave(third)
    assert room.enter(Guest(), None)
    assert len(room) == 2
