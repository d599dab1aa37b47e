"""A network of its own for servers of a test, in which packets vanish: nobody refuses, and nobody answers."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class Network:
    """A namespace with ``addresses``; processes in it are reached there from outside, and reach each other. What
    they reach outside is at ``outside``."""

    def __init__(self, name: str, outside: str, addresses: Sequence[str]) -> None:
        self.outside, self.addresses = outside, list(addresses)
        self._name = name
        self._lost: list[str] = []

    def command(self, command: Sequence[str]) -> list[str]:
        """The command line that runs ``command`` in it."""
        return ["ip", "netns", "exec", self._name, *command]

    def part(self, *addresses: str) -> None:
        """Let what these send to the outside vanish, by default what any sends."""
        for address in addresses or self.addresses:
            self._rule("add", address)
            self._lost.append(address)

    def heal(self) -> None:
        """Let everything through again."""
        while self._lost:
            self._rule("del", self._lost.pop())

    def _rule(self, verb: str, address: str) -> None:
        # among themselves the addresses are local, which is looked up before any rule
        _run(*self.command(["ip", "rule", verb, "from", address, "blackhole"]))


@contextmanager
def network(addresses: int) -> Iterator[Network]:
    """Make one with so many addresses, at most five, which needs the right to; it is gone at the end."""
    number = random.randrange(1 << 16)
    name, outer, inner = f"sluice-{number:04x}", f"slo{number:04x}", f"sli{number:04x}"
    prefix = f"10.{number >> 8}.{number & 255}"
    made = Network(name, f"{prefix}.1", [f"{prefix}.{last}" for last in range(2, 2 + addresses)])
    _run("ip", "netns", "add", name)
    try:
        _run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", name)
        _run("ip", "address", "add", f"{prefix}.1/29", "dev", outer)
        _run("ip", "link", "set", outer, "up")
        for address in made.addresses:
            _run(*made.command(["ip", "address", "add", f"{address}/29", "dev", inner]))
        for device in ("lo", inner):
            _run(*made.command(["ip", "link", "set", device, "up"]))
        yield made
    finally:
        _run("ip", "netns", "delete", name)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}; run this as root, with iproute2"
