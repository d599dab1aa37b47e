"""A connection to NATS: requests and their answers, for one thread. Calls block.

The commit log waits for one answer at a time, on the thread that writes the store, so there is no loop here and
nothing runs beside it (NATS client protocol, docs.nats.io/reference/reference-protocols/nats-protocol).
"""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

from broker.cluster.certificates import Certificates
from broker.core.errors import Unavailable

_CONNECT_S: Final = 2.0
# The first server is asked again after this while; one that is silent costs its share of a question's time.
_HOME_S: Final = 30.0
_READ_BYTES: Final = 256 * 1024
# Longest line of the protocol, and largest message, that a server may send.
_MOST_LINE: Final = 64 * 1024
_MOST_MESSAGE: Final = 64 * 1024 * 1024
_END: Final = b"\r\n"
_VERSION: Final = b"NATS/1.0"
_NO_RESPONDERS: Final = 503


class Refused(Exception):
    """A server does not let this client in."""


@dataclass(frozen=True, slots=True)
class Servers:
    """Where NATS is, and how it lets this client in. Addresses are tried in their order, the first one again from time
    to time: it is this machine's own."""

    addresses: Sequence[tuple[str, int]]
    user: str = ""
    password: str = field(default="", repr=False)
    tls: Certificates | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """A message from NATS. ``status`` is 0, or the reason why there is no answer, as 503 where no server has one."""

    payload: bytes
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_nobodys(self) -> bool:
        """True if no part of NATS answers to the subject at present."""
        return self.status == _NO_RESPONDERS


class Line:
    """A connection to one of several servers, made when it is needed."""

    def __init__(self, servers: Servers, name: str) -> None:
        """``name`` is shown in the servers' lists of connections."""
        self._servers = servers
        self._name = name
        self._link: socket.socket | None = None
        self._data = bytearray()
        self._inbox = ""
        self._asked = 0
        self._next = 0
        """Index of the server in use, or tried next."""
        self._home_at_s = 0.0
        """When the first server is tried again."""
        self.info: Mapping[str, Any] = {}
        """What the server has said of itself: ``version``, ``max_payload`` and more."""

    def ask(
        self,
        subject: str,
        payload: bytes,
        within_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> Message:
        """The answer to a message.

        Raises:
            Unavailable: there is none in time, or no server. The message may have arrived.
        """
        return self._answers(subject, payload, within_s, headers, is_list=False)[0]

    def ask_for_list(self, subject: str, payload: bytes, within_s: float) -> list[Message]:
        """The answers, of which the last has a status.

        Raises:
            Unavailable: they are not there in time, or no server is.
        """
        return self._answers(subject, payload, within_s, None, is_list=True)

    def _answers(
        self,
        subject: str,
        payload: bytes,
        within_s: float,
        headers: Mapping[str, str] | None,
        *,
        is_list: bool,
    ) -> list[Message]:
        until_s = time.monotonic() + within_s
        link: socket.socket | None = None
        try:
            link = self._connected(until_s)
            self._asked += 1
            reply = f"{self._inbox}{self._asked}"
            link.sendall(_packet(subject, reply, payload, headers))
            answers: list[Message] = []
            while True:
                to, message = self._message(until_s)
                if to != reply:
                    continue  # the answer to a question that is over
                answers.append(message)
                if not is_list or message.status:
                    return answers
        except (OSError, ValueError, Refused) as error:
            if link is not None:
                self.next_server()
            raise Unavailable(f"NATS: {_why(error)}") from error

    @property
    def first_server(self) -> str:
        """Name of the first server, where that is the one in use; else empty."""
        is_first = self._link is not None and self._next == 0
        return str(self.info.get("server_name", "")) if is_first else ""

    def next_server(self) -> None:
        """Use another server from now on."""
        self.close()
        if self._next == 0:
            self._home_at_s = time.monotonic() + _HOME_S
        self._next = (self._next + 1) % len(self._servers.addresses)

    def close(self) -> None:
        """End the connection; the next question makes one again."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _connected(self, until_s: float) -> socket.socket:
        """The connection. Each server has an equal share of the time that is left, so a silent one is passed over."""
        if self._next and time.monotonic() >= self._home_at_s:
            self.close()
            self._next = 0
        failure: Exception = OSError("no server is named")
        for left in range(len(self._servers.addresses), 0, -1):
            if self._link is not None:
                break
            host, port = self._servers.addresses[self._next]
            now_s = time.monotonic()
            try:
                self._connect(host, port, now_s + min(_CONNECT_S, (until_s - now_s) / left))
            except (OSError, ValueError, Refused) as error:
                self.next_server()
                failure = error
        if self._link is None:
            raise failure
        return self._link

    def _connect(self, host: str, port: int, until_s: float) -> None:
        link = socket.create_connection((host, port), _left(until_s))
        self._link = link
        self._data.clear()
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        word, _, text = self._line(until_s).partition(b" ")
        if word != b"INFO":
            raise ValueError("it is no server of NATS")
        self.info = json.loads(text)
        own = self._servers
        if own.tls is not None:
            link.settimeout(_left(until_s))
            self._link = link = own.tls.context().wrap_socket(link, server_hostname=host)
        said = {
            "verbose": False, "pedantic": False, "headers": True, "no_responders": True, "echo": False,
            "lang": "python", "version": "1", "name": self._name, "tls_required": own.tls is not None,
            **({"user": own.user, "pass": own.password} if own.user else {}),
        }  # fmt: skip
        self._inbox = f"_INBOX.{uuid4().hex}."
        link.sendall(
            b"CONNECT %b\r\nSUB %b* 1\r\nPING\r\n"
            % (json.dumps(said).encode(), self._inbox.encode())
        )
        while (line := self._line(until_s)) != b"PONG":
            self._take(line)

    def _take(self, line: bytes) -> None:
        """Take a line that is no message."""
        if line == b"PING":
            assert self._link is not None
            self._link.sendall(b"PONG\r\n")
        elif line.startswith(b"-ERR"):
            raise Refused(line[4:].decode("utf-8", "replace").strip(" '").lower())
        elif line.startswith(b"INFO "):
            self.info = json.loads(line[5:])

    def _message(self, until_s: float) -> tuple[str, Message]:
        """The next message, and the subject that it came on."""
        while True:
            line = self._line(until_s)
            word, _, rest = line.partition(b" ")
            if word not in (b"MSG", b"HMSG"):
                self._take(line)
                continue
            subject, *_, size = rest.decode().split()
            size_bytes = int(size)
            if not 0 <= size_bytes <= _MOST_MESSAGE:
                raise ValueError("a message is larger than any may be")
            data = self._bytes(size_bytes + len(_END), until_s)[: -len(_END)]
            if word == b"MSG":
                return subject, Message(data)
            head = int(rest.split()[-2])
            status, headers = _headers(data[:head])
            return subject, Message(data[head:], status, headers)

    def _line(self, until_s: float) -> bytes:
        while (end := self._data.find(_END)) < 0:
            if len(self._data) > _MOST_LINE:
                raise ValueError("a line is longer than any may be")
            self._read(until_s)
        line = bytes(self._data[:end])
        del self._data[: end + len(_END)]
        return line

    def _bytes(self, count: int, until_s: float) -> bytes:
        while len(self._data) < count:
            self._read(until_s)
        data = bytes(self._data[:count])
        del self._data[:count]
        return data

    def _read(self, until_s: float) -> None:
        assert self._link is not None
        self._link.settimeout(_left(until_s))
        data = self._link.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError("the server has ended the connection")
        self._data += data


def _left(until_s: float) -> float:
    """Seconds until a time. Raises ``TimeoutError`` where there are none."""
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("no answer in time")
    return left_s


def _packet(subject: str, reply: str, payload: bytes, headers: Mapping[str, str] | None) -> bytes:
    if not headers:
        return b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply.encode(), len(payload), payload)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = b"%b\r\n%b\r\n" % (_VERSION, lines.encode())
    return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (
        subject.encode(), reply.encode(), len(head), len(head) + len(payload), head, payload,
    )  # fmt: skip


def _headers(head: bytes) -> tuple[int, Mapping[str, str]]:
    """Status and headers of a message."""
    first, *lines = head.decode("utf-8", "replace").split("\r\n")
    words = first.split(maxsplit=2)
    status = 0
    with suppress(ValueError, IndexError):
        status = int(words[1])
    pairs = (line.partition(":") for line in lines if line)
    return status, {name.strip(): value.strip() for name, _, value in pairs}


def _why(error: Exception) -> str:
    """Why a server did not answer, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is refused: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error)
