"""Authentication of the API: the token, or a session of the dashboard in a browser."""

from __future__ import annotations

import hmac
from math import inf
from typing import Final

from starlette.requests import HTTPConnection
from starlette.responses import Response

from broker.core.reader_token import stream_of
from ui.api.audit import acts_as
from ui.api.connections import authenticated
from ui.api.context import ApiContext
from ui.api.problems import ApiProblem
from ui.api.sign_in import SESSION_LIFE_S

# Actor with the token of the API, or with a session that was opened with it.
ADMINISTRATOR: Final = "administrator"
# Operations that tokens for streams permit.
_READING = frozenset({"getStream", "getStreamPositions", "readStreamRecords"})
_SHOWN = 10
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def context_of(request: HTTPConnection) -> ApiContext:
    """The context of the application."""
    context: ApiContext = request.app.state.context
    return context


async def require_administrator(request: HTTPConnection) -> None:
    """Let the request pass, or raise 401, or 403 when a session is used from another site."""
    _check_administrator(request)
    authenticated(request)


def _check_administrator(request: HTTPConnection) -> None:
    context = context_of(request)
    authorization = request.headers.get("authorization")
    if authorization is not None:
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() == "bearer" and _reads_stream(request, context, token.strip()):
            return
        if scheme.lower() == "bearer" and is_token(request, context, token.strip()):
            acts_as(request, ADMINISTRATOR)
            return
        raise unauthorized("the token is wrong" if scheme.lower() == "bearer" else "expected 'Bearer TOKEN'")
    session = request.cookies.get(cookie_name(request))
    if session is None or not context.sign_in.is_open(session):
        raise unauthorized("send 'Authorization: Bearer TOKEN', or sign in on the dashboard")
    if request.scope.get("method") not in _SAFE_METHODS:  # a WebSocket has none
        require_same_origin(request)
    acts_as(request, ADMINISTRATOR, in_browser=True)


def _reads_stream(request: HTTPConnection, context: ApiContext, shown: str) -> bool:
    """Return whether the client sent a token for streams, and the request reads one of them.

    Raises:
        ApiProblem: 403, the token is not for this request; 401, it has expired.
    """
    tokens = context.tokens
    token = None if tokens is None else tokens.find(shown)
    if tokens is not None and token is not None:
        if tokens.has_expired(token):
            raise unauthorized(f"the token {token.name!r} expired on {token.expires_at}")
        request.state.reads_until_s = tokens.ends_s(token)
        name = f"the token {token.name!r}"
        streams = token.streams
    elif (stream := stream_of(shown, context.token)) is not None:
        name = "the token of an executor"
        streams = [stream]
    else:
        return False
    acts_as(request, name)
    operation = getattr(request.scope.get("route"), "operation_id", None)
    if operation in _READING and request.path_params["name"] in streams:
        return True
    raise ApiProblem(403, "forbidden", f"{name} only reads records of {', '.join(map(repr, streams[:_SHOWN]))}")


def reads_until_s(request: HTTPConnection) -> float:
    """Until when, in Unix time, who sent the request may read streams."""
    ends_s: float = getattr(request.state, "reads_until_s", inf)
    return ends_s


def is_token(request: HTTPConnection, context: ApiContext, shown: str) -> bool:
    """Return whether this is the administrator's token, compared in constant time.

    Raises:
        ApiProblem: 429, the address showed too many wrong ones.
    """
    is_right = hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), context.token.encode())
    return checked(request, context, shown, is_right)


def checked(request: HTTPConnection, context: ApiContext, shown: str, is_right: bool) -> bool:
    """``is_right``, of a token or code that a client showed.

    Raises:
        ApiProblem: 429, too many from this address were wrong.
    """
    logins = context.logins
    host = request.client.host if request.client else None
    if logins is not None and logins.refuses(host, shown, is_right):
        retry = {"Retry-After": str(logins.retry_after_s())}
        raise ApiProblem(429, "too_many_logins", "too many logins from this address have failed", headers=retry)
    return is_right


def require_same_origin(request: HTTPConnection) -> None:
    """Refuse what a browser sends from another site.

    Raises:
        ApiProblem: 403, there is no ``Origin``, or it is not this server.
    """
    origin = request.headers.get("origin")
    if origin is None or origin.partition("://")[2] != request.headers.get("host"):
        raise ApiProblem(403, "forbidden_origin", "a session works from the dashboard only; use a token")


def unauthorized(detail: str) -> ApiProblem:
    """The 401 that says how to do better."""
    return ApiProblem(401, "unauthorized", detail, headers={"WWW-Authenticate": 'Bearer realm="sluice"'})


def cookie_name(request: HTTPConnection) -> str:
    """The session's cookie. Cookies know no ports, so two servers on one host need two names."""
    server = request.scope.get("server")
    return f"sluice_session_{server[1] if server else 0}"


def set_session(request: HTTPConnection, response: Response, session: str) -> None:
    """Give the browser its session; no script can read it, no other site can use it."""
    response.set_cookie(
        cookie_name(request),
        session,
        max_age=int(SESSION_LIFE_S),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
