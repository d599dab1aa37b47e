"""Azure's blobs for tests: Azurite, Microsoft's emulator, from npm."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Self

import pyarrow.fs as fs

from tests.support.npm import modules
from tests.support.processes import ServerProcess, free_port, is_open

ACCOUNT: Final = "devstoreaccount1"
KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""The emulator's own, which everyone knows."""


class AzureServer:
    """A store on loopback; what it holds goes with it."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self._process = ServerProcess(
            (
                *(
                    "node",
                    str(modules("azurite", "3.37.0") / "azurite/dist/src/blob/main.js"),
                    "--silent",
                ),
                *("--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"),
                *("--blobHost", "127.0.0.1", "--blobPort", str(self.port)),
            ),
            directory,
            lambda: is_open(self.port),
        )

    @property
    def files(self) -> fs.AzureFileSystem:
        """What tests look with."""
        where = {f"{api}_storage_authority": f"127.0.0.1:{self.port}" for api in ("blob", "dfs")}
        return fs.AzureFileSystem(
            ACCOUNT, account_key=KEY, blob_storage_scheme="http", dfs_storage_scheme="http", **where
        )

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()
