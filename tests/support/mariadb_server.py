"""A real MariaDB for tests, with a data directory of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from tests.support.processes import ServerProcess, free_port

PASSWORD = "correct horse battery"


class MariaDb:
    """Takes the user ``sluice`` by password on 127.0.0.1, database ``sluice``. It does not run as root: then its files
    belong to the user ``nobody``. Committed rows survive a kill."""

    def __init__(self) -> None:
        self.port = free_port()
        self._user = "nobody" if os.geteuid() == 0 else None
        self._directory = Path(tempfile.mkdtemp(prefix="sluice-mariadb-"))
        self._socket = self._directory / "mariadb.sock"
        data = self._directory / "data"
        if self._user:
            owner = pwd.getpwnam(self._user)
            os.chown(self._directory, owner.pw_uid, owner.pw_gid)
        installed = subprocess.run(
            [
                _program("mariadb-install-db"),
                "--no-defaults",
                f"--datadir={data}",
                "--auth-root-authentication-method=normal",
            ]
            + ([f"--user={self._user}"] if self._user else []),
            capture_output=True,
            text=True,
            check=False,
        )
        assert installed.returncode == 0, installed.stdout + installed.stderr
        options = [
            f"--datadir={data}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            f"--socket={self._socket}",
            "--innodb-flush-log-at-trx-commit=1",
            "--skip-name-resolve",
        ]
        command = [_program("mariadbd"), "--no-defaults", *options]
        self.process = ServerProcess(command, self._directory, self._is_ready, user=self._user)

    def sql(self, statement: str, database: str = "sluice") -> str:
        """Output of a statement, rows in lines, columns with tabs."""
        command = [
            _program("mariadb"),
            "--no-defaults",
            "-N",
            f"--socket={self._socket}",
            "-uroot",
            database,
        ]
        done = subprocess.run(
            [*command, "-e", statement], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.rstrip("\n")

    def __enter__(self) -> Self:
        self.process.start()
        self.sql("CREATE DATABASE sluice", "mysql")
        self.sql(
            f"CREATE USER sluice@'%' IDENTIFIED BY '{PASSWORD}'; GRANT ALL ON sluice.* TO sluice@'%'",
            "mysql",
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _is_ready(self) -> bool:
        command = [
            _program("mariadb-admin"),
            "--no-defaults",
            f"--socket={self._socket}",
            "-uroot",
            "ping",
        ]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _program(name: str) -> str:
    """Path of a program of MariaDB; Debian keeps the server off the path."""
    place = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    assert place, f"the tests need {name}; on Debian or Ubuntu: sudo apt-get install mariadb-server"
    return place
