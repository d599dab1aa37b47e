"""Deletion of an object with all that use it: one change, which happens or does not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from inspect import isawaitable
from typing import Annotated, Any

from fastapi import Query

from broker.core.contributor import Change
from broker.core.errors import InUse, ReadOnly
from broker.core.kinds import TYPED, Kind, kinds, reference_of
from broker.core.objects import DryRunEnd, Reference, Saves, Spec, deleting_together, dry_run
from ui.api.audit import note_change
from ui.api.context import ApiContext
from ui.api.effects import consequences_of, effect_of
from ui.api.models.shapes import Affected

Cascade = Annotated[
    bool,
    Query(description="Delete the objects that use it too: all, or none. `dry_run` lists them."),
]
Delete = Callable[[], Any | Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class _Part:
    """An object that is deleted: how, and what is saved of it. ``used`` is the object for which it is deleted."""

    reference: Reference
    used: Reference
    kind: Kind
    name: str
    service: Any
    before: Spec
    delete: Delete
    options: Mapping[str, Any]

    @property
    def change(self) -> Change:
        return Change(self.reference, self.kind.as_spec(self.before), None, options=self.options)


class CascadingDeletion:
    """The deletion of an object and of those that use it, users first."""

    def __init__(
        self, context: ApiContext, kind: Kind, name: str, delete: Delete, options: Mapping[str, Any]
    ) -> None:
        self._context = context
        self._by_name = {
            offered.name: offered
            for offered in kinds()
            if offered.path in context.services and offered.name != "setting"  # is only reset
        }
        service: Any = context.services[kind.path]
        self._target = reference_of(kind, name, service.get(name))
        users = context.contributors.all_users_of(self._target)
        if settings := [str(user) for user in users if user.kind not in self._by_name]:
            raise InUse(*self._target, settings)
        self._parts = [self._part(*pair) for pair in users.items()]
        target = self._part(self._target, self._target)
        self._parts.append(replace(target, delete=delete, options=options))

    def _part(self, reference: Reference, used: Reference) -> _Part:
        kind = self._by_name[reference.kind]
        name = reference.name.partition(":")[2] if kind.name in TYPED else reference.name
        service: Any = self._context.services[kind.path]
        section = self._context.section_of(kind)
        before = service.get(name) if section is None else deepcopy(section.saved(name))
        return _Part(
            reference, used, kind, name, service, before, partial(service.delete, name), {}
        )

    @property
    def kinds(self) -> set[Kind]:
        """The kinds of the objects that are deleted."""
        return {part.kind for part in self._parts}

    async def effect(self) -> Spec:
        """The answer to a dry run. Raises as ``run``."""
        await self._check()
        users = self._parts[:-1]
        target = self._parts[-1]
        affected = [
            Affected(kind=part.kind.name, name=part.reference.name, how=_how(part, target))
            for part in users[::-1]
        ]
        consequences = [
            f"{part.reference}: {sentence}"
            for part in users
            for sentence in await consequences_of(self._context.contributors, part.change)
        ]
        consequences += await consequences_of(self._context.contributors, target.change)
        return effect_of("delete", target.change.before, None, affected, consequences)

    async def run(self) -> None:
        """Delete all.

        The configuration is written first, once: a process that ends before the services are done has deleted all at
        its next start.

        Raises:
            ReadOnly: files define some of the objects; nothing changed.
            SluiceError: one of them cannot be deleted; nothing changed.
        """
        saves = await self._check()
        self._context.put_objects(saves)
        done: list[_Part] = []
        with self._all_or_none(done), deleting_together(self._references):
            for part in self._parts:
                deleted = part.delete()
                if isawaitable(deleted):
                    await deleted
                done.append(part)
        for part in self._parts:
            note_change(part.kind, part.name, part.before, None)

    @property
    def _references(self) -> Sequence[Reference]:
        return [part.reference for part in self._parts]

    async def _check(self) -> Saves:
        """Check each deletion; what they would save."""
        fixed = [
            f"{part.reference} is fixed by {where}"
            for part in self._parts
            if (where := self._fixed_by(part))
        ]
        if fixed:
            raise ReadOnly(
                f"{self._target} cannot be deleted with its users: {', '.join(fixed)}; change it there"
            )
        saves: dict[tuple[str, ...], Spec | None] = {}
        for part in self._parts:
            with deleting_together(self._references), dry_run():
                try:
                    deleted = part.delete()
                    if isawaitable(deleted):
                        await deleted
                except DryRunEnd as end:
                    place = (
                        ()
                        if part.kind.section is None
                        else (*part.kind.section.split("."), part.name)
                    )
                    saves |= end.saves or ({place: None} if place else {})
        return saves

    def _fixed_by(self, part: _Part) -> str | None:
        section = self._context.section_of(part.kind)
        return None if section is None else section.defined_by(part.name)

    @contextmanager
    def _all_or_none(self, done: Sequence[_Part]) -> Iterator[None]:
        """Put back what is ``done`` where the block raises."""
        orders = self._orders()
        try:
            yield
        except BaseException:
            for part in reversed(self._parts):
                section = self._context.section_of(part.kind)
                if section is None:
                    continue  # a share group, which is in no file
                section.save({part.name: part.before})
                if part in done:
                    part.service.load([part.before])
            for part in self._parts:
                if part.kind in orders:
                    part.service.reorder(orders.pop(part.kind))
            raise

    def _orders(self) -> dict[Kind, list[str]]:
        """Names in their order, of kinds that have one."""
        ordered = {
            part.kind: part.service for part in self._parts if part.kind.abilities.can_reorder
        }
        return {
            kind: [spec[kind.key] for spec in service.list()] for kind, service in ordered.items()
        }


def _how(part: _Part, target: _Part) -> str:
    return (
        "is deleted too"
        if part.used == target.reference
        else f"is deleted too: it uses {part.used}"
    )
