"""The base of all settings models, and the bounds of every model that users write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError

# Items of a list, and members of a map whose names users choose, where a field says nothing else.
MOST_ITEMS: Final = 1000
# Members that a model does not have and that are named one by one.
_MOST_UNKNOWN: Final = 50
_COLLECTIONS: Final = ("list", "set", "frozenset", "tuple", "dict")
_NO_SCHEMAS: Final = ("metadata", "serialization", "config", "cls", "default")


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema inside a schema, with itself; those of other models are bounded by these."""
    if isinstance(schema, dict):
        is_schema = isinstance(schema.get("type"), str)  # and not fields by their name
        if is_schema:
            yield schema
        for key, part in schema.items():
            if not (is_schema and key in _NO_SCHEMAS):
                yield from _parts(part)
    elif isinstance(schema, (list, tuple)):
        for part in schema:
            yield from _parts(part)


class Bounded(BaseModel):
    """A model whose collections all have a maximum, and which names a limited number of unknown members.

    Without that a body of two megabytes keeps the event loop for seconds.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        for part in _parts(schema):
            if part["type"] in _COLLECTIONS and not isinstance(part.get("max_length"), int):
                part["max_length"] = MOST_ITEMS
        return schema

    @model_validator(mode="before")
    @classmethod
    def _has_few_unknown_members(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > 2 * len(cls.model_fields) + _MOST_UNKNOWN:
            context = {"count": len(value), "names": ", ".join(sorted(cls.model_fields))}
            raise PydanticCustomError(
                "too_many_members", "expected only {names}, got {count} members", context
            )
        return value


class Settings(Bounded):
    """Frozen; unknown keys are refused; every field has a default, a unit in its description, and a description."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    takes_a_list: ClassVar[bool] = False
    """True if the section may be written as a list; its model then makes members of it."""
    member: ClassVar[type[Settings] | None] = None
    """Model below names that users choose, where the section has such names (``listeners.ssl.NAME``)."""
