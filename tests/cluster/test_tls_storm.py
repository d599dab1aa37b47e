"""Ten thousand clients of TLS that connect at once to three machines, while their connections of before are open."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any

import psutil
import pytest

from broker.codec.packets import Connect, PubAck, Publish
from broker.core import reason
from tests.support.certificates import Authority
from tests.support.machines import Cluster, Machine, machines
from tests.support.node import Node
from tests.support.tls_fleet import TlsFleet
from tests.support.wire import WireClient

_CLIENTS = int(os.environ.get("SLUICE_STORM_CLIENTS", "10000"))
_SETTINGS = "lake.run_spark = false\noverload.enable = false\n"
_TLS_PORT = 8883
_BETWEEN_PROBES_S = 0.02
_BYTES_A_CLIENT = 100 * 1024
_MIB = 1024 * 1024

pytestmark = pytest.mark.heavy


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _family(node: Node) -> list[psutil.Process]:
    return [psutil.Process(node.pid), *node.children()]


def _spent_s(node: Node) -> float:
    """Processor time of all processes of a machine."""
    times = [process.cpu_times() for process in _family(node)]
    return float(sum(one.user + one.system for one in times))


def _resident(node: Node) -> int:
    return sum(process.memory_info().rss for process in _family(node))


class _Probe:
    """Publishes with QoS 1 the whole time, and notes how long each PUBACK takes."""

    def __init__(self, address: tuple[str, int], client_id: str) -> None:
        self._address, self._client_id = address, client_id
        self.waits_s: list[float] = []

    async def run(self, over: asyncio.Event) -> None:
        reader, writer = await asyncio.open_connection(*self._address)
        client = WireClient(reader, writer, 5)
        client.send(Connect(self._client_id, 5))
        await client.receive()
        while not over.is_set():
            began_s = time.perf_counter()
            client.send(Publish("probe", b"x", 1, packet_id=1))
            await client.expect(PubAck)
            self.waits_s.append(time.perf_counter() - began_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_BETWEEN_PROBES_S):
                    await over.wait()
        await client.close()


def _storm(
    fleet: TlsFleet, nodes: Sequence[Node], probe_id: str
) -> tuple[dict[str, Any], list[float], float]:
    """Have all clients connect: how that went, the processor time of each machine, and the p99 of PUBACKs beside it."""
    probe = _Probe(nodes[0].mqtt, probe_id)

    async def run() -> dict[str, Any]:
        over = asyncio.Event()
        probing = asyncio.create_task(probe.run(over))
        try:
            return await asyncio.to_thread(fleet.connect)
        finally:
            over.set()
            await probing

    before = [_spent_s(node) for node in nodes]
    outcome = asyncio.run(run())
    spent = [_spent_s(node) - earlier for node, earlier in zip(nodes, before, strict=True)]
    p99 = quantiles(probe.waits_s, n=100)[-1]
    print(
        f"{len(nodes)} machines: {outcome['took_s']:.1f} s, slowest {outcome['slowest_s']:.1f} s, processor time "
        f"{', '.join(f'{one:.1f}' for one in spent)} s, PUBACK p99 {p99 * 1e3:.0f} ms; {outcome['counts']}"
    )
    return outcome, spent, p99


def _takeover(fleet: TlsFleet, nodes: Sequence[Node], probe_id: str = "probe") -> float:
    """All clients connect, and then once more; processor time of the machine that had most to do the second time."""
    outcome, _, _ = _storm(fleet, nodes, probe_id)
    assert outcome["counts"]["connack 0"] == _CLIENTS, outcome
    before = sum(map(_resident, nodes))
    outcome, spent, _ = _storm(fleet, nodes, probe_id)
    counts = outcome["counts"]
    assert counts["connack 0"] == counts["session present"] == _CLIENTS, outcome
    assert counts[f"older {reason.SESSION_TAKEN_OVER}"] == _CLIENTS, outcome
    grown = sum(map(_resident, nodes)) - before
    assert grown < _CLIENTS * _BYTES_A_CLIENT, f"{grown / _MIB:.0f} MiB more"
    return max(spent)


def _alone(directory: Path, authority: Authority) -> float:
    """What one broker takes for it."""
    files = authority.sign("alone", {"CN": "alone"}, ["127.0.0.1"])
    config = f"""{_SETTINGS}access.allow_anonymous = true
listeners.ssl.tls {{ bind = "127.0.0.1:0", ssl_options {{ certfile = "{files.cert}", keyfile = "{files.key}" }} }}
"""
    node = Node(directory / "alone", config=config, may_fork=False).start()
    try:
        [port] = [
            int(row["address"].rpartition(":")[2])
            for row in node.call("GET", "/listeners")["items"]
            if row["name"] == "tls"
        ]
        fleet = TlsFleet((), [("127.0.0.1", port)], _CLIENTS, authority.file)
        with contextlib.closing(fleet):
            return _takeover(fleet, [node])
    finally:
        node.stop()


def _refer_to_tls(machine: Machine, cluster: Cluster) -> None:
    """Refer clients of MQTT 5 to the listeners of TLS."""
    for other in cluster.machines.values():
        host, port = other.mqtt
        machine.config = machine.config.replace(
            f'mqtt = "{host}:{port}"', f'mqtt = "{host}:{_TLS_PORT}"'
        )


@pytest.mark.parametrize("redirects", [True, False])
def test_clients_of_tls_take_over_their_sessions_at_once(redirects: bool, tmp_path: Path) -> None:
    settings = f"{_SETTINGS}cluster.redirect = {str(redirects).lower()}\n"
    with machines(
        tmp_path, {"a": 1, "b": 1, "c": 1}, settings, with_nats=True, with_outside=True
    ) as cluster:
        alone = _alone(tmp_path, cluster.authority)
        for machine in cluster.machines.values():
            _refer_to_tls(machine, cluster)
        cluster.start()
        nodes = list(cluster.machines.values())
        addresses = [(machine.network.addresses[0], _TLS_PORT) for machine in nodes]
        fleet = TlsFleet(cluster.outside.command(()), addresses, _CLIENTS, cluster.authority.file)
        with contextlib.closing(fleet):
            most = _takeover(fleet, nodes, cluster.client_of(0, "probe"))
        cluster.stop()
    print(f"a machine of three took {most / alone:.2f} times what one broker takes")
    if redirects:
        assert most < 0.5 * alone
