"""What the machines of a cluster write for each other: the last message of each, and the last orders of users, in a
stream of JetStream.

A message is confirmed by a majority of servers, so a machine that is cut off from it cannot write, and is silent for
all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final

from broker.cluster.nats.line import Line, Servers
from broker.core.errors import Unavailable

_ASK_S: Final = 2.0
_MAX_BYTES: Final = 16 * 1024 * 1024
ORDERS: Final = "_orders"
"""The name of the orders among the names of machines."""
_TRIES: Final = 5


class Board:
    """The messages of all machines, for one thread. Calls block."""

    def __init__(self, servers: Servers, cluster: str, machine: str, replicas: int) -> None:
        self._line = Line(servers, f"sluice {machine} keeper")
        self._stream = f"sluice_{cluster}_machines"
        self._logs = f"sluice_{cluster}_"
        self._subjects = f"sluice.{cluster}.machine."
        self._own = self._subjects + machine
        self._replicas = replicas
        self._is_made = False

    def exchange(self, message: bytes) -> Mapping[str, bytes]:
        """Write the message of this machine, and read those of all by their names.

        Raises:
            Unavailable: no majority of the servers answers.
        """
        if not self._is_made:
            self._make()
        answer = self._line.ask(self._own, message, _ASK_S)
        if answer.is_nobodys or b'"error"' in answer.payload:
            self._is_made = False
            self._line.next_server()
            raise Unavailable("NATS: the message of this machine is not taken")
        messages = self._last()
        if not messages:
            raise self._not_there()
        return messages

    def read(self) -> Mapping[str, bytes]:
        """Read the last message of each machine, also of silent ones, without writing one.

        Raises:
            Unavailable: no majority of the servers answers.
        """
        if not self._is_made:
            self._make()
        return self._last()

    def _last(self) -> Mapping[str, bytes]:
        asked = {"multi_last": [f"{self._subjects}*"], "batch": 64}
        answers = self._line.ask_for_list(
            f"$JS.API.DIRECT.GET.{self._stream}", json.dumps(asked).encode(), _ASK_S
        )
        if answers[-1].is_nobodys:
            raise self._not_there()
        return {
            answer.headers["Nats-Subject"].removeprefix(self._subjects): answer.payload
            for answer in answers
            if "Nats-Subject" in answer.headers
        }

    def _not_there(self) -> Unavailable:
        self._line.next_server()
        return Unavailable("NATS: no server has the messages of the machines at present")

    def change_orders(self, change: Callable[[bytes], bytes]) -> bytes:
        """Replace the orders by what ``change`` makes of them, of nothing where there are none. It is called again
        where another machine has replaced them meanwhile.

        Raises:
            Unavailable: no majority of the servers answers.
        """
        if not self._is_made:
            self._make()
        subject = self._subjects + ORDERS
        for _ in range(_TRIES):
            asked = {"last_by_subj": subject}
            answer = self._line.ask(
                f"$JS.API.DIRECT.GET.{self._stream}", json.dumps(asked).encode(), _ASK_S
            )
            before = b"" if answer.status else answer.payload
            after = answer.headers.get("Nats-Sequence", "0")
            orders = change(before)
            headers = {"Nats-Expected-Last-Subject-Sequence": after}
            taken = self._line.ask(subject, orders, _ASK_S, headers)
            if not taken.is_nobodys and b'"error"' not in taken.payload:
                return orders
        raise Unavailable("NATS: the order is not taken")

    def end_of(self, cell: int) -> int:
        """Position of the last entry of a cell's log.

        Raises:
            Unavailable: that is not known at present.
        """
        answer = self._line.ask(f"$JS.API.STREAM.INFO.{self._logs}{cell}", b"", _ASK_S)
        try:
            return int(json.loads(answer.payload)["state"]["last_seq"])
        except (ValueError, KeyError) as error:
            raise Unavailable(f"NATS: the end of the log of cell {cell} is not known") from error

    def close(self) -> None:
        """End the connection."""
        self._line.close()

    def _make(self) -> None:
        wanted = {
            "name": self._stream,
            "subjects": [f"{self._subjects}*"],
            "retention": "limits",
            "storage": "file",
            "num_replicas": self._replicas,
            "max_msgs_per_subject": 1,
            "max_bytes": _MAX_BYTES,
            "allow_direct": True,
        }
        answer = self._line.ask(
            f"$JS.API.STREAM.CREATE.{self._stream}", json.dumps(wanted).encode(), 5.0
        )
        if answer.is_nobodys:
            self._line.next_server()
            raise Unavailable("NATS: JetStream has no majority of its servers")
        if b'"error"' in answer.payload and b"10058" not in answer.payload:
            error = json.loads(answer.payload).get("error", {})
            raise Unavailable(f"NATS: {error.get('description', 'no stream for machines')}")
        self._is_made = True
