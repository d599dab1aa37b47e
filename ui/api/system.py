"""What the node is doing, for people and for monitors."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from ui.api.context import ApiContext
from ui.api.models.access import SignInRequest
from ui.api.models.rules import FunctionList
from ui.api.operation import described
from ui.api.security import (
    context_of,
    cookie_name,
    is_token,
    require_same_origin,
    set_session,
    unauthorized,
)
from ui.api.status import Status
from ui.api.wire import answer, read_object

_MAX_SIGN_IN_BYTES = 4096

probes = APIRouter(include_in_schema=False)
sign_in = APIRouter()


@probes.get("/livez")
async def livez() -> Response:
    """The event loop turns."""
    return PlainTextResponse("ok\n")


@probes.get("/readyz")
async def readyz(request: Request) -> Response:
    """The node may get traffic."""
    context = context_of(request)
    reason = context.not_ready()
    return PlainTextResponse(f"{reason or context.ready_remark()}\n", 200 if reason is None else 503)


@probes.get("/metrics")
async def metrics(request: Request) -> Response:
    """Every metric, in Prometheus' text format."""
    return PlainTextResponse(context_of(request).metrics_text(), media_type="text/plain; version=0.0.4")


@sign_in.post(
    "/session",
    operation_id="signIn",
    tags=["System"],
    summary="Open a session of the status page with the token",
    **described(body=SignInRequest, status=204, problems=(403,)),
)
async def open_session(request: Request) -> Response:
    """A cookie for the token, so that the page never stores the token."""
    require_same_origin(request)
    context = context_of(request)
    token = (await read_object(request, _MAX_SIGN_IN_BYTES)).get("token")
    if not isinstance(token, str) or not is_token(request, context, token):
        raise unauthorized("the token is wrong")
    response = Response(status_code=204)
    set_session(request, response, context.sign_in.open_session())
    return response


@sign_in.delete(
    "/session",
    operation_id="signOut",
    tags=["System"],
    summary="Close the session of the status page",
    **described(status=204, problems=(403,)),
)
async def close_session(request: Request) -> Response:
    """Forget the session; no error when there is none."""
    require_same_origin(request)
    context_of(request).sign_in.close_session(request.cookies.get(cookie_name(request), ""))
    response = Response(status_code=204)
    response.delete_cookie(cookie_name(request), httponly=True, samesite="strict")
    return response


def add_status(router: APIRouter, context: ApiContext) -> None:
    """Add ``GET /status`` and, where there is one, the catalogue of functions."""

    @router.get(
        "/status",
        operation_id="getStatus",
        tags=["System"],
        summary="Show the state of the node",
        **described(answer=Status),
    )
    async def status() -> Response:
        """Returns counters, rates, listeners, and the state of rules, streams, tables and bridges. `/metrics` has the
        same for Prometheus.
        """
        return answer(context.status())

    functions = context.functions
    if functions is None:
        return

    @router.get(
        "/functions",
        operation_id="listFunctions",
        tags=["Rules"],
        summary="List the functions of the rule language",
        **described(answer=FunctionList),
    )
    async def list_functions() -> Response:
        """Returns the SQL functions with signatures and examples, and the plugins that provide some of them."""
        items = list(functions())
        page = {"items": items, "next": None, "total": len(items), "total_is_estimate": False}
        return answer({**page, "plugins": list(context.plugins())})
