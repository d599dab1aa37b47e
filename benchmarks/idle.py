"""Idle connections: memory and connect rate of Sluice and, where it is installed, of mosquitto.

Each client subscribes to one topic of its own and then says nothing. Memory is what the broker's process has grown by,
divided by the clients; the system's own memory for sockets is not in it, for either.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))
"""Debian keeps servers off the path of users."""
WANTED_BYTES = 12 * 1024
"""Of memory for each idle connection."""


def main() -> int:
    """Load both in turn; 1 when Sluice takes more memory than is wanted."""
    options = _options()
    count = min(options.count, raise_open_files() // 2 - 200)
    folder = Path(tempfile.mkdtemp(prefix="idle-"))
    try:
        ours = _measured("sluice", count, _sluice(folder))
        if shutil.which("mosquitto", path=_PATH):
            theirs = _measured("mosquitto", count, _mosquitto(folder))
            _tell(
                "memory, Sluice / mosquitto",
                f"{ours['rss_per_conn'] / max(theirs['rss_per_conn'], 1):.1f}",
            )
            ratio = ours["conn_per_s"] / theirs["conn_per_s"]
            _tell(
                "connect rate, Sluice / mosquitto",
                f"{ratio:.2f} (wanted 1, {'ok' if ratio >= 1 else 'MISSED'})",
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return int(ours["rss_per_conn"] > WANTED_BYTES)


def _measured(
    name: str, count: int, started: tuple[subprocess.Popen[bytes], int]
) -> dict[str, Any]:
    process, port = started
    try:
        command = [
            sys.executable, "-m", "benchmarks.load", "connect", "--port", str(port), "--count", str(count),
            "--pid", str(process.pid),
        ]  # fmt: skip
        found: dict[str, Any] = json.loads(
            subprocess.run(command, check=True, capture_output=True, text=True).stdout
        )
    finally:
        process.terminate()
        process.wait(30)
    rates = f"{found['conn_per_s']:,} connects/s, {found['cpu_us_per_conn']:,} µs of processor time each"
    _tell(f"{name}, {count:,} idle", f"{found['rss_per_conn']:,} bytes each, {rates}")
    return found


def _sluice(folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    port = _free_port()
    command = [
        sys.executable, "-m", "broker.cli.main", "serve", "--data-dir", str(folder / "data"),
        "--mqtt", f"127.0.0.1:{port}", "--api", "127.0.0.1:0",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    process.stdout.readline()
    return process, port


def _mosquitto(folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    port = _free_port()
    config = folder / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 1000\n"
    )
    process = subprocess.Popen(
        [shutil.which("mosquitto", path=_PATH) or "mosquitto", "-c", str(config)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except OSError:
            time.sleep(0.05)
    return process, port


def raise_open_files() -> int:
    """File descriptors that a process may have, raised to what the system allows."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return 2 * hard


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _tell(what: str, found: str) -> None:
    print(f"{what:35}: {found}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=10_000, help="connections")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
