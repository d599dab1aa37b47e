"""What a rule reads, as types: for each source of FROM its columns and what its payloads hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from broker.core.schema import UNKNOWN, FieldType
from rules.sql.event_columns import COMMON, EVENT_COLUMNS, MQTT_INGRESS, Columns
from rules.sql.sources import EVENT_PREFIX, INGRESS_PREFIXES, PUBLISH, RULE_PREFIX, events_of
from rules.sql.types import maybe, unified_all


@dataclass(frozen=True, slots=True)
class Input:
    """One source: ``columns`` is None when it may have any, ``payload`` the type of the payload once decoded."""

    source: str
    columns: Columns | None
    payload: FieldType = UNKNOWN


ANY: Final = Input("", None)
"""A source of which nothing is known."""


def message_input(source: str, payload: FieldType | None = None) -> Input:
    """Published messages on the topics of a filter."""
    return Input(source, EVENT_COLUMNS[PUBLISH], payload or UNKNOWN)


def row_input(source: str, row: Columns | None) -> Input:
    """Rows of another rule: their columns beside the common ones; None where they are not known."""
    if row is None:
        return Input(source, None)
    payload = row.get("payload", UNKNOWN)
    columns = {**COMMON, **row, "event": COMMON["event"], "metadata": COMMON["metadata"]}
    return Input(source, columns, UNKNOWN if payload.name == "string" else payload)


PayloadType = Callable[[str], FieldType | None]
"""The type of the payloads on a filter's topics."""
RowType = Callable[[str], Columns | None]
"""The columns of a rule's rows, by its name."""


def inputs_of(
    sources: Sequence[str], payload_type: PayloadType, row_type: RowType = lambda _: None
) -> tuple[Input, ...]:
    """The inputs of a statement whose FROM names these sources."""
    found: list[Input] = []
    for text in sources:
        if text.startswith(EVENT_PREFIX):
            found += [Input(text, EVENT_COLUMNS.get(name)) for name in sorted(events_of(text))]
        elif text.startswith(INGRESS_PREFIXES):
            found.append(Input(text, MQTT_INGRESS if text.split("/", 1)[1].startswith("mqtt:") else None))
        elif text.startswith(RULE_PREFIX):
            found.append(row_input(text, row_type(text.removeprefix(RULE_PREFIX))))
        else:
            found.append(message_input(text, payload_type(text)))
    return tuple(found)


def columns_of(inputs: Sequence[Input]) -> Columns:
    """The columns that any source has; nullable where another one has not."""
    tables = [one.columns for one in inputs if one.columns is not None]
    merged: dict[str, FieldType] = {}
    for name in dict.fromkeys(name for columns in tables for name in columns):
        kinds = [columns[name] for columns in tables if name in columns]
        kind = unified_all(kinds)
        merged[name] = kind if len(kinds) == len(inputs) else maybe(kind)
    if len(tables) < len(inputs):
        merged = dict.fromkeys(merged, UNKNOWN)
    return merged


def is_open(inputs: Sequence[Input]) -> bool:
    """Whether there may be columns that are not known."""
    return any(one.columns is None for one in inputs)


def payload_of(inputs: Sequence[Input]) -> FieldType:
    """The type of payloads whichever source they come from."""
    kinds = [one.payload for one in inputs if one.columns is None or "payload" in one.columns]
    kind = unified_all(kinds) if kinds else UNKNOWN
    return maybe(kind) if len(kinds) < len(inputs) else replace(kind, coding="json")
