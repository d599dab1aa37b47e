"""Members of a body that its operation does not have: refused, so that a misspelt one is not silently ignored.

The models that describe bodies in OpenAPI decide, also inside bodies. Bodies of kinds are checked by the service, with
the models that the document shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any, get_args

from annotated_types import MaxLen
from pydantic import BaseModel

from broker.core.errors import MOST_PROBLEMS, Invalid, Problem, did_you_mean


def check_members(body: Mapping[str, Any], model: type[BaseModel]) -> None:
    """Raise for members that an operation does not have.

    Raises:
        broker.core.errors.Invalid: with the first ones, each with its place and the member closest to it.
    """
    problems = list(islice(_unknown(body, model, ""), MOST_PROBLEMS + 1))
    if problems:
        raise Invalid("the body has unknown members", problems, code="unknown_member")


def _unknown(value: Any, model: type[BaseModel], pointer: str) -> Iterator[Problem]:
    """In an object, and in the objects below it that the model describes."""
    if not isinstance(value, Mapping):
        return
    members = _members(model)
    for name, item in value.items():
        if name in members:
            inner, most = members[name]
            if inner is None:
                continue
            if isinstance(item, list):
                for at, element in enumerate(item[:most]):
                    yield from _unknown(element, inner, f"{pointer}/{name}/{at}")
            else:
                yield from _unknown(item, inner, f"{pointer}/{name}")
        else:
            message = f"expected one of {', '.join(sorted(members))}; got {name[:100]!r}"
            yield Problem(
                message, f"{pointer}/{name[:100]}", suggestion=did_you_mean(name, members)
            )


@cache
def _members(model: type[BaseModel]) -> dict[str, tuple[type[BaseModel] | None, int | None]]:
    """The members of a body by name, with the model of the objects in them, where there is one, and the maximum number
    of these, beyond which the body is refused for their number."""
    return {
        field.alias or name: (_model_in(field.annotation), _longest(field.metadata))
        for name, field in model.model_fields.items()
    }


def _longest(metadata: Sequence[Any]) -> int | None:
    return next((limit.max_length for limit in metadata if isinstance(limit, MaxLen)), None)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(
        (model for part in get_args(annotation) if (model := _model_in(part)) is not None), None
    )
