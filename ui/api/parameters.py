"""Parameters in paths and queries: names, times, offsets, cursors; unknown parameters are refused, not ignored, and
names of the last release are replaced."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import Path, Request
from pydantic import AfterValidator, StringConstraints
from starlette.types import Scope

from broker.core import jsontext
from broker.core.errors import Invalid, Problem
from ui.api.problems import ApiProblem

# The names of 0.2 that work for one release, in queries and bodies.
_OLD_NAMES: Final = {"client_id": "clientid", "client_ids": "clientids"}
_OLD_IN_QUERY: Final = re.compile(rb"(^|&)client_id(?==)|((?:^|&)sort=-?)client_id(?=&|$)")
NAME_PATTERN = r"^[0-9A-Za-z_][0-9A-Za-z_.\-]{0,254}$"
_NAME = re.compile(NAME_PATTERN)


def checked_name(name: str) -> str:
    """The name, when it is one.

    Raises:
        broker.core.errors.Invalid: it is none.
    """
    if _NAME.fullmatch(name) is None:
        rule = f"{name[:300]!r} is none: use letters, digits, '_', '-' and '.', at most 255, '-' and '.' not first"
        raise Invalid("the name cannot be used", [Problem(rule, "/name")], code="invalid_name")
    return name


NamePath = Annotated[
    str,
    Path(description="The object's name.", json_schema_extra={"pattern": NAME_PATTERN}),
    AfterValidator(checked_name),
]
AnyName = Annotated[str, Path(max_length=65_600, description="The object's name, percent-encoded.")]


# A record of a stream, as ``SHARD/OFFSET``.
RecordId = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,4}/[0-9]{1,19}$")]


def places_of(records: Iterable[RecordId]) -> list[tuple[int, int]]:
    """Shard and offset of each, once, in their order."""
    return sorted(
        {
            (int(shard), int(offset))
            for shard, _, offset in (record.partition("/") for record in records)
        }
    )


def rename_old_parameters(scope: Scope) -> None:
    """Give the parameters of a query that have names of the last release those of this one, and mark the request."""
    query = scope["query_string"]
    renamed = _OLD_IN_QUERY.sub(rb"\1\2clientid", query) if b"client_id" in query else query
    if renamed != query:
        scope["query_string"] = renamed
        scope["state"]["has_old_names"] = True


def rename_old_members(request: Request, sent: dict[str, Any], shown: Any) -> None:
    """Give the members of a body that have names of the last release those of this one, and mark the request."""
    members = {field.alias or name for name, field in getattr(shown, "model_fields", {}).items()}
    for old, new in _OLD_NAMES.items():
        if old in sent and new not in sent and old not in members and new in members:
            sent[new] = sent.pop(old)
            request.state.has_old_names = True


async def refuse_unknown_parameters(request: Request) -> None:
    """Raise 400 for a query parameter that the operation does not have: a misspelt filter must not find everything."""
    dependant = getattr(request.scope.get("route"), "dependant", None)
    if dependant is None or not request.query_params:
        return
    allowed = set(_query_parameters(dependant))
    unknown = sorted(set(request.query_params) - allowed)
    if unknown:
        there_are = f"there are {', '.join(sorted(allowed))}" if allowed else "it takes none"
        raise ApiProblem(
            400,
            "unknown_parameter",
            f"{request.url.path} has no parameter {unknown[0]!r}; {there_are}",
        )


def _query_parameters(dependant: Any) -> Iterator[str]:
    """The names of those that an operation takes, itself or through what it depends on."""
    yield from (parameter.alias for parameter in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _query_parameters(inner)


def microseconds(text: str, parameter: str) -> int:
    """A time as microseconds since 1970: RFC 3339 with a zone, or milliseconds since 1970.

    Raises:
        broker.core.errors.Invalid: it is neither.
    """
    if re.fullmatch(r"\d{1,16}", text, re.ASCII):
        return int(text) * 1000
    try:
        # a plus sign that was not escaped arrives as a space
        moment = datetime.fromisoformat(text.replace(" ", "+"))
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise _wrong(
            parameter,
            f"expected a time as 2026-01-31T12:00:00Z or milliseconds since 1970, got {text!r}",
        )
    return round(moment.timestamp() * 1_000_000)


def offset(text: str, parameter: str) -> int:
    """An offset of a stream.

    Raises:
        broker.core.errors.Invalid: it is none.
    """
    if re.fullmatch(r"\d{1,19}", text, re.ASCII) is None:
        raise _wrong(parameter, f"expected digits, got {text!r}")
    return int(text)


def named_values(texts: Iterable[str], parameter: str) -> dict[str, str]:
    """Values by their names, of a parameter that is repeated as ``NAME=VALUE``.

    Raises:
        broker.core.errors.Invalid: one of them has another form.
    """
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise _wrong(parameter, f"{parameter}: expected NAME=VALUE, got {text!r}")
        values[name] = value
    return values


def encode_cursor(*place: int | str) -> str:
    """Cursor of the next page, which begins behind the item at this place, such as its position and its name."""
    return base64.urlsafe_b64encode(jsontext.encode([*place])).decode()


def decode_cursor(cursor: str, types: Sequence[type]) -> tuple[Any, ...]:
    """The place of the last item shown, of values of these types.

    Raises:
        broker.core.errors.Invalid: it is not a cursor of this API.
    """
    try:
        place = jsontext.decode(base64.urlsafe_b64decode(cursor.encode()))
    except (binascii.Error, ValueError, TypeError):
        place = None
    if not isinstance(place, list) or [type(value) for value in place] != list(types):
        raise _wrong("cursor", "expected `next` of an earlier answer")
    return tuple(place)


def _wrong(parameter: str, message: str) -> Invalid:
    return Invalid(
        f"the parameter {parameter!r} cannot be used", [Problem(message, f"/query/{parameter}")]
    )
