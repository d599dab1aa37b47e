"""Avro: what a reader with one schema makes of data written with another (Avro 1.11, "Schema Resolution").

Same kind after promotion, named types by unqualified name or alias, fields by name or alias or default, and for each
branch of a writer's union the first branch of the reader's that has its kind and name. Tests compare the verdict to
the data that fastavro reads.
"""

from __future__ import annotations

from collections.abc import Mapping

from schema_validation.compatibility.verdict import Reason
from schema_validation.serdes.avro_schema import MISSING, AvroType, read_schema

PROMOTIONS: Mapping[str, frozenset[str]] = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
_NAMED = frozenset({"record", "enum", "fixed"})


def parse(source: str) -> AvroType:
    """The types of a source that is known to be a schema."""
    return read_schema(source).type


def can_read(reader: AvroType, writer: AvroType) -> list[Reason]:
    """Reasons why a reader cannot read everything a writer may have written; empty when it can."""
    return _Resolution().check(reader, writer, "")


class _Resolution:
    def __init__(self) -> None:
        self._assumed: set[tuple[int, int]] = set()

    def check(self, reader: AvroType, writer: AvroType, path: str) -> list[Reason]:
        pair = (id(reader), id(writer))
        if pair in self._assumed:
            # a type that contains itself: what the outer check finds covers it
            return []
        if writer.kind == "union":
            by_branch = [self._branch(reader, branch, path) for branch in writer.branches]
            return [reason for reasons in by_branch for reason in reasons]
        if reader.kind == "union":
            return self._branch(reader, writer, path)
        if not _is_of_kind(reader, writer):
            return [Reason(path, _mismatch(reader, writer))]
        if reader.digits and writer.digits and not reader.digits.can_hold(writer.digits):
            return [
                Reason(
                    path,
                    f"the writer writes a {writer.digits.text}, the reader reads a {reader.digits.text}",
                )
            ]
        self._assumed.add(pair)
        return self._inside(reader, writer, path)

    def _branch(self, reader: AvroType, written: AvroType, path: str) -> list[Reason]:
        """Conversion of one written type in a reader that may be a union: the first of its branches of that kind."""
        if reader.kind != "union":
            if _matches(reader, written):
                return self.check(reader, written, path)
            return [
                Reason(
                    path,
                    f"the writer may write {written.text}, the reader reads only {reader.text}",
                )
            ]
        for branch in reader.branches:
            if _matches(branch, written):
                return self.check(branch, written, path)
        kinds = ", ".join(branch.text for branch in reader.branches)
        return [
            Reason(
                path,
                f"the writer may write {written.text}, which is not in the reader's union of {kinds}",
            )
        ]

    def _inside(self, reader: AvroType, writer: AvroType, path: str) -> list[Reason]:
        if reader.kind == "record":
            return self._record(reader, writer, path)
        if reader.kind == "enum":
            return _enum(reader, writer, path)
        if reader.items is not None and writer.items is not None:
            return self.check(
                reader.items,
                writer.items,
                _below(path, "items" if reader.kind == "array" else "values"),
            )
        return []

    def _record(self, reader: AvroType, writer: AvroType, path: str) -> list[Reason]:
        by_name = {item.name: item for item in reader.fields}
        by_alias = {alias: item for item in reader.fields for alias in item.aliases}
        reasons: list[Reason] = []
        taken: set[str] = set()
        for written in writer.fields:
            read = by_name.get(written.name) or by_alias.get(written.name)
            if read is None:
                continue
            place = _below(path, f"fields.{read.name}")
            if read.name in taken:
                reasons.append(
                    Reason(
                        place, "two of the writer's fields stand for it, by its name and an alias"
                    )
                )
                continue
            taken.add(read.name)
            reasons += self.check(read.type, written.type, place)
        reasons += [
            Reason(
                _below(path, f"fields.{item.name}"),
                "the writer does not write it, and it has no default",
            )
            for item in reader.fields
            if item.name not in taken and item.default is MISSING
        ]
        return reasons


def _matches(reader: AvroType, writer: AvroType) -> bool:
    """True if a branch of a union is taken: kind and name, and for arrays and maps those of their items."""
    if reader.kind == "union" or writer.kind == "union":
        return True
    if not _is_of_kind(reader, writer):
        return False
    if reader.items is not None and writer.items is not None:
        return _matches(reader.items, writer.items)
    return True


def _is_of_kind(reader: AvroType, writer: AvroType) -> bool:
    if reader.kind in _NAMED and reader.kind == writer.kind:
        return _has_name(reader, writer) and reader.size == writer.size
    return reader.kind == writer.kind or reader.kind in PROMOTIONS.get(writer.kind, ())


def _has_name(reader: AvroType, writer: AvroType) -> bool:
    short = writer.name.rpartition(".")[2]
    return (
        short == reader.name.rpartition(".")[2]
        or writer.name in reader.aliases
        or short in reader.aliases
    )


def _mismatch(reader: AvroType, writer: AvroType) -> str:
    if reader.kind == writer.kind == "fixed" and _has_name(reader, writer):
        return f"the writer's size is {writer.size}, the reader's {reader.size}"
    if reader.kind == writer.kind and reader.kind in _NAMED:
        return f"the writer calls it {writer.name}, the reader {reader.name}, without an alias"
    return f"the writer writes {writer.text}, the reader reads {reader.text}"


def _enum(reader: AvroType, writer: AvroType, path: str) -> list[Reason]:
    if reader.default is not MISSING:
        return []
    missing = [symbol for symbol in writer.symbols if symbol not in reader.symbols]
    if not missing:
        return []
    return [Reason(path, f"the reader's enum has no {', '.join(missing[:5])}, and no default")]


def _below(path: str, part: str) -> str:
    return f"{path}.{part}" if path else part
