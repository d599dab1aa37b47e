"""Places in a stream, as requests and specs name them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

_OFFSETS = re.compile(r"\d{1,6}:\d{1,18}(,\d{1,6}:\d{1,18})*", re.ASCII)


def parse_place(value: Any) -> int | datetime | dict[int, int]:
    """A place out of a request or a spec.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, str) and _OFFSETS.fullmatch(value):
        value = dict(pair.split(":") for pair in value.split(","))
    with suppress(ValueError):
        if isinstance(value, Mapping) and value:
            return {_number(shard): _number(offset) for shard, offset in value.items()}
        return _number(value)
    with suppress(ValueError, TypeError):
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is not None:
            return moment
    raise ValueError(
        "expected an offset, a time such as 2026-01-31T12:00:00Z, or offsets by shard such as 0:100,1:200"
    )


def leaves_out(shard: int, *places: int | datetime | dict[int, int] | None) -> bool:
    """True if a shard is outside a range whose places name shards."""
    return any(isinstance(place, dict) and shard not in place for place in places)


def _number(value: Any) -> int:
    if isinstance(value, str) and re.fullmatch(r"\d{1,18}", value, re.ASCII):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ValueError


def _written(place: int | datetime | dict[int, int] | None) -> int | str | dict[str, int] | None:
    """A place as JSON has it."""
    if isinstance(place, datetime):
        return place.isoformat().replace("+00:00", "Z")
    return (
        {str(shard): offset for shard, offset in place.items()}
        if isinstance(place, dict)
        else place
    )


# An offset, a time with its zone, or offsets by shard: ``{"0": 100, "1": 200}``, or ``0:100,1:200`` as text.
Place = Annotated[
    int | datetime | dict[int, int],
    PlainValidator(parse_place),
    PlainSerializer(_written, when_used="json"),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "integer"},
                {"type": "object", "additionalProperties": {"type": "integer"}},
            ]
        }
    ),
]
