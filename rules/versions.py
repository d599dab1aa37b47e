"""Past versions of rules: numbered versions with the time of each change, in files in the data directory.

A version holds all members of a rule but ``name`` and ``enable``: switching a rule off and on makes none. A file that
cannot be read is put aside and a new one begun, since a rule must not fail for its past.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from typing_extensions import TypedDict

from broker.config.sections import replace_file
from broker.core import jsontext
from broker.core.errors import NotFound
from broker.core.objects import Spec
from broker.core.times import MILLISECONDS, rfc3339_or_none
from broker.observe.log import get_logger

MAX_VERSIONS: Final = 100
# Maximum versions of a rule, and their maximum bytes; the oldest are removed first.
MAX_BYTES: Final = 8 * 1024 * 1024
# Time for which the versions of a deleted rule are held in memory, in nanoseconds, and the bytes of all of them.
UNDO_NS: Final = 600 * 1_000_000_000
_MOST_FORGOTTEN_BYTES: Final = 16 * 1024 * 1024
_NOT_KEPT: Final = ("name", "enable")

log = get_logger(__name__)


class VersionRow(TypedDict):
    """A version of a rule: when it was saved, null where that is not known, and what changed."""

    version: int
    saved_at: str | None
    change: str


class VersionView(VersionRow):
    """A version of a rule with the members that the rule had."""

    rule: dict[str, Any]


class MemberChange(TypedDict):
    """A member of a rule in two versions; null where a version does not have it."""

    member: str
    before: Any
    after: Any


VersionDifference = TypedDict(
    "VersionDifference", {"from": int, "to": int, "changes": list[MemberChange], "text": str}
)  # fmt: skip
VersionDifference.__doc__ = (
    """Two versions of a rule: what changed, by member, and as a unified diff."""
)


class Version(msgspec.Struct, frozen=True):
    """One version: ``saved_ms`` is milliseconds since 1970, None where a file made the rule and the time is unknown."""

    number: int = msgspec.field(name="version")
    saved_ms: int | None
    change: str
    spec: Spec

    def as_row(self) -> VersionRow:
        """View for the API, in a list."""
        return {
            "version": self.number,
            "saved_at": rfc3339_or_none(self.saved_ms, MILLISECONDS),
            "change": self.change,
        }


class _History(msgspec.Struct):
    """All versions of a rule, as they are in its file."""

    created_ms: int | None
    versions: Annotated[list[Version], msgspec.Meta(min_length=1)]


class Versions:
    """The versions of all rules of a node. Without a directory they live in memory."""

    def __init__(self, directory: Path | None, now_ns: Callable[[], int]) -> None:
        self._directory = directory
        self._now_ns = now_ns
        self._newest: dict[str, Version] = {}
        self._created_ms: dict[str, int | None] = {}
        self._unwritten: dict[str, _History] = {}
        """All versions of the rules that have no file: made by the configuration, or not to be written now."""
        self._forgotten: dict[str, tuple[int, bytes]] = {}
        """Encoded histories of rules that were deleted recently, with the time, for a deletion that is undone."""

    def adopt(self, name: str, spec: Spec, where: str) -> None:
        """Take a rule of the configuration as the node starts, as a new version if it changed in the meantime; or one
        whose deletion is undone, with its past."""
        kept = self._read(name)
        spec = _kept_members(spec)
        deleted_ns, data = self._forgotten.pop(name, (0, b""))
        if kept is None and data and deleted_ns > self._now_ns() - UNDO_NS:
            kept = msgspec.json.decode(data, type=_History)
            self._write(name, kept)
        if kept is None:
            kept = self._unwritten[name] = _History(
                None, [Version(1, None, f"found in {where}", spec)]
            )
        self._remember(name, kept)
        if kept.versions[-1].spec != spec:
            self._append(name, kept, spec, f"changed in {where}")

    def note(self, name: str, spec: Spec, change: str | None = None) -> None:
        """Keep what a rule is now, when it differs from its newest version; ``change`` says how, else which members.

        What cannot be written is logged, stays in memory and is written with the next version: the rule is saved.
        """
        spec = _kept_members(spec)
        newest = self._newest.get(name)
        if newest is None:
            self._forgotten.pop(name, None)
            self._append(name, _History(self._now_ms(), []), spec, change or "created")
        elif newest.spec != spec:
            self._append(name, self._all(name), spec, change or _changed(newest.spec, spec))

    def forget(self, name: str) -> None:
        """The rule is deleted, and in ten minutes its past is."""
        if name in self._newest:
            self._forgotten[name] = (self._now_ns(), _encoded(self._all(name)))
        while sum(len(data) for _, data in self._forgotten.values()) > _MOST_FORGOTTEN_BYTES:
            del self._forgotten[next(iter(self._forgotten))]
        for kept in (self._newest, self._created_ms, self._unwritten):
            kept.pop(name, None)
        if self._directory is not None:
            with suppress(OSError):
                self._file(name).unlink(missing_ok=True)

    def newest(self, name: str) -> Version:
        """The present version of a rule."""
        return self._newest[name]

    def created_ms(self, name: str) -> int | None:
        """Creation time of the rule, in milliseconds since 1970; None if a file created it."""
        return self._created_ms[name]

    def of(self, name: str) -> Sequence[Version]:
        """All versions that are kept, oldest first."""
        return self._all(name).versions

    def get(self, name: str, number: int) -> Version:
        """One version.

        Raises:
            NotFound: it is not kept.
        """
        versions = self.of(name)
        match = next((version for version in versions if version.number == number), None)
        if match is None:
            kept = f"kept are {versions[0].number} to {versions[-1].number}"
            raise NotFound(f"version {number} of rule", name, kept)
        return match

    def _append(self, name: str, history: _History, spec: Spec, change: str) -> None:
        number = history.versions[-1].number + 1 if history.versions else 1
        version = Version(number, self._now_ms(), change, spec)
        grown = _History(history.created_ms, [*history.versions, version][-MAX_VERSIONS:])
        self._remember(name, grown)
        self._write(name, grown)

    def _write(self, name: str, history: _History) -> None:
        self._unwritten[name] = history
        if self._directory is None:
            return
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            replace_file(self._file(name), _encoded(history))
            del self._unwritten[name]
        except OSError as error:
            log.warning(
                "rule.version_not_written",
                rule=name,
                directory=str(self._directory),
                reason=str(error),
            )

    def _remember(self, name: str, history: _History) -> None:
        self._newest[name], self._created_ms[name] = history.versions[-1], history.created_ms

    def _all(self, name: str) -> _History:
        """All versions; the newest alone where the file was removed."""
        history = self._unwritten.get(name) or self._read(name)
        return history or _History(self._created_ms[name], [self._newest[name]])

    def _read(self, name: str) -> _History | None:
        if self._directory is None:
            return None
        file = self._file(name)
        try:
            return msgspec.json.decode(file.read_bytes(), type=_History)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            log.warning("rule.versions_unreadable", rule=name, file=str(file), reason=str(error))
            return None

    def _file(self, name: str) -> Path:
        assert self._directory is not None
        return self._directory / f"{name}.json"

    def _now_ms(self) -> int:
        return self._now_ns() // 1_000_000


def difference(before: Version, after: Version) -> VersionDifference:
    """Changes between two versions: member by member, and as a unified diff."""
    members = [
        name
        for name in {**before.spec, **after.spec}
        if before.spec.get(name) != after.spec.get(name)
    ]
    old, new = (f"version {version.number}" for version in (before, after))
    lines = difflib.unified_diff(
        _as_lines(before.spec), _as_lines(after.spec), old, new, lineterm=""
    )
    return {
        "from": before.number,
        "to": after.number,
        "changes": [
            {"member": name, "before": before.spec.get(name), "after": after.spec.get(name)}
            for name in members
        ],
        "text": "\n".join(lines),
    }


def _kept_members(spec: Spec) -> Spec:
    return {name: value for name, value in spec.items() if name not in _NOT_KEPT}


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    members = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return f"changed {', '.join(members)}"


def _as_lines(spec: Spec) -> list[str]:
    """SQL line by line, the rest as JSON."""
    lines: list[str] = []
    for name, value in spec.items():
        text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
        first, *others = text.splitlines() or [""]
        lines += [f"{name}: {first}", *(f"  {line}" for line in others)]
    return lines


def _encoded(history: _History) -> bytes:
    """Bytes of the file, without the oldest versions if all would be too large."""
    versions = history.versions
    while True:
        data = jsontext.encode(_History(history.created_ms, versions)) + b"\n"
        if len(data) <= MAX_BYTES or len(versions) == 1:
            return data
        versions = versions[max(1, len(versions) // 10) :]
