"""Places in a stream, as requests name them."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema


def _place(value: Any) -> int | datetime:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str):
        if re.fullmatch(r"\d{1,18}", value, re.ASCII):
            return int(value)
        with suppress(ValueError):
            moment = datetime.fromisoformat(value)
            if moment.tzinfo is not None:
                return moment
    raise ValueError("expected an offset or a time such as 2026-01-31T12:00:00Z")


Place = Annotated[
    int | datetime,
    PlainValidator(_place),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "integer"}]}),
]
"""An offset, or a time with its zone."""
