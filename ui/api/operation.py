"""How an operation is described in OpenAPI: its body, its answers, and the problems it may answer with."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from broker.core.kinds import Kind
from ui.api.models.shapes import ProblemDocument

COMPONENTS: Final = "#/components/schemas/"

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


MODELS: Final[dict[str, Any]] = {}
"""Models that operations name, by where the document describes them."""


def described(
    *,
    body: type[BaseModel] | Kind | None = None,
    is_patch: bool = False,
    answer: type[Any] | None = None,
    status: int = 200,
    problems: tuple[int, ...] = (),
    description: str = "Done",
    also_creates: bool = False,
) -> dict[str, Any]:
    """Keyword arguments for a route: what FastAPI cannot see, since bodies are read and written here, exactly.

    The body of a kind is validated by the service, with the models that the document shows.
    """
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
        named = ref_of_kind(body, is_patch=is_patch) if isinstance(body, Kind) else ref(body)
        content = {"application/json": {"schema": {"$ref": named}}}
        extra["requestBody"] = {"required": True, "content": content}
    kind = Response if answer is None else JSONResponse
    return {"responses": responses, "openapi_extra": extra, "status_code": status, "response_class": kind}


def ref(model: type[Any]) -> str:
    """Where the document describes the model."""
    name = f"{COMPONENTS}{model.__name__}"
    assert MODELS.setdefault(name, model) is model, f"two models are named {name}"
    return name


def ref_of_kind(kind: Kind, *, is_patch: bool = False) -> str:
    """Where the document describes what is sent to save an object, or to change members of one."""
    return f"{COMPONENTS}{kind.id}{'Patch' if is_patch else 'Spec'}"
