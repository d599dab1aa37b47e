"""Authentication of the API, by a token or a session of the dashboard in a browser, and the check of rights."""

from __future__ import annotations

import hmac
import html
from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.requests import HTTPConnection
from starlette.responses import Response

from broker.admin.accounts import Accounts
from broker.admin.rights import ROLES, Actor, Need, word_of
from broker.core.reader_token import stream_of
from broker.core.resources import Does
from ui.api.audit import UNKNOWN, acts_as, note_subject
from ui.api.cell_calls import ACTOR_HEADER, actor_of_header, is_of_cell
from ui.api.connections import authenticated
from ui.api.context import ApiContext, Logins
from ui.api.problems import ApiProblem
from ui.api.sign_in import SESSION_LIFE_S

# Actor with the token of the API, or with a session that was opened with it.
ADMINISTRATOR: Final = Actor("administrator")
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def context_of(request: HTTPConnection) -> ApiContext:
    """The context of the application."""
    context: ApiContext = request.app.state.context
    return context


async def require_right(request: HTTPConnection) -> None:
    """Let a request pass whose sender has the right that the operation needs.

    Raises:
        ApiProblem: 401; 403 for a missing right, or a session that is used from another site.
    """
    identify(request)
    require(request, need_of(request))


def identify(request: HTTPConnection) -> Actor:
    """The sender of a request, by the token or the session that it shows; notes it for the audit log.

    Raises:
        ApiProblem: 401; 403 when a session is used from another site; 429 after too many wrong tokens.
    """
    authorization = request.headers.get("authorization")
    if is_of_cell(request):
        actor = _actor_of_cell(request)
        acts_as(request, actor)
    elif authorization is not None:
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise unauthorized("expected 'Bearer TOKEN'")
        actor = actor_with_token(request, context_of(request), token.strip())
        acts_as(request, actor)
    else:
        actor = _actor_in_session(request)
        require_same_origin(request)
        acts_as(request, actor, in_browser=True)
    authenticated(request)
    return actor


def need_of(request: HTTPConnection) -> Need:
    """The right that the operation of a request needs, as it is declared."""
    route = request.scope["route"]
    resource: dict[str, Any] = route.openapi_extra["x-resource"]
    return Need(
        word_of(resource["name"]),
        resource["does"],
        route.operation_id,
        str(request.path_params.get("name") or request.path_params.get("id", "")),
        resource["topics"],
    )


def require(request: HTTPConnection, need: Need) -> None:
    """Raise 403 where the identified sender of a request lacks a right; the text names it."""
    refusal = actor_of(request).refusal(need)
    if refusal is not None:
        raise ApiProblem(403, "forbidden", refusal)


def require_also(request: HTTPConnection, name: str, does: Does = "change") -> None:
    """Raise 403 where the sender lacks a right on a further kind that the operation changes."""
    require(request, Need(word_of(name), does))


def actor_of(request: HTTPConnection) -> Actor:
    """The sender of a request, once it is identified."""
    actor: Actor = request.state.identity
    return actor


def actor_with_token(request: HTTPConnection, context: ApiContext, shown: str) -> Actor:
    """The actor that a token belongs to.

    Raises:
        ApiProblem: 401, it is wrong or has expired; 429.
    """
    tokens = context.tokens
    token = None if tokens is None else tokens.find(shown)
    if tokens is not None and token is not None:
        if tokens.has_expired(token):
            raise unauthorized(f"the token {token.name!r} expired on {token.expires_at}")
        tokens.note_use(token, request.client.host if request.client else None)
        return tokens.actor_of(token)
    if (stream := stream_of(shown, context.token)) is not None:
        return Actor("the token of an executor", None, streams=[stream])
    if is_token(request, context, shown):
        return ADMINISTRATOR
    raise unauthorized("the token is wrong")


def _actor_of_cell(request: HTTPConnection) -> Actor:
    """The actor that another cell asks for: the socket is in a directory of this user alone."""
    actor: Actor | None = actor_of_header(request.headers.get(ACTOR_HEADER, ""))
    if actor is None:
        raise unauthorized("expected the actor that the cell asks for")
    return actor


def _actor_in_session(request: HTTPConnection) -> Actor:
    context = context_of(request)
    secret = request.cookies.get(cookie_name(request))
    session = None if secret is None else context.sign_in.session(secret)
    if session is None:
        raise unauthorized("send 'Authorization: Bearer TOKEN', or sign in on the dashboard")
    if not session.account:
        return ADMINISTRATOR
    if session.role:
        role = next((role for role in ROLES if role == session.role), None)
        if context.oidc is None or role is None:
            raise unauthorized("the session is over; sign in again")
        return Actor(session.account, role)
    if context.accounts is None or context.accounts.stamp_of(session.account) != session.stamp:
        raise unauthorized("the session is over; sign in again")
    return context.accounts.actor_of(session.account)


async def while_identified(
    request: HTTPConnection, chunks: AsyncIterator[bytes]
) -> AsyncIterator[bytes]:
    """The chunks of a long answer, until its reader signs out or has other rights."""
    actor = actor_of(request)
    async for chunk in chunks:
        try:
            if identify(request) != actor:
                return
        except ApiProblem:
            return
        yield chunk


def reads_until_s(request: HTTPConnection) -> float:
    """The end of the sender's rights, in Unix time."""
    return actor_of(request).until_s


async def accounts_after_password(request: HTTPConnection, name: str, password: str) -> Accounts:
    """The accounts, once this is the password of the one of that name.

    Raises:
        ApiProblem: 401, it is not; 429, too many attempts from this address, or for this account from it, failed.
        Unavailable: too many passwords wait to be checked.
    """
    context = context_of(request)
    host = request.client.host if request.client else None
    if context.accounts is None:
        raise unauthorized("there are no accounts; sign in with the token")
    if context.logins is not None and context.logins.refuses_account(host, name):
        raise _too_many(context.logins)
    is_right = await context.accounts.sign_in(name, password, f"api {host}")
    if context.logins is not None:
        context.logins.attempted(host, name, is_right)
    if not is_right:
        raise unauthorized("the name or the password is wrong")
    return context.accounts


def note_failed_sign_in(request: HTTPConnection, name: str = "") -> None:
    """Note a sign-in that is refused for the audit log, with the account if there is one of that name: what was typed
    as a name may be a password."""
    accounts = context_of(request).accounts
    request.state.actor = UNKNOWN
    request.state.in_browser = request.state.opens_session = True
    if accounts is not None and accounts.stamp_of(name):
        note_subject(name)


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
        raise _too_many(logins)
    return is_right


def _too_many(logins: Logins) -> ApiProblem:
    retry = {"Retry-After": str(logins.retry_after_s())}
    return ApiProblem(
        429, "too_many_logins", "too many logins from this address have failed", headers=retry
    )


def require_same_origin(request: HTTPConnection) -> None:
    """Refuse changes and WebSockets that a browser sends from another site.

    Raises:
        ApiProblem: 403, there is no ``Origin``, or it is not this server.
    """
    if request.scope.get("method") in _SAFE_METHODS:  # a WebSocket has none
        return
    origin = request.headers.get("origin")
    if origin is None or origin.partition("://")[2] != request.headers.get("host"):
        raise ApiProblem(
            403, "forbidden_origin", "a session works from the dashboard only; use a token"
        )


def unauthorized(detail: str) -> ApiProblem:
    """The 401 that says how to do better."""
    return ApiProblem(
        401, "unauthorized", detail, headers={"WWW-Authenticate": 'Bearer realm="sluice"'}
    )


def cookie_name(request: HTTPConnection) -> str:
    """The session's cookie. Cookies know no ports, so two servers on one host need two names."""
    server = request.scope.get("server")
    return f"sluice_session_{server[1] if server else 0}"


def oidc_cookie(request: HTTPConnection) -> str:
    """The cookie that binds a sign-in by OpenID Connect to the browser that began it."""
    return f"{cookie_name(request)}_oidc"


def set_oidc_state(request: HTTPConnection, response: Response, state: str) -> None:
    """Give the browser the state; it is sent back when the issuer's page leads here."""
    response.set_cookie(
        oidc_cookie(request),
        state,
        max_age=600,
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
    )


def sign_in_failed(reason: str) -> str:
    """The page after a sign-in that failed."""
    return _SIGN_IN_FAILED.replace("REASON", html.escape(reason))


_SIGN_IN_FAILED: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Sign-in failed · Sluice</title><link rel="icon" href="/static/mark.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/app.css"></head>
<body><main class="prose"><h1>The sign-in failed</h1><p>REASON</p><p><a href="/">Sign in again</a></p></main>
</body></html>
"""


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
