"""Clients that connect at a steady rate, each with an identifier of its own, as a process: ``ConnectStorm``.

Packets are made beforehand and sockets are watched by one epoll, so that a connect costs the generator some 100 µs. A
client leaves once its CONNECT is answered. Answers are counted by the phase in which the client connected.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.support.raw import connect, text

USERS = 500
"""Users that connect in turn: ``user0`` to ``user499``."""
PASSWORD = "pencil"
NO_ANSWER, CLOSED = "no answer", "closed"
"""Outcomes of connects that have no return code."""
_MOST_OPEN = 1000
"""Clients at a time; on a machine that is too slow for the rate no more are begun."""
_ANSWERED_S = 20.0
_DISCONNECT = b"\xe0\x00"
_CONNACK_BYTES = 4
_NUMBER_DIGITS = 8


def user(number: int | str) -> str:
    """Name of a user."""
    return f"user{number}"


@dataclass
class Phase:
    """What came of the connects of one phase. ``codes`` are the return codes of MQTT 3.1.1 and other outcomes."""

    name: str
    begun: int = 0
    codes: dict[str, int] = field(default_factory=dict)
    slowest_s: float = 0.0
    took_s: float = 0.0

    @property
    def ended(self) -> int:
        """Connects with an outcome."""
        return sum(self.codes.values())

    def count(self, outcome: str, took_s: float) -> None:
        """A client has its answer."""
        self.codes[outcome] = self.codes.get(outcome, 0) + 1
        self.slowest_s = max(self.slowest_s, took_s)


class ConnectStorm:
    """A storm on a port of 127.0.0.1, ``rate`` new clients a second, with or without a user name and a password."""

    def __init__(
        self, port: int, rate: int = 1000, *, anonymous: bool = False, password: str = PASSWORD
    ) -> None:
        command = [sys.executable, "-m", "tests.support.connect_storm", str(port), str(rate)]
        if not anonymous:
            command.append(password)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def phase(self, name: str, connects: int = 0) -> Phase:
        """Begin a phase; returns once so many of its connects have an outcome. The storm goes on."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{connects} {name}\n")
        self._process.stdin.flush()
        return self._told()

    def stop(self) -> dict[str, Phase]:
        """Begin no more, wait for all outcomes; the phases by name."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.stdout is not None
        return {
            phase["name"]: Phase(**phase) for phase in json.loads(self._process.stdout.readline())
        }

    def _told(self) -> Phase:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the storm has ended"
        return Phase(**json.loads(line))


@dataclass(slots=True)
class _Client:
    link: socket.socket
    packet: bytes
    phase: Phase
    began_s: float


class _Storm:
    def __init__(self, port: int, rate: int, password: str | None) -> None:
        self._address = ("127.0.0.1", port)
        self._rate = rate
        number = "#" * _NUMBER_DIGITS
        packets = (
            [connect(4, number)]
            if password is None
            else [
                connect(4, number, flags=0xC0, rest=text(user(index)) + text(password))
                for index in range(USERS)
            ]
        )
        self._packets = [packet.split(number.encode()) for packet in packets]
        self._poll = select.epoll()
        self._clients: dict[int, _Client] = {}
        self._phases = [Phase("start")]
        self._wanted: int | None = None
        self._begun = 0
        self._commands = b""

    def run(self) -> None:
        began_s = phase_s = time.monotonic()
        paused = 0
        self._poll.register(sys.stdin.fileno(), select.EPOLLIN)
        is_over = False
        while not is_over or self._clients:
            due = int((time.monotonic() - began_s) * self._rate) - self._begun - paused
            room = _MOST_OPEN - len(self._clients)
            if due > room:
                paused += due - room
                due = room
            for _ in range(0 if is_over else due):
                self._begin()
            for descriptor, events in self._poll.poll(0.002, 512):
                if descriptor == sys.stdin.fileno():
                    is_over = not self._read_commands()
                    phase_s = time.monotonic()
                    if is_over:
                        self._poll.unregister(descriptor)
                else:
                    self._go_on(descriptor, events)
            self._give_up_late()
            phase = self._phases[-1]
            if self._wanted is not None and phase.ended >= self._wanted:
                phase.took_s = time.monotonic() - phase_s
                self._wanted = None
                _tell(phase.__dict__)
        _tell([phase.__dict__ for phase in self._phases])

    def _read_commands(self) -> bool:
        data = os.read(sys.stdin.fileno(), 4096)
        self._commands += data
        *lines, self._commands = self._commands.split(b"\n")
        for line in lines:
            wanted, name = line.decode().split(" ", 1)
            self._phases.append(Phase(name))
            self._wanted = int(wanted)
        return bool(data)

    def _begin(self) -> None:
        head, tail = self._packets[self._begun % len(self._packets)]
        self._begun += 1
        packet = head + b"%0*d" % (_NUMBER_DIGITS, self._begun) + tail
        link = socket.socket()
        link.setblocking(False)
        link.connect_ex(self._address)
        client = _Client(link, packet, self._phases[-1], time.monotonic())
        client.phase.begun += 1
        self._clients[link.fileno()] = client
        self._poll.register(link.fileno(), select.EPOLLIN if _sent(client) else select.EPOLLOUT)

    def _go_on(self, descriptor: int, events: int) -> None:
        client = self._clients[descriptor]
        if client.packet and not events & select.EPOLLIN:
            if _sent(client):
                self._poll.modify(descriptor, select.EPOLLIN)
            elif events & (select.EPOLLERR | select.EPOLLHUP):
                self._end(client, CLOSED)
            return
        try:
            answer = client.link.recv(16)
        except OSError:
            answer = b""
        if len(answer) != _CONNACK_BYTES:
            self._end(client, CLOSED)
            return
        if not answer[3]:
            with contextlib.suppress(OSError):
                client.link.send(_DISCONNECT)
        self._end(client, str(answer[3]))

    def _end(self, client: _Client, outcome: str) -> None:
        del self._clients[client.link.fileno()]
        client.link.close()
        client.phase.count(outcome, time.monotonic() - client.began_s)

    def _give_up_late(self) -> None:
        oldest = next(iter(self._clients.values()), None)
        if oldest is not None and time.monotonic() - oldest.began_s > _ANSWERED_S:
            self._end(oldest, NO_ANSWER)


def _sent(client: _Client) -> bool:
    """True once the CONNECT is on its way."""
    try:
        client.link.send(client.packet)
    except OSError:
        return False
    client.packet = b""
    return True


def _tell(value: Any) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    _Storm(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None).run()
