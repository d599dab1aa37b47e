"""The type ``http``, certified on a service that asks for a password."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.http_service import Received, Reply, Service

Row = dict[str, Any]


class CertifiedHttp:
    """Rows are posted to ``/rows``; ``/health`` is the check, and both ask for a user's password."""

    type = "http"
    secret = "wonder:land"
    has_targets = asks_for_target = True

    def __init__(self, directory: Path) -> None:
        self._service = Service(self._answer)

    def kinds(self) -> Sequence[Any]:
        return ()

    async def up(self) -> None:
        await self._service.up()

    async def down(self) -> None:
        await self._service.down()

    async def close(self) -> None:
        await self._service.down()

    def connector(self) -> Row:
        return self._login(self.secret)

    def bad_credentials(self) -> Row:
        return self._login("wrong password")

    def parameters(self) -> Row:
        return {"path": "/rows", "key": "${key}", "check_method": "head"}

    def missing_target(self) -> Row:
        return {**self.parameters(), "path": "/not-there"}

    async def arrived(self) -> list[tuple[str, int]]:
        rows = [request.json() for request in self._service.taken if request.method == "POST"]
        return [(row["key"], row["n"]) for row in rows]

    def _login(self, password: str) -> Row:
        authentication = {"mechanism": "basic", "username": "alice", "password": password}
        return {
            "url": self._service.url,
            "authentication": authentication,
            "health_check_path": "/health",
        }

    def _answer(self, request: Received) -> Reply:
        if (
            request.header("authorization")
            != f"Basic {b64encode(f'alice:{self.secret}'.encode()).decode()}"
        ):
            return Reply(401, b"who are you?")
        return Reply() if request.path in ("/rows", "/health") else Reply(404)
