"""Members of a body that its operation does not have: refused, so that a misspelt one is not silently ignored.

The models that describe bodies in OpenAPI decide, also inside bodies. Those with ``extra="allow"`` leave it to the
service: objects of a kind, whose members depend on their type, and patches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, Final, get_args

from fastapi import Request
from pydantic import BaseModel

from broker.admin.named_files import check_files
from broker.core.errors import Invalid, Problem
from ui.api.operation import MODELS

_LIKENESS: Final = 0.3
"""Low: ``context`` is to lead to ``event``. The members there are stand beside the suggestion."""


def check_members(request: Request, body: dict[str, Any]) -> None:
    """Raise for members that the operation of the request does not have, and for files that an object may not name.

    Raises:
        broker.core.errors.Invalid: with each, its place and the member nearest to it.
    """
    model = _model_of(getattr(request.scope.get("route"), "openapi_extra", None))
    if model is None:
        return
    if _is_open(model) or "parameters" in model.model_fields:
        check_files(body)
    problems = list(_unknown(body, model, ""))
    if problems:
        raise Invalid("the body has unknown members", problems, code="unknown_member")


def _model_of(described: Any) -> type[BaseModel] | None:
    try:
        reference = described["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    except (KeyError, TypeError):
        return None
    return MODELS.get(str(reference))


def _unknown(value: Any, model: type[BaseModel], pointer: str) -> Iterator[Problem]:
    """In an object, and in the objects below it that the model describes."""
    if not isinstance(value, Mapping):
        return
    known = _members(model)
    for name, item in value.items():
        if name in known:
            inner = known[name]
            for at, one in enumerate(item) if isinstance(item, list) else ((None, item),):
                if inner is not None:
                    yield from _unknown(one, inner, f"{pointer}/{name}" if at is None else f"{pointer}/{name}/{at}")
        elif not _is_open(model):
            near = get_close_matches(name, known, n=1, cutoff=_LIKENESS)
            message = f"expected one of {', '.join(sorted(known))}; got {name[:100]!r}"
            yield Problem(message, f"{pointer}/{name}", suggestion=f"did you mean {near[0]!r}?" if near else None)


def _is_open(model: type[BaseModel]) -> bool:
    """Whether it describes an object or a patch of one, of whose members the service knows more."""
    return model.model_config.get("extra") == "allow"


@cache
def _members(model: type[BaseModel]) -> dict[str, type[BaseModel] | None]:
    """The members of a body by name, with the model of the objects in them, where there is one."""
    return {field.alias or name: _model_in(field.annotation) for name, field in model.model_fields.items()}


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part)) is not None), None)
