"""The record of requests in the audit log (``broker.admin.audit_log``): who sent them, what they changed.

Writes note objects as they change (``note_change``), authentication notes who it is (``acts_as``), and the answer
waits until the entry is on disk: no change that was answered is lost from the log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar
from math import inf
from typing import Any, Final, NamedTuple

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import Scope

from broker.admin.audit_log import AuditedChange, AuditLog, AuditRecord, DeletedObject, Origin, change_of
from broker.admin.rights import Actor
from broker.core.kinds import Kind, kinds
from broker.core.objects import Spec
from ui.api.context import ApiContext

_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_CHANGES_NOTHING: Final = frozenset({"read", "try"})
# Messages and reports of the broker's own processes: data, not administration.
_OPERATIONS_OF_DATA: Final = frozenset({"publishMessage", "reportTable"})
# Calls of the schema registry's API that only look up or compare.
_REGISTRY_READS: Final = re.compile(r"/registry/(compatibility/.*|subjects/[^/]+)")
_FORBIDDEN: Final = 403
# Seconds in which refusals of one actor and operation for lack of rights are one entry: an actor with few rights cannot
# push other entries out of the log. And the maximum of such pairs that are remembered.
_ONCE_IN_S: Final = 60
_MOST_FORBIDDEN: Final = 1_000


def acts_as(request: HTTPConnection, actor: Actor, *, in_browser: bool = False) -> None:
    """Note who sent the request, once that is proved."""
    request.state.identity = actor
    request.state.actor = request.state.principal = actor.name
    request.state.in_browser = in_browser


class Noted(NamedTuple):
    """The objects that a request changed, and those that it deleted as they were saved."""

    changes: list[AuditedChange]
    deleted: list[DeletedObject]


_noted: ContextVar[Noted] = ContextVar("noted")


def note_change(
    kind: Kind,
    name: str,
    before: Spec | None,
    after: Spec | None,
    *,
    deleted: DeletedObject | None = None,
    saved: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None,
) -> None:
    """Note an object that this request created, changed or deleted: its forms without secrets, and as they are
    saved."""
    change = change_of(kind.name, name, before, after, saved)
    noted = _noted.get(None)
    if change is not None and noted is not None:
        noted.changes.append(change)
        if deleted is not None:
            noted.deleted.append(deleted)


class Auditing:
    """Writes an entry for each request that belongs into the log."""

    def __init__(self, context: ApiContext) -> None:
        self._log: AuditLog | None = context.audit_log
        self._clock = context.clock
        self._forbidden: dict[tuple[str, str], float] = {}

    @staticmethod
    def begin() -> None:
        """Begin to note the changes of the request of this task."""
        _noted.set(Noted([], []))

    async def record(self, scope: Scope, status: int) -> None:
        """Record a request whose answer has this status, unless it neither changed anything nor tried to."""
        state: Mapping[str, Any] = scope["state"]
        if self._log is None or "actor" not in state or not _is_audited(scope, status):
            return
        route = scope.get("route")
        operation = _operation(scope)
        if status == _FORBIDDEN and self._was_forbidden(state["actor"], operation):
            return
        in_path = [str(value) for value in scope.get("path_params", {}).values()]
        record = AuditRecord(
            actor=state["actor"],
            origin=_origin(scope),
            address=scope["client"][0] if scope.get("client") else None,
            operation=operation,
            request=f"{scope['method']} {scope['path']}",
            request_id=state["request_id"],
            status=status,
            detail=state.get("problem", "") if status >= 400 else "",
            kind=_kind_name(route),
            name=in_path[0] if in_path else None,
            changes=_noted.get().changes,
            deleted=_noted.get().deleted,
        )
        await self._log.recorded(record)

    def _was_forbidden(self, actor: str, operation: str) -> bool:
        """Return whether the log has such a refusal of the last minute; remembers this one otherwise."""
        now_s = self._clock.monotonic_s()
        if self._forbidden.get((actor, operation), -inf) > now_s - _ONCE_IN_S:
            return True
        self._forbidden.pop((actor, operation), None)  # to the end, with the latest
        self._forbidden[actor, operation] = now_s
        if len(self._forbidden) > _MOST_FORBIDDEN:
            del self._forbidden[next(iter(self._forbidden))]
        return False


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
        return scope["path"].startswith("/registry/") and not only_reads_registry(scope["method"], scope["path"])
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
