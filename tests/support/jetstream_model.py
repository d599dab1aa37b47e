"""One stream of JetStream in memory, as its clients see it when servers and networks fail: messages arrive late or not
at all, answers are lost, a leader that was cut off refuses what it cannot know, and reads of it are old.

``ModelLine`` stands in for ``broker.cluster.nats.line.Line``, so that the whole protocol above it can be tried in
every order of events.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from broker.cluster.nats.line import Message
from broker.core.errors import Unavailable

Fault = Literal[
    "none", "request lost", "answer lost", "late", "overtaken", "wrongly refused", "no leader"
]
FAULTS: Final[tuple[Fault, ...]] = (
    "none", "request lost", "answer lost", "late", "overtaken", "wrongly refused", "no leader",
)  # fmt: skip
_WRONG_LAST: Final = {"error": {"err_code": 10071, "description": "wrong last sequence"}}
_NO_MESSAGE: Final = {"error": {"err_code": 10037, "description": "no message found"}}


class Stream:
    """What a majority has."""

    def __init__(self) -> None:
        self.first = 1
        self.messages: list[bytes] = []
        """All that were ever taken; sequence n is at n - 1."""
        self.late: deque[tuple[bytes, str, int]] = deque()
        """Messages that are on their way."""
        self._ids: dict[str, int] = {}

    @property
    def last(self) -> int:
        """The sequence of the last message."""
        return len(self.messages)

    def take(self, payload: bytes, name: str, after: int) -> dict[str, Any]:
        """The answer to a message that has arrived."""
        if name in self._ids:
            return {"seq": self._ids[name], "duplicate": True}
        if after != self.last:
            return _WRONG_LAST
        self.messages.append(payload)
        self._ids[name] = self.last
        return {"seq": self.last}

    def arrive(self) -> None:
        """The message that has been on its way for longest arrives, if there is one."""
        if self.late:
            self.take(*self.late.popleft())


class ModelLine:
    """``next_fault`` says what befalls a message, and ``seen`` up to which sequence a read sees the stream."""

    first_server = ""

    def __init__(
        self,
        stream: Stream,
        next_fault: Callable[[], Fault],
        seen: Callable[[], int],
        max_payload: int,
    ) -> None:
        self._stream = stream
        self._next_fault = next_fault
        self._seen = seen
        self.info = {"max_payload": max_payload}

    def ask(
        self,
        subject: str,
        payload: bytes,
        within_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> Message:
        if headers is not None:
            after = int(headers["Nats-Expected-Last-Sequence"])
            return self._publish(payload, headers["Nats-Msg-Id"], after)
        operation = subject.removeprefix("$JS.API.STREAM.").rpartition(".")[0]
        asked = json.loads(payload or b"{}")
        return Message(json.dumps(self._answer(operation, asked)).encode())

    def _publish(self, payload: bytes, name: str, after: int) -> Message:
        stream = self._stream
        match self._next_fault():
            case "request lost":
                raise Unavailable("lost")
            case "answer lost":
                stream.take(payload, name, after)
                raise Unavailable("lost")
            case "late":
                stream.late.append((payload, name, after))
                raise Unavailable("late")
            case "overtaken":
                stream.arrive()
            case "no leader":
                return Message(b"", 503)
            case "wrongly refused":
                return Message(json.dumps(_WRONG_LAST).encode())
        return Message(json.dumps(stream.take(payload, name, after)).encode())

    def _answer(self, operation: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        stream = self._stream
        seen = min(self._seen(), stream.last)
        if operation == "MSG.GET":
            at = asked["seq"]
            if not stream.first <= at <= seen:
                return _NO_MESSAGE
            return {"message": {"seq": at, "data": b64encode(stream.messages[at - 1]).decode()}}
        if operation == "PURGE":
            stream.first = max(stream.first, min(asked["seq"], stream.last + 1))
            return {"success": True}
        assert operation == "INFO"
        return {"state": {"first_seq": stream.first, "last_seq": seen}}

    def ask_for_list(self, subject: str, payload: bytes, within_s: float) -> list[Message]:
        asked = json.loads(payload)
        stream = self._stream
        seen = min(self._seen(), stream.last)
        first = max(asked["seq"], stream.first)
        found = range(first, min(seen + 1, first + asked["batch"]))
        messages = [Message(stream.messages[at - 1], 0, {"Nats-Sequence": str(at)}) for at in found]
        return [*messages, Message(b"", 204 if messages else 404)]

    def next_server(self) -> None:
        """Any server is like another."""

    def close(self) -> None:
        """There is no connection."""
