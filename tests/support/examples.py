"""How many examples property tests try: the count written in each, ten times as many in ``make test-heavy``."""

from __future__ import annotations

from random import Random
from typing import Final

from hypothesis import HealthCheck, settings
from hypothesis.internal import entropy

USUAL: Final = 100
"""Examples of a property that names no count."""


def load_profile(*, heavy: bool) -> None:
    """Set how many examples are tried; before the modules of tests are imported."""
    # How long an example takes says how busy the machine is; a test that hangs is ended by pytest's own time-out.
    usual = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
    settings.register_profile("suite", usual, max_examples=10 * USUAL if heavy else USUAL)
    settings.load_profile("suite")
    # No property draws from numpy's own generator, and to seed that for each example takes longer than many of them.
    entropy.NP_RANDOM = Random()


def examples(count: int) -> int:
    """A test's own count, by the profile."""
    return count * settings().max_examples // USUAL
