"""MQTT 3.1.1 load, fast enough not to be what is measured.

Every PUBLISH is encoded once and all have one size, so the generator moves blocks of bytes and counts them. Modes:

  throughput  N publishers to M subscribers, QoS 0, 1 or 2: messages per second published and delivered
  latency     one publisher at a fixed rate, one subscriber: p50, p99 and maximum in milliseconds
  connect     N idle connections: connections per second and, with --pid, memory of the broker per connection

One line of JSON is printed. Runs are bounded by --count and --timeout.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import socket
import struct
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from broker.codec.decode import decode_packet
from broker.codec.encode import encode_packet
from broker.codec.packets import (
    ConnAck,
    Connect,
    Packet,
    Publish,
    SubAck,
    Subscribe,
    SubscriptionRequest,
)

_READ_BYTES = 1 << 20


def main() -> None:
    """Run one mode and print its figures as JSON."""
    options = options_of()
    run = {"throughput": throughput, "latency": latency, "connect": connections}[options.mode]
    figures = run(options)
    shown = ("name", "mode", "pubs", "subs", "topics", "size")
    print(
        json.dumps(
            figures | {name: getattr(options, name) for name in shown} | {"qos": _qos(options)}
        )
    )


def throughput(options: argparse.Namespace) -> dict[str, Any]:
    """Messages per second, published and delivered."""
    payload, per_publisher = payload_of(options.size), options.count // options.pubs
    total, qos = per_publisher * options.pubs, min(options.qos, options.subqos)
    packet = publish(_topics(0, options.topics)[0], payload, qos)
    subscribers = []
    for number in range(options.subs):
        link = connect(options, f"sub{number}-{os.getpid()}")
        subscribe(link, options.filter, options.subqos)
        kind = Qos2Subscriber if qos == 2 else Subscriber
        subscribers.append(kind(link, len(packet), qos, total, len(packet) - len(payload) - 2))
    publishers = [
        Publisher(
            connect(options, f"pub{number}-{os.getpid()}"),
            _topics(number, options.topics),
            payload,
            options.qos,
            per_publisher,
            options.window,
            options.block or max(500, options.topics),
        )
        for number in range(options.pubs)
    ]
    for subscriber in subscribers:
        subscriber.start()
    time.sleep(0.3)
    started = time.perf_counter()
    for publisher in publishers:
        publisher.start()
    for publisher in publishers:
        publisher.join(options.timeout)
    published_s = time.perf_counter() - started
    for subscriber in subscribers:
        _wait_until_idle(subscriber, options.idle, time.perf_counter() + options.timeout)
    received = sum(subscriber.count for subscriber in subscribers)
    last = max([subscriber.last or started for subscriber in subscribers] + [started])
    return {
        "pub_per_s": round(total / published_s),
        "deliver_per_s": round(received / max(last - started, 1e-9)) if received else 0,
        "received": received,
        "expected": total * options.subs,
    }


def latency(options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds from publish to delivery at a fixed rate."""
    inward, outward = connect(options, f"ls-{os.getpid()}"), connect(options, f"lp-{os.getpid()}")
    subscribe(inward, "lat/#", options.subqos)
    pad, qos = b"x" * (options.size - 8), min(options.qos, options.subqos)
    reader = LatencyReader(
        inward, options.size, len(publish("lat/1", b"x" * options.size, qos)), qos, options.count
    )
    reader.start()
    started = time.perf_counter()
    for number in range(options.count):
        wait_s = started + number / options.rate - time.perf_counter()
        if wait_s > 0:
            time.sleep(wait_s)
        stamp = struct.pack("!d", time.perf_counter())
        outward.sendall(publish("lat/1", stamp + pad, options.qos, number % 65535 + 1))
        while options.qos and select.select([outward], [], [], 0)[0]:
            outward.recv(1 << 16)
    reader.join(5)
    taken_ms = np.array(reader.seconds) * 1e3
    p50, p99 = np.percentile(taken_ms, [50, 99])
    return {
        "n": len(taken_ms),
        "p50_ms": round(float(p50), 3),
        "p99_ms": round(float(p99), 3),
        "max_ms": round(float(taken_ms.max()), 3),
    }


def connections(options: argparse.Namespace) -> dict[str, Any]:
    """Idle connections, each with one subscription."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(200_000, hard), min(200_000, hard)))
    before, started, links = resident_bytes(options.pid), time.perf_counter(), []
    used_s = cpu_s(options.pid)
    for number in range(options.count):
        link = connect(options, f"c{number}")
        subscribe(link, f"dev/{number}/cmd", 1)
        links.append(link)
    taken_s = time.perf_counter() - started
    each_us = (cpu_s(options.pid) - used_s) / options.count * 1e6
    time.sleep(1)
    each = (resident_bytes(options.pid) - before) // options.count if options.pid else None
    return {
        "conn_per_s": round(options.count / taken_s),
        "cpu_us_per_conn": round(each_us),
        "rss_per_conn": each,
    }


class Subscriber(threading.Thread):
    """Counts what arrives by its size, and acknowledges QoS 1."""

    def __init__(
        self, link: socket.socket, size: int, qos: int, expected: int, packet_id_at: int
    ) -> None:
        super().__init__(daemon=True)
        self._link, self._size, self._qos, self._expected = link, size, qos, expected
        self._packet_id_at = packet_id_at
        self.count = 0
        self.last: float | None = None

    def run(self) -> None:
        """Read until everything expected is there or the link is closed."""
        buffer, rest, received = bytearray(_READ_BYTES), b"", 0
        while self.count < self._expected:
            try:
                read = self._link.recv_into(buffer)
            except OSError:
                return
            if not read:
                return
            received += read
            self.count, self.last = received // self._size, time.perf_counter()
            if self._qos:
                rest = self._acknowledge(rest + bytes(buffer[:read]))

    def _acknowledge(self, data: bytes) -> bytes:
        whole = len(data) // self._size
        if whole:
            packets = np.frombuffer(data, np.uint8, whole * self._size).reshape(whole, self._size)
            acks = np.empty((whole, 4), np.uint8)
            acks[:, 0], acks[:, 1] = 0x40, 2
            acks[:, 2:] = packets[:, self._packet_id_at : self._packet_id_at + 2]
            self._link.sendall(acks.tobytes())
        return data[whole * self._size :]


class Qos2Subscriber(Subscriber):
    """Counts what arrives and takes part in the four steps, a run of equal packets at a time."""

    def run(self) -> None:
        """Read until everything expected is there and completed, or the link is closed."""
        buffer, rest, completed = bytearray(_READ_BYTES), b"", 0
        while completed < self._expected:
            try:
                read = self._link.recv_into(buffer)
            except OSError:
                return
            if not read:
                return
            rest += bytes(buffer[:read])
            answers, at = [], 0
            while at < len(rest):
                size, answer, id_at = (
                    (4, 0x70, 2) if rest[at] == 0x62 else (self._size, 0x50, self._packet_id_at)
                )
                packets = np.frombuffer(
                    rest, np.uint8, (len(rest) - at) // size * size, at
                ).reshape(-1, size)
                other = np.flatnonzero(packets[:, 0] != rest[at])
                packets = packets[: other[0]] if len(other) else packets
                if not len(packets):
                    break
                told = np.empty((len(packets), 4), np.uint8)
                told[:, 0], told[:, 1], told[:, 2:] = answer, 2, packets[:, id_at : id_at + 2]
                answers.append(told.tobytes())
                at += len(packets) * size
                if size == 4:
                    completed += len(packets)
                else:
                    self.count, self.last = self.count + len(packets), time.perf_counter()
            rest = rest[at:]
            if answers:
                self._link.sendall(b"".join(answers))


class Publisher(threading.Thread):
    """Sends blocks of packets; with QoS 1 and 2 a window at a time, waiting for its acknowledgements."""

    def __init__(
        self,
        link: socket.socket,
        topics: list[str],
        payload: bytes,
        qos: int,
        count: int,
        window: int,
        block: int,
    ) -> None:
        super().__init__(daemon=True)
        self._link, self._topics, self._payload = link, topics, payload
        self._qos, self._left, self._in_block = qos, count, window if qos else block

    def run(self) -> None:
        """Send everything."""
        in_block = self._in_block
        packets = [
            publish(self._topics[number % len(self._topics)], self._payload, self._qos, number + 1)
            for number in range(in_block)
        ]
        size, block = len(packets[0]), b"".join(packets)
        releases = b"".join(
            b"\x62\x02" + struct.pack("!H", number + 1) for number in range(in_block)
        )
        while self._left > 0:
            count = min(in_block, self._left)
            self._link.sendall(block[: count * size])
            if self._qos and not self._take_acks(4 * count):
                return
            if self._qos == 2:
                self._link.sendall(releases[: count * 4])
                if not self._take_acks(4 * count):
                    return
            self._left -= count

    def _take_acks(self, size: int) -> bool:
        while size:
            read = self._link.recv(size)
            if not read:
                return False
            size -= len(read)
        return True


class LatencyReader(threading.Thread):
    """Reads messages that carry the time they were sent."""

    def __init__(
        self, link: socket.socket, payload_size: int, size: int, qos: int, expected: int
    ) -> None:
        super().__init__(daemon=True)
        self._link, self._at, self._size, self._qos, self._expected = (
            link,
            size - payload_size,
            size,
            qos,
            expected,
        )
        self.seconds: list[float] = []

    def run(self) -> None:
        """Read until everything expected is there or nothing comes for two seconds."""
        rest = b""
        while len(self.seconds) < self._expected and select.select([self._link], [], [], 2)[0]:
            rest += self._link.recv(1 << 16)
            now, acks = time.perf_counter(), b""
            while len(rest) >= self._size:
                packet, rest = rest[: self._size], rest[self._size :]
                (sent,) = struct.unpack_from("!d", packet, self._at)
                self.seconds.append(now - sent)
                acks += b"\x40\x02" + packet[self._at - 2 : self._at] if self._qos else b""
            if acks:
                self._link.sendall(acks)


def link_to(address: str) -> argparse.Namespace:
    """The options of a connection to ``host:port``."""
    host, _, port = address.rpartition(":")
    return argparse.Namespace(host=host, port=int(port), username=None, password=None)


def connect(
    options: argparse.Namespace, client_id: str, *, is_clean: bool = True, read_buffer: int = 0
) -> socket.socket:
    """A connected client, with a clean start or a session that outlives it; ``read_buffer`` is what the system keeps of
    what it does not read."""
    link = socket.socket()
    if read_buffer:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, read_buffer)
    link.connect((options.host, options.port))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    password = options.password.encode() if options.password else None
    link.sendall(
        encode_packet(
            Connect(client_id, clean_start=is_clean, username=options.username, password=password)
        )
    )
    answer = _read_packet(link)
    if not isinstance(answer, ConnAck) or answer.reason_code:
        raise SystemExit(
            f"the broker at {options.host}:{options.port} refused {client_id}: {answer}"
        )
    return link


def subscribe(link: socket.socket, topic_filter: str, qos: int) -> None:
    """Subscribe and wait for the SUBACK."""
    link.sendall(encode_packet(Subscribe(1, [SubscriptionRequest(topic_filter, qos)])))
    answer = _read_packet(link)
    if not isinstance(answer, SubAck) or answer.reason_codes[0] > 2:
        raise SystemExit(f"the broker refused the subscription to {topic_filter}: {answer}")


def publish(topic: str, payload: bytes, qos: int, packet_id: int = 1) -> bytes:
    """An encoded PUBLISH."""
    return encode_packet(Publish(topic, payload, qos, packet_id=packet_id))


def payload_of(size: int) -> bytes:
    """JSON of ``size`` bytes."""
    head, tail = b'{"temp":21.5,"hum":40,"id":"dev-0001","pad":"', b'"}'
    return head + b"x" * max(0, size - len(head) - len(tail)) + tail


def resident_bytes(pid: int) -> int:
    """Resident memory of a process, 0 for no process."""
    if not pid:
        return 0
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def cpu_s(pid: int) -> float:
    """Processor time that a process has used, 0 for no process."""
    if not pid:
        return 0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _read_packet(link: socket.socket) -> Packet:
    """One packet of less than 128 bytes, and no byte more."""
    head = link.recv(2, socket.MSG_WAITALL)
    if len(head) < 2:
        raise SystemExit("the broker closed the connection")
    body = link.recv(head[1], socket.MSG_WAITALL)
    return decode_packet(head[0], body, 0, len(body), 4)


def _topics(publisher: int, count: int) -> list[str]:
    return [f"bench/{publisher:04d}/{number:04d}" for number in range(count)]


def _wait_until_idle(subscriber: Subscriber, idle_s: float, ends_at: float) -> None:
    waited_from = time.perf_counter()
    while subscriber.is_alive() and time.perf_counter() < ends_at:
        subscriber.join(0.2)
        if subscriber.last and time.perf_counter() - max(subscriber.last, waited_from) > idle_s:
            return


def _qos(options: argparse.Namespace) -> str:
    return f"{options.qos}/{options.subqos}"


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of a load, by default those of this process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("mode", choices=["throughput", "latency", "connect"])
    add("--name", default="", help="shown in the result")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=1883)
    add("--username")
    add("--password")
    add("--pubs", type=int, default=1, help="publishers")
    add("--subs", type=int, default=1, help="subscribers")
    add("--topics", type=int, default=1, help="topics of each publisher, taken in turn")
    add("--qos", type=int, default=0, help="QoS of the publishers")
    add("--subqos", type=int, default=0, help="QoS of the subscriptions")
    add("--count", type=int, default=200_000, help="messages in all, or connections")
    add("--size", type=int, default=128, help="payload in bytes")
    add(
        "--block",
        type=int,
        default=0,
        help="QoS 0 messages sent at once; default 500, or one of every topic",
    )
    add(
        "--window",
        type=int,
        default=20,
        help="QoS 1 or 2 messages sent before acknowledgements are awaited",
    )
    add("--rate", type=float, default=1000, help="messages per second, for latency")
    add("--filter", default="bench/#", help="topic filter of the subscribers")
    add("--timeout", type=float, default=60, help="seconds")
    add(
        "--idle",
        type=float,
        default=3,
        help="seconds without a message after which a subscriber is done",
    )
    add("--pid", type=int, default=0, help="process of the broker, for its memory")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
