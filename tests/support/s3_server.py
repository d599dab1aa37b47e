"""An S3 store for tests: moto, in an environment of its own.

The environment is made once, in a cache; ``python -m tests.support.s3_server`` makes it ahead of the tests.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Self

import pyarrow.fs as fs

from tests.support.environments import environment
from tests.support.processes import ServerProcess, free_port, is_open

VERSION = "5.2.5"
KEYS = {"access_key_id": "AKIATEST", "secret_access_key": "not-a-secret"}


def moto() -> Path:
    """The program, installed when it is not there."""
    return environment(f"moto[server]=={VERSION}").with_name("moto_server")


class S3Server:
    """A store on loopback, or on another address of this machine; what it holds goes with it."""

    def __init__(self, directory: Path, host: str = "127.0.0.1") -> None:
        self.port, self._host = free_port(), host
        command = [str(moto()), "-H", host, "-p", str(self.port)]
        self._process = ServerProcess(command, directory, lambda: is_open(self.port, host))

    @property
    def endpoint(self) -> str:
        return f"http://{self._host}:{self.port}"

    @property
    def files(self) -> fs.S3FileSystem:
        """What tests look with."""
        return fs.S3FileSystem(
            access_key=KEYS["access_key_id"],
            secret_key=KEYS["secret_access_key"],
            region="us-east-1",
            endpoint_override=self.endpoint,
            allow_bucket_creation=True,
        )

    def make_bucket(self, name: str) -> None:
        self.files.create_dir(name)

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()


if __name__ == "__main__":
    print(moto(), file=sys.stderr)
