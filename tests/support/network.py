"""A network of its own for servers of a test, in which packets vanish: nobody refuses, and nobody answers."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

OUTSIDE: Final = "10.255.255.1"
"""Address of this machine for all networks. One of each network's own would come and go, and a browser ends all that it
loads when an address of its machine does (``ERR_NETWORK_CHANGED``)."""
_NETWORKS: Final = 255 * 256


class Network:
    """A namespace with ``addresses``; processes in it are reached there from outside, and reach each other. What
    they reach outside is at ``outside``."""

    outside = OUTSIDE

    def __init__(self, name: str, device: str, addresses: Sequence[str]) -> None:
        self.name, self.addresses = name, list(addresses)
        self._device = device
        self._lost: list[str] = []

    def command(self, command: Sequence[str]) -> list[str]:
        """The command line that runs ``command`` in it."""
        return ["ip", "netns", "exec", self.name, *command]

    def part(self, *addresses: str) -> None:
        """Let what these send to the outside vanish, by default what any sends."""
        for address in addresses or self.addresses:
            self._lose(f"from {address}")

    def part_from(self, other: Network) -> None:
        """Let what it sends to another one vanish."""
        for address in self.addresses:
            for there in other.addresses:
                self._lose(f"from {address} to {there}")

    def _lose(self, packets: str) -> None:
        self._rule("add", packets)
        self._lost.append(packets)

    def heal(self) -> None:
        """Let everything through again."""
        while self._lost:
            self._rule("del", self._lost.pop())

    def slow(self, rate: str, latency_ms: int, loss: float) -> None:
        """Send to the outside no faster than ``rate``, such as ``1mbit``: packets wait in a queue for up to
        ``latency_ms``, then vanish, as that share of all do. The kernel may lack ``netem``, so these are ``tbf`` and a
        filter that draws a random number."""
        self._tc("qdisc add", f"root tbf rate {rate} burst 4kb latency {latency_ms}ms")
        self._tc("qdisc add", "clsact")
        self._tc("filter add", "egress bpf da bytecode", _dropping(loss))

    def quicken(self) -> None:
        """End what ``slow`` did."""
        for place in ("root", "clsact"):
            self._tc("qdisc del", place)

    def _tc(self, what: str, how: str, *last: str) -> None:
        _run(*self.command(["tc", *what.split(), "dev", self._device, *how.split(), *last]))

    def _rule(self, verb: str, packets: str) -> None:
        # among themselves the addresses are local, which is looked up before any rule
        _run(*self.command(["ip", "rule", verb, *packets.split(), "blackhole"]))


@contextmanager
def network(addresses: int) -> Iterator[Network]:
    """One with so many addresses, which needs the right to make it; it is gone at the end."""
    with hosts(1, addresses) as [made]:
        yield made


def have_outside() -> None:
    """Have this machine's address for networks, which stays. Before a run, so that it does not come beside browsers."""
    subprocess.run(
        ["ip", "address", "add", f"{OUTSIDE}/32", "dev", "lo"], capture_output=True, check=False
    )


@contextmanager
def hosts(count: int, addresses: int = 1) -> Iterator[list[Network]]:
    """So many that reach each other, with so many addresses each."""
    have_outside()
    number = random.randrange(_NETWORKS)
    bridge, prefix = f"slb{number:04x}", f"10.{number >> 8}.{number & 255}"
    _run("ip", "link", "add", bridge, "type", "bridge")
    made: list[Network] = []
    try:
        _run("ip", "link", "set", bridge, "addrgenmode", "none")
        _run("ip", "link", "set", bridge, "up")
        _run("ip", "route", "add", f"{prefix}.0/24", "dev", bridge, "src", OUTSIDE)
        for place in range(count):
            name, outer, inner = (
                f"{start}{number:04x}{place}" for start in ("sluice-", "slo", "sli")
            )
            first = 2 + place * addresses
            _run("ip", "netns", "add", name)
            made.append(
                Network(
                    name,
                    inner,
                    [f"{prefix}.{last}" for last in range(first, first + addresses)],
                )
            )
            _run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", name)
            _run("ip", "link", "set", outer, "addrgenmode", "none")
            _run("ip", "link", "set", outer, "master", bridge, "up")
            for address in made[-1].addresses:
                _run(*made[-1].command(["ip", "address", "add", f"{address}/24", "dev", inner]))
            for device in ("lo", inner):
                _run(*made[-1].command(["ip", "link", "set", device, "up"]))
            _run(*made[-1].command(["ip", "route", "add", OUTSIDE, "dev", inner]))
        yield made
    finally:
        for one in made:
            _run("ip", "netns", "delete", one.name)
        _run("ip", "link", "delete", bridge)


def _dropping(share: float) -> str:
    """Classic BPF as ``tc`` reads it: drop (2) where a random number is below the share, else let through (0)."""
    return f"4,32 0 0 {(1 << 32) - 0x1000 + 56},53 1 0 {int(share * (1 << 32))},6 0 0 2,6 0 0 0"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (
        f"{' '.join(command)}: {done.stderr.strip()}; run this as root, with iproute2"
    )
