"""Nobody but the broker's user reads what the broker keeps, whichever of its processes wrote it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISLNK

from tests.end_to_end.clients import publish
from tests.support.node import eventually, running


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def _open_to_others(directory: Path) -> list[str]:
    found = []
    for file in (directory, *directory.rglob("*")):
        with suppress(FileNotFoundError):  # Spark's scratch files come and go
            mode = file.lstat().st_mode
            if not S_ISLNK(mode) and mode & 0o077:
                found.append(f"{file} {mode & 0o777:o}")
    return found


def test_the_data_directory_is_closed_to_others(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with umask(0o022), running(directory, environ={"SLUICE_API_TOKEN": ""}) as node:
        token = (directory / "api.token").read_text().strip()
        with node.client(params=None) as client:
            client.headers["Authorization"] = f"Bearer {token}"
            for path, body in (
                ("/streams", {"name": "kept"}),
                ("/rules", {"name": "keep", "sql": 'SELECT payload.n AS n FROM "kept/#"',
                            "actions": [{"type": "stream", "stream": "kept"}]}),
                ("/lake/tables", {"name": "kept", "stream": "kept", "format": "delta"}),
            ):  # fmt: skip
                assert client.post(path, json=body).status_code == 201
            publish(node, "kept/a", '{"n": 1}', "-q", "1", "-r")

            def rows() -> list[object]:
                found: list[object] = client.get("/lake/tables/kept/preview").json()["rows"]
                assert found, client.get("/lake/tables/kept").text
                return found

            eventually(rows, timeout_s=180, what="a row in the table")
        assert (directory / "lake").is_dir()
        assert _open_to_others(directory) == []
