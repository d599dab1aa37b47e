"""What type the payloads of a topic have, where validations guarantee one."""

from __future__ import annotations

from collections.abc import Iterable

from broker.core.errors import NotFound, PeerError
from broker.core.filters import covers
from broker.core.schema import FieldType, SchemaLookup
from broker.core.topic import TopicFilter
from schema_validation.serdes.avro import AvroSerde
from schema_validation.serdes.json_schema import JsonSchemaSerde
from schema_validation.spec import SqlCheckSpec
from schema_validation.validation import Validation


def payload_type(validations: Iterable[Validation], topic_filter: str, schemas: SchemaLookup) -> FieldType | None:
    """The type by the first schema check that every message on these topics has passed."""
    try:
        wanted = TopicFilter.parse(topic_filter).levels
    except PeerError:
        return None
    for validation in validations:
        if _guards(validation) and any(covers(own.levels, wanted) for own in validation.filters):
            found = _type_of(validation, schemas)
            if found is not None:
                return found
    return None


def _guards(validation: Validation) -> bool:
    """Whether what does not pass is stopped, and passing means that every check passed."""
    spec = validation.spec
    return spec.enable and spec.stops and (spec.strategy == "all_pass" or len(spec.checks) == 1)


def _type_of(validation: Validation, schemas: SchemaLookup) -> FieldType | None:
    for check in validation.spec.checks:
        if isinstance(check, SqlCheckSpec):
            continue
        try:
            serde = schemas.serde(check.schema_name)
        except NotFound:
            continue
        if isinstance(serde, (JsonSchemaSerde, AvroSerde)) and serde.kind == check.type:
            return serde.field_type()
    return None
