"""What connectors, actions and sources have beside the five verbs: switching, testing, counters, dead letters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from broker.core.errors import Invalid, Problem
from broker.core.objects import ObjectService, Spec
from ui.api.models.bridges import Drain, ProbeResult
from ui.api.models.gates import TakeAgain
from ui.api.models.shapes import Anything, Object, ObjectList
from ui.api.object_routes import ObjectRoutes
from ui.api.objects import Kind, whole_list
from ui.api.operation import described
from ui.api.parameters import NamePath, checked_name
from ui.api.wire import answer, read_object

BRIDGES = ("connectors", "actions", "sources")
"""The paths of the kinds of bridges."""
_MOST_LETTERS = 100_000
_LONGEST_DRAIN_S = 3600.0


class BridgeService(ObjectService, Protocol):
    """What all three kinds have."""

    def enable(self, name: str, enabled: bool) -> Spec: ...

    async def start(self, name: str) -> Spec: ...

    async def stop(self, name: str) -> Spec: ...

    async def restart(self, name: str) -> Spec: ...

    async def test(self, name: str) -> Spec: ...

    async def probe(self, spec: Spec) -> Spec: ...


def add_bridge(router: APIRouter, kind: Kind, service: Any) -> None:
    """Add the routes of one kind."""
    add_switches(router, kind, service)
    add_tests(router, kind, service)
    if kind.path == "connectors":
        add_types(router, service.types)
        return
    word = kind.singular.lower()
    one = ObjectRoutes(router, f"/{kind.path}/{{name}}", kind.tag)
    one.show("/metrics", f"get{kind.singular}Metrics", f"The counters and rates of {_a(word)}", service.metrics)
    summary = f"Set the counters of {_a(word)} to zero"
    one.act("/metrics:reset", f"reset{kind.singular}Metrics", summary, service.reset_metrics)
    if kind.path == "actions":
        add_drain(router, kind, service.drain)
        add_dead_letters(router, kind, service)


def add_switches(router: APIRouter, kind: Kind, service: BridgeService) -> None:
    """Enable and disable, which stay; start, stop and restart, which last until the broker restarts."""
    word = kind.singular.lower()
    verbs: list[tuple[str, str, Callable[[str], Any]]] = [
        ("enable", f"Enable {_a(word)} permanently", lambda name: service.enable(name, True)),
        ("disable", f"Disable {_a(word)} permanently", lambda name: service.enable(name, False)),
        ("start", f"Start {_a(word)} that was stopped", service.start),
        ("stop", f"Stop {_a(word)} until it is started or the broker restarts", service.stop),
        ("restart", f"Stop and start {_a(word)}", service.restart),
    ]
    for verb, what in (("pause", "rows wait in the buffer"), ("resume", "rows are sent again")):
        method = getattr(service, verb, None)
        if method is not None:
            told = what if kind.path == "actions" else "nothing is read" if verb == "pause" else "reading goes on"
            verbs.append((verb, f"{verb.capitalize()} {_a(word)}: {told}", method))
    for verb, summary, method in verbs:
        _add_verb(router, kind, verb, summary, method)


def _add_verb(router: APIRouter, kind: Kind, verb: str, summary: str, method: Callable[[str], Any]) -> None:
    @router.post(
        f"/{kind.path}/{{name}}:{verb}",
        operation_id=f"{verb}{kind.singular}",
        tags=[kind.tag],
        summary=summary,
        **described(answer=Object, problems=(404, 409, 422)),
    )
    async def switched(name: NamePath) -> Response:
        found = method(checked_name(name))
        return answer(await found if isawaitable(found) else found)


def add_tests(router: APIRouter, kind: Kind, service: BridgeService) -> None:
    """The step-by-step test, of a saved object and of one that is not saved."""
    word = kind.singular.lower()

    @router.post(
        f"/{kind.path}/{{name}}:test",
        operation_id=f"test{kind.singular}",
        tags=[kind.tag],
        summary=f"Test {_a(word)} step by step, with a connection of its own",
        **described(answer=ProbeResult, problems=(404, 422)),
    )
    async def test(name: NamePath) -> Response:
        return answer(await service.test(checked_name(name)))

    @router.post(
        f"/{kind.path}:probe",
        operation_id=f"probe{kind.singular}",
        tags=[kind.tag],
        summary=f"Test {_a(word)} that is not saved, step by step",
        **described(body=kind.model, answer=ProbeResult),
    )
    async def probe(request: Request) -> Response:
        return answer(await service.probe(await read_object(request)))


def add_types(router: APIRouter, types: Callable[[], Sequence[Spec]]) -> None:
    """The types of connectors there are."""

    @router.get(
        "/connector-types",
        operation_id="listConnectorTypes",
        tags=["Bridges"],
        summary="The types of connectors, with the JSON Schemas of their settings",
        **described(answer=ObjectList),
    )
    async def list_types() -> Response:
        return answer(whole_list(types()))


def add_drain(router: APIRouter, kind: Kind, drain: Callable[[str, float], Awaitable[Spec]]) -> None:
    """Take no more rows, and send those that wait."""

    @router.post(
        f"/{kind.path}/{{name}}:drain",
        operation_id=f"drain{kind.singular}",
        tags=[kind.tag],
        summary="Take no more rows, send those that wait, then stop; answers when it is done, or timeout_s are over",
        **described(body=Drain, answer=Anything, problems=(404, 422)),
    )
    async def drained(name: NamePath, request: Request) -> Response:
        timeout_s = (await read_object(request)).get("timeout_s", 30)
        is_number = isinstance(timeout_s, (int, float)) and not isinstance(timeout_s, bool)
        if not is_number or not 0 <= timeout_s <= _LONGEST_DRAIN_S:
            problem = Problem(f"timeout_s is a number of seconds up to {_LONGEST_DRAIN_S:g}", "/timeout_s")
            raise Invalid("nothing was drained", [problem])
        return answer(await drain(checked_name(name), float(timeout_s)))


def add_dead_letters(router: APIRouter, kind: Kind, service: Any) -> None:
    """What an action gave up: shown, sent again, forgotten."""
    path = f"/{kind.path}/{{name}}/dead-letters"
    tags: list[Any] = [kind.tag]

    @router.get(
        path,
        operation_id="listDeadLetters",
        tags=tags,
        summary="Rows that an action gave up and kept, oldest first, with the reasons",
        **described(answer=Anything, problems=(404, 422)),
    )
    async def show(
        name: NamePath, limit: Annotated[int, Query(ge=1, le=1000, description="At most so many.")] = 20
    ) -> Response:
        return answer(await service.dead_letters(checked_name(name), limit))

    @router.post(
        f"{path}:redrive",
        operation_id="redriveDeadLetters",
        tags=tags,
        summary="Hand dead letters to the action once more, oldest first",
        **described(body=TakeAgain, answer=Anything, problems=(404,)),
    )
    async def redrive(name: NamePath, request: Request) -> Response:
        limit = (await read_object(request)).get("limit", 10_000)
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= _MOST_LETTERS:
            raise Invalid("nothing was sent", [Problem(f"limit is a number from 1 to {_MOST_LETTERS}", "/limit")])
        return answer(await service.redrive(checked_name(name), limit))

    @router.post(
        f"{path}:purge",
        operation_id="purgeDeadLetters",
        tags=tags,
        summary="Forget all dead letters of an action",
        **described(answer=Anything, problems=(404, 422)),
    )
    async def purge(name: NamePath) -> Response:
        return answer(service.purge(checked_name(name)))


def _a(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"
