"""Who may: what users have beside the verbs of every kind, and what would be decided about a client."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from broker.admin.access import AccessCheck, AccessService
from broker.auth.user_import import UserImport
from ui.api.models.shapes import Anything
from ui.api.objects import KindRoutes
from ui.api.operation import Operations
from ui.api.parameters import AnyName


def add_users(routes: KindRoutes, access: AccessService) -> None:
    """Add what users have beside the verbs of every kind."""

    @routes.ops.post("/users:import", "importUsers", "Import users", answer=Anything, takes_key=True)
    async def import_users(body: UserImport) -> Any:
        """Creates or replaces users from hashes of their passwords. Either all are saved, or none."""
        return await access.import_users(body)

    @routes.ops.post(
        f"{routes.one}:rotate",
        "rotateUserPassword",
        "Generate a new password for a user",
        answer=routes.kind,
        problems=(404, 409, 412, 422),
    )
    async def rotate(name: AnyName, request: Request) -> Response:
        """Generates a new password, which is in this answer only. The old one no longer works."""
        routes.check(request, name)
        return routes.answered(request, await access.users.rotate(name))


def add_check(router: APIRouter, access: AccessService) -> None:
    """Add ``/access:check``."""

    @Operations(router, "Access").post("/access:check", "checkAccess", "Check what a client may do", answer=Anything)
    async def check_access(body: AccessCheck) -> Any:
        """Explains whether a client may connect, publish or subscribe, and which authenticator or rule decides. Nothing
        is stored.
        """
        return await access.check(body)
