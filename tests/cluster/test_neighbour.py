"""Both machines end the same connections, in whatever order they notice."""

from __future__ import annotations

from broker.cluster.neighbour import Neighbour
from broker.core.cells import Machine

A, B = Machine("a", "", 1, 0, 1), Machine("b", "", 1, 1, 1)


class End:
    """One side of a connection."""

    is_over = False

    def abort(self) -> None:
        self.is_over = True


def joined() -> tuple[Neighbour, Neighbour]:
    """What a knows of b, and b of a."""
    return Neighbour(B, "of-a"), Neighbour(A, "of-b")


def test_connections_that_one_side_gave_up_end_at_the_other_and_later_ones_stay() -> None:
    of_a, of_b = joined()
    here, there = End(), End()
    of_a.add(here, of_b.life)
    of_b.add(there, of_a.life)
    gone = of_b.life
    of_a.lost(gone)
    assert here.is_over
    assert not there.is_over
    late = End()
    of_a.add(late, gone)  # it was being made
    assert late.is_over
    of_b.told(of_a.ended)
    assert there.is_over
    assert of_b.life != gone
    again = End()
    of_a.add(again, of_b.life)
    of_b.told(of_a.ended)
    of_a.met(of_b.life)
    assert not again.is_over


def test_another_process_of_the_other_machine_has_no_connections_of_before() -> None:
    of_a, of_b = joined()
    old, new = End(), End()
    of_a.add(old, of_b.life)
    restarted = Neighbour(A, "of-b-again")
    of_a.add(new, restarted.life)
    of_a.met(restarted.life)
    assert old.is_over
    assert not new.is_over


def test_both_may_give_each_other_up_at_once() -> None:
    of_a, of_b = joined()
    ends = [End(), End()]
    of_a.add(ends[0], of_b.life)
    of_b.add(ends[1], of_a.life)
    of_a.lost(of_b.life)
    of_b.lost(of_a.life)
    of_a.told(of_b.ended)
    of_b.told(of_a.ended)
    assert all(end.is_over for end in ends)
    assert of_a.life != of_b.ended
    assert of_b.life != of_a.ended
