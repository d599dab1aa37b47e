"""A real Redis for tests."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from tests.support.processes import ServerProcess, free_port

PASSWORD = "correct-horse-battery"


class RedisServer:
    """Takes the default user by password on 127.0.0.1; its data is saved when it stops."""

    def __init__(self) -> None:
        self.port = free_port()
        self._directory = Path(tempfile.mkdtemp(prefix="sluice-redis-"))
        program = shutil.which("redis-server")
        assert program, (
            "the tests need redis-server; on Debian or Ubuntu: sudo apt-get install redis-server"
        )
        options = [
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--requirepass",
            PASSWORD,
            "--appendonly",
            "yes",
        ]
        command = [program, *options, "--dir", str(self._directory)]
        self.process = ServerProcess(command, self._directory, self._is_ready)

    def cli(self, *words: str) -> str:
        """Output of a command."""
        command = ["redis-cli", "-p", str(self.port), "-a", PASSWORD, "--no-auth-warning", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.rstrip("\n")

    def __enter__(self) -> Self:
        self.process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _is_ready(self) -> bool:
        with socket.socket() as asking:
            asking.settimeout(1)
            return asking.connect_ex(("127.0.0.1", self.port)) == 0
