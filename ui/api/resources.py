"""The routes of live resources, from their declarations (``broker.core.resources``)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from inspect import Parameter as Argument
from inspect import Signature, signature
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import AfterValidator, BaseModel, Field, create_model

from broker.admin.jobs import Job as RunningJob
from broker.config.root import PlannedReload
from broker.core import jsontext
from broker.core.contributor import Change
from broker.core.errors import Invalid, Problem, SluiceError
from broker.core.kinds import Kind, kind_named, kinds, load, plural, reference_of
from broker.core.objects import Reference, Spec
from broker.core.resources import Parameter, Resource, Verb
from ui.api.audit import note_change, note_subject
from ui.api.cell_joins import SHOWS_PLACES, Joining, without_places
from ui.api.context import ApiContext
from ui.api.deadline import BoundedCalls
from ui.api.effects import DryRun, consequences_of, effect_of, effect_of_verb, would_change
from ui.api.jobs import result_of
from ui.api.json_bodies import Json, answer, plain
from ui.api.models.shapes import Affected, Body, Page
from ui.api.objects import Cursor, Limit, page_of, settled, whole_list
from ui.api.operation import Operations
from ui.api.parameters import (
    NamePath,
    RecordId,
    decode_cursor,
    encode_cursor,
    microseconds,
    named_values,
    places_of,
)
from ui.api.problems import log

# Longest answer of a trial: a few words of SQL may make rows without end, and sending those would hold the event loop.
_MAX_TRIAL_BYTES: Final = 64 * 1024 * 1024
_TRIAL: Final = " Nothing is saved. The call has a deadline of 2 seconds."
# Maximum characters and stars of a pattern: more of either could take long to match.
_MOST_SIGNS: Final = 256
_MOST_STARS: Final = 8


def pattern_of(text: str | None) -> str | None:
    """A pattern that can be matched quickly.

    Raises:
        Invalid: it is too long, or has so many stars that matching might take long.
    """
    if text is not None and (
        text.count("*") > _MOST_STARS or ("*" in text and len(text) > _MOST_SIGNS)
    ):
        limits = f"at most {_MOST_STARS} stars and {_MOST_SIGNS} characters"
        raise Invalid("the pattern cannot be used", [Problem(limits)])
    return text


def _pairs(texts: Sequence[str], name: str) -> dict[str, str]:
    return {key: pattern_of(value) or "" for key, value in named_values(texts, name).items()}


# Annotations for the types that declarations name.
_TYPES: Final[Mapping[str, Any]] = {
    "pattern": Annotated[str, AfterValidator(pattern_of)],
    "pairs": str,
    "time": str,
    "duration": int,
    "record": RecordId,
}
# Readers of values of these types; the second argument is the name of the parameter.
_READ: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    "pairs": _pairs,
    "time": microseconds,
    "record": lambda records, _: places_of(records),
}


def _type(parameter: Parameter) -> Any:
    declared = parameter.type
    if isinstance(declared, tuple):
        declared = Literal.__getitem__(declared)
    elif isinstance(declared, str):
        declared = load(declared) if ":" in declared else _TYPES[declared]
    declared = list[declared] if parameter.many else declared  # type: ignore[valid-type]  # known when it runs
    is_optional = parameter.default is None and not parameter.is_required
    return declared | None if is_optional else declared


def _constraints(parameter: Parameter) -> dict[str, Any]:
    bounds = {
        "description": parameter.text or None,
        "ge": parameter.least,
        "le": parameter.most,
        "min_length": parameter.shortest,
        "max_length": parameter.longest,
    }
    return {name: bound for name, bound in bounds.items() if bound is not None}


def _read(parameter: Parameter) -> AfterValidator:
    read = _READ[parameter.type]
    return AfterValidator(lambda value: None if value is None else read(value, parameter.name))


def _argument(parameter: Parameter, path: str) -> Argument:
    """A parameter as FastAPI reads it."""
    where = Path if f"{{{parameter.name}" in path else Query
    alias: dict[str, Any] = {} if parameter.key == parameter.name else {"alias": parameter.name}
    annotation: Any
    if parameter.type == "name":
        annotation = Annotated[NamePath, Path(**alias)]
    else:
        annotation = Annotated[_type(parameter), where(**_constraints(parameter), **alias)]
    if parameter.type in _READ:
        annotation = Annotated[annotation, _read(parameter)]
    default = Argument.empty if parameter.is_required else parameter.default
    return Argument(parameter.key, Argument.KEYWORD_ONLY, annotation=annotation, default=default)


def _default(member: Parameter) -> Any:
    """The default as JSON has it: a declaration has tuples, which serialization would warn of."""
    return list(member.default) if isinstance(member.default, tuple) else member.default


@cache
def _body_model(name: str, text: str, members: Sequence[Parameter]) -> type[BaseModel]:
    fields: dict[str, Any] = {
        member.key: (
            Annotated[_type(member), _read(member)] if member.type in _READ else _type(member),
            Field(
                ... if member.is_required else _default(member),
                alias=member.name if member.key != member.name else None,
                **_constraints(member),
            ),
        )
        for member in members
    }
    return create_model(name, __base__=Body, __doc__=text, **fields)


def _body_of(verb: Verb) -> type[BaseModel] | Kind | None:
    """The model of a body, by its name or from its members, or the kind whose objects it has."""
    if isinstance(verb.body, str):
        if ":" not in verb.body:
            return kind_named(verb.body)
        model: type[BaseModel] = load(verb.body)
        return model
    name = verb.model or f"{verb.id[0].upper()}{verb.id[1:]}"
    return _body_model(name, verb.body_text, tuple(verb.body)) if verb.body else None


def _may_be_dry(verb: Verb) -> bool:
    return verb.may_be_dry or (verb.job is not None and verb.job.shows_plan)


@cache
def _page_of(name: str, row: str, text: str) -> type[BaseModel]:
    base: Any = Page[load(row)]  # type: ignore[misc]  # the row is known when it runs
    model: type[BaseModel] = create_model(name, __base__=base, __doc__=text)
    return model


def _called(method: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """The result of a method that gets those of the values that it has parameters for."""
    names = signature(method).parameters
    return method(**{name: value for name, value in values.items() if name in names})


def _key_of_name(verb: Verb) -> str:
    """Keyword of the name of the one thing that a verb is about; empty where it is about all of them."""
    return verb.takes[0].key if verb.takes and verb.takes[0].is_required else ""


def _subject(verb: Verb, values: Mapping[str, Any]) -> str:
    """The names of the things that a request changes: those that the command has as its first argument."""
    named = next(
        (values[entry.key] for entry in (*verb.takes, *verb.members) if entry.is_argument), ""
    )
    return ", ".join(map(str, named)) if isinstance(named, list) else str(named or "")


class ResourceRoutes:
    """Adds the routes of one resource; none where the node has no such service."""

    def __init__(
        self, router: APIRouter, resource: Resource, context: ApiContext, calls: BoundedCalls
    ) -> None:
        self._ops = Operations(router, resource.tag, resource.name, resource.topics, resource.at)
        self._resource = resource
        self._context = context
        self._calls = calls
        self._is_trial = resource.tag == "Try"
        self._service = context.service(resource.service)
        self._reading: dict[tuple[Any, ...], asyncio.Task[Json]] = {}

    def add(self) -> None:
        """Add all of its verbs."""
        for verb in self._resource.verbs if self._service is not None else ():
            self._add(verb)

    def _add(self, verb: Verb) -> None:
        path = f"{self._resource.path}{verb.path}"
        body = _body_of(verb)
        arguments = [_argument(parameter, path) for parameter in verb.takes]
        further: list[tuple[str, Any, Any]] = (
            [("request", Request, Argument.empty)] if verb.job else []
        )
        if body is not None:
            further.append(
                ("body", Spec if self._is_trial or isinstance(body, Kind) else body, Argument.empty)
            )
        further += [("limit", Limit, 100), ("cursor", Cursor, None)] if verb.is_paged else []
        further += [("dry_run", DryRun, False)] if _may_be_dry(verb) else []
        arguments += [
            Argument(name, Argument.KEYWORD_ONLY, annotation=annotation, default=default)
            for name, annotation, default in further
        ]

        async def run(**values: Any) -> Any:
            return await self._run(verb, **values)

        run.__signature__ = Signature(arguments)  # type: ignore[attr-defined]  # read by Operations
        summary, _, text = verb.text.partition(". ")
        if verb.job is not None and verb.job.order:
            key = _key_of_name(verb)
            self._context.jobs.takes_orders(
                verb.job.kind,
                lambda job: self._work(verb, {key: job.name} if key else {}, job),
                may_pause="is_paused" in verb.job.passes,
            )
        text += _TRIAL if self._is_trial else ""
        add = getattr(self._ops, verb.method.lower())
        add(
            path,
            verb.id,
            summary,
            description=text or None,
            body=body,
            answer=self._answer(verb),
            media=verb.media or "application/json",
            problems=tuple(verb.problems),
            outcome=verb.outcome,
            takes_key=verb.takes_key,
            needs_body=verb.needs_body,
            may_be_dry=verb.may_be_dry,
            may_be_a_job=verb.job is not None,
            does=verb.does,
            at=verb.at or self._resource.at,
            joining=Joining(
                verb.sums,
                verb.merged_by,
                verb.key,
                verb.absent,
                is_paged=verb.is_paged,
                join=load(verb.join) if verb.join else None,
            ),
            topics=verb.topics,
        )(run)

    def _answer(self, verb: Verb) -> Any:
        if verb.answer or not verb.row:
            return load(verb.answer) if verb.answer else None
        name = verb.model or f"{self._resource.page or self._resource.name.capitalize()}Page"
        return _page_of(
            name, verb.row, verb.page_text or f"A page of {plural(self._resource.name)}."
        )

    async def _run(
        self,
        verb: Verb,
        request: Request | None = None,
        body: Any = None,
        cursor: str | None = None,
        **values: Any,
    ) -> Any:
        if self._is_trial:
            return await self._try(verb, body, values)
        is_dry = _may_be_dry(verb) and values.pop("dry_run")
        if body is not None:
            sent = body.model_dump() if isinstance(body, Body) else body
            values |= sent if verb.members else {verb.body_key: sent}
        call = getattr(self._service, verb.call)
        if verb.does in ("change", "job"):
            note_subject(_subject(verb, values))
        if is_dry and verb.may_be_dry:
            return await self._effect(verb, call, values)
        if request is not None:
            return await self._start(verb, values, request, is_dry=is_dry)
        if verb.reads == "shared":
            return await self._shared(verb, values)
        if verb.reads == "thread":
            return await self._on_thread(call, values)
        if verb.key:
            limit = values.pop("limit")
            return page_of(await settled(call(**values)), limit, cursor, verb.key)
        if verb.after:
            values["cursor"] = None if cursor is None else decode_cursor(cursor, verb.after)
        if verb.changes:
            return await self._recorded(verb, call, values)
        answer = await settled(call(**values))
        if verb.after:
            following = answer["next"]
            if not SHOWS_PLACES.get():
                answer = without_places(answer)
            return {
                "total_is_estimate": False,
                **answer,
                "next": following and encode_cursor(*following),
            }
        return whole_list(answer) if verb.row else answer

    async def _recorded(
        self, verb: Verb, call: Callable[..., Any], values: Mapping[str, Any]
    ) -> Any:
        """The answer of a verb that changes an object of a kind, with the change in the audit log."""
        kind = kind_named(verb.changes)
        name = values[verb.takes[0].key]
        before = dict(self._service.saved(name))
        changed = await settled(call(**values))
        note_change(kind, name, before, dict(self._service.saved(name)))
        return changed

    async def _on_thread(self, call: Callable[..., Any], values: Mapping[str, Any]) -> Json:
        """The answer of a method that blocks, encoded where it does not hold the event loop."""
        return await asyncio.to_thread(lambda: answer(call(**values)))

    async def _shared(self, verb: Verb, values: Mapping[str, Any]) -> Json:
        """The answer to all requests that ask the same at a time: ten open pages read a table once."""
        question = (verb.id, *values.values())
        task = self._reading.get(question)
        if task is None:
            reading = self._on_thread(getattr(self._service, verb.call), values)
            task = self._reading[question] = asyncio.create_task(
                reading, name=f"{verb.id} {values}"
            )
            task.add_done_callback(lambda done: self._read_over(question, done))
        return await asyncio.shield(task)

    def _read_over(self, question: tuple[Any, ...], task: asyncio.Task[Json]) -> None:
        del self._reading[question]
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it when every request for it is gone

    async def _try(self, verb: Verb, body: Spec | None, values: Mapping[str, Any]) -> Json:
        """The answer of a trial, or 422 for whatever it raises."""
        call = getattr(self._service, verb.call)
        evaluate = partial(call, **values) if body is None else partial(call, {**body, **values})
        if verb.call.startswith("prepare_"):
            evaluate = evaluate()
        place = f"{self._resource.path}{verb.path}"[1:].format_map(values)

        def encoded() -> bytes:
            try:
                content = jsontext.encode(plain(evaluate()))
            except (SluiceError, jsontext.JsonError):
                raise
            except Exception as error:
                log.exception("api.evaluation_failed", extra={"operation": verb.id})
                sentence = f"{place} could not evaluate this: {type(error).__name__}"
                raise Invalid(sentence, code="evaluation_failed") from error
            if len(content) > _MAX_TRIAL_BYTES:
                problem = Problem(f"its answer would be longer than {_MAX_TRIAL_BYTES:,} bytes")
                raise Invalid(f"{place} cannot be answered", [problem], code="answer_too_large")
            return content

        return Json(await self._calls.run(place, encoded))

    async def _start(
        self, verb: Verb, values: Mapping[str, Any], request: Request, *, is_dry: bool
    ) -> Any:
        job = verb.job
        assert job is not None
        plan: Any = 0
        if job.plan:
            make = partial(_called, getattr(self._service, job.plan), values)
            plan = await asyncio.to_thread(make) if job.blocks else await settled(make())
        if is_dry:
            return plan
        order = (
            _called(getattr(self._service, job.order), {**values, "plan": plan})
            if job.order
            else None
        )
        if job.order and not order:
            return plan
        total = plan[job.total] if job.total else plan
        work = None if job.order else partial(self._work, verb, values)
        key = _key_of_name(verb)
        name = values[key] if key else plural(self._resource.name)
        return await result_of(
            request, self._context.jobs.start(job.kind, name, job.unit, total, work, order)
        )

    def _work(self, verb: Verb, values: Mapping[str, Any], running: RunningJob) -> Any:
        passes = verb.job.passes if verb.job is not None else ()
        return getattr(self._service, verb.call)(
            **values, **{name: getattr(running, name) for name in passes}
        )

    async def _effect(self, verb: Verb, call: Callable[..., Any], values: Mapping[str, Any]) -> Any:
        """The answer to a dry run, or the error that the verb would end with."""
        if verb.exists:
            await settled(getattr(self._service, verb.exists)(**values))
        if verb.plan and verb.plan != verb.call:
            plan = await getattr(self._service, verb.plan)(**values)
            return answer(await self._effect_of_plan(plan, verb.done))
        first = next(iter(values.values()))
        name = ", ".join(first) if isinstance(first, list) else first or ""
        word = verb.path.rpartition(":")[2] if verb.method == "POST" else verb.method.lower()
        options = {key: value for key, value in values.items() if key != "dry_run"}
        contributors = self._context.contributors
        kind = next((kind for kind in kinds() if kind.name == verb.effect), None)
        shown = None if kind is None else self._service.get(name)
        target = Reference(verb.effect, name) if kind is None else reference_of(kind, name, shown)
        if not verb.plan:
            return await effect_of_verb(contributors, target, word, options, verb.done)
        changes = await would_change(partial(call, **values))
        spec: Spec | None = None
        if kind is not None and shown is not None:
            section = self._context.section_of(kind)
            spec = kind.as_spec(shown if section is None else section.saved(name))
        sentences = await consequences_of(
            contributors, Change(target, spec or {}, spec or {}, word, options)
        )
        return answer(
            effect_of("replace" if changes else "none", spec, spec, (), sentences, done=verb.done)
        )

    async def _effect_of_plan(self, plan: PlannedReload, done: str) -> Spec:
        affected: list[Affected] = []
        sentences: list[str] = []
        for changed in plan.objects:
            before = None if changed.before is None else changed.kind.as_spec(changed.before)
            after = None if changed.after is None else changed.kind.as_spec(changed.after)
            reference = reference_of(changed.kind, changed.name, after or before)
            affected.append(
                Affected(kind=reference.kind, name=reference.name, how=f"is {changed.what}")
            )
            change = Change(reference, before, after, options=changed.options)
            consequences = await consequences_of(self._context.contributors, change)
            sentences += [f"{reference}: {sentence}" for sentence in consequences]
        sentences += [f"{key}: needs a restart." for key in plan.needs_restart]
        is_changed = bool(plan.after or affected or sentences)
        kind_of_change: Literal["replace", "none"] = "replace" if is_changed else "none"
        return effect_of(kind_of_change, plan.before, plan.after, affected, sentences, done=done)
