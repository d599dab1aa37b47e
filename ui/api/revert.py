"""The audit log as the API offers it, and taking back what an entry of it changed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.responses import StreamingResponse

from broker.admin.audit_log import (
    ORDER,
    AuditDifference,
    AuditedChange,
    AuditEntryView,
    AuditLog,
    DeletedObject,
    ObjectVersion,
)
from broker.admin.rights import Need, word_of
from broker.config.root import ChangedObject, PlannedReload
from broker.config.secrets import MASK
from broker.core import jsontext
from broker.core.errors import Conflict, Invalid, Problem, SluiceError
from broker.core.kinds import Kind, counted
from broker.core.objects import Spec
from ui.api.audit import IDENTITY, note_change
from ui.api.objects import KindRoutes, settled
from ui.api.problems import ApiProblem

# Maximum number of versions of an object that are searched.
MOST_VERSIONS: Final = 1_000
# Bytes of the objects in a history; those of older changes are left out.
_MOST_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Step:
    """An object that gets another form: ``after``, None to delete it. ``whole`` is all that was saved of it,
    ``restored`` are members that its service brings back itself."""

    routes: KindRoutes
    name: str
    before: Spec | None
    after: Spec | None
    whole: DeletedObject | None = None
    restored: Mapping[str, Any] = field(default_factory=dict)

    @property
    def planned(self) -> ChangedObject:
        return ChangedObject(self.routes.kind, self.name, self.before, self.after)

    async def run(self) -> None:
        """Change it, and note that."""
        service: Any = self.routes.service
        if self.whole is not None:
            self._bring_back(self.whole)
        else:
            if self.restored and self.after is not None:
                service.restore(self.name, self.restored)
            if {**(self.before or {}), **self.restored} != {**(self.after or {}), **self.restored}:
                await self._put(self.before, self.after)
        note_change(self.routes.kind, self.name, self.before, self.routes.spec_of(self.name))

    async def undo(self) -> None:
        """Change it back."""
        await self._put(self.after, self.before)
        note_change(self.routes.kind, self.name, self.after, self.before)

    async def _put(self, now: Spec | None, then: Spec | None) -> None:
        service = self.routes.service
        if then is None:
            await settled(service.delete(self.name))
            return
        creating, replacing = await self.routes.saving.prepare(then, self.name, False)
        if now is None:
            await settled(service.create(then, **creating))
        else:
            await settled(service.replace(self.name, then, **replacing))

    def _bring_back(self, whole: DeletedObject) -> None:
        service: Any = self.routes.service
        section = self.routes.section
        assert section is not None  # only such objects are held
        section.save({self.name: whole.saved})
        if problems := service.load([deepcopy(whole.saved)]):
            section.save({self.name: None})
            raise Conflict("; ".join(problems))
        if whole.order:
            names = [
                row[self.routes.kind.key]
                for row in service.list()
                if row[self.routes.kind.key] != self.name
            ]
            behind = whole.order[whole.order.index(self.name) + 1 :]
            at = min((names.index(name) for name in behind if name in names), default=len(names))
            service.reorder([*names[:at], self.name, *names[at:]])


@dataclass(frozen=True, slots=True)
class _Reordering:
    """Objects of a kind that get another order."""

    routes: KindRoutes
    before: Sequence[str]
    after: Sequence[str]

    @property
    def planned(self) -> ChangedObject:
        return ChangedObject(self.routes.kind, ORDER, {"order": self.before}, {"order": self.after})

    async def run(self) -> None:
        """Bring them into that order."""
        self.routes.service.reorder(self.after)

    async def undo(self) -> None:
        """Bring them into the order before."""
        self.routes.service.reorder(self.before)


class AuditTrail:
    """Entries, and their reverts. ``routes`` are those of the kinds by name."""

    def __init__(self, log: AuditLog, routes: Mapping[str, KindRoutes]) -> None:
        self.page = log.page
        self.get = log.get
        self._log = log
        self._routes = routes
        self._searching = asyncio.Lock()

    async def revert(self, id: str) -> AuditEntryView:
        """Take back what an entry changed, the last change first: all of it, or nothing.

        An object that was deleted minutes ago comes back with all that was saved of it; else with the values that the
        entry has, without secrets. Of an object that was changed, only members of the entry get their values from
        before.

        Raises:
            NotFound: there is no such entry.
            Invalid: it changed no object, or its values were too long to be kept.
            Conflict: an object has changed since.
        """
        entry, steps = self._steps(id)
        done: list[_Step | _Reordering] = []
        try:
            for step in steps:
                await step.run()
                done.append(step)
        except SluiceError:
            for step in reversed(done):
                await step.undo()
            raise
        return entry

    def export(self, **filters: Any) -> StreamingResponse:
        """Entries as they are stored, a line each. A client that reads slowly holds nothing up."""
        return StreamingResponse(self._log.lines(**filters), media_type="application/x-ndjson")

    async def history(
        self, kind: str, name: str, limit: int, only: str = ""
    ) -> Sequence[ObjectVersion]:
        """The changes of an object, newest first, each with the object after it, or ``only`` that of one entry."""
        routes = self._routes.get(kind)
        spec = None if routes is None else routes.recorded(name)
        async with self._searching:
            changes = await asyncio.to_thread(self._log.changes_of, kind, name, limit)
        versions = list[ObjectVersion]()
        is_certain = routes is not None
        spec = deepcopy(spec or {})
        left_bytes = _MOST_BYTES
        for row, change in changes:
            await asyncio.sleep(0)  # an object may be large
            try:
                shown = None
                if routes is not None and is_certain and spec and only in ("", row["id"]):
                    shown = routes.kind.as_spec(spec) if left_bytes > 0 else None
                    left_bytes -= len(jsontext.encode(shown))
                versions.append({
                    **row,
                    "change": change["change"],
                    "differences": change["differences"],
                    "spec": shown,
                })  # fmt: skip
                for difference in change["differences"] if is_certain else ():
                    if difference["is_cut"]:
                        is_certain = False
                    elif not difference["before"] == difference["after"] == MASK:
                        _take_back(spec, difference, f"{kind} {name!r}")
            except Conflict:
                # changed where the log does not see it, as in a file while the broker was stopped
                is_certain = False
        return versions

    async def restore(
        self, id: str, kind: str | None = None, name: str | None = None
    ) -> ObjectVersion:
        """Give an object the form that it had after an entry. Without ``kind`` and ``name`` it is the only object of
        the entry.

        Raises:
            NotFound: there is no such entry.
            Invalid: the entry is not about the object, or its form is no longer known.
        """
        version, step = await self._restoring(id, kind, name)
        await step.run()
        return version

    async def plan_restore(
        self, id: str, kind: str | None = None, name: str | None = None
    ) -> PlannedReload:
        """The object that ``restore`` would change. Raises as it does."""
        _, step = await self._restoring(id, kind, name)
        objects = [] if step.before == step.after else [step.planned]
        return PlannedReload(before={}, after={}, objects=objects, needs_restart=[])

    async def _restoring(
        self, id: str, kind: str | None, name: str | None
    ) -> tuple[ObjectVersion, _Step]:
        title = "the object cannot be restored"
        entry = self._log.get(id)
        changed = {(change["kind"], change["name"]) for change in entry["changes"]}
        wanted = {(at, of) for at, of in changed if kind in (None, at) and name in (None, of)}
        if len(wanted) != 1:
            problem = Problem(
                f"expected one object of the entry, got {len(wanted)}. Try: --kind KIND --name NAME"
            )
            raise Invalid(title, [problem])
        [(kind, name)] = wanted
        history = await self.history(kind, name, MOST_VERSIONS, only=id)
        version = next((item for item in history if item["id"] == id), None)
        routes = self._routes.get(kind)
        if routes is not None:
            _require_change(routes.kind)
        if (
            version is None
            or routes is None
            or (version["spec"] is None and version["change"] != "deleted")
        ):
            raise Invalid(title, [Problem("its form after this entry is no longer known")])
        return version, _Step(routes, name, routes.spec_of(name), version["spec"])

    async def plan(self, id: str) -> PlannedReload:
        """The objects that ``revert`` would change. Raises as it does where the objects do not permit it."""
        _, steps = self._steps(id)
        return PlannedReload(
            before={}, after={}, objects=[step.planned for step in steps], needs_restart=[]
        )

    def _steps(self, id: str) -> tuple[AuditEntryView, Sequence[_Step | _Reordering]]:
        entry = self._log.get(id)
        if entry["omitted"]:
            problem = Problem(
                f"it changed {counted(entry['omitted'], 'object')} more than the log has room for"
            )
            raise Invalid("the entry cannot be reverted", [problem])
        if entry["origin"] == "files":
            raise Invalid(
                "the entry cannot be reverted",
                [Problem("the files have the change; edit them, and reload")],
            )
        deleted = {(item.kind, item.name): item for item in self._log.deleted(id)}
        steps = [self._step(change, deleted) for change in reversed(entry["changes"])]
        if not steps:
            raise Invalid("the entry cannot be reverted", [Problem("it changed no object")])
        return entry, steps

    def _step(
        self, change: AuditedChange, deleted: Mapping[tuple[str, str], DeletedObject]
    ) -> _Step | _Reordering:
        name = change["name"]
        routes = self._routes.get(change["kind"])
        if routes is None:
            raise Invalid(
                "the entry cannot be reverted", [Problem(f"a {change['kind']} is changed in files")]
            )
        _require_change(routes.kind)
        if routes.kind.abilities.can_reorder and name == ORDER:
            return self._reordering(routes, change["differences"])
        now = routes.spec_of(name)
        if (now is None) != (change["change"] == "deleted"):
            state = "exists again" if now is not None else "no longer exists"
            raise Conflict(f"{routes.kind.name} {name!r} {state}, so the entry cannot be reverted")
        whole = deleted.get((change["kind"], name))
        if whole is not None:
            return _Step(routes, name, None, routes.kind.as_spec(whole.saved), whole)
        kept = [difference for difference in change["differences"] if not difference["is_cut"]]
        cut = [
            difference["pointer"] for difference in change["differences"] if difference["is_cut"]
        ]
        if cut and change["change"] != "created":
            raise Invalid(
                "the entry cannot be reverted",
                [Problem("the value was too long to be kept", cut[0])],
            )
        if secret := [
            item["pointer"]
            for item in change["differences"]
            if item["before"] == item["after"] == MASK
        ]:
            raise Invalid(
                "the entry cannot be reverted",
                [Problem("a secret changed; send it again", secret[0])],
            )
        before = deepcopy(routes.recorded(name) or {})
        for difference in kept:
            _take_back(before, difference, f"{routes.kind.name} {name!r}")
        restored = {member: before.pop(member, None) for member in routes.recorded_members}
        if now is None or not any(item["pointer"].split("/")[1] in restored for item in kept):
            restored = {}
        return _Step(
            routes, name, now, None if change["change"] == "created" else before, restored=restored
        )

    def _reordering(
        self, routes: KindRoutes, differences: Sequence[AuditDifference]
    ) -> _Reordering:
        """The order before the change, with objects that are new since at the end."""
        if differences[0]["is_cut"]:
            raise Invalid(
                "the entry cannot be reverted",
                [Problem("the order was too long to be kept", "/order")],
            )
        names = [row[routes.kind.key] for row in routes.service.list()]
        if [name for name in names if name in differences[0]["after"]] != differences[0]["after"]:
            raise Conflict(
                f"the order of {routes.kind.many} has changed since; revert the later change first"
            )
        wanted = [name for name in differences[0]["before"] if name in names]
        others = [name for name in names if name not in wanted]
        fixed = [
            name for name in others if routes.section is not None and routes.section.fixed_by(name)
        ]
        return _Reordering(
            routes, names, [*fixed, *wanted, *(name for name in others if name not in fixed)]
        )


def _require_change(kind: Kind) -> None:
    """Refuse what changes an object of a kind that the sender may not change: entries are of all kinds.

    Raises:
        ApiProblem: 403.
    """
    refusal = IDENTITY.get().refusal(Need(word_of(kind.name), "change"))
    if refusal is not None:
        raise ApiProblem(403, "forbidden", refusal)


def _take_back(spec: Spec, difference: AuditDifference, what: str) -> None:
    """Give a member the value that it had before.

    Raises:
        Conflict: it no longer has the value that the change gave it.
    """
    *above, last = [
        part.replace("~1", "/").replace("~0", "~") for part in difference["pointer"].split("/")[1:]
    ]
    members: Any = spec
    for part in above:
        members = members.setdefault(part, {}) if isinstance(members, dict) else None
    if not isinstance(members, dict) or members.get(last) != difference["after"]:
        raise Conflict(
            f"{what} has changed at {difference['pointer']} since; revert the later change first"
        )
    if difference["before"] is None:
        members.pop(last, None)
    else:
        members[last] = difference["before"]
