"""The schema of Sparkplug B payloads, built in under a name that no user can take."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from broker.core.schema import SPARKPLUG_B
from schema_validation.serdes.protobuf import ProtobufSerde


@cache
def sparkplug_serde() -> ProtobufSerde:
    """The serde of Sparkplug B; compiled when it is first asked for."""
    source = Path(__file__).with_name("sparkplug_b.proto").read_text(encoding="utf-8")
    return ProtobufSerde(source, f"schema '{SPARKPLUG_B}'")
