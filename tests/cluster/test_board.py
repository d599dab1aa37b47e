"""What machines write for each other, where servers of NATS answer with nothing."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from broker.cluster.nats.board import Board
from broker.cluster.nats.line import Line, Message, Servers
from broker.core.errors import Unavailable


class _Line(Line):
    """Takes each message, and answers to a question for all of them with one that has a status."""

    def __init__(self, status: int) -> None:
        super().__init__(Servers([("127.0.0.1", 4222)]), "test")
        self._status = status

    def ask(
        self,
        subject: str,
        payload: bytes,
        within_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> Message:
        return Message(b"{}")

    def ask_for_list(self, subject: str, payload: bytes, within_s: float) -> list[Message]:
        return [Message(b"", self._status)]


def _board(status: int) -> Board:
    board = Board(Servers([]), "plant", "a", 3)
    board._line = _Line(status)
    return board


@pytest.mark.parametrize("status", [404, 503])
def test_no_messages_after_one_was_written_are_no_answer(status: int) -> None:
    """Else all machines would count as silent, and there would be no orders."""
    with pytest.raises(Unavailable, match="NATS: no server has the messages of the machines"):
        _board(status).exchange(b"{}")


def test_there_may_be_no_messages_yet() -> None:
    assert _board(404).read() == {}
    with pytest.raises(Unavailable, match="NATS: no server has the messages of the machines"):
        _board(503).read()
