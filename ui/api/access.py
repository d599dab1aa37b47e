"""Who may: users, bans, and what would be decided over a client. Access rules are objects (``ui.api.objects``)."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from broker.core.errors import Invalid, NotFound, Problem
from ui.api.context import Access
from ui.api.models.access import AccessCheck, BanSpec, UserImport, UserSpec
from ui.api.models.shapes import Anything, Object, ObjectList
from ui.api.objects import Cursor, Limit, page_of
from ui.api.operation import described
from ui.api.wire import answer, read_object

UserName = Annotated[str, Path(description="The user's name; `/` and other signs are percent-encoded.")]
_TAGS: list[Any] = ["Access"]


def add_access(router: APIRouter, access: Access) -> None:
    """Add ``/users``, ``/bans`` and ``/access:check``."""
    _add_users(router, access)
    _add_one_user(router, access)
    _add_bans(router, access)

    @router.post(
        "/access:check",
        operation_id="checkAccess",
        tags=_TAGS,
        summary="Check what a client may do",
        **described(body=AccessCheck, answer=Anything),
    )
    async def check_access(request: Request) -> Response:
        """Explains whether a client may connect, publish or subscribe, and which authenticator or rule decides. Nothing
        is stored.
        """
        return answer(await access.check(await read_object(request)))


def _add_users(router: APIRouter, access: Access) -> None:
    users = access.users

    @router.get(
        "/users",
        operation_id="listUsers",
        tags=_TAGS,
        summary="List users",
        **described(answer=ObjectList, problems=(422,)),
    )
    async def list_users(limit: Limit = 100, cursor: Cursor = None) -> Response:
        """Returns users by name, without their passwords."""
        return answer(page_of(users.list(), limit, cursor))

    @router.post(
        "/users",
        operation_id="createUser",
        tags=_TAGS,
        summary="Create a user",
        **described(body=UserSpec, answer=Object, status=201, problems=(409,)),
    )
    async def create_user(request: Request) -> Response:
        """Without a password one is generated; it is in this answer only."""
        return _unkept(answer(await users.create(await read_object(request)), 201))

    @router.post(
        "/users:import",
        operation_id="importUsers",
        tags=_TAGS,
        summary="Import users",
        **described(body=UserImport, answer=Anything),
    )
    async def import_users(request: Request) -> Response:
        """Creates or replaces users from hashes of their passwords. Either all are saved, or none."""
        return answer(await access.import_users(await read_object(request)))


def _add_one_user(router: APIRouter, access: Access) -> None:
    users, path = access.users, "/users/{name:path}"

    @router.post(
        f"{path}:rotate",
        operation_id="rotateUserPassword",
        tags=_TAGS,
        summary="Generate a new password for a user",
        **described(answer=Object, problems=(404, 409, 422)),
    )
    async def rotate(name: UserName) -> Response:
        """Generates a new password, which is in this answer only. The old one no longer works."""
        return _unkept(answer(await users.rotate(name)))

    @router.get(
        path,
        operation_id="getUser",
        tags=_TAGS,
        summary="Show a user",
        **described(answer=Object, problems=(404, 422)),
    )
    async def get_user(name: UserName) -> Response:
        """Returns the user without the password."""
        return answer(users.get(name))

    @router.put(
        path,
        operation_id="putUser",
        tags=_TAGS,
        summary="Create or replace a user",
        **described(body=UserSpec, answer=Object, problems=(409,), also_creates=True),
    )
    async def put_user(name: UserName, request: Request) -> Response:
        """Creates the user or replaces it. An existing user keeps its password unless a new one is sent."""
        spec = await read_object(request)
        if spec.get("name", name) != name:
            raise Invalid("the name in the body is another", [Problem(f"in the path it is {name!r}", "/name")])
        if _is_there(access, name):
            return answer(await users.replace(name, spec))
        return _unkept(answer(await users.create({**spec, "name": name}), 201))

    @router.delete(
        path,
        operation_id="deleteUser",
        tags=_TAGS,
        summary="Delete a user",
        **described(status=204, problems=(404, 409, 422)),
    )
    async def delete_user(name: UserName) -> Response:
        """Deletes the user and disconnects its clients."""
        users.delete(name)
        return Response(status_code=204)


def _add_bans(router: APIRouter, access: Access) -> None:
    bans = access.bans

    @router.get(
        "/bans",
        operation_id="listBans",
        tags=_TAGS,
        summary="List bans",
        **described(answer=ObjectList, problems=(422,)),
    )
    async def list_bans(limit: Limit = 100, cursor: Cursor = None) -> Response:
        """Returns bans in force, newest first."""
        return answer(page_of([{"name": f"{ban['as']}/{ban['who']}", **ban} for ban in bans.list()], limit, cursor))

    @router.post(
        "/bans",
        operation_id="createBan",
        tags=_TAGS,
        summary="Ban clients",
        **described(body=BanSpec, answer=Anything, status=201),
    )
    async def create_ban(request: Request) -> Response:
        """Refuses clients by identifier, user name, address or pattern, and disconnects those that are connected."""
        return answer(await access.ban(await read_object(request)), 201)

    @router.delete(
        "/bans/{kind}/{who:path}",
        operation_id="deleteBan",
        tags=_TAGS,
        summary="Lift a ban",
        **described(status=204, problems=(404, 422)),
    )
    async def delete_ban(kind: str, who: str) -> Response:
        """Clients that it matched may connect again."""
        await access.unban(kind, who)
        return Response(status_code=204)


def _is_there(access: Access, name: str) -> bool:
    try:
        access.users.get(name)
    except NotFound:
        return False
    return True


def _unkept(response: Response) -> Response:
    """An answer with a password in it, which no cache may keep."""
    response.headers["Cache-Control"] = "no-store"
    return response
