"""``/backup``: a file with all that a node has saved."""

from __future__ import annotations

import asyncio
from itertools import chain

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import StreamingResponse

from broker.admin.backups import Backups
from ui.api.models.shapes import Body
from ui.api.operation import Operations

_ZIP = "application/zip"


class BackupRequest(Body):
    """Contents of a backup."""

    key: str | None = Field(
        default=None,
        min_length=12,
        max_length=1024,
        description="A passphrase that encrypts the backup. Without it, secrets are left out.",
        json_schema_extra={"format": "password"},
    )
    messages: bool = Field(
        default=False,
        description="Whether records of streams, and messages in queues and sessions, are in it.",
    )


def add_backups(router: APIRouter, backups: Backups) -> None:
    """Add ``/backup``."""
    ops = Operations(router, "System", "backup", "none")

    @ops.post(
        "/backup",
        "createBackup",
        "Make a backup of the node",
        answer=bytes,
        media=_ZIP,
        outcome="The backup, a ZIP file",
        does="job",
        at="together",
    )
    async def create(body: BackupRequest) -> StreamingResponse:
        """Streams objects with their versions and test cases, users, accounts, tokens, settings, secrets, bans,
        positions, retained messages, sessions and the audit log, for `sluice restore`.

        With a key all of it is encrypted. Without one, references to named secrets are in place of secrets.
        """
        pieces = backups.make(body.key, body.messages)
        first = await asyncio.to_thread(next, pieces)
        headers = {"Content-Disposition": 'attachment; filename="sluice.backup"'}
        return StreamingResponse(chain((first,), pieces), media_type=_ZIP, headers=headers)
