"""The record of requests in the audit log (``broker.admin.audit_log``): who sent them, what they changed.

The file in which objects are saved tells what a request changed (``_note_saved``), services of kinds that are in
another place are watched (``note_change``), and authentication notes who it is (``acts_as``). The answer waits until
the entry is on disk: no change that was answered is lost from the log.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import inf
from time import perf_counter
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import Scope

from broker.admin.audit_log import (
    ORDER,
    AuditedChange,
    AuditLog,
    AuditRecord,
    DeletedObject,
    Origin,
    change_of,
)
from broker.admin.rights import Actor
from broker.auth.login_limits import network_of
from broker.core.kinds import Kind, kinds, kinds_in_files
from broker.core.objects import ACTOR, REQUEST, SavedObject, Spec
from ui.api.cell_calls import OF_CELL
from ui.api.context import ApiContext
from ui.api.filters import STEP_S

# The sender of the request of this task, once it is identified.
IDENTITY: Final[ContextVar[Actor]] = ContextVar("identity")
# Actor of a sign-in that was refused; no account may have this name.
UNKNOWN: Final = "not signed in"
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_CHANGES_NOTHING: Final = frozenset({"read", "try"})
# Messages and reports of the broker's own processes: data, not administration.
_OPERATIONS_OF_DATA: Final = frozenset({"publishMessage", "reportTable", "openTables"})
# Calls of the schema registry's API that only look up or compare.
_REGISTRY_READS: Final = re.compile(r"/registry/(compatibility/.*|subjects/[^/]+)")
_FORBIDDEN: Final = 403
_NO_ORDER: Final = ((), ())
# Maximum number of objects in an entry; an import of users may change more.
_MOST_CHANGES: Final = 1_000
# Seconds in which refusals of one actor and operation for lack of rights are one entry: an actor with few rights cannot
# push other entries out of the log. And the maximum of such pairs that are remembered.
_ONCE_IN_S: Final = 60
_MOST_FORBIDDEN: Final = 1_000
_LONGEST_SUBJECT: Final = 1_000
_LONGEST_DETAIL: Final = 900


def acts_as(request: HTTPConnection, actor: Actor, *, in_browser: bool = False) -> None:
    """Note who sent the request, once that is proved."""
    request.state.identity = actor
    request.state.actor = request.state.principal = actor.name
    request.state.in_browser = in_browser
    ACTOR.set(actor.name)
    REQUEST.set(getattr(request.state, "request_id", ""))
    IDENTITY.set(actor)


@dataclass(slots=True)
class _Change:
    """An object that a request changed: as it was saved before its first change, and is after its last."""

    kind: Kind
    name: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None = None

    def audited(self) -> AuditedChange | None:
        """The change without secrets; None where it is the same again."""
        before = self.kind.as_recorded(self.before, self.after)
        after = self.kind.as_recorded(self.after)
        saved = None if self.before is None or self.after is None else (self.before, self.after)
        return change_of(self.kind.name, self.name, before, after, saved)


@dataclass(slots=True)
class _Noted:
    """The objects that a request changed, and the names of sections in their order before and after."""

    changes: dict[tuple[str, str], _Change] = field(default_factory=dict)
    subject: str | None = None
    orders: dict[str, tuple[Sequence[str], Sequence[str]]] = field(default_factory=dict)

    def note(
        self,
        kind: Kind,
        name: str,
        before: Mapping[str, Any] | None,
        after: Mapping[str, Any] | None,
    ) -> None:
        self.changes.setdefault((kind.name, name), _Change(kind, name, before)).after = after

    def reordered(self) -> Iterator[AuditedChange]:
        """The changes of the order of a kind."""
        for kind_name, (before, after) in self.orders.items():
            change = change_of(kind_name, ORDER, {"order": list(before)}, {"order": list(after)})
            if after and change is not None:
                yield change

    def deleted(self, audited: Sequence[AuditedChange]) -> Sequence[DeletedObject]:
        """The objects that the request deleted, as they were saved in a file."""
        names = {
            (change["kind"], change["name"]) for change in audited if change["change"] == "deleted"
        }
        return [
            DeletedObject(
                change.kind.name,
                change.name,
                dict(change.before),
                self.orders.get(change.kind.name, _NO_ORDER)[0],
            )
            for key, change in self.changes.items()
            if key in names and change.before is not None and change.kind.section is not None
        ]


_noted: ContextVar[_Noted] = ContextVar("noted")


def note_change(kind: Kind, name: str, before: Spec | None, after: Spec | None) -> None:
    """Note an object of a kind that is in no file, as it is shown: this request created, changed or deleted it."""
    noted = _noted.get(None)
    if noted is not None and kind.section is None:
        noted.note(kind, name, before, after)


def _note_saved(saved: SavedObject) -> None:
    noted = _noted.get(None)
    if noted is None:
        return
    kind = kinds_in_files()[saved.section]
    if saved.order and kind.abilities.can_reorder:
        before, after = noted.orders.get(kind.name, (saved.order, ()))
        noted.orders[kind.name] = (before, saved.order_of or after)
    if saved.order_of is None:
        noted.note(kind, saved.name, saved.before, saved.after)


class Auditing:
    """Writes an entry for each request that belongs into the log."""

    def __init__(self, context: ApiContext) -> None:
        self._log: AuditLog | None = context.audit_log
        if context.saved_objects is not None:
            context.saved_objects.connect(_note_saved)
        self._clock = context.clock
        self._forbidden: dict[tuple[str, str], tuple[float, int]] = {}

    @staticmethod
    def begin() -> None:
        """Begin to note the changes of the request of this task."""
        _noted.set(_Noted())

    async def record(self, scope: Scope, status: int) -> None:
        """Record a request whose answer has this status, unless it neither changed anything nor tried to."""
        state: Mapping[str, Any] = scope["state"]
        if (
            self._log is None
            or "actor" not in state
            or not _is_audited(scope, status)
            or OF_CELL in state
        ):
            return
        route = scope.get("route")
        operation = _operation(scope)
        address = scope["client"][0] if scope.get("client") else None
        if status == _FORBIDDEN or (status >= 400 and state.get("opens_session")):
            sender = state["actor"]
            if sender == UNKNOWN:  # one host has more IPv6 addresses than the log has room
                sender = network_of(address)
            more = self._forbidden_since(sender, operation)
            if more is None:
                return
        else:
            more = 0
        noted = _noted.get()
        changes = await _audited(noted)
        in_path = [str(value) for value in scope.get("path_params", {}).values()]
        record = AuditRecord(
            actor=state["actor"],
            origin=_origin(scope),
            address=address,
            operation=operation,
            request=f"{scope['method']} {scope['path']}",
            request_id=state["request_id"],
            status=status,
            detail=_detail(state.get("problem", ""), more) if status >= 400 else "",
            kind=_kind_name(route),
            name=in_path[0] if in_path else noted.subject,
            changes=changes,
            omitted=max(0, len(noted.changes) - _MOST_CHANGES),
            deleted=noted.deleted(changes),
        )
        await self._log.recorded(record)

    def _forbidden_since(self, sender: str, operation: str) -> int | None:
        """The number of such refusals since the last one in the log; None where that is of the last minute, so that
        this one is only counted."""
        now_s = self._clock.monotonic_s()
        last_s, more = self._forbidden.get((sender, operation), (-inf, 0))
        if last_s > now_s - _ONCE_IN_S:
            self._forbidden[sender, operation] = (last_s, more + 1)
            return None
        self._forbidden.pop((sender, operation), None)  # to the end, with the latest
        self._forbidden[sender, operation] = (now_s, 0)
        if len(self._forbidden) > _MOST_FORBIDDEN:
            del self._forbidden[next(iter(self._forbidden))]
        return more


def _detail(problem: str, more: int) -> str:
    return f"{problem[:_LONGEST_DETAIL]}; {more:,} more such refusals before" if more else problem


def note_subject(name: str) -> None:
    """Note the topic or the clients that this request changes, where its path does not name them."""
    if (noted := _noted.get(None)) is not None:
        noted.subject = name[:_LONGEST_SUBJECT] or None


async def _audited(noted: _Noted) -> list[AuditedChange]:
    """The first changes of a request without secrets. Others have their turn."""
    changes = list[AuditedChange]()
    until_s = perf_counter() + STEP_S
    for change in list(noted.changes.values())[:_MOST_CHANGES]:
        if (audited := change.audited()) is not None:
            changes.append(audited)
        if perf_counter() > until_s:
            await asyncio.sleep(0)
            until_s = perf_counter() + STEP_S
    return [*changes, *noted.reordered()]


def _operation(scope: Scope) -> str:
    if scope["state"].get("opens_session"):
        return "signIn"
    return getattr(scope.get("route"), "operation_id", None) or "schemaRegistry"


def _is_audited(scope: Scope, status: int) -> bool:
    route = scope.get("route")
    operation = getattr(route, "operation_id", None)
    if operation in _OPERATIONS_OF_DATA or scope["state"].get("is_dry"):
        return False
    if status == _FORBIDDEN or scope["state"].get("opens_session"):
        return True
    if scope["method"] in _READS:
        return False
    if operation is None:
        return scope["path"].startswith("/registry/") and not only_reads_registry(
            scope["method"], scope["path"]
        )
    resource = (getattr(route, "openapi_extra", None) or {}).get("x-resource", {})
    return "Try" not in getattr(route, "tags", ()) and resource.get("does") not in _CHANGES_NOTHING


def only_reads_registry(method: str, path: str) -> bool:
    """True if a call of the schema registry's API with a body only looks up or compares."""
    return method == "POST" and _REGISTRY_READS.fullmatch(path) is not None


def _origin(scope: Scope) -> Origin:
    if scope["state"].get("in_browser"):
        return "dashboard"
    if scope["path"].startswith("/registry/"):
        return "registry"
    return "cli" if Headers(scope=scope).get("user-agent", "").startswith("sluice-cli") else "api"


def _kind_name(route: Any) -> str | None:
    """The kind or resource that an operation is about."""
    resource = (getattr(route, "openapi_extra", None) or {}).get("x-resource", {})
    if "name" in resource:
        return str(resource["name"])
    path = re.split("[:{]", getattr(route, "path", ""))[0].removeprefix("/api/v1/").rstrip("/")
    matching = [kind for kind in kinds() if path == kind.path or path.startswith(f"{kind.path}/")]
    return max(matching, key=lambda kind: len(kind.path)).name if matching else None
