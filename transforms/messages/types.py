"""What a transformation does to the type of payloads, for the type checker of rules."""

from __future__ import annotations

from dataclasses import replace

from broker.core.schema import UNKNOWN, FieldType
from transforms.messages.transformation import Transformation


def type_after(transformation: Transformation, before: FieldType) -> FieldType | None:
    """The type of payloads after a transformation; None when nothing is known of it any more."""
    spec = transformation.spec
    if spec.mode == "shadow":
        return before
    written = [operation.key for operation in transformation.operations if operation.root == "payload"]
    if spec.payload_decoder != spec.payload_encoder and spec.payload_encoder.type != "json":
        return None
    if spec.payload_encoder.type == "json":
        if before.coding != "json" and not spec.stops:
            return None  # what could not be decoded goes on as it was
        before = replace(before, coding="json")
    if not written:
        return before
    if "payload" in written or before.name != "struct":
        return None
    fields = dict(before.fields)
    for key in written:
        fields[key.split(".")[1]] = UNKNOWN
    return replace(before, fields=fields)
