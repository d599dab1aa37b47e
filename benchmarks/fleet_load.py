"""A fleet of devices, each with a connection and a topic of its own: the load of `python -m benchmarks.fleet`.

Packets are made beforehand, and sockets are read and written without a loop between, so that one core loads a broker
that needs 5 µs a message. With QoS 1 a device has ``--open`` messages open, and sends the next ones when all of them
were acknowledged; with QoS 0 as many messages are on their way as there are devices. Prints one object of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.load import connect, link_to, payload_of, publish, subscribe
from broker.codec.primitives import PACKET_ID_BYTES
from broker.core.cells import Place

_READ_BYTES: Final = 1 << 20
_PACKET_IDS: Final = 60_000
"""From here on they begin with 1 again."""
_SLICE: Final = 20
"""Messages of QoS 0 for each cell that are sent between two looks at what was delivered."""
_IDLE_S: Final = 1.5
"""So long without a message, and what is missing counts as lost."""
_PATIENCE_S: Final = 30
"""So long without an acknowledgement, and the turn ends with what was acknowledged until then."""


def main() -> None:
    """Load a broker and print what it took."""
    options = options_of()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(200_000, hard), hard))
    fleet = Fleet(options)
    print(json.dumps(fleet.run()))
    if options.persistent:
        fleet.end_sessions()


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of a fleet, by default those of this process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("address", help="HOST:PORT of the broker")
    add(
        "--pid",
        type=int,
        nargs="+",
        required=True,
        help="processes of the broker, for their processor time",
    )
    add(
        "--cells",
        type=int,
        default=1,
        help="cells of the broker, over which clients are spread evenly so that of N messages N-1 cross",
    )
    add("--from-cell", type=int, help="cell of all devices")
    add("--to-cell", type=int, help="cell of all subscribers")
    add("--devices", type=int, default=1000)
    add(
        "--subs",
        type=int,
        default=1,
        help="subscribers; more than one have the topics of equally many devices each",
    )
    add("--qos", type=int, default=0, help="QoS of the devices, 0 or 1")
    add("--subqos", type=int, default=0, help="QoS of the subscriptions, 0 or 1")
    add("--messages", type=int, default=200_000, help="messages in all")
    add("--rate", type=float, default=0, help="messages a second; 0 for as many as go")
    add("--size", type=int, default=128, help="payload in bytes")
    add("--topics", default="fleet", help="first level of the topics")
    add("--open", type=int, default=1, help="QoS 1 messages of a device that are sent at once")
    add("--everything", action="store_true", help="each subscriber has the topics of all devices")
    add(
        "--persistent",
        action="store_true",
        help="the subscribers' sessions outlive their connections",
    )
    return parser.parse_args(arguments)


@dataclass(slots=True)
class _Subscriber:
    link: socket.socket
    rest: bytes = b""
    received: int = 0


@dataclass(slots=True)
class _Device:
    link: socket.socket
    head: bytes
    tail: bytes
    packet_id: int = 0
    unacknowledged: int = 0

    def send(self, count: int) -> None:
        """Send so many messages at once; they have one packet identifier after the other."""
        first = self.packet_id % _PACKET_IDS + 1
        self.packet_id, self.unacknowledged = first + count - 1, count
        head, tail = self.head, self.tail
        self.link.send(
            b"".join([head + PACKET_ID_BYTES[one] + tail for one in range(first, first + count)])
        )


class Fleet:
    """Connects everything when it is made; each turn sends all messages and waits for what is delivered."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self._poll = options, select.epoll()
        self._buffer = bytearray(_READ_BYTES)
        payload = payload_of(options.size)
        topics = [f"{options.topics}/{number:04d}/up" for number in range(options.devices)]
        delivered_qos = min(options.qos, options.subqos)
        self._size = len(publish(topics[0], payload, delivered_qos))
        self._packet_id_at = self._size - len(payload) - 2 if delivered_qos else 0
        self._copies = options.subs if options.everything else min(options.subs, 1)
        self._subscribers = self._subscribe(topics)
        to = link_to(options.address)
        self._devices = [
            connect(to, self._identifier("device", number, options.from_cell, number))
            for number in range(options.devices)
        ]
        if options.qos:
            for link in self._devices:
                self._poll.register(link, select.EPOLLIN)
        self._packets = [publish(topic, payload, options.qos) for topic in topics]
        self._id_at = len(self._packets[0]) - len(payload) - 2
        # of the processor time of other processes, as clock_getcpuclockid gives them
        self._clocks = [~pid << 3 | 2 for pid in options.pid]
        self.delivered = self.acknowledged = 0
        self._began_s = self._ended_s = 0.0
        self._used_s: list[float] = []

    def _identifier(self, role: str, number: int, cell: int | None, share: int) -> str:
        """A client identifier of a cell; where none is given, of the one whose turn it is."""
        place = Place(0, self._options.cells, Path())
        wanted = share % place.count if cell is None else cell
        for attempt in range(1000):
            identifier = f"{role}{number}-{os.getpid()}-{attempt}"
            if place.cell_of(identifier) == wanted:
                return identifier
        raise SystemExit(f"no client identifier of cell {wanted} was found")

    def _used(self) -> list[float]:
        return [time.clock_gettime(clock) for clock in self._clocks]

    def _subscribe(self, topics: list[str]) -> dict[int, _Subscriber]:
        options, found = self._options, {}
        each = len(topics) // max(options.subs, 1)
        has_all = options.everything or options.subs == 1
        for number in range(options.subs):
            link = self._connect_subscriber(number, is_clean=not options.persistent)
            of = [f"{options.topics}/#"] if has_all else topics[number * each : (number + 1) * each]
            for topic_filter in of:
                subscribe(link, topic_filter, options.subqos)
            found[link.fileno()] = _Subscriber(link)
            self._poll.register(link, select.EPOLLIN)
        return found

    def _connect_subscriber(self, number: int, *, is_clean: bool) -> socket.socket:
        options = self._options
        identifier = self._identifier(
            "subscriber", number, options.to_cell, number // options.cells
        )
        return connect(link_to(self._options.address), identifier, is_clean=is_clean)

    def close(self) -> None:
        """Disconnect all."""
        self._poll.close()
        for link in (*self._devices, *(each.link for each in self._subscribers.values())):
            link.close()

    def end_sessions(self) -> None:
        """Sessions that outlive their connections would wait for the messages of later turns."""
        for number, subscriber in enumerate(self._subscribers.values()):
            subscriber.link.close()
            self._connect_subscriber(number, is_clean=True).close()

    def run(self) -> dict[str, Any]:
        """What was sent, acknowledged and delivered, in which time, and with how much of the broker's."""
        time.sleep(0.3)
        self.delivered = self.acknowledged = 0
        self._ended_s = 0.0
        self._used_s = []
        self._began_s = began_s = time.perf_counter()
        used_s = self._used()
        (self._with_acks if self._options.qos else self._without_acks)()
        taken_s = self._ended_s - began_s
        each = [after - before for before, after in zip(used_s, self._used_s, strict=True)]
        done = self.acknowledged if self._options.qos else self._options.messages
        return {
            "sent": self._options.messages,
            "acknowledged": self.acknowledged,
            "delivered": self.delivered,
            "expected": done * self._copies,
            "seconds": taken_s,
            "per_s": done / taken_s,
            "delivered_per_s": self.delivered / taken_s,
            "cpu_us": sum(each) * 1e6 / done,
            "cpu_us_each": [used * 1e6 / done for used in each],
        }

    def _without_acks(self) -> None:
        """QoS 0: a message of each device in turn, as many on their way as there are devices."""
        sent = lost = 0
        messages, devices = self._options.messages, len(self._devices)
        at_once = _SLICE * (self._options.cells if self._options.from_cell is None else 1)
        sends = [
            (link.send, packet) for link, packet in zip(self._devices, self._packets, strict=True)
        ]
        while sent < messages:
            for send, packet in sends[sent % devices :][: min(at_once, messages - sent)]:
                send(packet)
                sent += 1
            self._keep_rate(sent)
            self._take(self._poll.poll(0))
            while sent * self._copies - self.delivered - lost > devices - at_once:
                lost += self._take_some(sent * self._copies - self.delivered - lost)
        self._wait_for(messages * self._copies - lost)

    def _with_acks(self) -> None:
        """QoS 1: a device sends its next message when the one before was acknowledged."""
        messages, at_once, subscribers = (
            self._options.messages,
            self._options.open,
            self._subscribers,
        )
        poll = self._poll.poll
        by_fd: dict[int, _Device] = {}
        for link, packet in zip(self._devices, self._packets, strict=True):
            device = by_fd[link.fileno()] = _Device(
                link, packet[: self._id_at], packet[self._id_at + 2 :]
            )
            device.send(at_once)
        left, acknowledged = messages - at_once * len(by_fd), 0
        while acknowledged < messages and (
            ready := poll(_PATIENCE_S, len(by_fd) + len(subscribers))
        ):
            for fd, _ in ready:
                if fd in subscribers:
                    self._take_from(subscribers[fd])
                    continue
                device = by_fd[fd]
                count, rest = divmod(len(device.link.recv(4 * device.unacknowledged or 4)), 4)
                if rest or not 0 < count <= device.unacknowledged:
                    raise SystemExit("a device got something else than its PUBACKs")
                acknowledged += count
                device.unacknowledged -= count
                if left > 0 and not device.unacknowledged:
                    device.send(min(at_once, left))
                    left -= at_once
            self._keep_rate(messages - left)
        self.acknowledged = acknowledged
        self._stop_clock()
        self._wait_for(acknowledged * self._copies)

    def _keep_rate(self, sent: int) -> None:
        """Wait while more was sent than the rate allows."""
        if self._options.rate:
            ahead_s = sent / self._options.rate - (time.perf_counter() - self._began_s)
            if ahead_s > 0:
                time.sleep(ahead_s)

    def _wait_for(self, messages: int) -> None:
        while self.delivered < messages and not self._take_some(1):
            pass
        self._stop_clock()

    def _take_some(self, missing: int) -> int:
        """Take what is delivered; ``missing`` where nothing is for a while, else 0."""
        if ready := self._poll.poll(0.05):
            self._take(ready)
            return 0
        self._stop_clock()
        ready = self._poll.poll(_IDLE_S)
        self._take(ready)
        return 0 if ready else missing

    def _take(self, ready: list[tuple[int, int]]) -> None:
        for fd, _ in ready:
            self._take_from(self._subscribers[fd])

    def _take_from(self, subscriber: _Subscriber) -> None:
        read = subscriber.link.recv_into(self._buffer)
        if not read:
            raise SystemExit("the broker closed the connection of a subscriber")
        self._ended_s = 0.0
        before = subscriber.received // self._size
        subscriber.received += read
        self.delivered += subscriber.received // self._size - before
        if self._packet_id_at:
            self._acknowledge(subscriber, subscriber.rest + self._buffer[:read])

    def _acknowledge(self, subscriber: _Subscriber, data: bytes) -> None:
        whole = len(data) // self._size
        subscriber.rest = data[whole * self._size :]
        packets = np.frombuffer(data, np.uint8, whole * self._size).reshape(whole, self._size)
        acks = np.empty((whole, 4), np.uint8)
        acks[:, 0], acks[:, 1] = 0x40, 2
        acks[:, 2:] = packets[:, self._packet_id_at : self._packet_id_at + 2]
        subscriber.link.sendall(acks.tobytes())

    def _stop_clock(self) -> None:
        """It counts unless something is delivered later."""
        if not self._ended_s:
            self._ended_s, self._used_s = time.perf_counter(), self._used()


if __name__ == "__main__":
    main()
