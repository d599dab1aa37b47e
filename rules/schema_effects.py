"""What other schemas would do to rules: their SQL typed anew, held against what it is now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from broker.core.objects import Reference
from broker.core.schema import FieldType, SchemaEffect
from rules.rule import Statement
from rules.sql.inference import Inferred
from rules.type_check import TypeChecker


@dataclass(frozen=True, slots=True)
class TypedRule:
    """A rule as far as it matters here; ``streams`` are those its rows go to."""

    name: str
    statement: Statement
    streams: tuple[str, ...]


def effects(rules: Iterable[TypedRule], now: TypeChecker, then: TypeChecker) -> list[SchemaEffect]:
    """The rules that would be touched. One breaks when it makes mistakes it did not make, or a column changes type."""
    found = []
    for rule in rules:
        before, after = now.inferred(rule.statement), then.inferred(rule.statement)
        mistakes = _mistakes(after) - _mistakes(before)
        columns = _changed_columns(dict(before.columns), dict(after.columns))
        why = [*sorted(mistakes), *columns]
        if why:
            breaks = bool(mistakes) or any(columns.values())
            found.append(
                SchemaEffect(Reference("rule", rule.name), breaks, "; ".join(why), rule.streams if columns else ())
            )
    return found


def _mistakes(inferred: Inferred) -> set[str]:
    return {str(report.problem) for report in inferred.reports if report.is_mistake}


def _changed_columns(before: Mapping[str, FieldType], after: Mapping[str, FieldType]) -> dict[str, bool]:
    """Columns of another type, in words, and whether what reads them cannot go on."""
    changed = {}
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            what = f"column {name} is new" if old is None else f"column {name} is gone"
            changed[what] = new is None
        elif old.name != new.name:
            changed[f"column {name} was {old.name} and is {new.name}"] = not _is_widened(old, new)
    return changed


def _is_widened(old: FieldType, new: FieldType) -> bool:
    return old.name in ("unknown", "null") or (old.name, new.name) == ("long", "double")
