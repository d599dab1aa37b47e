"""How an operation is described in OpenAPI: its body, its answers, and the problems it may answer with."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from ui.api.models.shapes import ProblemDocument

_PROBLEMS = {
    400: "Malformed: not JSON, or an unknown parameter",
    401: "No token, or a wrong one",
    403: "A session used from another site",
    404: "No object of that name",
    409: "The name is taken, or the object is used or fixed by a file",
    412: "The object is not the one that If-Match names",
    413: "The body is larger than 2 MiB (files: 16 MiB)",
    422: "Valid JSON, but it cannot be used; errors[] has every problem with its place",
    503: "Not now; see Retry-After",
}


BODIES: Final[dict[str, type[BaseModel]]] = {}
"""The models of bodies, by where the document describes them."""


def described(
    *,
    body: type[BaseModel] | None = None,
    answer: type[Any] | None = None,
    status: int = 200,
    problems: tuple[int, ...] = (),
    description: str = "Done",
    also_creates: bool = False,
) -> dict[str, Any]:
    """Keyword arguments for a route: what FastAPI cannot see, since bodies are read and written here, exactly."""
    responses: dict[int | str, dict[str, Any]] = {status: {"description": description}}
    if answer is not None:
        responses[status]["content"] = {"application/json": {"schema": {"$ref": ref(answer)}}}
    if also_creates:
        responses[201] = {**responses[status], "description": "Created"}
    with_body = (400, 413, 422) if body is not None else ()
    for code in sorted({400, 401, 503, *with_body, *problems}):
        responses[code] = {
            "description": _PROBLEMS[code],
            "content": {"application/problem+json": {"schema": {"$ref": ref(ProblemDocument)}}},
        }
    extra: dict[str, Any] = {}
    if body is not None:
        content = {"application/json": {"schema": {"$ref": ref(body)}}}
        BODIES[ref(body)] = body
        extra["requestBody"] = {"required": True, "content": content}
    kind = Response if answer is None else JSONResponse
    return {"responses": responses, "openapi_extra": extra, "status_code": status, "response_class": kind}


def ref(model: type[Any]) -> str:
    """Where the document describes the model."""
    return f"#/components/schemas/{model.__name__}"
