"""Result of a compatibility check: modes, reasons with their places, and the verdict over several versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from typing_extensions import TypedDict


class Mode(StrEnum):
    """Compatibility that a new version of a schema needs before it is saved."""

    NONE = "none"
    BACKWARD = "backward"
    BACKWARD_TRANSITIVE = "backward_transitive"
    FORWARD = "forward"
    FORWARD_TRANSITIVE = "forward_transitive"
    FULL = "full"
    FULL_TRANSITIVE = "full_transitive"
    DISABLED = "disabled"

    @property
    def reads_old(self) -> bool:
        """The new version must read data of older ones."""
        return self.value.startswith(("backward", "full"))

    @property
    def is_read_by_old(self) -> bool:
        """Older versions must read data of the new one."""
        return self.value.startswith(("forward", "full"))

    @property
    def is_transitive(self) -> bool:
        """All live versions count, not only the last."""
        return self.value.endswith("_transitive")


MODES: Sequence[str] = tuple(mode.value for mode in Mode)


class FieldView(TypedDict):
    """A field of a schema: its path, as `room.temp` or `readings[].value`, its type, and whether it may be absent."""

    path: str
    type: str
    is_optional: bool


class ChangeView(TypedDict):
    """A difference of two versions of a schema: added, removed, renamed, type, optionality, or the keyword that
    changed; ``text`` says it in words."""

    change: str
    path: str
    before: Any
    after: Any
    text: str


class FindingView(TypedDict):
    """One thing that a version (``reader``) cannot read of data of another (``writer``); ``path`` is a place in the
    schema, empty where it is the whole."""

    path: str
    message: str
    reader: str
    writer: str


class VerdictView(TypedDict):
    """Verdict on saving a new version under the compatibility mode; ``against`` are the versions it was compared
    with."""

    mode: str
    compatible: bool
    against: list[int]
    reasons: list[FindingView]
    warnings: list[FindingView]


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that the reader's schema cannot read of the writer's, or a warning about it.

    ``path`` is a place in the schema: ``fields.t``, ``properties.t.type``, ``Reading field 3``; "" is the whole.
    """

    path: str
    message: str
    is_warning: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


@dataclass(frozen=True, slots=True)
class Finding:
    """A reason with the two versions it is about."""

    reader: str
    writer: str
    reason: Reason

    def view(self) -> FindingView:
        """View for the API."""
        return {
            "path": self.reason.path,
            "message": self.reason.message,
            "reader": self.reader,
            "writer": self.writer,
        }

    def __str__(self) -> str:
        return f"{self.reader} cannot read data of {self.writer}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict on saving a new version under a mode, with reasons. ``against`` are the versions compared."""

    mode: Mode
    against: tuple[int, ...]
    problems: tuple[Finding, ...]
    warnings: tuple[Finding, ...]

    @property
    def is_compatible(self) -> bool:
        return not self.problems

    def view(self) -> VerdictView:
        """View for the API."""
        return {
            "mode": self.mode.value,
            "compatible": self.is_compatible,
            "against": list(self.against),
            "reasons": [finding.view() for finding in self.problems],
            "warnings": [finding.view() for finding in self.warnings],
        }
