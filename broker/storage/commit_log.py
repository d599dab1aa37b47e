"""The commit log of a cell: its commit groups in order, kept by several machines before a store has them.

A group is the changes of one commit, as the store's database makes them. Where a store has a commit log, a group is in
the log first, and in the database after: so the database is a copy of the log, as those on other machines are, and
what is only in the database was never acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple, Protocol

import msgspec

from broker.core.errors import SluiceError

Step = tuple[bytes, bytes | None, bool]
"""A key with its value, or None to delete it; with True, the first key of a range to delete and the one behind it."""
Steps = Sequence[Step]

_MARK: Final = Struct(">QIQ")
_STEPS: Final = msgspec.msgpack.Decoder(list[Step])


class Fenced(SluiceError):
    """Another process has claimed the cell: this one can no longer commit."""

    code = "fenced"


class LogLost(SluiceError):
    """The log does not begin where a copy of it ends: groups were trimmed, or the log is another one."""

    code = "log_lost"


class LogBehind(SluiceError):
    """The log ends before a store that has applied it: entries were lost, and the store has them."""

    code = "log_behind"


class Mark(NamedTuple):
    """End of the applied part of a log: ``position``, and the ``number`` of its group in the owner's ``epoch``."""

    position: int = 0
    epoch: int = 0
    number: int = 0

    def pack(self) -> bytes:
        """The mark as a value."""
        return _MARK.pack(*self)

    @classmethod
    def unpack(cls, value: bytes | None) -> Mark:
        """The mark of a value; of an empty copy for None."""
        return cls() if value is None else cls._make(_MARK.unpack(value))


BASE: Final = Mark(0, 1, 0)
"""Mark of a store whose content is from before its log begins."""


class Entry(NamedTuple):
    """An entry of the log as it is applied: a group, or with no steps a claim."""

    mark: Mark
    steps: Steps


class CommitLog(Protocol):
    """The log of one cell, for one thread. Calls block."""

    def follow(self, after: Mark) -> Iterator[Entry]:
        """The entries after a mark up to the present end.

        Raises:
            LogLost: they are not all there.
            broker.core.errors.ConfigError: the mark is ``BASE``, and the log began with another store.
            broker.core.errors.Unavailable: no server answers.
        """

    def claim(self, applied: Mark, *, has_base: bool = False) -> Mark | None:
        """Become the owner of the cell, where ``applied`` is the end of the log; None where it is not. ``has_base``:
        the owner's copy had content before the log began, so no other one can be made from the log alone.

        Raises:
            LogBehind: the log ends before ``applied``.
            LogLost: it begins behind ``applied``, with nothing in it that would say so.
            broker.core.errors.Unavailable: no server has confirmed it.
        """

    def append(self, steps: Steps) -> Mark:
        """Add a group, and return when a majority has it.

        Raises:
            Fenced: the cell has another owner.
            broker.core.errors.Unavailable: that is not known: ``decide`` before the next one.
        """

    def decide(self) -> Mark:
        """Add the group that ``append`` left undecided, and return its mark. ``follow`` has it as soon as the server
        that it asks has.

        Raises:
            Fenced: the cell has another owner.
            broker.core.errors.Unavailable: it is still not known.
        """

    def give_up(self, reason: str) -> None:
        """Be the owner no more: the log has a group that the store of this process cannot take. The process ends, and
        another machine continues with all that the log has."""

    def trim(self, position: int) -> None:
        """Forget the entries before a position. That one stays, so that a copy sees what it lacks.

        Raises:
            broker.core.errors.Unavailable: no server answers.
        """

    def close(self) -> None:
        """End the connection."""


def packed(steps: Steps) -> bytes:
    """The steps of a group as bytes."""
    return msgspec.msgpack.encode(steps)


def unpacked(data: bytes) -> Steps:
    """The inverse of ``packed``.

    Raises:
        ValueError: these are not steps.
    """
    return _STEPS.decode(data)
