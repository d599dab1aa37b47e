"""Who may: users, bans, and what would be decided over a client. Access rules are objects (``ui.api.objects``)."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from starlette.responses import Response

from broker.admin.access import AccessCheck, AccessService
from broker.auth.bans import BanSpec
from broker.auth.user_import import UserImport
from broker.auth.users import UserSpec
from broker.core.errors import Invalid, NotFound, Problem
from broker.core.objects import Spec
from ui.api.models.shapes import Anything, Object, ObjectList
from ui.api.objects import Cursor, Limit, page_of
from ui.api.operation import Operations
from ui.api.wire import answer

UserName = Annotated[str, Path(description="The user's name; `/` and other signs are percent-encoded.")]


def add_access(router: APIRouter, access: AccessService) -> None:
    """Add ``/users``, ``/bans`` and ``/access:check``."""
    ops = Operations(router, "Access")
    _add_users(ops, access)
    _add_one_user(ops, access)
    _add_bans(ops, access)

    @ops.post("/access:check", "checkAccess", "Check what a client may do", answer=Anything)
    async def check_access(body: AccessCheck) -> Any:
        """Explains whether a client may connect, publish or subscribe, and which authenticator or rule decides. Nothing
        is stored.
        """
        return await access.check(body)


def _add_users(ops: Operations, access: AccessService) -> None:
    users = access.users

    @ops.get("/users", "listUsers", "List users", answer=ObjectList, problems=(422,))
    def list_users(limit: Limit = 100, cursor: Cursor = None) -> Any:
        """Returns users by name, without their passwords."""
        return page_of(users.list(), limit, cursor)

    @ops.post("/users", "createUser", "Create a user", body=UserSpec, answer=Object, status=201, problems=(409,))
    async def create_user(body: Spec) -> Any:
        """Without a password one is generated; it is in this answer only."""
        return _unkept(answer(await users.create(body), 201))

    @ops.post("/users:import", "importUsers", "Import users", answer=Anything)
    async def import_users(body: UserImport) -> Any:
        """Creates or replaces users from hashes of their passwords. Either all are saved, or none."""
        return await access.import_users(body)


def _add_one_user(ops: Operations, access: AccessService) -> None:
    users, path = access.users, "/users/{name:path}"

    @ops.post(
        f"{path}:rotate",
        "rotateUserPassword",
        "Generate a new password for a user",
        answer=Object,
        problems=(404, 409, 422),
    )
    async def rotate(name: UserName) -> Any:
        """Generates a new password, which is in this answer only. The old one no longer works."""
        return _unkept(answer(await users.rotate(name)))

    @ops.get(path, "getUser", "Show a user", answer=Object, problems=(404, 422))
    def get_user(name: UserName) -> Any:
        """Returns the user without the password."""
        return users.get(name)

    @ops.put(
        path, "putUser", "Create or replace a user", body=UserSpec, answer=Object, problems=(409,), also_creates=True
    )
    async def put_user(name: UserName, body: Spec) -> Any:
        """Creates the user or replaces it. An existing user keeps its password unless a new one is sent."""
        if body.get("name", name) != name:
            raise Invalid("the name in the body is another", [Problem(f"in the path it is {name!r}", "/name")])
        if _is_there(access, name):
            return await users.replace(name, body)
        return _unkept(answer(await users.create({**body, "name": name}), 201))

    @ops.delete(path, "deleteUser", "Delete a user", problems=(404, 409, 422))
    def delete_user(name: UserName) -> Any:
        """Deletes the user and disconnects its clients."""
        users.delete(name)


def _add_bans(ops: Operations, access: AccessService) -> None:
    bans = access.bans

    @ops.get("/bans", "listBans", "List bans", answer=ObjectList, problems=(422,))
    def list_bans(limit: Limit = 100, cursor: Cursor = None) -> Any:
        """Returns bans in force, newest first."""
        return page_of([{"name": f"{ban['as']}/{ban['who']}", **ban} for ban in bans.list()], limit, cursor)

    @ops.post("/bans", "createBan", "Ban clients", body=BanSpec, answer=Anything, status=201)
    async def create_ban(body: Spec) -> Any:
        """Refuses clients by identifier, user name, address or pattern, and disconnects those that are connected."""
        return await access.ban(body)

    @ops.delete("/bans/{kind}/{who:path}", "deleteBan", "Lift a ban", problems=(404, 422))
    async def delete_ban(kind: str, who: str) -> Any:
        """Clients that it matched may connect again."""
        await access.unban(kind, who)


def _is_there(access: AccessService, name: str) -> bool:
    try:
        access.users.get(name)
    except NotFound:
        return False
    return True


def _unkept(response: Response) -> Response:
    """An answer with a password in it, which no cache may keep."""
    response.headers["Cache-Control"] = "no-store"
    return response
