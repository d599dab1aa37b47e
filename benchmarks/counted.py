"""Instructions of the interpreter and calls of functions in the broker for each message of a fleet.

python -m benchmarks.counted [--before TREE] [--traced]

Other programs on the machine do not change these figures, so a difference of 1 % is one of the code. The work of
libraries in C is counted as calls. Devices send a message each while the broker is stopped, so that it reads as many
at a time in each run; the figures are medians of such bursts, and their means, which have what the clock makes the
broker do. The pipeline with QoS 1 is compared by its means: how many commits it takes to store the rows of a burst
depends on when the writer's thread gets a processor. `--before` counts in turns with the broker of another work tree:
the exit status is then 1 if a message takes over 2 % more instructions or calls than there. `--traced` counts with
traces of no message, one in a hundred and every message, without a limit of traces per second; the exporter's thread
is in "others".
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Final

from benchmarks.bare import ROOT
from benchmarks.idle import raise_open_files
from benchmarks.load import connect, link_to, payload_of, publish, subscribe
from benchmarks.pipeline import OBJECTS, create, serving
from broker.codec.primitives import PACKET_ID_BYTES
from tests.support.collector import Collector, collecting

WITHIN: Final = 1.02
"""The most work for a message, as a multiple of that of the tree before."""
OFF, BEFORE = "off", "before"
_PAYLOAD_BYTES: Final = 128
_WARM_UP: Final = 5
_PATIENCE_S: Final = 60
_PUBACK: Final = b"\x40\x02"


@dataclass(frozen=True, slots=True)
class Case:
    """One way of loading a broker: as many messages at a time as there are devices."""

    name: str
    qos: int = 0
    subqos: int = 0
    topics: str = "fleet"
    devices: int = 100
    subs: int = 1
    of: Callable[[list[float]], float] = median
    """What of the bursts is compared."""


CASES: Final = (
    Case("QoS 0, 100 to 1"),
    Case("QoS 0, 300 to 300", devices=300, subs=300),
    Case("QoS 1 to QoS 0, 100 to 1", qos=1),
    Case("QoS 1 to QoS 1, 100 to 1", qos=1, subqos=1),
    Case("pipeline, QoS 0, 100 to 1", topics="bench"),
    Case("pipeline, QoS 1, 100 to 1", topics="bench", qos=1, of=mean),
)


@dataclass(frozen=True, slots=True)
class Count:
    """Work for a message: instructions and calls on the event loop's thread, and instructions on the others."""

    instructions: float
    calls: float
    others: float


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker that counts (``benchmarks/counting.py``)."""

    port: int
    pid: int
    counts: int
    """File descriptor on which it writes them."""

    @contextmanager
    def counting(self, found: list[Count], messages: int) -> Iterator[None]:
        """Add the work of the block, for each of its messages."""
        before = self._signalled(signal.SIGUSR1)
        yield
        after = self._signalled(signal.SIGUSR2)
        found.append(Count(*((b - a) / messages for a, b in zip(before, after, strict=True))))

    def _signalled(self, number: signal.Signals) -> list[int]:
        os.kill(self.pid, number)
        line = b""
        while not line.endswith(b"\n"):
            if not select.select([self.counts], [], [], _PATIENCE_S)[0]:
                raise SystemExit("the broker does not count")
            line += os.read(self.counts, 100)
        return list(map(int, line.split()))


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="another work tree")
    parser.add_argument("--traced", action="store_true", help="count with traces too")
    parser.add_argument("--bursts", type=int, default=50, help="messages of each device")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args()
    raise_open_files()
    is_within = True
    with ExitStack() as stack:
        brokers = {OFF: stack.enter_context(counted())}
        if options.before is not None:
            brokers[BEFORE] = stack.enter_context(counted(tree=options.before))
        if options.traced:
            collector = stack.enter_context(collecting("http"))
            for name, ratio in (("none traced", 1e-9), ("1 in 100", 0.01), ("each traced", 1)):
                brokers[name] = stack.enter_context(counted(*tracing(collector, ratio)))
        for case in CASES:
            if options.only in case.name:
                is_within = _compare(case, brokers, options.bursts) and is_within
    return int(not is_within)


def _compare(case: Case, brokers: dict[str, Broker], bursts: int) -> bool:
    """Count a case and print a line for each broker; returns whether it is within what is allowed."""
    found = {name: count(broker, case, bursts) for name, broker in brokers.items()}
    compared = {
        name: Count(*(case.of([getattr(each, key) for each in counts]) for key in Count.__slots__))
        for name, counts in found.items()
    }
    base = compared.get(BEFORE, compared[OFF])
    for name, counts in found.items():
        each = compared[name]
        ratios = each.instructions / base.instructions, each.calls / base.calls
        print(
            f"{case.name:26} {name:12} {each.instructions:8,.0f} instructions {ratios[0]:5.3f} x "
            f"{each.calls:7,.1f} calls {ratios[1]:5.3f} x   means "
            f"{mean(one.instructions for one in counts):8,.0f} {mean(one.calls for one in counts):7,.1f}"
            f"   others {mean(one.others for one in counts):7,.0f}",
            flush=True,
        )
    off = compared[OFF]
    return off.instructions <= WITHIN * base.instructions and off.calls <= WITHIN * base.calls


def tracing(collector: Collector, ratio: float) -> tuple[str, ...]:
    """Settings that trace this share of the messages."""
    return (
        "telemetry.enable=true",
        f"telemetry.endpoint={collector.endpoint}",
        "telemetry.trace_all=true",
        f"telemetry.ratio={ratio:.9f}",
        "telemetry.max_traces_per_s=0",
        "telemetry.max_queue=1000000",
    )


@contextmanager
def counted(*settings: str, tree: Path = ROOT) -> Iterator[Broker]:
    """A broker that counts, with the objects of the pipeline."""
    counts, writes = os.pipe()
    try:
        with serving(
            "overload.enable=false",
            *settings,
            tree=tree,
            program=(str(Path(__file__).with_name("counting.py")),),
            counts_to=writes,
        ) as (ready, _):
            for kind, spec in OBJECTS:
                create(ready["api"], kind, spec)
            yield Broker(int(ready["mqtt"].rpartition(":")[2]), int(ready["pid"]), counts)
    finally:
        os.close(counts)
        os.close(writes)


def count(broker: Broker, case: Case, bursts: int) -> list[Count]:
    """Load a broker, and count each burst by itself."""
    fleet = _Fleet(broker, case)
    found: list[Count] = []
    try:
        for _ in range(_WARM_UP):
            fleet.burst()
        for _ in range(bursts):
            with broker.counting(found, case.devices):
                fleet.burst()
    finally:
        fleet.close()
    return found


class _Fleet:
    """The connections of a case."""

    def __init__(self, broker: Broker, case: Case) -> None:
        self._broker = broker
        self._case = case
        to = link_to(f"127.0.0.1:{broker.port}")
        payload = payload_of(_PAYLOAD_BYTES)
        topics = [f"{case.topics}/{number:04d}/up" for number in range(case.devices)]
        self._subscribers: list[socket.socket] = []
        for number in range(case.subs):
            link = connect(to, f"counted-sub{number}")
            topic_filter = f"{case.topics}/#" if case.subs == 1 else topics[number]
            subscribe(link, topic_filter, case.subqos)
            self._subscribers.append(link)
        self._devices = [connect(to, f"counted-dev{number}") for number in range(case.devices)]
        self._packets = [publish(topic, payload, case.qos) for topic in topics]
        self._id_at = len(self._packets[0]) - len(payload) - 2
        self._packet_id = 0
        self._acknowledges = min(case.qos, case.subqos) > 0
        self._delivered_bytes = len(publish(topics[0], payload, int(self._acknowledges)))
        self._rest = {link.fileno(): b"" for link in self._subscribers}
        self._poll = select.poll()
        for link in (*self._subscribers, *(self._devices if case.qos else ())):
            self._poll.register(link, select.POLLIN)
        self._links = {link.fileno(): link for link in (*self._subscribers, *self._devices)}

    def burst(self) -> None:
        """A message of each device, and all that comes of them."""
        case, at = self._case, self._id_at
        self._packet_id += 1
        with self._stopped():
            for link, packet in zip(self._devices, self._packets, strict=True):
                if case.qos:
                    packet = packet[:at] + PACKET_ID_BYTES[self._packet_id] + packet[at + 2 :]
                link.sendall(packet)
        missing = {link.fileno(): len(_PUBACK) + 2 for link in self._devices if case.qos}
        share = case.devices // case.subs * self._delivered_bytes
        missing |= {link.fileno(): share for link in self._subscribers}
        while missing:
            ready = self._poll.poll(_PATIENCE_S * 1000)
            if not ready:
                raise SystemExit(f"{case.name}: not all was delivered and acknowledged")
            for fd, _ in ready:
                data = self._links[fd].recv(1 << 20)
                if not data:
                    raise SystemExit(f"{case.name}: the broker closed a connection")
                if self._acknowledges and fd in self._rest:
                    self._acknowledge(fd, self._rest[fd] + data)
                missing[fd] -= len(data)
                if not missing[fd]:
                    del missing[fd]

    def close(self) -> None:
        """Disconnect all."""
        for link in self._links.values():
            link.close()

    def _acknowledge(self, fd: int, data: bytes) -> None:
        size, at = self._delivered_bytes, self._id_at
        whole = len(data) // size * size
        self._rest[fd] = data[whole:]
        acks = [_PUBACK + data[first + at : first + at + 2] for first in range(0, whole, size)]
        self._links[fd].sendall(b"".join(acks))

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        os.kill(self._broker.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._broker.pid, signal.SIGCONT)


if __name__ == "__main__":
    sys.exit(main())
