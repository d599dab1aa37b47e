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
        summary="Whether a client would be allowed something, and by what; nothing is stored",
        **described(body=AccessCheck, answer=Anything),
    )
    async def check_access(request: Request) -> Response:
        return answer(await access.check(await read_object(request)))


def _add_users(router: APIRouter, access: Access) -> None:
    users = access.users

    @router.get(
        "/users",
        operation_id="listUsers",
        tags=_TAGS,
        summary="List users by name, without anything of their passwords",
        **described(answer=ObjectList, problems=(422,)),
    )
    async def list_users(limit: Limit = 100, cursor: Cursor = None) -> Response:
        return answer(page_of(users.list(), limit, cursor))

    @router.post(
        "/users",
        operation_id="createUser",
        tags=_TAGS,
        summary="Create a user; without a password one is made, and is in this answer only",
        **described(body=UserSpec, answer=Object, status=201, problems=(409,)),
    )
    async def create_user(request: Request) -> Response:
        return _unkept(answer(await users.create(await read_object(request)), 201))

    @router.post(
        "/users:import",
        operation_id="importUsers",
        tags=_TAGS,
        summary="Take many users with hashes of their passwords, all or none, in place of those of their names",
        **described(body=UserImport, answer=Anything),
    )
    async def import_users(request: Request) -> Response:
        return answer(await access.import_users(await read_object(request)))


def _add_one_user(router: APIRouter, access: Access) -> None:
    users, path = access.users, "/users/{name:path}"

    @router.post(
        f"{path}:rotate",
        operation_id="rotateUserPassword",
        tags=_TAGS,
        summary="Make a new password, which is in this answer only; the old one is void. Safe to be repeated",
        **described(answer=Object, problems=(404, 409, 422)),
    )
    async def rotate(name: UserName) -> Response:
        return _unkept(answer(await users.rotate(name)))

    @router.get(
        path,
        operation_id="getUser",
        tags=_TAGS,
        summary="Show a user, without anything of the password",
        **described(answer=Object, problems=(404, 422)),
    )
    async def get_user(name: UserName) -> Response:
        return answer(users.get(name))

    @router.put(
        path,
        operation_id="putUser",
        tags=_TAGS,
        summary="Create or replace a user; the password of one that is there stays unless one is given",
        **described(body=UserSpec, answer=Object, problems=(409,), also_creates=True),
    )
    async def put_user(name: UserName, request: Request) -> Response:
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
        summary="Delete a user; its clients are disconnected",
        **described(status=204, problems=(404, 409, 422)),
    )
    async def delete_user(name: UserName) -> Response:
        users.delete(name)
        return Response(status_code=204)


def _add_bans(router: APIRouter, access: Access) -> None:
    bans = access.bans

    @router.get(
        "/bans",
        operation_id="listBans",
        tags=_TAGS,
        summary="List the bans that hold, newest first",
        **described(answer=ObjectList, problems=(422,)),
    )
    async def list_bans(limit: Limit = 100, cursor: Cursor = None) -> Response:
        return answer(page_of([{"name": f"{ban['as']}/{ban['who']}", **ban} for ban in bans.list()], limit, cursor))

    @router.post(
        "/bans",
        operation_id="createBan",
        tags=_TAGS,
        summary="Refuse clients by name, address or pattern, and close those that are connected",
        **described(body=BanSpec, answer=Anything, status=201),
    )
    async def create_ban(request: Request) -> Response:
        return answer(await access.ban(await read_object(request)), 201)

    @router.delete(
        "/bans/{kind}/{who:path}",
        operation_id="deleteBan",
        tags=_TAGS,
        summary="Lift a ban",
        **described(status=204, problems=(404, 422)),
    )
    async def delete_ban(kind: str, who: str) -> Response:
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
