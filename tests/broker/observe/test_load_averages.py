"""Averages over minutes, against mosquitto's formula worked by hand."""

from __future__ import annotations

from math import exp

import pytest

from broker.observe.load_averages import MINUTES, LoadAverages


def test_after_the_first_sample_all_are_zero() -> None:
    loads = LoadAverages()
    loads.note({"x": 1000}, 5.0)
    assert loads.values == {("x", window): 0.0 for window in MINUTES}


@pytest.mark.parametrize(("window", "seconds"), list(MINUTES.items()))
def test_a_steady_rate_is_approached_exponentially(window: str, seconds: float) -> None:
    loads, total = LoadAverages(), 0.0
    loads.note({"x": total}, 0.0)
    for step in range(1, 31):
        total += 20  # 120 a minute
        loads.note({"x": total}, step * 10.0)
        assert loads.values["x", window] == pytest.approx(120 * (1 - exp(-step * 10 / seconds)))


def test_a_second_sample_at_the_same_instant_counts_for_nothing() -> None:
    loads = LoadAverages()
    loads.note({"x": 0}, 1.0)
    loads.note({"x": 50}, 1.0)
    loads.note({"x": 60}, 61.0)
    assert loads.values["x", "1min"] == pytest.approx(60 * (1 - exp(-1)))
