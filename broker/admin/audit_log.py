"""The audit log: requests that change something, reloads of files, and requests that were refused.

::

    audit-log/SEGMENT TIME     an entry, as JSON
    audit-log-segments         number, bytes and time of the last entry of each segment, oldest first, as JSON
    setting-changes/KEY        who changed a setting last, and when, as JSON

Numbers and times in keys count down from the largest number, so a scan meets the newest entry first. A segment is
closed at ``SEGMENT_BYTES``; the oldest is deleted as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import translate
from re import compile as compiled
from typing import Any, Final, Literal, NamedTuple

from typing_extensions import TypedDict

from broker.config.secrets import MASK
from broker.core import jsontext
from broker.core.clock import Clock
from broker.core.errors import Invalid, NotFound, Problem, SluiceError
from broker.core.objects import Spec
from broker.core.times import MICROSECONDS, rfc3339
from broker.observe.log import get_logger
from broker.observe.settings import AuditLogSettings
from broker.storage.collection import TEXT, Codec, Collection
from broker.storage.writer import Writer

# Time for which what was deleted is held with its versions, test cases and secrets, and the bytes of all of it.
UNDO_S: Final = 600
# Name of a change of the order of all objects of a kind.
ORDER: Final = "*"
_MOST_HELD_BYTES: Final = 32 * 1024 * 1024
_NAME_BYTES: Final = 16
SEGMENT_BYTES: Final = 1024 * 1024
# Maximum size of an entry with its differences, in bytes; beyond, values are left out, the longest first.
MOST_ENTRY_BYTES: Final = 64 * 1024
# Maximum number of differences in an entry, and entries that a page is searched in.
_MOST_DIFFERENCES: Final = 1_000
_MOST_SCANNED: Final = 20_000
_PIECE: Final = 200
_COMMIT_TIMEOUT_S: Final = 5

_log = get_logger(__name__)

Outcome = Literal["done", "refused", "failed"]
Origin = Literal["dashboard", "cli", "api", "registry", "files"]


class AuditDifference(TypedDict):
    """A value that changed, by its JSON Pointer (RFC 6901); null if absent. Secrets are stars, before and
    after. `is_cut` where the values are too long to be kept, or further differences too many."""

    pointer: str
    before: Any
    after: Any
    is_cut: bool


class AuditedChange(TypedDict):
    """An object that was created, changed or deleted."""

    kind: str
    name: str
    change: Literal["created", "changed", "deleted"]
    differences: list[AuditDifference]


class AuditEntryRow(TypedDict):
    """A request that changed something or was refused, or a reload of files. `kind` and `name` are those of the first
    object; `summary` says what happened to it. `can_revert` is false where there is nothing to take back: it changed no
    object, was refused, changed more objects than the entry has, or is a change of files."""

    id: str
    at: str
    actor: str
    origin: Origin
    address: str | None
    operation: str
    kind: str | None
    name: str | None
    outcome: Outcome
    status: int
    summary: str
    can_revert: bool


class AuditEntryView(AuditEntryRow):
    """An entry with the objects that changed, and the number of further ones that it has no room for. The name of a
    change of an order is `*`. `request` is the line of the request, `request_id` its `X-Request-Id`."""

    request: str
    request_id: str
    changes: list[AuditedChange]
    omitted: int


class ObjectVersion(AuditEntryRow):
    """A change of an object. `spec` is the object after it, with secrets as stars; null where it was deleted, where one
    of its values is no longer known, and where those of newer changes take 4 MiB."""

    change: Literal["created", "changed", "deleted"]
    differences: list[AuditDifference]
    spec: dict[str, Any] | None


class DeletedObject(NamedTuple):
    """An object that was deleted, as it was saved, and the names of its kind in their order, where they have one."""

    kind: str
    name: str
    saved: Spec
    order: Sequence[str]


@dataclass(slots=True, kw_only=True)
class AuditRecord:
    """A request or reload as it is recorded.

    ``detail`` is the reason of a refusal; ``deleted`` are objects as they were saved.
    """

    actor: str
    origin: Origin
    operation: str
    address: str | None = None
    request: str = ""
    request_id: str = ""
    status: int = 200
    detail: str = ""
    kind: str | None = None
    name: str | None = None
    changes: list[AuditedChange] = field(default_factory=list)
    omitted: int = 0
    deleted: Sequence[DeletedObject] = ()

    @property
    def outcome(self) -> Outcome:
        """Outcome by the status of the answer."""
        return "done" if self.status < 400 else "refused" if self.status < 500 else "failed"

    @property
    def summary(self) -> str:
        """A sentence without its subject: ``changed sql, enable``."""
        if self.detail or not self.changes:
            return self.detail
        first = self.changes[0]
        members = dict.fromkeys(
            difference["pointer"].split("/")[1] for difference in first["differences"]
        )
        text = f"changed {', '.join(members)}" if first["change"] == "changed" else first["change"]
        others = len(self.changes) - 1 + self.omitted
        return f"{text}, with {others:,} more" if others else text


def change_of(
    kind: str,
    name: str,
    before: Spec | None,
    after: Spec | None,
    saved: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None,
) -> AuditedChange | None:
    """The change of an object between two forms without secrets; None where nothing changed.

    ``saved`` are both forms as they are saved, by which changed secrets are known.
    """
    differences = list[AuditDifference]()
    _compare(before or {}, after or {}, "", differences)
    if saved is not None:
        _compare_secrets(after, *saved, "", differences)
    if before == after and not differences:
        return None
    change: Literal["created", "changed", "deleted"]
    change = "created" if before is None else "deleted" if after is None else "changed"
    if len(differences) > _MOST_DIFFERENCES:
        del differences[_MOST_DIFFERENCES:]
        _cut(differences[-1])  # so that the entry is known to be incomplete
    return {"kind": kind, "name": name, "change": change, "differences": differences}


def _compare(before: Any, after: Any, pointer: str, differences: list[AuditDifference]) -> None:
    if before == after or len(differences) > _MOST_DIFFERENCES:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for name in {**before, **after}:
            _compare(before.get(name), after.get(name), f"{pointer}/{_part(name)}", differences)
    else:
        differences.append({"pointer": pointer, "before": before, "after": after, "is_cut": False})


def _compare_secrets(
    shown: Any, before: Any, after: Any, pointer: str, differences: list[AuditDifference]
) -> None:
    if before == after:
        return
    if isinstance(shown, dict) and isinstance(before, dict) and isinstance(after, dict):
        for name, value in shown.items():
            _compare_secrets(
                value, before.get(name), after.get(name), f"{pointer}/{_part(name)}", differences
            )
    elif shown == MASK and before is not None:
        differences.append({"pointer": pointer, "before": MASK, "after": MASK, "is_cut": False})


def _part(name: object) -> str:
    return str(name).replace("~", "~0").replace("/", "~1")


_LARGEST_SEGMENT: Final = 2**32 - 1
_LARGEST_NS: Final = 2**64 - 1
_KEY_BYTES: Final = 12
# Number of the segment and time in nanoseconds.
_Key = tuple[int, int]
_Test = Callable[[Mapping[str, Any]], bool]
_KEYS: Final = Codec[_Key](
    lambda key: (_LARGEST_SEGMENT - key[0]).to_bytes(4) + (_LARGEST_NS - key[1]).to_bytes(8),
    lambda data: (
        _LARGEST_SEGMENT - int.from_bytes(data[:4]),
        _LARGEST_NS - int.from_bytes(data[4:]),
    ),
)
_ENTRIES: Final = Codec[dict[str, Any]](jsontext.encode, jsontext.decode)
_SEGMENTS: Final = Codec[list[list[int]]](jsontext.encode, jsontext.decode)


class AuditLog:
    """Entries on disk, at most ``max_bytes`` of them, none older than ``max_age``. On the event loop."""

    def __init__(self, writer: Writer, clock: Clock, settings: AuditLogSettings) -> None:
        self._writer = writer
        self._clock = clock
        self._settings = settings
        self._entries = Collection(writer, b"audit-log/", _KEYS, _ENTRIES)
        self._stored_segments = Collection(writer, b"audit-log-segments", TEXT, _SEGMENTS)
        self._segments = self._stored_segments.committed("") or []
        self._setting_changes = Collection(writer, b"setting-changes/", TEXT, _ENTRIES)
        self._last_ns = self._segments[-1][2] if self._segments else 0
        self._deleted: dict[str, tuple[float, int, Sequence[DeletedObject]]] = {}
        self._deleted_bytes = 0

    def record(self, record: AuditRecord) -> str:
        """Add an entry to the commit group that is gathering; its identifier."""
        clock_ns = self._clock.now_ns()
        # in the order of requests, also if it is set back
        now_ns = self._last_ns = max(clock_ns, self._last_ns + 1)
        changes = _within_bounds(record.changes)
        entry = {
            "at": rfc3339(clock_ns),
            "actor": record.actor,
            "origin": record.origin,
            "address": record.address,
            "operation": record.operation,
            "kind": record.kind if record.kind or not record.changes else record.changes[0]["kind"],
            "name": record.name if record.name or not record.changes else record.changes[0]["name"],
            "outcome": record.outcome,
            "status": record.status,
            "summary": record.summary[:1_000],
            "request": record.request[:1_000],
            "request_id": record.request_id,
            "changes": changes,
            "omitted": record.omitted + len(record.changes) - len(changes),
        }
        size = len(jsontext.encode(entry)) + _KEY_BYTES
        if not self._segments or self._segments[-1][1] + size > SEGMENT_BYTES:
            number = self._segments[-1][0] + 1 if self._segments else 0
            self._segments.append([number, 0, now_ns])
        segment = self._segments[-1]
        segment[1] += size
        segment[2] = now_ns
        key = (segment[0], now_ns)
        self._entries.put(key, entry)
        self._delete_old()
        self._stored_segments.put("", self._segments)
        for change in record.changes:
            if change["kind"] == "setting" and record.origin != "files":
                for name in _settings_in(change):
                    self._setting_changes.put(name, {"by": record.actor, "at": entry["at"]})
        id = _KEYS.encode(key).hex()
        if record.deleted:
            self._hold(id, record.deleted)
        return id

    def _hold(self, id: str, deleted: Sequence[DeletedObject]) -> None:
        """Hold deleted objects for ``UNDO_S``, the latest ones that fit."""
        now_s = self._clock.monotonic_s()
        size = sum(
            len(jsontext.encode(item.saved)) + _NAME_BYTES * len(item.order) for item in deleted
        )
        self._deleted[id] = (now_s + UNDO_S, size, deleted)
        self._deleted_bytes += size
        while self._deleted:
            first, (until_s, first_size, _) = next(iter(self._deleted.items()))
            if until_s > now_s and self._deleted_bytes <= _MOST_HELD_BYTES:
                return
            del self._deleted[first]
            self._deleted_bytes -= first_size

    def deleted(self, id: str) -> Sequence[DeletedObject]:
        """The objects that a request deleted within the last ``UNDO_S``, as they were saved."""
        until_s, _, deleted = self._deleted.get(id, (0.0, 0, ()))
        return deleted if until_s > self._clock.monotonic_s() else ()

    def setting_change(self, key: str) -> Mapping[str, str] | None:
        """The actor that changed a setting last through the API, and when; None if none did."""
        return self._setting_changes.committed(key)

    async def recorded(self, record: AuditRecord) -> None:
        """Record, and return once the entry is on disk; a disk that takes nothing is logged."""
        try:
            self.record(record)
            async with asyncio.timeout(_COMMIT_TIMEOUT_S):
                await self._writer.committed()
        except (SluiceError, TimeoutError, jsontext.JsonError) as error:
            reason = str(error) or f"no commit within {_COMMIT_TIMEOUT_S} s"
            _log.error(
                "audit_log.not_written",
                operation=record.operation,
                actor=record.actor,
                error=reason,
            )

    def get(self, id: str) -> AuditEntryView:
        """Show an entry.

        Raises:
            NotFound: there is none, or it is too old.
        """
        key = _key_of(id)
        entry = None if key is None else self._entries.committed(key)
        if key is None or entry is None or self._is_past(key[1]):
            raise NotFound("audit entry", id)
        row: Any = _row(key, entry)
        view: AuditEntryView = row | {
            name: entry[name] for name in ("request", "request_id", "changes")
        }
        view["omitted"] = entry.get("omitted", 0)
        return view

    async def page(
        self,
        limit: int,
        cursor: tuple[str] | None = None,
        since: int | None = None,
        until: int | None = None,
        search: str | None = None,
        **patterns: str | None,
    ) -> Spec:
        """Entries, newest first, of these microseconds since 1970.

        ``patterns`` are those of members by name. Every word of ``search`` must be in an entry. A page may be short
        where many entries do not match.

        Raises:
            Invalid: the cursor is none of this list.
        """
        tests = _tests(search, patterns)
        after = None if cursor is None else _key_of(cursor[0])
        if cursor is not None and after is None:
            raise Invalid(
                "the page cannot be shown", [Problem("not a cursor of this list", "/query/cursor")]
            )
        return await asyncio.to_thread(self._page, limit, after, since, until, tests)

    async def lines(
        self,
        since: int | None = None,
        until: int | None = None,
        search: str | None = None,
        **patterns: str | None,
    ) -> AsyncIterator[bytes]:
        """All entries that ``page`` would list, whole, as JSON, a line each."""
        tests = _tests(search, patterns)
        after: _Key | None = None
        while True:
            page = await asyncio.to_thread(self._page, _PIECE, after, since, until, tests)
            for row in page["items"]:
                with suppress(NotFound):  # too old since
                    yield jsontext.encode(self.get(row["id"])) + b"\n"
            if page["next"] is None:
                return
            after = _key_of(page["next"][0])

    def changes_of(
        self, kind: str, name: str, limit: int
    ) -> Sequence[tuple[AuditEntryRow, AuditedChange]]:
        """The entries about an object, newest first. Reads the log; on a thread."""
        rows = list[tuple[AuditEntryRow, AuditedChange]]()

        def changes(entry: Mapping[str, Any]) -> Iterator[AuditedChange]:
            return (
                change
                for change in entry["changes"]
                if (change["kind"], change["name"]) == (kind, name)
            )

        after: _Key | None = None
        is_searched = False
        while len(rows) < limit and not is_searched:
            page = self._page(
                limit - len(rows),
                after,
                None,
                None,
                [lambda entry: any(True for _ in changes(entry))],
            )
            for row in page["items"]:
                with suppress(NotFound):
                    entry = self.get(row["id"])
                    rows += [(row, change) for change in changes(entry)]
            is_searched = page["next"] is None
            after = None if page["next"] is None else _key_of(page["next"][0])
        return rows[:limit]

    def _page(
        self,
        limit: int,
        after: _Key | None,
        since: int | None,
        until: int | None,
        tests: Sequence[_Test],
    ) -> Spec:
        from_ns = 0 if since is None else since * MICROSECONDS
        to_ns = _LARGEST_NS if until is None else until * MICROSECONDS
        items = list[AuditEntryRow]()
        for _ in range(_MOST_SCANNED // _PIECE):
            keys = self._entries.keys_from(after, _PIECE)
            for key in keys:
                after = key
                if key[1] < from_ns or self._is_past(key[1]):
                    return {"items": items, "next": None, "total": None}
                entry = self._entries.committed(key) if key[1] < to_ns else None
                if entry is None or not all(test(entry) for test in tests):
                    continue
                items.append(_row(key, entry))
                if len(items) == limit:
                    break
            if len(items) == limit or len(keys) < _PIECE:
                break
        is_whole = len(items) < limit and len(keys) < _PIECE
        following = None if is_whole or after is None else (_KEYS.encode(after).hex(),)
        return {"items": items, "next": following, "total": None}

    def _is_past(self, time_ns: int) -> bool:
        return time_ns < self._clock.now_ns() - int(self._settings.max_age * 1e9)

    def _delete_old(self) -> None:
        """Delete the oldest segments that are too old, or beyond the size."""
        while len(self._segments) > 1:
            number, _, last_ns = self._segments[0]
            total = sum(segment[1] for segment in self._segments)
            if total <= self._settings.max_bytes and not self._is_past(last_ns):
                return
            del self._segments[0]
            after = (number, _LARGEST_NS)
            for key in self._entries.keys_from(after, SEGMENT_BYTES):
                if key[0] != number:
                    break
                self._entries.put(key, None)


def _tests(search: str | None, patterns: Mapping[str, str | None]) -> list[_Test]:
    tests = [_matching(name, pattern) for name, pattern in patterns.items() if pattern is not None]
    words = (search or "").lower().split()
    if words:
        tests.append(lambda entry: all(word in str(entry).lower() for word in words))
    return tests


def _matching(name: str, pattern: str) -> _Test:
    matches = compiled(translate(pattern)).match
    if name in ("kind", "name"):
        return lambda entry: any(
            matches(str(change[name] or "")) is not None for change in (entry, *entry["changes"])
        )
    return lambda entry: matches(str(entry[name] or "")) is not None


def _settings_in(change: AuditedChange) -> Iterator[str]:
    """The keys of a setting that changed, and of those below it."""
    yield change["name"]
    for difference in change["differences"]:
        below = difference["pointer"].removeprefix("/in_files")
        if below.startswith("/value/"):
            yield f"{change['name']}.{below.removeprefix('/value/').replace('/', '.')}"


def _within_bounds(changes: Sequence[AuditedChange]) -> list[AuditedChange]:
    """The changes, without the longest values where all together are too long, then without the last ones."""
    sizes = [
        (len(jsontext.encode(difference)), difference)
        for change in changes
        for difference in change["differences"]
    ]
    total = sum(size for size, _ in sizes)
    for size, difference in sorted(sizes, key=lambda entry: -entry[0]):
        if total <= MOST_ENTRY_BYTES:
            break
        _cut(difference)
        total -= size - len(jsontext.encode(difference))
    room = MOST_ENTRY_BYTES
    kept = list[AuditedChange]()
    for change in changes:
        number = _number_that_fit(change["differences"], room)
        if number < len(change["differences"]):
            if number:
                del change["differences"][number:]
                _cut(change["differences"][-1])
                kept.append(change)
            break
        kept.append(change)
        room -= len(jsontext.encode(change))
    return kept


def _number_that_fit(differences: Sequence[AuditDifference], room: int) -> int:
    for number, difference in enumerate(differences):
        room -= len(jsontext.encode(difference))
        if room < 0:
            return number
    return len(differences)


def _cut(difference: AuditDifference) -> None:
    difference["before"] = difference["after"] = None
    difference["is_cut"] = True


def _key_of(id: str) -> _Key | None:
    try:
        data = bytes.fromhex(id)
    except ValueError:
        return None
    return _KEYS.decode(data) if len(data) == _KEY_BYTES else None


def _row(key: _Key, entry: Mapping[str, Any]) -> AuditEntryRow:
    computed = {"id", "can_revert"}
    row: Any = {name: entry[name] for name in AuditEntryRow.__annotations__ if name not in computed}
    row["id"] = _KEYS.encode(key).hex()
    row["can_revert"] = (
        bool(entry["changes"])
        and entry["outcome"] == "done"
        and entry["origin"] != "files"
        and not entry.get("omitted")
    )
    shown: AuditEntryRow = row
    return shown
