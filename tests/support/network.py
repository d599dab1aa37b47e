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
        self.name, self.outside, self.addresses = name, outside, list(addresses)
        self._lost: list[str] = []

    def command(self, command: Sequence[str]) -> list[str]:
        """The command line that runs ``command`` in it."""
        return ["ip", "netns", "exec", self.name, *command]

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
    """One with so many addresses, which needs the right to make it; it is gone at the end."""
    with hosts(1, addresses) as [made]:
        yield made


@contextmanager
def hosts(count: int, addresses: int = 1) -> Iterator[list[Network]]:
    """So many that reach each other, with so many addresses each."""
    number = random.randrange(1 << 16)
    bridge, prefix = f"slb{number:04x}", f"10.{number >> 8}.{number & 255}"
    _run("ip", "link", "add", bridge, "type", "bridge")
    made: list[Network] = []
    try:
        _run("ip", "address", "add", f"{prefix}.1/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        for place in range(count):
            name, outer, inner = (
                f"{start}{number:04x}{place}" for start in ("sluice-", "slo", "sli")
            )
            first = 2 + place * addresses
            _run("ip", "netns", "add", name)
            made.append(
                Network(
                    name,
                    f"{prefix}.1",
                    [f"{prefix}.{last}" for last in range(first, first + addresses)],
                )
            )
            _run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", name)
            _run("ip", "link", "set", outer, "master", bridge, "up")
            for address in made[-1].addresses:
                _run(*made[-1].command(["ip", "address", "add", f"{address}/24", "dev", inner]))
            for device in ("lo", inner):
                _run(*made[-1].command(["ip", "link", "set", device, "up"]))
        yield made
    finally:
        for one in made:
            _run("ip", "netns", "delete", one.name)
        _run("ip", "link", "delete", bridge)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (
        f"{' '.join(command)}: {done.stderr.strip()}; run this as root, with iproute2"
    )
