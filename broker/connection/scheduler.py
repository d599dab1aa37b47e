"""Shares the loop's time among clients: what takes long continues in later turns of the loop.

A read holds up to 256 KiB, and a packet of a few bytes may ask for milliseconds of work: a SUBSCRIBE that searches a
million retained messages, say. So the time is checked between packets, and the time they take is counted for the turn,
not for the connection: eight clients may take no more of it together than one. When it is spent, each further client
still has a packet taken, and the rest of the bytes read waits for another turn.

A packet that is a lot of work alone, such as a SUBSCRIBE with a hundred thousand filters, is work in ``Steps``: some in
each turn. The client's next packet is not read before all are done, so that no one sees them out of order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Final

from broker.connection.link import Peer
from broker.core.clock import Clock, Defer

# Seconds of one turn of the loop that clients' packets may take together; the current packet or step is finished.
TURN_S: Final = 0.02
# Seconds of a turn for clients that wait from a turn before: the rest is for new ones.
WAITING_S: Final = TURN_S / 2
# Seconds that go, in addition, to background work.
BACKGROUND_S: Final = TURN_S / 4
# Minimum seconds that count: less, for packets that follow each other, is not counted.
LOOK_S: Final = TURN_S / 80

# Seconds of later work, in one piece, that packets may have caused; above it, no further packets are taken.
OWED_S: Final = TURN_S * 2

# Subscriptions and similar items that are seen to one after the other at once: some milliseconds. More take turns.
MANY: Final = 1000

Finish = Callable[[], None]
# Work in steps of less than a millisecond, most of them of microseconds; at the end, the work that comes before the
# client's next packet is read. Closed when the connection ends before.
Steps = Generator[None, None, Finish]


class Scheduler:
    """Divides the loop's time among the clients of a node. ``left_s`` is what is left of the present turn; it may fall
    below 0."""

    def __init__(self, clock: Clock, defer: Defer) -> None:
        self._clock = clock
        self._defer = defer
        self._waiting: dict[Peer, Steps | None] = {}
        """In the order in which they are taken up again; with the rest of the current packet."""
        self._background: deque[Iterator[None]] = deque()
        self._is_awaited = self._is_renewed = self._has_writes = False
        self.left_s = TURN_S
        self.owed_s = 0.0
        """Seconds of the loop that commits on their way will take, for the sessions that wait for their messages."""

    def __len__(self) -> int:
        return len(self._waiting)

    def spend(self, seconds: float) -> bool:
        """Count what was taken of the turn; whether nothing is left of it."""
        self.left_s -= seconds
        if not self._is_renewed:
            self._is_renewed = True
            self._defer(self._renew)
        return self.left_s <= 0

    def owe(self, seconds: float) -> None:
        """Count what a packet leads to in a later turn, where no one can give way: when its commit is done."""
        self.owed_s += seconds
        self.spend(seconds)

    def settle(self, seconds: float) -> None:
        """The owed work has been done."""
        self.owed_s -= seconds
        if self._waiting:
            self._await()

    def leave_writes(self, is_left: bool) -> None:
        """Some of the writes are left to later turns, or no longer: until they are done no packets are taken, which
        would add more."""
        self._has_writes = is_left
        if is_left:
            self.spend(TURN_S)
        elif self._waiting:
            self._await()

    def give_way(self, c: Peer) -> None:
        """Read on in another turn of the loop; nothing is taken from the socket until then."""
        self._wait(c, None)

    def work_off(self, c: Peer, steps: Steps) -> None:
        """Do this in the turns to come, before the connection's next packet is read."""
        self._wait(c, steps)

    def run_in_background(self, work: Iterator[None]) -> None:
        """Begin with this now, and continue in the turns to come, one chore after the other; no one waits for it."""
        self._background.append(work)
        if len(self._background) == 1:
            self._run_some_background()
        if self._background:
            self._await()

    def abandon(self, c: Peer) -> None:
        """The connection has ended: what is left is not done."""
        steps = self._waiting.pop(c, None)
        if steps is not None:
            steps.close()

    def _wait(self, c: Peer, steps: Steps | None) -> None:
        c.is_parked = True
        c.hold(self)
        self._waiting[c] = steps
        self._await()

    def _await(self) -> None:
        if not self._is_awaited:
            self._is_awaited = True
            self._defer(self._run)

    def _run(self) -> None:
        """Take up those that wait, one after the other, each at most once."""
        self._is_awaited = False
        if self._background:
            self._run_some_background()
        self.left_s = WAITING_S
        for c in list(self._waiting):
            if self.left_s <= 0 or self._is_owing:
                break
            if c in self._waiting:  # another one's packet may have ended it
                self._take_up(c)
        self.left_s += TURN_S - WAITING_S
        if self._background or (self._waiting and not self._is_owing):
            self._await()

    @property
    def _is_owing(self) -> bool:
        return self._has_writes or self.owed_s > OWED_S

    def _run_some_background(self) -> None:
        """Continue with the first chore."""
        left_s = self.left_s
        self.left_s = BACKGROUND_S
        finish = self._work(self._background[0])
        self.left_s += left_s - BACKGROUND_S
        if finish is not None:
            self._background.popleft()
            finish()

    def _take_up(self, c: Peer) -> None:
        steps = self._waiting.pop(c)
        finish = _nothing if steps is None else self._work(steps)
        if finish is None:
            self._waiting[c] = steps
            return
        c.go_on(finish)
        if c not in self._waiting:
            c.let_go(self)

    def _work(self, steps: Iterator[None]) -> Finish | None:
        """Do some of it; what finishes it, which raises what it raised, or None when there is more to do."""
        now_s = self._clock.monotonic_s()
        try:
            while True:
                next(steps)
                before_s = now_s
                now_s = self._clock.monotonic_s()
                if self.spend(now_s - before_s):
                    return None
        except StopIteration as end:
            finish: Finish | None = end.value
            return finish or _nothing
        except Exception as error:  # noqa: BLE001  raised where the connection's packets are taken
            return partial(_raise, error)

    def _renew(self) -> None:
        self._is_renewed = False
        self.left_s = TURN_S


def _nothing() -> None:
    """Nothing was left undone."""


def _raise(error: Exception) -> None:
    raise error
