"""Errors as problem documents, RFC 9457: ours, the framework's, and unexpected ones.

``code`` is stable and may be scripted against; ``instance`` is the request's identifier, as in ``X-Request-Id``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from broker.core import jsontext
from broker.core.errors import (
    MOST_PROBLEMS,
    ConfigError,
    Conflict,
    InUse,
    Invalid,
    MissingDependency,
    NotFound,
    PeerError,
    Problem,
    ReadOnly,
    SluiceError,
    Unavailable,
    Unreadable,
)
from broker.core.json_values import problem_to_wire

log = logging.getLogger("sluice.api")

# Every code of our own: status, title, what to do. Features add further codes with ``Invalid``.
TITLES: Mapping[str, tuple[int, str, str]] = {
    "malformed_json": (400, "The body is not JSON", "Send one JSON text in UTF-8."),
    "malformed_body": (400, "The body cannot be read", "The detail says what is wrong with it."),
    "unknown_parameter": (
        400,
        "Unknown query parameter",
        "The detail lists the existing parameters.",
    ),
    "unauthorized": (401, "Not signed in", "Send 'Authorization: Bearer TOKEN'."),
    "forbidden": (403, "Not permitted", "The detail says what the token permits."),
    "forbidden_origin": (
        403,
        "Request from another site",
        "A session works from the dashboard only; use a token.",
    ),
    "forbidden_host": (
        403,
        "Request under another host name",
        "Use a loopback address, or set api.allowed_hosts.",
    ),
    "not_found": (404, "No such object", "List the kind to see the names there are."),
    "no_such_path": (404, "No such path", "The paths are listed under /docs."),
    "method_not_allowed": (405, "Method not allowed", "The header Allow lists what is."),
    "body_timeout": (
        408,
        "The body did not arrive in time",
        "Send less at once, or over a faster connection.",
    ),
    "conflict": (409, "Conflict", "The request contradicts what exists."),
    "already_exists": (409, "The name is taken", "PUT replaces an object."),
    "still_running": (
        409,
        "The first request still runs",
        "Send it again later: its answer is kept under the key.",
    ),
    "in_use": (
        409,
        "The object is used",
        "'users' lists the objects that name it; change or delete those first.",
    ),
    "read_only": (409, "Fixed by a file", "The detail names the file; change it there."),
    "changed_meanwhile": (
        412,
        "The object changed since you read it",
        "Read it again, and send its ETag in If-Match.",
    ),
    "too_large": (413, "The body is too large", "The detail says what the limit is."),
    "too_many": (413, "Too many messages in the body", "Send fewer at once."),
    "wrong_content_type": (415, "Content-Type not accepted", "The detail lists what is."),
    "unknown_encoding": (415, "Content-Encoding not known", "Send gzip, or none."),
    "invalid": (422, "Invalid request", "'errors' lists every problem with its place."),
    "unknown_member": (
        422,
        "Unknown members in the body",
        "'errors' names each, and the member nearest to it.",
    ),
    "invalid_name": (
        422,
        "Not a name",
        "Names are letters, digits, '_', '-' and '.', at most 255.",
    ),
    "configuration": (422, "Settings that cannot be used", "'errors' lists every problem."),
    "missing_dependency": (422, "Something is not installed", "The detail says what to install."),
    "test_case_failed": (
        422,
        "Test cases fail",
        "'errors' has the difference of each; 'force=true' saves it anyway.",
    ),
    "subscription_refused": (
        422,
        "No filter was subscribed",
        "'results' has the reason code of each.",
    ),
    "message_refused": (
        422,
        "The pipeline refused the message",
        "The detail says which stage and why.",
    ),
    "peer": (422, "Not allowed by MQTT", "The detail says what the standard says."),
    "key_reused": (
        422,
        "The key was used for another body",
        "Use a new Idempotency-Key for each request.",
    ),
    "evaluation_failed": (422, "It could not be evaluated", "The detail says how it failed."),
    "answer_too_large": (422, "The answer is too large", "Take fewer rows, or less in each."),
    "too_slow": (
        422,
        "It ran too long",
        "Evaluation has a deadline; make what is evaluated cheaper.",
    ),
    "too_many_requests": (
        429,
        "Too many requests at once",
        "Try again after the seconds in Retry-After.",
    ),
    "too_many_logins": (
        429,
        "Too many failed logins",
        "Try again after the seconds in Retry-After.",
    ),
    "internal": (
        500,
        "The server failed",
        "A defect of the server; its log has the request's identifier.",
    ),
    "unavailable": (503, "Not now", "Try again after the seconds in Retry-After."),
}


class ApiProblem(Exception):
    """An error of the HTTP side itself, with its status and code."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        errors: Sequence[Problem] = (),
        headers: Mapping[str, str] | None = None,
        members: Mapping[str, Any] | None = None,
    ) -> None:
        self.status, self.code, self.errors, self.headers = (
            status,
            code,
            tuple(errors),
            dict(headers or {}),
        )
        self.members = dict(members or {})
        super().__init__(detail)


def problem_response(error: BaseException, request_id: str) -> Response:
    """The problem document for any error; for an unexpected one it has only the request's identifier."""
    if isinstance(error, ApiProblem):
        return _document(
            request_id,
            error.status,
            error.code,
            str(error),
            error.errors,
            more=error.members,
            headers=error.headers,
        )
    if isinstance(error, SluiceError):
        return _from_ours(error, request_id)
    if isinstance(error, jsontext.JsonError):
        return _document(request_id, 422, "invalid", str(error))
    return _document(
        request_id,
        500,
        "internal",
        f"the server failed; its log has the reason under request {request_id}",
    )


def install(app: FastAPI) -> None:
    """Answer every error of ours and of the framework with a problem document."""
    for kind in (ApiProblem, SluiceError, jsontext.JsonError):
        app.add_exception_handler(kind, _answer)
    app.add_exception_handler(RequestValidationError, _invalid_parameters)
    app.add_exception_handler(HTTPException, _http)


def request_id_of(request: Request) -> str:
    """The identifier that ``ui.api.middleware`` gave the request."""
    return str(getattr(request.state, "request_id", ""))


async def _answer(request: Request, error: Exception) -> Response:
    first = (
        error.errors[:1]
        if isinstance(error, ApiProblem)
        else error.problems[:1]
        if isinstance(error, Invalid)
        else ()
    )
    text = str(error)
    request.state.problem = ": ".join(
        [text, *(str(problem) for problem in first if problem.message not in text)]
    )
    return problem_response(error, request_id_of(request))


async def _invalid_parameters(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = [
        Problem(entry["msg"], "/" + "/".join(str(part) for part in entry["loc"]))
        for entry in error.errors()[:MOST_PROBLEMS]
    ]
    detail = "; ".join(
        f"{problem.pointer[1:].replace('/', ' ')}: {problem.message}" for problem in problems
    )
    request.state.problem = detail
    return _document(request_id_of(request), 422, "invalid", detail, problems)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "no_such_path", 405: "method_not_allowed"}.get(
        error.status_code, f"http_{error.status_code}"
    )
    detail = {
        "no_such_path": f"there is no path {request.url.path}; /docs lists the existing ones",
        "method_not_allowed": f"{request.url.path} does not take {request.method}",
    }.get(code, str(error.detail))
    request.state.problem = detail
    return _document(request_id_of(request), error.status_code, code, detail, headers=error.headers)


_STATUS: Sequence[tuple[type[SluiceError], int]] = (
    (NotFound, 404),
    (Conflict, 409),
    (ReadOnly, 409),
    (Unavailable, 503),
    (Unreadable, 500),
    (Invalid, 422),
    (ConfigError, 422),
    (MissingDependency, 422),
    (PeerError, 422),
)


def _from_ours(error: SluiceError, request_id: str) -> Response:
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    errors: Sequence[Problem] = ()
    more: dict[str, Any] = {}
    headers: dict[str, str] = {}
    if isinstance(error, Invalid):
        errors = error.problems
        more = error.members
    elif isinstance(error, ConfigError):
        errors = [Problem(sentence) for sentence in error.problems]
    elif isinstance(error, InUse):
        more["users"] = list(error.users)
    elif isinstance(error, Unavailable):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s or 1)))
    return _document(request_id, status, error.code, str(error), errors, more=more, headers=headers)


def _document(
    request_id: str,
    status: int,
    code: str,
    detail: str,
    errors: Sequence[Problem] = (),
    *,
    more: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    entry = TITLES.get(code)
    body = {
        "type": f"/docs/problems#{code if entry else 'invalid'}",
        "title": entry[1] if entry else TITLES["invalid"][1] if status == 422 else detail,
        "status": status,
        "detail": detail,
        "instance": request_id,
        "code": code,
        "errors": [problem_to_wire(problem) for problem in errors],
        **(more or {}),
    }
    return Response(_encode(body), status, dict(headers or {}), "application/problem+json")


def _encode(body: dict[str, Any]) -> bytes:
    """The document. Strings that are not valid Unicode are escaped, so that every error can be shown."""
    try:
        return jsontext.encode(body)
    except jsontext.JsonError:
        return jsontext.encode(_sayable(body))


def _sayable(value: Any) -> Any:
    if isinstance(value, dict):
        return {_sayable(key): _sayable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_sayable(item) for item in value]
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
