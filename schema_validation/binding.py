"""What type the payloads of a topic have, where validations guarantee one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from broker.config.schema_use import TaggedUse, message_type_of
from broker.core.errors import NotFound, PeerError
from broker.core.schema import FieldType, SchemaLookup
from broker.core.topic import TopicFilter, covers
from rules.sql.type_checker.types import unified_all
from schema_validation.serdes.base import SchemaSerde
from schema_validation.serdes.json_types import meet
from schema_validation.spec import CheckSpec
from schema_validation.validation import Validation


def payload_type(validations: Iterable[Validation], topic_filter: str, schemas: SchemaLookup) -> FieldType | None:
    """The type of what has passed every schema check that guards these topics."""
    try:
        wanted = TopicFilter.parse(topic_filter).levels
    except PeerError:
        return None
    met: FieldType | None = None
    for validation in validations:
        if _guards(validation) and any(covers(own.levels, wanted) for own in validation.filters):
            met = _met(met, _type_of(validation, schemas))
    return met


def _met(one: FieldType | None, other: FieldType | None) -> FieldType | None:
    """The type of payloads that pass two checks; the first where they are written differently."""
    if one is None or other is None:
        return one if other is None else other
    return replace(meet(one, other), coding=one.coding) if one.coding == other.coding else one


def _guards(validation: Validation) -> bool:
    """Whether what does not pass is stopped."""
    return validation.spec.enable and validation.spec.stops


def _type_of(validation: Validation, schemas: SchemaLookup) -> FieldType | None:
    """The type by all checks together, or what they have in common where any one suffices."""
    kinds = [_type_by(check, schemas) for check in validation.spec.checks]
    known = [kind for kind in kinds if kind is not None]
    if validation.spec.strategy == "all_pass":
        met: FieldType | None = None
        for kind in known:
            met = _met(met, kind)
        return met
    if len(known) < len(kinds) or len({kind.coding for kind in known}) > 1:
        return None
    return replace(unified_all(known), coding=known[0].coding)


def _type_by(check: CheckSpec, schemas: SchemaLookup) -> FieldType | None:
    if not isinstance(check, TaggedUse) or check.wire_format != "none":
        return None
    try:
        serde = schemas.serde(check.schema_name)
    except NotFound:
        return None
    if not isinstance(serde, SchemaSerde) or serde.kind != check.type:
        return None
    kind = serde.field_type(message_type_of(check))
    return replace(kind, coding=serde.kind)
