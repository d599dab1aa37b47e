"""The settings there are, as rows of a reference page: key, type, default, description."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import cache
from inspect import getsource
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from broker.config.assignments import KeyPath
from broker.config.model import Settings
from broker.config.problems import models_at
from broker.config.secret_text import SecretUrl
from broker.config.secrets import MASK, Secret
from broker.config.units import parse_duration_s, parse_size_bytes


@dataclass(frozen=True, slots=True)
class SettingEntry:
    """One setting. ``default`` is as one writes it in a file; None when the setting is required."""

    key: str
    type: str
    default: str | None
    description: str


def describe(models: Mapping[str, type[Settings]]) -> list[SettingEntry]:
    """Every setting of the models, in order of sections and fields."""
    return [entry for section in sorted(models) for entry in _entries(section, models[section])]


@cache
def _described(owner: type[BaseModel], name: str) -> tuple[str, str | None, str] | None:
    """Type, default and help of a member of a model."""
    field = owner.model_fields.get(name)
    if field is None:
        return None
    text = field.description or attribute_docs(owner).get(name, "")
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
        return "object", None, text
    return _field_type(field), _default(field), text


def find_entry(models: Mapping[str, type[Settings]], path: KeyPath) -> SettingEntry | None:
    """The setting at a path, which may have names and numbers of items in it; None where no model describes it."""
    key = ".".join(path)
    sections = [name for name in models if path[: name.count(".") + 1] == tuple(name.split("."))]
    if not sections:
        return None
    section = max(sections, key=len)
    rest = path[section.count(".") + 1 :]
    if not rest:
        return SettingEntry(key, "object", None, _first_sentence(models[section]))
    for owner in models_at(models[section], rest[:-1]):
        if (described := _described(owner, rest[-1])) is not None:
            return SettingEntry(key, *described)
    inner = models_at(models[section], rest)
    return SettingEntry(key, "object", None, _first_sentence(inner[0])) if inner else None


def _first_sentence(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").split())


@cache
def attribute_docs(model: type[BaseModel]) -> dict[str, str]:
    """The docstrings of a settings model's attributes, by name. They are read from the source when a page needs them:
    pydantic's own option for that takes 2 ms for each model, at each start."""
    docs: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if not issubclass(base, Settings):
            continue
        with suppress(OSError):  # a model made at run time has no source
            [definition] = ast.parse(getsource(base)).body
            assert isinstance(definition, ast.ClassDef)
            for field, text in pairwise(definition.body):
                match field, text:
                    case ast.AnnAssign(target=ast.Name(name)), ast.Expr(
                        ast.Constant(str(described))
                    ):
                        docs[name] = " ".join(described.split())
    return docs


def _entries(prefix: str, model: type[BaseModel]) -> Iterator[SettingEntry]:
    described = attribute_docs(model)
    for name, field in model.model_fields.items():
        key = f"{prefix}.{name}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _entries(key, field.annotation)
        else:
            yield SettingEntry(
                key,
                _field_type(field),
                _default(field),
                field.description or described.get(name, ""),
            )
    if issubclass(model, Settings) and model.member is not None:
        yield from _entries(f"{prefix}.NAME", model.member)


def _field_type(field: FieldInfo) -> str:
    unit = unit_of(field.metadata)
    return unit or _type(field.annotation)


_UNITS = {parse_duration_s: "duration", parse_size_bytes: "size"}
# Names of types for users.
NAMES = {
    int: "whole number",
    float: "number",
    bool: "boolean",
    str: "text",
    Secret: "secret",
    SecretUrl: "text",
    Path: "path",
    Any: "any",
}


def unit_of(metadata: Any) -> str | None:
    """``duration`` or ``size`` where a field's metadata say that it is read as one."""
    parsers = (item.func for item in metadata if isinstance(item, BeforeValidator))
    return next((_UNITS[parser] for parser in parsers if parser in _UNITS), None)


def _type(annotation: Any) -> str:
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Annotated:
        return unit_of(arguments[1:]) or _type(arguments[0])
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " | ".join(choice.value for choice in annotation)
    if origin is Literal:
        return " | ".join(str(choice) for choice in arguments)
    if origin in (Union, UnionType):
        kinds = [_type(argument) for argument in arguments if argument is not NoneType]
        return " | ".join(kinds) + (" (optional)" if NoneType in arguments else "")
    if origin in (list, tuple, set, frozenset):
        return f"list of {_type(arguments[0])}" if arguments else "list"
    if origin is dict:
        return f"object of {_type(arguments[1])} by name"
    return NAMES.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _default(field: FieldInfo) -> str | None:
    if field.default_factory is not None:
        return _written(field.get_default(call_default_factory=True, validated_data={}))
    return None if field.default is PydanticUndefined else _written(field.default)


def _written(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, Secret):
        return value.shown if isinstance(value, SecretUrl) else MASK
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_written(item) for item in value) + "]"
    return str(value)
