"""A new version against older ones, under a mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from schema_validation.compatibility import avro, json_schema, protobuf
from schema_validation.compatibility.verdict import Finding, Mode, Reason, Verdict

_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "avro": avro.parse,
    "json": json_schema.parse,
    "protobuf": protobuf.parse,
}
_CHECKERS: Mapping[str, Callable[[Any, Any], list[Reason]]] = {
    "avro": avro.can_read,
    "json": json_schema.can_read,
    "protobuf": protobuf.can_read,
}


@dataclass(frozen=True, slots=True)
class Compared:
    """A version as the check sees it: what it is called in reasons, and its source, which stands alone."""

    label: str
    kind: str
    source: Any


def compare(mode: Mode, new: Compared, olds: Mapping[int, Compared]) -> Verdict:
    """The verdict on a new version, held to ``olds`` by their numbers. Sources are known to be schemas."""
    if mode is Mode.DISABLED:
        refusal = Reason("", "compatibility 'disabled' takes no new versions")
        return Verdict(mode, tuple(olds), (Finding(new.label, "any version", refusal),), ())
    if new.kind not in _PARSERS:  # what another process does with a payload cannot be looked into
        return Verdict(mode, (), (), ())
    problems: list[Finding] = []
    warnings: list[Finding] = []
    model = _PARSERS[new.kind](new.source)
    for old in olds.values():
        before = _PARSERS[old.kind](old.source)
        found: list[Finding] = []
        if mode.reads_old:
            found += [Finding(new.label, old.label, reason) for reason in _CHECKERS[new.kind](model, before)]
        if mode.is_read_by_old:
            found += [Finding(old.label, new.label, reason) for reason in _CHECKERS[new.kind](before, model)]
        problems += [finding for finding in found if not finding.reason.is_warning]
        warnings += [finding for finding in found if finding.reason.is_warning]
        if new.kind == "protobuf":
            warnings += [Finding(new.label, old.label, reason) for reason in protobuf.warnings(model, before)]
    return Verdict(mode, tuple(olds) if mode is not Mode.NONE else (), tuple(problems), tuple(warnings))
