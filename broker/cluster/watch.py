"""Alarms about other cells: one that is away, and one that keeps ending.

Of the cells that run, the one with the lowest number raises them, so that each is there once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from broker.cluster.link import Link
from broker.core.cells import Place
from broker.observe.alarms import Alarms

# Seconds without a link to a cell until that is an alarm.
AWAY_S: Final = 5.0
# Starts of a cell within so many seconds that are an alarm.
_STARTS: Final = 3
_WITHIN_S: Final = 300.0


class _Seen:
    """One other cell."""

    def __init__(self, now_s: float) -> None:
        self.up_s = now_s
        self.incarnation = ""
        self.starts: deque[float] = deque(maxlen=_STARTS)


class CellWatch:
    """What is seen of the other cells, once a second."""

    def __init__(self, place: Place, alarms: Alarms, now_s: float) -> None:
        self._place = place
        self._alarms = alarms
        self._seen = {number: _Seen(now_s) for number in place.others}

    def look(self, links: Iterable[Link], now_s: float) -> None:
        """Raise alarms, and end those that no longer hold."""
        links = list(links)
        for link in links:
            seen = self._seen[link.number]
            if link.is_up:
                seen.up_s = now_s
                if link.heard != seen.incarnation:
                    if seen.incarnation:
                        seen.starts.append(now_s)
                    seen.incarnation = link.heard
        for link in links:
            speaks = not any(other.is_up and other.number < self._place.number for other in links)
            self._set(link, self._seen[link.number], now_s, speaks=speaks)

    def _set(self, link: Link, seen: _Seen, now_s: float, *, speaks: bool) -> None:
        number, why = link.number, f" ({link.refused})" if link.refused else ""
        away_s = now_s - seen.up_s
        starts = seen.starts
        self._alarms.set(
            f"cell_away:{number}",
            speaks and away_s > AWAY_S,
            f"cell {number} has not answered for more than {AWAY_S:g} s{why}; its clients are refused with 0x88",
            cell=number,
        )
        self._alarms.set(
            f"cell_restarting:{number}",
            speaks and len(starts) == _STARTS and now_s - starts[0] < _WITHIN_S,
            f"cell {number} was started {_STARTS} times again within {_WITHIN_S / 60:g} minutes",
            cell=number,
        )
