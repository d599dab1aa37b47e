"""The node itself: probes, status, alarms, listeners, configuration, and sessions of the dashboard."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import (
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)

from broker.admin.rights import OWN, Actor, Need
from broker.core import jsontext
from broker.core.errors import Invalid, NotFound, Unavailable
from broker.core.objects import Spec
from ui.api.audit import acts_as
from ui.api.cell_calls import FILES_PATH, MACHINE, STORE_PATH, is_of_cell
from ui.api.cell_streams import PATH as PATH_OF_STREAMS
from ui.api.cell_streams import answered as streams_answered
from ui.api.effects import DryRun
from ui.api.json_bodies import Json, answer
from ui.api.models.access import OwnRights, SignInAddress, SignInMethods, SignInRequest
from ui.api.objects import KindRoutes
from ui.api.operation import Operations
from ui.api.parameters import AnyName
from ui.api.problems import ApiProblem
from ui.api.security import (
    ADMINISTRATOR,
    accounts_after_password,
    actor_of,
    context_of,
    cookie_name,
    identify,
    is_token,
    note_failed_sign_in,
    oidc_cookie,
    require,
    set_oidc_state,
    set_session,
    sign_in_failed,
    unauthorized,
)

S = TypeVar("S")

_MAX_SIGN_IN_BYTES = 4096
_OIDC_PATH = "/session/oidc"

probes = APIRouter(include_in_schema=False)


@probes.get("/livez")
async def livez() -> Response:
    """The event loop turns."""
    return PlainTextResponse("ok\n")


@probes.get("/readyz")
async def readyz(request: Request) -> Response:
    """The node may get traffic."""
    context = context_of(request)
    reason = context.not_ready()
    return PlainTextResponse(
        f"{reason or context.ready_remark()}\n", 200 if reason is None else 503
    )


@probes.get(f"/api/v1{_OIDC_PATH}")
async def oidc_return(request: Request) -> Response:
    """The browser returns from the issuer: a session, or a page that says why there is none."""
    context = context_of(request)
    if context.oidc is None:
        raise NotFound("issuer", "api.oidc")
    try:
        signed_in = await context.oidc.finish(
            request.query_params, request.cookies.get(oidc_cookie(request), "")
        )
    except (Invalid, Unavailable) as error:
        request.state.problem = str(error)
        note_failed_sign_in(request)
        return HTMLResponse(sign_in_failed(str(error)), 403 if isinstance(error, Invalid) else 503)
    name = f"oidc:{signed_in.name}"
    acts_as(request, Actor(name, signed_in.role), in_browser=True)
    request.state.opens_session = True
    response = RedirectResponse("/", 303)
    set_session(request, response, context.sign_in.open_session(name, role=signed_in.role))
    response.delete_cookie(oidc_cookie(request), httponly=True, samesite="lax")
    return response


@probes.get("/metrics")
async def metrics(request: Request) -> Response:
    """Every metric, in Prometheus' text format."""
    if context_of(request).api_settings.metrics == "token":
        identify(request)
        require(request, Need("metrics", "read"))
    faces = context_of(request).faces
    text = context_of(request).metrics_text()
    if faces is not None and not is_of_cell(request):
        text = await faces.metrics(text)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


def _for_cell(request: Request, service: S | None) -> S:
    """The service that another cell asks for; to clients there is no such path."""
    if not is_of_cell(request) or service is None:
        raise ApiProblem(404, "no_such_path", "there is no such path")
    identify(request)
    return service


@probes.post("/api/v1/cells:adopt")
async def adopt_configuration(request: Request) -> Response:
    """Another cell has changed the configuration; only cells may say so."""
    reload = _for_cell(request, context_of(request).reload)
    asked = jsontext.decode(await request.body())
    await reload.follow(asked["changes"], asked["files"])
    return Response(status_code=204)


@probes.get("/api/v1/cells:digest")
async def configuration_digest(request: Request) -> Response:
    """The first cell compares the active configurations; only cells may ask."""
    context = context_of(request)
    reload = _for_cell(request, context.reload)
    return Json(jsontext.encode({"digest": await reload.digest(), "version": context.version}))


@probes.get(FILES_PATH)
async def files_of_front(request: Request) -> Response:
    """A cell of another machine asks for the files that the first cell has saved; only cells may."""
    context = context_of(request)
    files = _for_cell(request, context.saved_files)
    texts = await asyncio.to_thread(
        lambda: {name: path.read_text() for name, path in files.items() if path.exists()}
    )
    return Json(jsontext.encode({**texts, MACHINE: context.machine}))


@probes.post(PATH_OF_STREAMS)
async def tell_streams(request: Request) -> Response:
    """The first cell asks for the positions of streams here; only cells may."""
    streams = _for_cell(request, context_of(request).streams)
    asked = jsontext.decode(await request.body())
    if asked.get("at_us") is None:
        return Json(jsontext.encode(streams_answered(streams, asked)))
    told = await asyncio.to_thread(streams_answered, streams, asked)
    return Json(jsontext.encode(told))


@probes.get(STORE_PATH)
async def read_store(request: Request) -> Response:
    """The first cell makes a backup; only cells may ask."""
    backups = _for_cell(request, context_of(request).backups)
    asked = request.query_params
    pieces = backups.stored(
        messages=asked["messages"] == "1", is_encrypted=asked["encrypted"] == "1"
    )
    return StreamingResponse(pieces, media_type="application/octet-stream")


def add_sign_in(router: APIRouter) -> None:
    """Add ``/session``."""
    ops = Operations(router, "System", OWN, "none")

    @ops.post(
        "/session",
        "signIn",
        "Open a session of the dashboard",
        problems=(403,),
        most_bytes=_MAX_SIGN_IN_BYTES,
    )
    async def open_session(request: Request, body: SignInRequest) -> Response:
        """Sets a cookie in exchange for the name and password of an account, or for the token, so that the page stores
        neither.
        """
        sign_in = context_of(request).sign_in
        name = body.name or ""
        try:
            if body.token is not None:
                if not is_token(request, context_of(request), body.token):
                    raise unauthorized("the token is wrong")
                acts_as(request, ADMINISTRATOR, in_browser=True)
                secret = sign_in.open_session()
            else:
                accounts = await accounts_after_password(request, name, body.password or "")
                acts_as(request, accounts.actor_of(name), in_browser=True)
                secret = sign_in.open_session(name, accounts.stamp_of(name))
        except ApiProblem:
            note_failed_sign_in(request, name)
            raise
        response = Response(status_code=204)
        set_session(request, response, secret)
        return response

    @ops.get("/session", "getSignInMethods", "Show how to sign in", answer=SignInMethods)
    def sign_in_methods(request: Request) -> SignInMethods:
        """Returns the text of the button that begins a sign-in by OpenID Connect, or null without an issuer."""
        oidc = context_of(request).oidc
        return {"oidc": None if oidc is None else oidc.label}

    @ops.post(
        "/session:oidc",
        "beginOidcSignIn",
        "Begin a sign-in by OpenID Connect",
        answer=SignInAddress,
        problems=(404, 503),
    )
    async def begin_oidc(request: Request) -> Response:
        """Returns the address at the issuer that the browser goes to, and sets a cookie that binds the sign-in to the
        browser.
        """
        context = context_of(request)
        if context.oidc is None:
            raise NotFound("issuer", "api.oidc")
        settings = context.api_settings.oidc
        base = (settings.url if settings is not None and settings.url else context.base_url).rstrip(
            "/"
        )
        address, state = await context.oidc.begin(
            f"{base}{request.url.path.rpartition('/')[0]}{_OIDC_PATH}",
            request.client.host if request.client else None,
        )
        response = answer({"url": address})
        set_oidc_state(request, response, state)
        return response

    @ops.delete("/session", "signOut", "Close the session of the dashboard", problems=(403,))
    def close_session(request: Request) -> Response:
        """Deletes the session. It does nothing if there is none."""
        context_of(request).sign_in.close_session(request.cookies.get(cookie_name(request), ""))
        response = Response(status_code=204)
        response.delete_cookie(cookie_name(request), httponly=True, samesite="strict")
        return response


def add_identity(router: APIRouter) -> None:
    """Add ``/me``."""

    @Operations(router, "System", OWN, "none").get(
        "/me", "getOwnRights", "Show who I am and what I may do", answer=OwnRights
    )
    def own_rights(request: Request) -> OwnRights:
        """Returns the name, role and scope of the sender, and its rights by resource. `topics` are the filters that a
        topic must be within.
        """
        actor = actor_of(request)
        return {
            "name": actor.name,
            "role": actor.role,
            "kinds": None if actor.kinds is None else sorted(actor.kinds),
            "topics": None if actor.topics is None else list(actor.topics),
            "rights": actor.rights(),
        }


def add_listeners(routes: KindRoutes) -> None:
    """Add the creation of listeners, whose path has the name."""
    kind = routes.kind
    service = routes.service

    @routes.ops.post(
        routes.one,
        "createListener",
        "Create a listener",
        body=kind,
        answer=kind,
        status=201,
        problems=(409,),
        may_be_dry=True,
    )
    async def create_listener(
        name: AnyName, body: Spec, request: Request, dry_run: DryRun = False
    ) -> Any:
        """Adds a listener and opens it. Its name is its type and a name: `tcp:plant`."""
        spec = routes.named(body, name)
        return await routes.written(
            request, name, spec, partial(service.create, spec), is_dry=dry_run, status=201
        )
