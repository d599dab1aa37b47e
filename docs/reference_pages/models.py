"""What the members of a model are: a table of one, and the models that it is made of."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from broker.config.reference import NAMES, attribute_docs, unit_of
from broker.config.secrets import Secret
from docs.reference_pages.markdown import prose, table

_UNITS: Final[Mapping[str, Mapping[str, int]]] = {
    "duration": {"d": 86_400, "h": 3600, "m": 60, "s": 1},
    "size": {"GB": 1024**3, "MB": 1024**2, "KB": 1024},
}
"""What values of a type are written in, largest first: seconds and bytes."""

Model = type[BaseModel]


def in_units(text: str, type: str) -> str:
    """A quantity in the largest unit that it is a whole number of, other texts as they are."""
    if type == "duration" and 0 < float(text) < 1:
        return f"{float(text) * 1000:g}ms"
    for unit, size in _UNITS.get(type, {}).items():
        if float(text) and float(text) % size == 0:
            return f"{float(text) / size:.0f}{unit}"
    return text.removesuffix(".0")


def described(model: Model, meanings: Mapping[str, str], prefix: str = "") -> str:
    """What a model says of itself, and the table of its members."""
    return f"{prose(_docstring(model))}\n\n{members(model, meanings, prefix)}".lstrip()


def members(model: Model, meanings: Mapping[str, str], prefix: str = "") -> str:
    """The table of a model's members. ``meanings`` holds those that no model explains; ``prefix`` begins the anchors of
    the models that it links to, where several have one name."""
    docs = attribute_docs(model)
    rows = [
        (f"`{found.alias or name}`", type_text(found.annotation, found.metadata, prefix), _default(found),
         found.description or docs.get(name) or meanings.get(found.alias or name, ""))
        for name, found in model.model_fields.items()
    ]  # fmt: skip
    return table(("member", "type", "default", "meaning"), rows) if rows else "No members."


def parts(model: Model) -> Iterator[Model]:
    """The models that stand in the members of a model, however deep; each once, those found first come first."""
    found: dict[Model, None] = {}
    _collect(model, found)
    yield from (one for one in found if one is not model)


def _collect(model: Model, found: dict[Model, None]) -> None:
    if model in found:
        return
    found[model] = None
    for field in model.model_fields.values():
        for inner in _models(field.annotation):
            _collect(inner, found)


def _models(annotation: Any) -> Iterator[Model]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def type_text(annotation: Any, metadata: Any = (), prefix: str = "") -> str:
    """A type in words; models are links to where they are told."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if unit := unit_of(metadata):
        return unit
    if origin is Annotated:
        return type_text(arguments[0], arguments[1:], prefix)
    if origin is Literal:
        return " or ".join(f"`{json.dumps(choice).strip(chr(34))}`" for choice in arguments)
    if origin in (Union, UnionType):
        return " or ".join(
            dict.fromkeys(type_text(one, (), prefix) for one in arguments if one is not NoneType)
        )
    if origin in (list, tuple, set, frozenset):
        return f"list of {type_text(arguments[0], (), prefix)}"
    if origin is dict:
        return f"object of {type_text(arguments[1], (), prefix)} by name"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{prefix}{annotation.__name__.lower()})"
    if annotation not in NAMES and isinstance(annotation, type) and issubclass(annotation, Secret):
        return "secret"
    return NAMES.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _default(found: FieldInfo) -> str:
    if found.is_required():
        return "required"
    value = found.get_default(call_default_factory=True, validated_data={})
    if value is None or isinstance(value, BaseModel):
        return ""
    unit = unit_of(found.metadata)
    if unit is not None:
        return f"`{in_units(str(value), unit)}`"
    written = to_jsonable_python(value, exclude_none=True, fallback=lambda url: url.shown)
    return f"`{json.dumps(written, ensure_ascii=False)}`"


def _docstring(model: Model) -> str:
    return (vars(model).get("__doc__") or "").strip()
