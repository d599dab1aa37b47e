"""A new version against older ones, under a mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


def compare(mode: Mode, kind: str, label: str, new: Any, olds: Mapping[int, Any]) -> Verdict:
    """The verdict on a new version, called ``label`` in reasons, held to older ones by their numbers.

    The versions are self-contained sources, known to be schemas.
    """
    if mode is Mode.DISABLED:
        refusal = Reason("", "compatibility 'disabled' takes no new versions")
        return Verdict(mode, tuple(olds), (Finding(label, "any version", refusal),), ())
    if kind not in _PARSERS:  # the work of another process cannot be analysed
        return Verdict(mode, (), (), ())
    problems: list[Finding] = []
    warnings: list[Finding] = []
    parse = _PARSERS[kind]
    can_read = _CHECKERS[kind]
    model = parse(new)
    for number, old in olds.items():
        before = parse(old)
        old_label = f"version {number}"
        findings: list[Finding] = []
        if mode.reads_old:
            findings += [Finding(label, old_label, reason) for reason in can_read(model, before)]
        if mode.is_read_by_old:
            findings += [Finding(old_label, label, reason) for reason in can_read(before, model)]
        problems += [finding for finding in findings if not finding.reason.is_warning]
        warnings += [finding for finding in findings if finding.reason.is_warning]
        if kind == "protobuf":
            warnings += [
                Finding(label, old_label, reason) for reason in protobuf.warnings(model, before)
            ]
    return Verdict(
        mode, tuple(olds) if mode is not Mode.NONE else (), tuple(problems), tuple(warnings)
    )
