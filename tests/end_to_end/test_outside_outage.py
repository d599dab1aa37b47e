"""A database, directory or service that is killed and started while 1,000 new clients connect each second: those that
are connected stay, every connect is answered, the broker needs less than one processor, and memory does not grow."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import jwt
import psutil
import pytest

from tests.support.connect_storm import ConnectStorm, Phase
from tests.support.login_services import SERVICES
from tests.support.node import Node, eventually, running
from tests.support.processes import ServerProcess, free_port, is_open
from tests.support.raw import RawClient, connect, text
from tests.support.tokens import jwk, private_key

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


@pytest.mark.heavy
@pytest.mark.timeout(300)
def test_an_outage_of_the_issuer_of_tokens_under_connects(tmp_path: Path) -> None:
    """Its last keys are used while it is away, so every connect with a token is allowed throughout."""
    port = free_port()
    (tmp_path / "issuer").mkdir()
    (tmp_path / "issuer" / "keys.json").write_text(json.dumps({"keys": [jwk("one")]}))
    settings = f'mechanism = jwt, jwks_url = "http://127.0.0.1:{port}/keys.json", allow_http = true'
    config = (
        f"authentication = [ {{ {settings}, refresh_interval = 10s }} ]\n"
        "login_limits.enable = false\noverload.enable = false\n"
    )
    token = jwt.encode(
        {"exp": time.time() + 3600}, private_key("ES256", "one"), "ES256", {"kid": "one"}
    )
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    with (
        ServerProcess(command, tmp_path / "issuer", lambda: is_open(port)) as issuer,
        running(tmp_path / "node", config=config) as node,
        ConnectStorm(node.mqtt[1], RATE, password=token) as storm,
    ):
        broker = Broker(node, storm)
        storm.phase("warm", 500)
        sizes = []
        for outage in ("first", "second"):
            broker.phase(f"before, {outage}")
            issuer.kill()
            eventually(lambda: _keys(node)["status"] == "disconnected")
            broker.phase(f"away, {outage}")
            issuer.start()
            eventually(lambda: _keys(node)["status"] == "connected")
            broker.phase(f"back, {outage}")
            sizes.append(broker.resident_bytes())
        outcomes = set().union(*(phase.codes for phase in storm.stop().values()))
    assert outcomes == {ALLOWED}
    assert sizes[1] - sizes[0] < MOST_GROWTH_BYTES


def _keys(node: Node) -> Any:
    """State of the keys of an issuer, as the API shows it."""
    [authenticator] = node.call("GET", "/authentication")["items"]
    return authenticator["state"]["jwks"]


def _backend(node: Node) -> Any:
    """State of the service, as the API shows it."""
    [authenticator] = node.call("GET", "/authentication")["items"]
    return authenticator["state"]["backend"]
