"""Middleware of every request and answer: host, identifier, time limit of the body, headers, and the last handler of
errors."""

from __future__ import annotations

import asyncio
import gzip
import re
import uuid
from contextlib import suppress
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from broker.admin.api_settings import ApiSettings
from broker.core.errors import Unavailable
from broker.core.hosts import AllowedHosts
from ui.api import ingest
from ui.api.audit import Auditing
from ui.api.parameters import rename_old_parameters
from ui.api.preconditions import takes_gzip
from ui.api.problems import ApiProblem, log, problem_response

_GIVEN_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
# Sizes of answers that are compressed: smaller ones gain nothing, larger ones would take tens of milliseconds.
_COMPRESSED_BYTES: Final = (1024, 2 * 1024 * 1024)
_LEVEL: Final = 4
# Seconds after which a request that a stop ended may be sent again.
_RETRY_AFTER_STOP_S: Final = 5
_PAGE_POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'"
)
# When names of 0.2 became deprecated (RFC 9745).
_DEPRECATED = "@1795651200"


class Edge:
    """ASGI middleware. Takes or generates ``X-Request-Id``, refuses foreign hosts, sets security headers, and answers
    unexpected errors."""

    def __init__(self, app: ASGIApp, settings: ApiSettings, auditing: Auditing) -> None:
        self._app = app
        self._auditing = auditing
        self._body_timeout_s = settings.body_timeout
        self._hosts = AllowedHosts(settings.allowed_hosts, loopback=settings.is_loopback)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if scope["type"] == "websocket" and not self._hosts.has(headers.get("host")):
            await send({"type": "websocket.close"})  # 403
            return
        if scope["type"] != "http":
            with suppress(asyncio.CancelledError):  # the broker stops
                await self._app(scope, receive, send)
            return
        request_id = _request_id(headers)
        scope.setdefault("state", {})["request_id"] = request_id
        rename_old_parameters(scope)
        started = False
        self._auditing.begin()

        if takes_gzip(headers.get("accept-encoding", "")):
            send = _compressed(send)

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                await self._auditing.record(scope, message["status"])
                answered = MutableHeaders(scope=message)
                _add_headers(answered, scope["path"], request_id)
                if scope["state"].get("has_old_names"):
                    answered["Deprecation"] = _DEPRECATED
            await send(message)

        try:
            if not self._hosts.has(headers.get("host")):
                raise _foreign_host(headers["host"])
            if not scope["path"].startswith(f"{ingest.PATH}/"):  # sources have a time of their own
                receive = _in_time(receive, self._body_timeout_s)
            await self._app(scope, receive, send_with_headers)
        except ClientDisconnect:
            return
        except asyncio.CancelledError:  # the broker stops, and the request did not end in time
            if (
                not started
            ):  # else the server closes the connection, so that the client sees the cut
                stopping = Unavailable("the broker stops", _RETRY_AFTER_STOP_S)
                await problem_response(stopping, request_id)(scope, receive, send_with_headers)
        except ApiProblem as error:
            await problem_response(error, request_id)(scope, receive, send_with_headers)
        except Exception as error:
            log.exception("api.failed", extra={"request_id": request_id, "path": scope["path"]})
            if started:
                raise
            await problem_response(error, request_id)(scope, receive, send_with_headers)


def _compressed(send: Send) -> Send:
    """``send`` that compresses answers in JSON of one piece. Very large ones would hold the event loop; they, streams,
    and what is compressed already pass as they are."""
    start: Message | None = None

    async def send_compressed(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            is_json = "json" in headers.get("content-type", "").partition(";")[0]
            is_fit = (
                _COMPRESSED_BYTES[0]
                <= int(headers.get("content-length", 0))
                <= _COMPRESSED_BYTES[1]
            )
            if is_json and is_fit and "content-encoding" not in headers:
                start = message
                return
        elif start is not None:
            headers = MutableHeaders(scope=start)
            if not message.get("more_body", False) and message.get("body"):
                message = {
                    **message,
                    "body": gzip.compress(message["body"], compresslevel=_LEVEL, mtime=0),
                }
                headers["Content-Encoding"] = "gzip"
                headers["Content-Length"] = str(len(message["body"]))
            headers.add_vary_header("Accept-Encoding")
            await send(start)
            start = None
        await send(message)

    return send_compressed


def _in_time(receive: Receive, timeout_s: float) -> Receive:
    """``receive`` that raises 408 while the body is not complete after that time."""
    ends_at = asyncio.get_running_loop().time() + timeout_s
    is_complete = False

    async def receive_in_time() -> Message:
        nonlocal is_complete
        if is_complete:
            return await receive()
        try:
            async with asyncio.timeout_at(ends_at):
                message = await receive()
        except TimeoutError:
            raise ApiProblem(
                408, "body_timeout", f"the body did not arrive within {timeout_s:g} s"
            ) from None
        is_complete = not message.get("more_body", False)
        return message

    return receive_in_time


def _foreign_host(host: str) -> ApiProblem:
    detail = f"Host: expected localhost or a loopback address, got {host!r}. Try: add the name to api.allowed_hosts"
    return ApiProblem(403, "forbidden_host", detail)


def _request_id(headers: Headers) -> str:
    request_id = headers.get("x-request-id", "")
    return request_id if _GIVEN_ID.fullmatch(request_id) else uuid.uuid4().hex


def _add_headers(headers: MutableHeaders, path: str, request_id: str) -> None:
    headers["X-Request-Id"] = request_id
    headers["X-Content-Type-Options"] = "nosniff"
    headers["Referrer-Policy"] = "no-referrer"
    headers.setdefault("Content-Security-Policy", _PAGE_POLICY)
    headers.setdefault("Cache-Control", "no-cache" if path.startswith("/static/") else "no-store")
