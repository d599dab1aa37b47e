"""Topics and filters that a request names, for actors whose scope has topics (``broker.admin.rights``)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request

from broker.admin.rights import OF_MESSAGES, Actor, Need, word_of
from broker.core.errors import Invalid, NotFound
from broker.core.kinds import kinds
from rules.sql.sources import sources
from rules.sql.syntax.parser import parse
from ui.api.context import ApiContext
from ui.api.problems import ApiProblem

# Members that are topics or filters, of requests, bodies and saved objects.
_MEMBERS: Final = frozenset(
    ("topic", "topics", "filter", "filters", "from", "sources", "source_topic", "dest_topic")
)
# The same as parameters, where "from" and "sources" are something else; "under" is the level above those that are read.
_PARAMETERS: Final = frozenset(("topic", "filter"))
_UNDER: Final = "under"
# Resources whose objects act on topics, or whose changes name topics.
_ON_TOPICS: Final = OF_MESSAGES | {
    "alarm-receivers", "auto-subscriptions", "back-tests", "captures", "clients", "groups", "rewrites", "rules",
    "schemas", "sources", "stages", "streams", "tables", "transforms", "validations",
}  # fmt: skip
# Members whose values are messages and events: data, which may have members of any name.
_DATA: Final = frozenset(("payload", "message", "messages_in", "event", "events", "test_cases"))
# Operations that return or act on messages on any topic, chosen by something else than a topic. An entry of the audit
# log and a version of a rule may be of other topics than the object has now; an order is one of all objects.
_OF_ANY_TOPIC: Final = frozenset(
    (
        "diffTable",
        "getTableShadow",
        "peekClientMessages",
        "previewTable",
        "reorderAutoSubscriptions",
        "reorderRewrites",
        "reorderRules",
        "reorderTransforms",
        "reorderValidations",
        "restoreObject",
        "restoreRuleVersion",
        "revertAuditEntry",
        "undoRetainedDeletion",
    )
)
# Operations of other resources than ``OF_MESSAGES`` that return messages, for the object in their path.
_READ_MESSAGES: Final = frozenset(
    (
        "downloadCapture",
        "getBacktest",
        "getJob",
        "getStreamPositions",
        "listCaptureRecords",
        "readStreamRecords",
    )
)
# Kinds of jobs whose results have messages.
_JOBS_OF_MESSAGES: Final = frozenset(("diff",))


async def require_topics(
    request: Request, context: ApiContext, actor: Actor, need: Need, body: Mapping[str, Any]
) -> None:
    """Refuse a request about a topic outside the actor's scope.

    Raises:
        ApiProblem: 403.
    """
    try:
        topics = await _topics(request, context, need, body)
    except NotFound:
        return  # the operation reports it
    except _OfRows as rows:
        refusal: str | None = str(rows)
    else:
        refusal = None if topics is None else actor.topic_refusal(need.resource, topics)
    if refusal is not None:
        raise ApiProblem(403, "forbidden", refusal)


class _OfRows(Exception):
    """A stream has rows of rules, which no scope of topics covers."""

    def __init__(self, stream: str) -> None:
        super().__init__(
            f"needs a stream of topics; the stream {stream!r} has rows, which no scope of topics covers"
        )


async def _topics(
    request: Request, context: ApiContext, need: Need, body: Mapping[str, Any]
) -> list[str] | None:
    """The topics that a request names or acts on; None where no scope of topics applies to it."""
    if need.operation in _OF_ANY_TOPIC:
        return ["#"]
    if need.operation == "getJob":
        return ["#"] if _job_kind(context, need.name) in _JOBS_OF_MESSAGES else None
    is_read = need.does == "read" and need.operation not in _READ_MESSAGES
    if need.resource not in _ON_TOPICS or (is_read and need.resource not in OF_MESSAGES):
        return None
    topics = [*_of_parameters(request), *_of_members(body)]
    if need.operation == "startCapture" and "filter" not in body:
        topics.append("#")
    if need.resource in ("rules", "back-tests") and isinstance(sql := body.get("sql"), str):
        topics += await asyncio.to_thread(_of_sql, sql)
    if need.resource != "rules" and isinstance(stream := body.get("stream"), str):
        topics += _of_stream(context, stream)
    return topics + _of_named(context, need, body)


def _job_kind(context: ApiContext, id: str) -> str:
    kind: str = context.jobs.get(id)["kind"]
    return kind


def _of_stream(context: ApiContext, name: str) -> list[str]:
    """The topics of a stream. Raises ``NotFound``, and ``_OfRows``."""
    topics = list(_of_members(dict(context.services["streams"].get(name))))
    if not topics:
        raise _OfRows(name)
    return topics


def _of_parameters(request: Request) -> Iterator[str]:
    for name, value in request.query_params.multi_items():
        if name in _PARAMETERS:
            yield value
        elif name == _UNDER:
            yield f"{value}/#"


def _of_members(value: Any) -> Iterator[str]:
    """The topics in a body or an object, at any depth."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, Mapping):
            for name, member in value.items():
                if name in _MEMBERS:
                    yield from (
                        text
                        for text in (member if isinstance(member, list) else [member])
                        if _is_text(text)
                    )
                if name not in _DATA:
                    waiting.append(member)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _of_sql(sql: str) -> Sequence[str]:
    try:
        return sources(parse(sql)).texts
    except Invalid:
        return ()  # the operation reports the problem


def _of_named(context: ApiContext, need: Need, body: Mapping[str, Any]) -> list[str]:
    """The topics of the object that the path or, for a new back-test, the body names.

    Raises:
        NotFound: there is none of that name.
        _OfRows: it is a stream of rows, or reads one.
    """
    name = body.get("name") if need.operation == "backtestRule" else need.name
    if not isinstance(name, str) or not name:
        return []
    if need.resource == "captures":
        return [] if context.captures is None else [context.captures.get(name)["filter"]]
    if need.resource == "refused-messages":
        return [] if context.refused is None else [context.refused.topic_of(name)]
    if need.operation in ("getBacktest", "cancelBacktest"):
        rules: Any = context.services["rules"]
        return _of_stream(context, rules.backtest_of(name)["stream"])
    if need.resource == "streams":
        return (
            _of_stream(context, name)
            if need.does != "change"
            else _of_object(context, "streams", name)
        )
    return _of_object(context, "rules" if need.resource == "back-tests" else need.resource, name)


def _of_object(context: ApiContext, resource: str, name: str) -> list[str]:
    kind = next((kind for kind in kinds() if word_of(kind.name) == resource), None)
    service = None if kind is None else context.services.get(kind.path)
    if service is None:
        return []
    try:
        return list(_of_members(dict(service.get(name))))
    except NotFound:
        return []  # a PUT creates it
