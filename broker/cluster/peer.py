"""The other cell of a link, as every part of the link knows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.connection.hub import Hub
from broker.observe.metrics import Counter
from broker.storage.writer import Done


def _no_channel() -> None:
    """Nothing to end: the cells are not connected."""


class Peer:
    """Number of another cell, its connection while there is one, and the counts of what it gets and sends."""

    def __init__(self, hub: Hub, number: int) -> None:
        self.hub: Final = hub
        self.number: Final = number
        self.client_id: Final = f"\0cell:{number}"
        """Name of the cell as a subscriber: no client's identifier."""
        self.is_up = False
        self.is_busy = False
        """True while the kernel takes no more."""
        self.lives = 0
        """Times that the link came up or went down."""
        self.durable_filters = 0
        """Number of the cell's filters that durable sessions have."""
        self.hang_up: Callable[[], None] = _no_channel
        self._write: Callable[[bytes], None] | None = None
        self._dropped: dict[str, Counter] = {}
        metrics = hub.context.metrics
        peer = str(number)
        self.sent_live = metrics.counter(
            "cell_messages_sent", "live messages sent to a cell", peer=peer
        )
        self.sent_logged = metrics.counter(
            "cell_records_sent", "records of the session log sent to a cell", peer=peer
        )
        self.received_live = metrics.counter(
            "cell_messages_received",
            "live messages that came from a cell",
            peer=peer,
        )
        self.received_logged = metrics.counter(
            "cell_records_received", "records of a session log that came from a cell", peer=peer
        )

    def begin(self, write: Callable[[bytes], None], hang_up: Callable[[], None]) -> None:
        """The cells are connected, by functions that send bytes and that end the connection."""
        self._write = write
        self.hang_up = hang_up
        self.is_up = True
        self.lives += 1

    def end(self) -> None:
        """The connection is lost."""
        self._write = None
        self.hang_up = _no_channel
        self.is_up = self.is_busy = False
        self.lives += 1

    def send(self, frame: bytes) -> None:
        """Send a frame, if the link is up."""
        if self._write is not None:
            self._write(frame)

    def when_committed(self, then: Done) -> None:
        """Call a function once all appended so far is committed, or could not be; not if the connection ends before,
        since the next one expects no answers to what came over this one."""
        lives = self.lives

        def done(error: BaseException | None) -> None:
            if lives == self.lives:
                then(error)

        self.hub.context.writer.when_committed(done)

    def count_dropped(self, why: str, count: int) -> None:
        """Count messages that the other cell does not get, by reason."""
        if not count:
            return
        counter = self._dropped.get(why)
        if counter is None:
            counter = self._dropped[why] = self.hub.context.metrics.counter(
                "cell_messages_dropped",
                "messages that a cell did not get, by reason",
                peer=str(self.number),
                reason=why,
            )
        counter.value += count
