"""Networks of tests come and go without a word to browsers that other tests run on this machine."""

from __future__ import annotations

import subprocess

import httpx
import pytest

from tests.support.network import OUTSIDE, have_outside, hosts
from tests.support.processes import ServerProcess, is_open


def _addresses() -> set[str]:
    shown = subprocess.run(["ip", "-o", "address"], capture_output=True, text=True, check=True)
    return {" ".join(line.split()[1:4]) for line in shown.stdout.splitlines()}


def test_a_network_has_no_address_of_this_machine_for_itself(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A browser ends all that it loads when an address of its machine comes or goes."""
    have_outside()
    before = _addresses()
    with hosts(2) as [first, second]:
        [host] = first.addresses
        command = first.command(["python3", "-m", "http.server", "--bind", host, "8000"])
        server = ServerProcess(
            command, tmp_path_factory.mktemp("http"), lambda: is_open(8000, host)
        )
        server.start()
        try:
            assert _addresses() == before
            assert httpx.get(f"http://{host}:8000/", trust_env=False).status_code == 200
            ping = [
                "python3",
                "-c",
                f"import socket; socket.create_connection(('{host}', 8000), 9)",
            ]
            subprocess.run(second.command(ping), check=True)
            assert first.outside == OUTSIDE
        finally:
            server.stop()
    assert _addresses() == before
