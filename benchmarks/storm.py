"""Many clients at once: `python -m benchmarks.storm`.

  reconnect  devices with persistent sessions reconnect over TLS all at once, while a client that stayed connected
             publishes with QoS 1: seconds until all have a CONNACK, connections that ended before, and how long that
             client's acknowledgements took; mosquitto in the same run
  unread     subscribers that do not read, of QoS 1 and of QoS 0, while messages are published and other clients ping

A device whose connection ends before its CONNACK connects again at once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.bare import MOSQUITTO, ROOT, free_port, program, wait_for
from benchmarks.idle import raise_open_files
from benchmarks.load import connect, cpu_s, link_to, publish, subscribe
from benchmarks.overload import Pings
from benchmarks.pipeline import serving
from broker.codec.encode import encode_packet
from broker.codec.packets import Connect

WANTED_P99_S = 0.1
_PINGERS, _PING_EVERY_S, _PUBLISH_EVERY_S = 5, 0.01, 0.005
_CONNACK, _PUBACK, _PING = 4, 4, b"\xc0\0"


@dataclass(slots=True)
class Broker:
    """A broker under load: its ports and its process."""

    name: str
    plain: int
    tls: int
    pid: int


@dataclass(slots=True)
class Storm:
    """What came of it: seconds until all devices had their CONNACK, and connections that ended before."""

    seconds: float
    ended: int
    cpu_s: float
    waited_s: list[float] = field(default_factory=list)
    """For acknowledgements, by the client that stayed connected."""


def main() -> int:
    """Run the cases; 1 where something wanted is missed."""
    options = _options()
    raise_open_files()
    missed = False
    if options.case in ("all", "unread"):
        for qos in (1, 0):
            missed |= unread(options.subscribers, options.seconds, qos)
    if options.case in ("all", "reconnect"):
        missed |= reconnect(options.count, options.rounds)
    return int(missed)


def reconnect(count: int, rounds: int) -> bool:
    """Storms on both brokers in turn; whether something wanted is missed."""
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = _certificate(Path(folder))
        with contextlib.ExitStack() as started:
            brokers = [started.enter_context(_sluice(certificate, key))]
            if program(MOSQUITTO):
                brokers.append(started.enter_context(_mosquitto(Path(folder), certificate, key)))
            for broker in brokers:
                _leave_sessions(broker, count)
            storms: dict[str, list[Storm]] = {broker.name: [] for broker in brokers}
            for _ in range(rounds):
                for broker in brokers:
                    found = storm(broker, count)
                    storms[broker.name].append(found)
                    _tell(broker.name, count, found)
    medians = {
        name: statistics.median(one.seconds for one in found) for name, found in storms.items()
    }
    ours = storms["sluice"]
    p99_s = statistics.quantiles([s for one in ours for s in one.waited_s], n=100)[98]
    ended = sum(one.ended for one in ours)
    ratio = medians["sluice"] / medians.get(MOSQUITTO, float("inf"))
    is_reached = ratio <= 1 and not ended and p99_s <= WANTED_P99_S
    print(
        f"time, Sluice / mosquitto: {ratio:.2f} (wanted 1); ended before their CONNACK: {ended}; "
        f"p99 {p99_s * 1000:.0f} ms (wanted {WANTED_P99_S * 1000:.0f}): {'ok' if is_reached else 'MISSED'}",
        flush=True,
    )
    return not is_reached


def storm(broker: Broker, count: int) -> Storm:
    """All devices connect at once."""
    command = [sys.executable, "-m", "benchmarks.storm", "--probe", str(broker.plain)]
    probe = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert probe.stdout is not None
    probe.stdout.readline()
    before_s, began = cpu_s(broker.pid), time.perf_counter()
    devices, ended = _Devices(broker.tls, count), 0
    try:
        ended = devices.connect_all()
        seconds = time.perf_counter() - began
        spent_s = cpu_s(broker.pid) - before_s
    finally:
        waited, _ = probe.communicate()
        devices.close()
    return Storm(seconds, ended, spent_s, json.loads(waited))


class _Devices:
    """Clients over TLS, none of which waits for another."""

    def __init__(self, port: int, count: int) -> None:
        self._port, self._count = port, count
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE
        self._poll = select.epoll()
        self._steps: dict[int, tuple[Iterator[int], int]] = {}
        self._links: dict[int, socket.socket] = {}

    def connect_all(self) -> int:
        """Connect, each again until it has its CONNACK; how many connections ended before."""
        for number in range(self._count):
            self._begin(number)
        done = ended = 0
        while done < self._count:
            for descriptor, _ in self._poll.poll():
                steps, number = self._steps[descriptor]
                try:
                    self._poll.modify(descriptor, next(steps))
                except StopIteration:
                    self._poll.unregister(descriptor)
                    done += 1
                except OSError:
                    ended += 1
                    self._links.pop(descriptor).close()
                    self._begin(number)
        return ended

    def close(self) -> None:
        """Hang up."""
        for link in self._links.values():
            link.close()
        self._poll.close()

    def _begin(self, number: int) -> None:
        link = socket.socket()
        link.setblocking(False)
        link.connect_ex(("127.0.0.1", self._port))
        self._links[link.fileno()] = link
        self._steps[link.fileno()] = self._connected(link, number), number
        self._poll.register(link.fileno(), select.EPOLLOUT)

    def _connected(self, plain: socket.socket, number: int) -> Iterator[int]:
        """The steps of one device once its socket is connected; each gives what it waits for."""
        if error := plain.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(error, os.strerror(error))
        link = self._context.wrap_socket(plain, do_handshake_on_connect=False)
        self._links[link.fileno()] = link
        while True:
            try:
                link.do_handshake()
                break
            except ssl.SSLWantReadError:
                yield select.EPOLLIN
        link.send(encode_packet(Connect(_name(number), clean_start=False)))
        answer = b""
        while len(answer) < _CONNACK:
            try:
                read = link.recv(_CONNACK - len(answer))
                if not read:
                    raise OSError("closed before the CONNACK")
                answer += read
            except ssl.SSLWantReadError:
                yield select.EPOLLIN
        if answer[3]:
            raise OSError(f"refused with {answer[3]}")


def _name(number: int) -> str:
    return f"device-{number}"


def _leave_sessions(broker: Broker, count: int) -> None:
    """Have a session of each device, with a subscription."""
    to = link_to(f"127.0.0.1:{broker.plain}")
    for number in range(count):
        link = connect(to, _name(number), is_clean=False)
        subscribe(link, f"devices/{number}", 1)
        link.close()


def _probe(port: int) -> None:
    """Publish with QoS 1 until the input ends; prints how long each acknowledgement took."""
    link, waited_s = connect(link_to(f"127.0.0.1:{port}"), "probe"), []
    packet = publish("probe", b"x" * 128, 1)
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], _PUBLISH_EVERY_S)[0]:
        began = time.perf_counter()
        link.sendall(packet)
        link.recv(_PUBACK, socket.MSG_WAITALL)
        waited_s.append(time.perf_counter() - began)
    print(json.dumps(waited_s))


def unread(count: int, seconds: float, qos: int) -> bool:
    """Measure the pings of other clients beside subscribers that do not read; returns whether they missed the goal."""
    with serving() as (ready, _):
        to = link_to(ready["mqtt"])
        subscribers = [connect(to, f"unread-{number}", read_buffer=4096) for number in range(count)]
        for link in subscribers:
            subscribe(link, "unread/#", qos)
        pings, ends_at = Pings(), time.monotonic() + seconds
        links = [connect(to, f"ping-{number}") for number in range(_PINGERS)]
        threads = [threading.Thread(target=_ping, args=(link, pings, ends_at)) for link in links]
        threads.append(
            threading.Thread(target=_publish, args=(connect(to, "publisher"), ends_at, qos))
        )
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    is_reached = pings.p99_s <= WANTED_P99_S
    wanted = f"wanted p99 {WANTED_P99_S * 1000:.0f} ms, {'ok' if is_reached else 'MISSED'}"
    print(
        f"{count:,} subscribers of QoS {qos} that do not read: {pings.told()} ({wanted})",
        flush=True,
    )
    return not is_reached


def _ping(link: socket.socket, pings: Pings, ends_at: float) -> None:
    while time.monotonic() < ends_at:
        began = time.perf_counter()
        link.sendall(_PING)
        link.recv(2, socket.MSG_WAITALL)
        pings.waited_s.append(time.perf_counter() - began)
        time.sleep(_PING_EVERY_S)


def _publish(link: socket.socket, ends_at: float, qos: int, window: int = 20) -> None:
    """With QoS 0 as fast as the broker reads."""
    block = b"".join(
        publish("unread/a", b"x" * 128, qos, number + 1 if qos else 0) for number in range(window)
    )
    while time.monotonic() < ends_at:
        link.sendall(block)
        if qos:
            link.recv(_PUBACK * window, socket.MSG_WAITALL)


def _tell(name: str, count: int, found: Storm) -> None:
    cuts = statistics.quantiles(found.waited_s, n=100)
    print(
        f"{name:10} {count:,} devices in {found.seconds:6.2f} s, {found.cpu_s / count * 1e6:5.0f} µs of processor time "
        f"each, {found.ended} ended before   acknowledgements p50 {cuts[49] * 1000:.1f} ms, p99 "
        f"{cuts[98] * 1000:.1f} ms, max {max(found.waited_s) * 1000:.0f} ms",
        flush=True,
    )


@contextmanager
def _sluice(certificate: Path, key: Path) -> Iterator[Broker]:
    port = free_port()
    settings = (
        "overload.max_run_queue=0",  # other programs of the machine are not what is measured
        f"listeners.ssl.storm.bind=127.0.0.1:{port}",
        f"listeners.ssl.storm.ssl_options.certfile={certificate}",
        f"listeners.ssl.storm.ssl_options.keyfile={key}",
    )
    with serving(*settings) as (ready, _):
        yield Broker("sluice", int(ready["mqtt"].rpartition(":")[2]), port, int(ready["pid"]))


@contextmanager
def _mosquitto(folder: Path, certificate: Path, key: Path) -> Iterator[Broker]:
    plain, port = free_port(), free_port()
    configuration = folder / "mosquitto.conf"
    configuration.write_text(
        f"allow_anonymous true\nset_tcp_nodelay true\npersistence true\npersistence_location {folder}/\nuser root\n"
        f"listener {plain} 127.0.0.1\nlistener {port} 127.0.0.1\ncertfile {certificate}\nkeyfile {key}\n"
    )
    command = [program(MOSQUITTO), "-c", str(configuration)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(plain, process)
        yield Broker(MOSQUITTO, plain, port, process.pid)
    finally:
        process.terminate()
        process.wait(10)


def _certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of its own for this run, and its key: P-256, as devices have them."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    certificate, private = folder / "cert.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    private.chmod(0o600)
    return certificate, private


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=("all", "reconnect", "unread"), default="all")
    parser.add_argument("--count", type=int, default=10_000, help="devices that reconnect")
    parser.add_argument("--rounds", type=int, default=3, help="storms per broker")
    parser.add_argument(
        "--subscribers", type=int, default=1_500, help="subscribers that do not read"
    )
    parser.add_argument(
        "--seconds", type=float, default=15, help="how long messages are published to them"
    )
    parser.add_argument("--probe", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.probe:
        _probe(options.probe)
        sys.exit()
    return options


if __name__ == "__main__":
    sys.exit(main())
