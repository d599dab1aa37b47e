"""What every request passes first and every answer last: identifier, headers, and the net under everything."""

from __future__ import annotations

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ui.api.problems import log, problem_response

_GIVEN_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_PAGE_POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'"
)


class Edge:
    """ASGI middleware. Takes ``X-Request-Id`` or makes one, sets the headers of safety, answers what nobody caught."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope))
        scope.setdefault("state", {})["request_id"] = request_id
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                _add_headers(MutableHeaders(scope=message), scope["path"], request_id)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception as error:
            log.exception("api.failed", extra={"request_id": request_id, "path": scope["path"]})
            if started:
                raise
            await problem_response(error, request_id)(scope, receive, send_with_headers)


def _request_id(headers: Headers) -> str:
    given = headers.get("x-request-id", "")
    return given if _GIVEN_ID.fullmatch(given) else uuid.uuid4().hex


def _add_headers(headers: MutableHeaders, path: str, request_id: str) -> None:
    headers["X-Request-Id"] = request_id
    headers["X-Content-Type-Options"] = "nosniff"
    headers["Referrer-Policy"] = "no-referrer"
    headers["Content-Security-Policy"] = _PAGE_POLICY
    headers.setdefault("Cache-Control", "no-cache" if path.startswith("/static/") else "no-store")
