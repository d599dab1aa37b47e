"""``$SYS`` figures over cells: each tells the others its own, so that a client of any cell is shown the sums."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from broker.cluster.frames import Figures, Frame, FrameType, decoded, encoded
from broker.cluster.link import Link
from broker.connection.sys_topics import SysTopics


class FiguresOfCells:
    """Tells the other cells this one's figures at each interval of its ``$SYS`` topics, and hears theirs."""

    def __init__(self, sys_topics: SysTopics, links: Iterable[Link]) -> None:
        self._sys_topics = sys_topics
        self._links = list(links)
        sys_topics.on_interval.connect(self._tell)
        for link in self._links:
            link.takers[FrameType.FIGURES] = partial(self._take, link.number)

    def link_changed(self, link: Link) -> None:
        """A link is up, or down."""
        if link.is_up:
            link.send(self._frame())
        else:
            self._sys_topics.others.pop(link.number, None)

    def _frame(self) -> bytes:
        return encoded(Figures(self._sys_topics.figures()))

    def _tell(self) -> None:
        frame = self._frame()
        for link in self._links:
            if link.is_up:
                link.send(frame)

    def _take(self, cell: int, frame: Frame) -> None:
        self._sys_topics.others[cell] = decoded(Figures, frame).values
