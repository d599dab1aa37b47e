"""A real PostgreSQL for tests, with a cluster of its own in a directory."""

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


class Postgres:
    """Takes the user ``sluice`` by password (SCRAM-SHA-256) on 127.0.0.1, database ``sluice``.

    PostgreSQL does not run as root: then the cluster belongs to the user ``nobody``, in a directory of the system's
    temporary one, since that user may not see the tests' own.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self._user = "nobody" if os.geteuid() == 0 else None
        self._directory = Path(tempfile.mkdtemp(prefix="sluice-postgres-"))
        self._bin = _directory_of_programs()
        data = self._directory / "data"
        password = self._directory / "password"
        password.write_text(PASSWORD)
        if self._user:
            owner = pwd.getpwnam(self._user)
            for path in (self._directory, password):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        self._run(
            "initdb",
            "-D",
            str(data),
            "-U",
            "sluice",
            "-A",
            "scram-sha-256",
            f"--pwfile={password}",
            "-N",
        )
        options = (
            f"-c port={self.port}",
            "-c listen_addresses=127.0.0.1",
            f"-c unix_socket_directories={data}",
        )
        command = [
            self._bin / "postgres",
            "-D",
            data,
            *(part for option in options for part in option.split()),
        ]
        self.process = ServerProcess(
            [str(part) for part in command], self._directory, self._is_ready, user=self._user
        )

    @property
    def url(self) -> str:
        """How clients reach it, with the password."""
        return f"postgresql://sluice:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{self.port}/sluice"

    def psql(self, statement: str) -> str:
        """What a statement answers, a row a line, columns apart by ``|``."""
        command = [
            str(self._bin / "psql"),
            "-XAtq",
            "-v",
            "ON_ERROR_STOP=1",
            self.url,
            "-c",
            statement,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.rstrip("\n")

    def start(self) -> None:
        """Start it; the first time the database is made."""
        self.process.start()
        created = self._directory / "created"
        if not created.exists():
            url = self.url.rsplit("/", 1)[0] + "/postgres"
            command = [str(self._bin / "psql"), "-XAtq", url, "-c", "CREATE DATABASE sluice"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            created.touch()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _is_ready(self) -> bool:
        asking = (str(self._bin / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port))
        return subprocess.run(asking, check=False).returncode == 0

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._bin / program), *arguments],
            cwd=self._directory,
            capture_output=True,
            text=True,
            user=self._user,
            check=False,
        )
        assert done.returncode == 0, f"{program}: {done.stdout}{done.stderr}"


def _directory_of_programs() -> Path:
    """Where ``postgres`` and ``initdb`` are; Debian keeps them off the path."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    program = str(found[-1]) if found else shutil.which("postgres")
    assert program, (
        "the tests need PostgreSQL; on Debian or Ubuntu: sudo apt-get install postgresql"
    )
    return Path(program).resolve().parent
