"""A database, directory or service that is killed and started while 1,000 new clients connect each second: those that
are connected stay, every connect is answered, the broker needs less than one processor, and memory does not grow."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.connect_storm import ConnectStorm, Phase
from tests.support.login_services import SERVICES
from tests.support.node import Node, eventually, running
from tests.support.processes import ServerProcess
from tests.support.raw import RawClient, connect, text

ALLOWED, UNAVAILABLE = "0", "3"
"""Return codes of MQTT 3.1.1."""
RATE = 1000
BEFORE = 10_000
"""Connects after which the bounded time lines of clients are full."""
CONNECTS = 3000
"""Connects of each other phase."""
MOST_GROWTH_BYTES = 16 * 1024 * 1024
"""Growth of the broker from the end of the first outage to that of the second, some 10,000 connects."""


class Broker:
    """A broker under the storm, with its processor time in each phase."""

    def __init__(self, node: Node, storm: ConnectStorm) -> None:
        self._node = node
        self._storm = storm
        self._process = psutil.Process(node.pid)

    def phase(self, name: str, connects: int = CONNECTS) -> Phase:
        """Wait for the answers to so many connects; they must fit in one processor."""
        used_s = self._used_s()
        phase = self._storm.phase(name, connects)
        cost_s = (self._used_s() - used_s) / phase.ended
        print(f"{cost_s * 1e6:.0f} us a connect; {phase}")
        assert cost_s * RATE < 1, f"{cost_s * 1e6:.0f} us a connect in {phase}"
        return phase

    def resident_bytes(self) -> int:
        """Its memory."""
        return int(self._process.memory_info().rss)

    def is_running(self) -> None:
        """Wait until the service is running for the broker."""
        began_s = time.monotonic()
        eventually(lambda: _backend(self._node)["status"] == "running", every_s=0.02)
        print(f"running {time.monotonic() - began_s:.2f} s after its start")

    def _used_s(self) -> float:
        used = self._process.cpu_times()
        return float(used.user + used.system)


@pytest.mark.heavy
@pytest.mark.timeout(300)
@pytest.mark.parametrize("service", SERVICES)
def test_an_outage_under_connects(service: str, tmp_path: Path) -> None:
    with SERVICES[service]() as (settings, process):
        config = (
            f"authentication = [ {{ {settings}, timeout = 10s }} ]\n"
            "login_limits.enable = false\noverload.enable = false\n"
        )
        with running(tmp_path / "node", config=config) as node:
            asyncio.run(_stays_connected(node, process))


async def _stays_connected(node: Node, process: ServerProcess) -> None:
    """Two outages, while one client is connected."""
    login = connect(4, "stays", flags=0xC0, rest=text("user0") + text("pencil"))
    stays = await RawClient.connected(node.mqtt[1], login)
    await asyncio.to_thread(_outages, node, process)
    await stays.silence()
    stays.close()


def _outages(node: Node, process: ServerProcess) -> None:
    sizes = []
    with ConnectStorm(node.mqtt[1], RATE) as storm:
        broker = Broker(node, storm)
        storm.phase("warm", 500)
        assert set(broker.phase("before", BEFORE).codes) == {ALLOWED}
        for outage in ("first", "second"):
            storm.phase(f"during the kill, {outage}")
            process.kill()
            away = broker.phase(f"away, {outage}")
            assert set(away.codes) == {UNAVAILABLE}
            storm.phase(f"during the start, {outage}")
            process.start()
            broker.is_running()
            assert set(broker.phase(f"back, {outage}").codes) == {ALLOWED}
            sizes.append(broker.resident_bytes())
        outcomes = set().union(*(phase.codes for phase in storm.stop().values()))
    assert outcomes == {ALLOWED, UNAVAILABLE}
    growth_bytes = sizes[1] - sizes[0]
    print(f"growth {growth_bytes / 1e6:.1f} MB")
    assert growth_bytes < MOST_GROWTH_BYTES


def _backend(node: Node) -> Any:
    """State of the service, as the API shows it."""
    [authenticator] = node.call("GET", "/authentication")["items"]
    return authenticator["state"]["backend"]
