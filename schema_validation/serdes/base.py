"""Base of all schema languages: the serde, and its explanation of a refusal."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from typing_extensions import TypedDict

from broker.core.kinds import counted
from broker.core.schema import FieldType, SchemaError

# Longest source of one schema.
MAX_SOURCE_BYTES = 1024 * 1024

Path = Sequence[str | int]


class SourceError(ValueError):
    """The source of a schema cannot be used. ``line`` and ``column`` count from 1 where they are known."""

    def __init__(self, message: str, line: int | None = None, column: int | None = None) -> None:
        self.message = message
        self.line = line
        self.column = column
        super().__init__(message if line is None else f"line {line}, column {column}: {message}")


@dataclass(frozen=True, slots=True)
class Misfit:
    """One place where a value does not fit: where and why. Never holds the whole value."""

    path: str
    detail: str

    def __str__(self) -> str:
        return f"{self.path}: {self.detail}"


class SchemaFacts(TypedDict, total=False):
    """Facts about a schema: for Avro its ``top`` type and whether it is ``recursive``, the ``draft`` of JSON
    Schema, the ``message_types`` of Protobuf, or the ``server`` that codes its payloads."""

    top: str
    recursive: bool
    draft: str
    message_types: list[str]
    server: str


class InferredSchema(TypedDict):
    """A schema that the messages fit; ``skipped`` messages were not JSON."""

    type: str
    source: str
    messages: int
    skipped: int
    warnings: list[str]


class DataRefused(SchemaError):
    """A value or a payload does not fit a schema."""

    def __init__(self, label: str, misfit: Misfit) -> None:
        self.label = label
        self.misfit = misfit
        super().__init__(f"{label}: {misfit}" if label else str(misfit))


class NotWritable(Exception):
    """A value that does not fit a schema; ``path`` is where."""

    def __init__(self, detail: str) -> None:
        self.detail = detail
        self.path: list[str | int] = []
        super().__init__(detail)

    def below(self, part: str | int) -> NotWritable:
        """The same, seen from one level further up."""
        self.path.insert(0, part)
        return self

    def refused(self, label: str) -> DataRefused:
        """The error for the caller."""
        return DataRefused(label, Misfit(path_text(self.path), self.detail))


class Located(Exception):
    """A payload does not fit here; ends the search for the place."""

    def __init__(self, path: Path, detail: str) -> None:
        self.misfit = Misfit(path_text(path), detail)


class SchemaSerde(ABC):
    """A compiled schema; a ``broker.core.schema.TypedSerde``."""

    kind: str
    label: str

    @abstractmethod
    def decode(self, data: bytes, message_type: str | None = None) -> Any: ...

    @abstractmethod
    def encode(self, value: Any, message_type: str | None = None) -> bytes: ...

    @abstractmethod
    def field_type(self, message_type: str | None = None) -> FieldType:
        """The type of the values, for the type checker of rules; protobuf's is that of a message type."""

    @abstractmethod
    def facts(self) -> SchemaFacts:
        """Properties of the schema that the API shows."""

    def has_message_type(self, message_type: str) -> bool:
        return False

    def misfit(self, data: bytes, message_type: str | None = None) -> Misfit | None:
        """Reason why a payload does not fit, or None when it does."""
        try:
            self.decode(data, message_type)
        except DataRefused as error:
            return error.misfit
        return None

    def _refused(self, detail: str) -> DataRefused:
        return DataRefused(self.label, Misfit("payload", detail))

    def _take_no_message_type(self, message_type: str | None) -> None:
        if message_type is not None:
            raise self._refused(
                f"a schema of type {self.kind} has no message type {short(message_type)}"
            )


def at_pointer(document: Any, pointer: str) -> Any:
    """The part of a JSON document that a pointer, escaped as in a URL, names (RFC 6901), or None."""
    target = document
    for part in pointer.split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping):
            target = target.get(key)
        else:
            target = (
                target[int(key)]
                if isinstance(target, list) and key.isdecimal() and int(key) < len(target)
                else None
            )
    return target


def listed(value: Any) -> list[Any]:
    """A part of a JSON document where a list belongs, empty for anything else."""
    return value if isinstance(value, list) else []


def mapped(value: Any) -> Mapping[str, Any]:
    """A part of a JSON document where an object belongs, empty for anything else."""
    return value if isinstance(value, Mapping) else {}


def path_text(path: Path, root: str = "payload") -> str:
    """A place in a value: ``payload.readings[2].t``."""
    return root + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)


def short(value: Any) -> str:
    """A value for a message, cut: a string in quotes, a container by its kind."""
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:40] + "…")
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, (bytes, bytearray)):
        return counted(len(value), "byte")
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**40 else "a huge integer"
    return text if len(text) <= 40 else text[:40] + "…"
