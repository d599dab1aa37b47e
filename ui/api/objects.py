"""The routes of every kind of objects, from the declaration of the kind (``broker.core.kinds``)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from time import perf_counter
from typing import Annotated, Any, Final, Protocol
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from bridges.resource.probe import ProbeResult
from broker.config.secret_text import misplaced_references, reference_problems
from broker.core import jsontext
from broker.core.contributor import Change as ObjectChange
from broker.core.errors import Invalid, NotFound, Problem
from broker.core.kinds import ENABLE, Kind, Switch, load, reference_of
from broker.core.objects import KindService, Listed, Spec, Version, etag_of
from broker.core.ordered import moved
from broker.core.schema import SchemaEffect
from ui.api import preconditions
from ui.api.audit import note_change
from ui.api.cascade import Cascade, CascadingDeletion
from ui.api.cell_joins import Joining
from ui.api.context import ApiContext
from ui.api.effects import Change, DryRun, consequences_of, effect_of, moves, users_of, would_change
from ui.api.filters import FILTERS, STEP_S, ListFilter
from ui.api.json_bodies import answer
from ui.api.models.shapes import Order
from ui.api.operation import Operations
from ui.api.parameters import AnyName, NamePath, checked_name, decode_cursor, encode_cursor
from ui.api.security import require_also


class Objects(KindService, Protocol):
    """The service of a kind. What a kind's abilities do not name, its service need not have."""

    def create(self, spec: Spec, **options: Any) -> Spec | Awaitable[Spec]: ...

    def replace(self, name: str, spec: Spec, **options: Any) -> Spec | Awaitable[Spec]: ...

    def delete(self, name: str, **options: Any) -> Awaitable[None] | None: ...

    def saved_version(self, name: str) -> Version: ...

    def patched(self, name: str, patch: Spec) -> Spec: ...

    def saved(self, name: str) -> Mapping[str, Any]: ...

    def planned(self, name: str, spec: Spec) -> Mapping[str, Any]: ...

    def reorder(self, names: Sequence[str]) -> None: ...

    def metrics(self, name: str) -> Spec: ...

    def reset_metrics(self, name: str) -> None: ...

    async def test(self, name: str) -> ProbeResult: ...

    async def probe(self, spec: Spec) -> ProbeResult: ...


# JSON values in the body of an object, without those in its documents: some 100 ms to check when all are wrong.
MOST_VALUES: Final = 20_000
_READ_ONLY: Final = "Read-only members of an answer may be sent back; they are ignored."

Limit = Annotated[int, Query(ge=1, le=1000, description="Maximum number of items in the answer.")]
Cursor = Annotated[str | None, Query(description="`next` of the previous page.")]
# Keyword arguments for a method of a service.
Options = Mapping[str, Any]
_NOTHING: Final[Options] = {}


async def _no_options(_spec: Spec, _name: str | None, _force: bool) -> tuple[Options, Options]:
    return {}, {}


async def _no_force() -> bool:
    return False


async def _not_special() -> Options:
    return {}


async def draining(
    drain: Annotated[
        bool, Query(description="Whether its connections may stay until they end.")
    ] = False,
) -> Options:
    """The option of verbs that close connections."""
    return {"drain": drain}


Prepare = Callable[[Spec, str | None, bool], Awaitable[tuple[Options, Options]]]


@dataclass(frozen=True, slots=True)
class Saving:
    """Hooks of a kind for saving and deleting objects.

    ``prepare`` gets the spec, its name where it may exist, and ``force``; it gives keyword arguments for ``create`` and
    for ``replace``. ``force`` is the dependency that reads that query parameter, ``forces_new`` whether a creation has
    it too. For a dry run, ``impact`` gets
    the options prepared for ``replace``, and returns the effects on other objects; ``warnings`` are those about a spec.
    ``patching`` and ``deleting`` give keyword arguments for the ``replace`` of a patch and for ``delete``.
    """

    prepare: Prepare = _no_options
    force: Callable[..., Awaitable[bool]] = _no_force
    forces_new: bool = True
    impact: Callable[[Options], Sequence[SchemaEffect]] = lambda _prepared: ()
    warnings: Callable[[Mapping[str, Any]], Sequence[Spec]] = lambda _spec: ()
    patching: Callable[..., Awaitable[Options]] = _not_special
    deleting: Callable[..., Awaitable[Options]] = _not_special


def _by_name(kind: Kind) -> Joining:
    """Joining of the lists of cells where each has a part of every object."""
    return Joining(merged_by=kind.key, key=kind.key, is_paged=True, is_summed=True)


# Members that lists show in addition to those of an object.
_OF_LISTS: Final = ("etag", "fixed_by")


class KindRoutes:
    """Adds the routes of one kind."""

    def __init__(
        self,
        router: APIRouter,
        kind: Kind,
        service: Any,
        context: ApiContext,
        saving: Saving | None = None,
    ) -> None:
        self.ops = Operations(
            router,
            kind.tag,
            kind.name,
            kind.topics,
            kind.at,
            AnyName if kind.has_any_name else None,
        )
        self.kind = kind
        self.service: Objects = service
        self.saving = saving or Saving()
        self.all = f"/{kind.path}"
        self.one = f"/{kind.path}/{{name{':path' if kind.has_any_name else ''}}}"
        section = self.section = context.section_of(kind)
        """Section of the configuration with the objects; None where their service saves them."""
        if section is not None:
            self._version: Callable[[str], Version] = section.version
            self._saved: Callable[[str], Mapping[str, Any]] = section.saved
            self._fixed_by: Callable[[str], str | None] = section.fixed_by
        else:
            self._version = self.service.saved_version
            self._saved = getattr(self.service, "saved", self.service.get)
            self._fixed_by = lambda name: None
        self._context = context
        self._contributors = context.contributors

    def add(self) -> None:
        """Everything that the kind declares."""
        abilities = self.kind.abilities
        self._add_reading()
        if "create" in abilities.verbs:
            self._add_create()
        if "put" in abilities.verbs:
            self._add_put()
        if "delete" in abilities.verbs:
            self._add_delete()
        if abilities.can_patch:
            self._add_patch()
        for switch in abilities.switches:
            self._add_switch(switch)
        if abilities.has_probe:
            self._add_tests()
        if abilities.metrics:
            self._add_metrics()
        if abilities.can_reorder:
            self._add_reorder()

    def check(self, request: Request, name: str) -> None:
        """Refuse a change where the object is not the version that the request names. Raises ``ApiProblem``."""
        preconditions.check(request, self._version(name) if exists(self.service, name) else None)

    def answered(self, request: Request, saved: Mapping[str, Any], status: int = 200) -> Response:
        """The answer with an object and its version."""
        name = saved[self.kind.key]
        response = created_answer(request, saved, self.kind.key) if status == 201 else answer(saved)
        return preconditions.with_etag(request, response, self._version(name).etag)

    async def written(
        self,
        request: Request,
        name: str,
        after: Mapping[str, Any] | None,
        act: Callable[[], Any],
        *,
        is_dry: bool,
        status: int = 200,
        prepared: Options = _NOTHING,
        switch: Switch | None = None,
        options: Options = _NOTHING,
    ) -> Response | None:
        """Do a write of an object, or only find its effect; the answer, None to a deletion. ``after`` is the object as
        it was sent, None for a deletion. ``switch`` is the verb that is called, ``options`` are those of the
        request."""
        if not is_dry:
            before = self._shown(name)
            saved = await settled(act())
            changed_name = name if saved is None else str(saved[self.kind.key])
            note_change(self.kind, changed_name, before, self._shown(changed_name))
            return None if saved is None else self.answered(request, saved, status)
        shown = self.service.get(name) if exists(self.service, name) else None
        changes = await would_change(act)
        before = self.spec_of(name)
        planned = getattr(self.service, "planned", None)
        if after is not None and planned is not None:
            after = planned(name, after)
        then = None if after is None else self.kind.as_spec(after)
        done: Change = "create" if shown is None else "delete" if then is None else "replace"
        changed = reference_of(self.kind, name, shown)
        affected = (
            users_of(self._contributors, changed, self.saving.impact(prepared)) if changes else ()
        )
        warnings = () if after is None else self.saving.warnings(after)
        change = ObjectChange(changed, before, then, switch.verb if switch else "", options)
        consequences = await consequences_of(self._contributors, change) if changes else ()
        done_by_switch = switch.done if switch else ""
        kind_of_change = done if changes else "none"
        return answer(
            effect_of(
                kind_of_change, before, then, affected, consequences, warnings, done_by_switch
            )
        )

    def spec_of(self, name: str) -> Spec | None:
        """The writable members of an object without its secrets; None where it does not exist."""
        return self.kind.as_spec(self._saved(name)) if exists(self.service, name) else None

    @property
    def recorded_members(self) -> Collection[str]:
        """Members in the audit log that no write has: the service brings them back (``restore``)."""
        return load(self.kind.recorded)({}, None) if self.kind.recorded else ()

    def recorded(self, name: str) -> Spec | None:
        """An object as the audit log has it; None where it does not exist."""
        return self.kind.as_recorded(self._saved(name)) if exists(self.service, name) else None

    def _shown(self, name: str) -> Spec | None:
        """An object of a kind that is in no file; None where it does not exist."""
        return (
            dict(self._saved(name)) if self.section is None and exists(self.service, name) else None
        )

    async def _page(self, rows: Listed, limit: int, cursor: str | None) -> Spec:
        """A page of objects, each with its version."""
        page = page_of(rows, limit, cursor, self.kind.key)
        items = []
        until_s = perf_counter() + STEP_S
        for row in page["items"]:
            name = row[self.kind.key]
            items.append(
                {**row, "etag": self._version(name).etag, "fixed_by": self._fixed_by(name)}
            )
            if perf_counter() > until_s:
                await asyncio.sleep(0)  # others have their turn
                until_s = perf_counter() + STEP_S
        return {**page, "items": items}

    def _add_reading(self) -> None:
        kind = self.kind
        service = self.service
        filters = FILTERS.get(kind.path, ListFilter)
        where: dict[str, Any] = {"at": kind.reads_at} if kind.reads_at else {}

        @self.ops.get(
            self.all,
            f"list{kind.ids}",
            f"List {kind.many}",
            description=f"{kind.about} Returns a page of them in their order.",
            answer=kind,
            is_list=True,
            problems=(422,),
            **({"at": "list", "joining": _by_name(kind)} if kind.is_summed else where),
        )
        async def list_objects(
            limit: Limit = 100, cursor: Cursor = None, wanted: Any = Depends(filters)
        ) -> Spec:
            matching = objects = Listed.of(service.list(), kind.key)
            for so_far in wanted.search(objects):
                matching = so_far
                await asyncio.sleep(0)  # others have their turn
            return await self._page(matching, limit, cursor)

        @self.ops.get(
            self.one,
            f"get{kind.id}",
            f"Show {kind.one}",
            description=f"Returns the {kind.name} with its defaults and with read-only members such as its state.",
            answer=kind,
            problems=(404, 422),
            **({"at": "sum"} if kind.is_summed else where),
        )
        def get_object(name: NamePath, request: Request) -> Response:
            return self.answered(request, service.get(name))

    def _add_create(self) -> None:
        kind = self.kind
        service = self.service
        saving = self.saving

        @self.ops.post(
            self.all,
            f"create{kind.id}",
            f"Create {kind.one}",
            description=f"{kind.about} {_READ_ONLY}",
            body=kind,
            answer=kind,
            status=201,
            problems=(409,),
            takes_key=not kind.holds_secrets,
            may_be_dry=True,
        )
        async def create_object(
            body: Spec,
            request: Request,
            force: bool = Depends(saving.force if saving.forces_new else _no_force),
            dry_run: DryRun = False,
        ) -> Response | None:
            spec = self.named(body, None)
            options, _ = await saving.prepare(spec, None, force)
            name = str(spec.get(kind.key, ""))
            create = partial(service.create, spec, **options)
            return await self.written(request, name, spec, create, is_dry=dry_run, status=201)

    def _add_put(self) -> None:
        kind = self.kind
        service = self.service
        saving = self.saving

        @self.ops.put(
            self.one,
            f"put{kind.id}",
            f"Create or replace {kind.one}",
            description=f"{kind.about} The whole object is replaced: members left out get their defaults. {_READ_ONLY}",
            body=kind,
            answer=kind,
            problems=(409, 412),
            also_creates=True,
            may_be_dry=True,
        )
        async def put_object(
            name: NamePath,
            body: Spec,
            request: Request,
            force: bool = Depends(saving.force),
            dry_run: DryRun = False,
        ) -> Response | None:
            spec = self.named(body, name)
            creating, replacing = await saving.prepare(spec, name, force)
            self.check(request, name)
            if exists(service, name):
                replace = partial(service.replace, name, spec, **replacing)
                return await self.written(
                    request, name, spec, replace, is_dry=dry_run, prepared=replacing
                )
            create = partial(service.create, spec, **creating)
            return await self.written(request, name, spec, create, is_dry=dry_run, status=201)

    def _add_delete(self) -> None:
        kind = self.kind
        service = self.service

        @self.ops.delete(
            self.one,
            f"delete{kind.id}",
            f"Delete {kind.one}",
            description=kind.deletion
            or "Refused while other objects use it, unless `cascade` is set, and where a file defines it.",
            problems=(404, 409, 412, 422),
            may_be_dry=True,
        )
        async def delete_object(
            name: NamePath,
            request: Request,
            options: Any = Depends(self.saving.deleting),
            cascade: Cascade = False,
            dry_run: DryRun = False,
        ) -> Response | None:
            self.check(request, name)
            base = (
                None
                if self.section is None or not exists(service, name)
                else self.section.base(name)
            )
            if base is not None:
                return await self._reset(request, name, base, is_dry=dry_run)
            delete = partial(service.delete, name, **options)
            if not cascade:
                return await self.written(
                    request, name, None, delete, is_dry=dry_run, options=options
                )
            deletion = CascadingDeletion(self._context, kind, name, delete, options)
            for deleted_kind in deletion.kinds:
                require_also(request, deleted_kind.name)
            if dry_run:
                return answer(await deletion.effect())
            await deletion.run()
            return None

    async def _reset(
        self, request: Request, name: str, base: Spec, *, is_dry: bool
    ) -> Response | None:
        """Return an object that was changed through the API to the one in ``base.hocon``."""
        section = self.section
        assert section is not None  # else there is no base
        _, options = await self.saving.prepare(base, name, False)

        async def reset() -> None:
            await settled(self.service.replace(name, deepcopy(base), **options))
            section.forget(name)

        return await self.written(request, name, base, reset, is_dry=is_dry, prepared=options)

    def _add_patch(self) -> None:
        kind = self.kind
        service = self.service
        saving = self.saving

        @self.ops.patch(
            self.one,
            f"patch{kind.id}",
            f"Change members of {kind.one}",
            description="JSON Merge Patch (RFC 7396): members sent replace those saved, null restores a default.",
            body=kind,
            is_patch=True,
            answer=kind,
            problems=(404, 409, 412),
            may_be_dry=True,
        )
        async def patch_object(
            name: NamePath,
            body: Spec,
            request: Request,
            force: bool = Depends(saving.force),
            further: Any = Depends(saving.patching),
            dry_run: DryRun = False,
        ) -> Response | None:
            spec = self.named(service.patched(name, body), name)
            before = self._version(name)
            _, options = await saving.prepare(spec, name, force)
            self.check(request, name)
            if self._version(name) != before:  # changed while it was prepared
                spec = self.named(service.patched(name, body), name)
            replace = partial(service.replace, name, spec, **options, **further)
            return await self.written(
                request, name, spec, replace, is_dry=dry_run, prepared=options, options=further
            )

    def _add_switch(self, switch: Switch) -> None:
        kind = self.kind
        service = self.service
        summary, _, _ = switch.text.format(kind.one).partition(". ")
        adding = self.ops.post(
            f"{self.one}:{switch.verb}",
            f"{switch.verb}{kind.id}",
            summary.removesuffix("."),
            description=f"{switch.text.format(kind.one)} Returns the {kind.name}.",
            answer=kind,
            problems=(404, 409, 412, 422),
            may_be_dry=True,
            at=switch.at,
        )
        if switch in ENABLE:

            @adding
            async def switched(
                name: NamePath, request: Request, dry_run: DryRun = False
            ) -> Response | None:
                self.check(request, name)
                service.get(name)  # raises NotFound
                after = {**self._saved(name), "enable": switch.verb == "enable"}
                return await self.written(
                    request,
                    name,
                    after,
                    partial(switch.call, service, name),
                    is_dry=dry_run,
                    switch=switch,
                )
        else:

            @adding
            async def run(
                name: NamePath,
                request: Request,
                options: Any = Depends(draining if switch.drains else _not_special),
                dry_run: DryRun = False,
            ) -> Response | None:
                self.check(request, name)
                service.get(name)  # raises NotFound
                act = partial(switch.call, service, name, **options)
                saved = self._saved(name)
                return await self.written(
                    request, name, saved, act, is_dry=dry_run, switch=switch, options=options
                )

    def _add_tests(self) -> None:
        kind = self.kind
        service = self.service
        steps = "Opens a connection of its own and reports each step: resolve, connect, TLS, authenticate and so on."

        @self.ops.post(
            f"{self.one}:test",
            f"test{kind.id}",
            f"Test {kind.one} step by step",
            description=steps,
            answer=ProbeResult,
            problems=(404, 422),
            does="try",
        )
        async def test(name: NamePath) -> ProbeResult:
            return await service.test(name)

        @self.ops.post(
            f"{self.all}:probe",
            f"probe{kind.id}",
            f"Test {kind.one} that is not saved",
            description=f"{steps} Nothing is saved. It takes the right to save it: the test connects to the address "
            "in the body, with the named secrets that it refers to.",
            body=kind,
            answer=ProbeResult,
            does="change",
        )
        async def probe(body: Spec) -> ProbeResult:
            check_number_of_values(kind, body)
            return await service.probe(body)

    def _add_metrics(self) -> None:
        kind = self.kind
        service = self.service

        @self.ops.get(
            f"{self.one}/metrics",
            f"get{kind.id}Metrics",
            f"Show the counters and rates of {kind.one}",
            description="Counted since the start of the broker or the last reset. Rates are per second.",
            answer=load(kind.abilities.metrics),
            problems=(404, 422),
            at="sum",
        )
        def metrics(name: NamePath) -> Any:
            return service.metrics(name)

        @self.ops.post(
            f"{self.one}/metrics:reset",
            f"reset{kind.id}Metrics",
            f"Reset the counters of {kind.one}",
            description="Sets its counters to zero.",
            problems=(404, 422),
            at="each",
        )
        def reset_metrics(name: NamePath) -> None:
            service.reset_metrics(name)

    def _add_reorder(self) -> None:
        kind = self.kind
        service = self.service

        @self.ops.post(
            f"{self.all}:reorder",
            f"reorder{kind.ids}",
            f"Change the order of {kind.many}",
            description="Each must be named once; with `position`, those named move there. Objects that a "
            "configuration file defines come first. The `ETag` of a dry run is that of the order, for `If-Match`.",
            answer=kind,
            is_list=True,
            problems=(409, 412),
            may_be_dry=True,
            topics="any" if kind.topics == "named" else None,
        )
        async def reorder_objects(
            body: Order, request: Request, dry_run: DryRun = False
        ) -> Response:
            before = list(Listed.of(service.list(), kind.key).names)
            names = _ordered(body, before, getattr(service, "canonical", str))
            order = Version(etag_of({"order": before}))
            preconditions.check(request, order)
            if dry_run:
                change: Change = (
                    "replace" if await would_change(partial(service.reorder, names)) else "none"
                )
                moving = moves(kind, before, names)
                effect = effect_of(change, {"order": before}, {"order": names}, moving)
                return preconditions.with_etag(request, answer(effect), order.etag)
            service.reorder(names)
            return answer(await self._page(Listed.of(service.list(), kind.key), 1000, None))

    def named(self, spec: Spec, name: str | None) -> Spec:
        """The spec with its name, which may be left out where the path or another member has it.

        Raises:
            broker.core.errors.Invalid: too many values, no name, not a string, malformed, or another than the path's.
        """
        member = self.kind.key
        check_number_of_values(self.kind, spec)
        spec = {name: value for name, value in spec.items() if name not in _OF_LISTS}
        check_references(self.kind, spec)
        sent_name: Any = spec.get(member, name or spec.get(self.kind.named_by))
        if name is not None and sent_name != name:
            differ = Problem(
                f"it is {sent_name!r}, and {name!r} in the path",
                f"/{member}",
                suggestion="leave it out of the body",
            )
            raise Invalid("the name in the body is another", [differ])
        if self.kind.has_any_name:
            return spec if sent_name is None else {**spec, member: sent_name}
        if not isinstance(sent_name, str):
            got = "nothing" if sent_name is None else jsontext.encode(sent_name).decode()[:60]
            problem = Problem(f"expected a string, got {got}", f"/{self.kind.named_by}")
            raise Invalid("the object cannot be saved", [problem])
        return {**spec, member: checked_name(sent_name)}


def check_number_of_values(kind: Kind, spec: Spec) -> None:
    """Refuse an object with more JSON values than can be checked within a turn of the event loop.

    Raises:
        broker.core.errors.Invalid: it has more than ``MOST_VALUES``, without those in its documents.
    """
    counted = {name: value for name, value in spec.items() if name not in kind.documents}
    if any(number >= MOST_VALUES for number, _ in enumerate(_values(counted))):
        raise Invalid(
            f"the {kind.name} is too large",
            [Problem(f"expected at most {MOST_VALUES:,} values in it")],
        )


def check_references(kind: Kind, spec: Spec) -> None:
    """Refuse references to named secrets where no secret is expected, to unknown ones, and with text around them.

    Raises:
        broker.core.errors.Invalid: with each of them.
    """
    members = {name: value for name, value in spec.items() if name not in kind.documents}
    if not any(isinstance(value, str) and "${secret:" in value for value in _values(members)):
        return
    problems: list[Problem] = []
    for model in kind.spec_models():
        names = {field.alias or name for name, field in model.model_fields.items()}
        try:
            parsed_spec = model.model_validate(
                {name: value for name, value in members.items() if name in names}
            )
        except ValueError:
            continue  # of another type, or wrong in ways that the service reports
        problems = [*misplaced_references(parsed_spec), *reference_problems(parsed_spec)]
        if not problems:
            return
    if problems:
        raise Invalid(f"the {kind.name} cannot be saved", problems)


def _values(value: Any) -> Iterator[Any]:
    """Return a JSON value and all values in it."""
    yield value
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return
    for inner in value:
        yield from _values(inner)


async def settled(result: Any) -> Any:
    """The result of a service, awaited if it is a coroutine or a future."""
    return await result if isawaitable(result) else result


def page_of(
    objects: Sequence[Mapping[str, Any]], limit: int, cursor: str | None, key: str = "name"
) -> Spec:
    """A page of objects that have this member as their name."""
    listed = Listed.of(objects, key)
    start = 0
    if cursor is not None:
        # behind the object of that name, or where it was when it is gone
        position, name = decode_cursor(cursor, (int, str))
        start = next(
            (at + 1 for at, listed_name in enumerate(listed.names) if listed_name == name), position
        )
    items = listed[start : start + limit]
    end = start + len(items)
    following = encode_cursor(end - 1, items.names[-1]) if items and end < len(listed) else None
    return {"items": items, "next": following, "total": len(listed), "total_is_estimate": False}


def whole_list(items: Sequence[Mapping[str, Any]]) -> Spec:
    """All of a list as its only page."""
    return {"items": items, "next": None, "total": len(items), "total_is_estimate": False}


def exists(service: KindService, name: str) -> bool:
    try:
        service.get(name)
    except NotFound:
        return False
    return True


def created_answer(request: Request, spec: Mapping[str, Any], key: str = "name") -> Response:
    """The answer to a creation, with the address of the created object."""
    response = answer(spec, 201)
    path = request.url.path
    many, _, _ = path.partition(":")  # a verb of all, as schemas:bundle
    response.headers["Location"] = (
        path if "name" in request.path_params else f"{many}/{quote(spec[key], safe=':')}"
    )
    return response


def _ordered(body: Order, before: Sequence[str], canonical: Callable[[str], str]) -> list[str]:
    """All names in the order that a request asks for. Raises ``Invalid``."""
    names = [canonical(name) for name in body.order]
    if body.position is None:
        return names
    word, _, anchor = body.position.partition(":")
    try:
        return moved(before, names, f"{word}:{canonical(anchor)}" if anchor else word)
    except ValueError as error:
        raise Invalid("the order cannot be used", [Problem(str(error), "/order")]) from None
