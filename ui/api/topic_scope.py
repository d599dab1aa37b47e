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
    "auto-subscriptions", "back-tests", "clients", "rewrites", "rules", "stages", "streams", "transforms",
    "validations",
}  # fmt: skip
# Members whose values are messages and events: data, which may have members of any name.
_DATA: Final = frozenset(("payload", "message", "messages_in", "event", "events", "test_cases"))
# Operations that return messages on any topic, chosen by something else.
_OF_ANY_TOPIC: Final = frozenset(("peekClientMessages", "previewTable"))
_STREAM_RECORDS: Final = frozenset(("getStreamPositions", "readStreamRecords"))


async def require_topics(
    request: Request, context: ApiContext, actor: Actor, need: Need, body: Mapping[str, Any]
) -> None:
    """Refuse a request about a topic outside the actor's scope.

    Raises:
        ApiProblem: 403.
    """
    if (
        need.operation in _OF_ANY_TOPIC
        and (refusal := actor.topic_refusal(need.resource, ["#"])) is not None
    ):
        raise ApiProblem(403, "forbidden", refusal)
    reads_records = need.operation in _STREAM_RECORDS
    if need.resource not in _ON_TOPICS or (
        need.does == "read" and not reads_records and need.resource not in OF_MESSAGES
    ):
        return
    topics = [*_of_parameters(request), *_of_members(body)]
    if need.resource in ("rules", "back-tests") and isinstance(sql := body.get("sql"), str):
        topics += await asyncio.to_thread(_of_sql, sql)
    saved = _of_saved(context, need, body)
    refusal = actor.topic_refusal(need.resource, [*topics, *saved])
    if refusal is None and reads_records and not saved:
        refusal = f"needs a stream of topics; the stream {need.name!r} has rows, which no scope of topics covers"
    if refusal is not None:
        raise ApiProblem(403, "forbidden", refusal)


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


def _of_saved(context: ApiContext, need: Need, body: Mapping[str, Any]) -> list[str]:
    """The topics of the saved object that the path or, for a back-test, the body names."""
    resource = "rules" if need.resource == "back-tests" else need.resource
    name = body.get("name") if need.resource == "back-tests" else need.name
    kind = next((kind for kind in kinds() if word_of(kind.name) == resource), None)
    service = None if kind is None else context.services.get(kind.path)
    if service is None or not isinstance(name, str) or not name:
        return []
    try:
        return list(_of_members(dict(service.get(name))))
    except NotFound:
        return []
