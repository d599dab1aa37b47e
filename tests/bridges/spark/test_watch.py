"""A watch finds what a table needs and does not have, and is not held up by what does not answer."""

from __future__ import annotations

import threading
from collections.abc import Callable

from bridges.spark.driver.query import EVERY_S, LONGEST_S, Watch
from tests.support.node import eventually


def test_what_a_look_finds_is_the_problem_until_the_next_one() -> None:
    now, findings = [0.0], [None, "the store is away", None]
    watch = Watch(lambda _: findings.pop(0), lambda: now[0])
    assert (watch.problem(), watch.has_looked) == (None, False)
    eventually(lambda: watch.has_looked)
    for found in ("the store is away", None):
        now[0] += EVERY_S
        watch.problem()
        eventually(lambda found=found: watch.problem() == found)  # type: ignore[misc]
    assert findings == []


def test_a_look_without_an_end_says_what_it_waits_for_and_no_other_begins() -> None:
    now, going, looks = [0.0], threading.Event(), []

    def look(asks: Callable[[str], None]) -> None:
        looks.append(now[0])
        asks("the store of s3://lake/readings")
        going.wait()

    watch = Watch(look, lambda: now[0])
    watch.problem()
    eventually(lambda: looks)
    for _ in range(3):
        now[0] += LONGEST_S + 1
        assert watch.problem() == "the store of s3://lake/readings: no answer within 9 s"
    assert (watch.has_looked, looks) == (True, [0.0])
    going.set()
    eventually(lambda: watch.problem() is None)
