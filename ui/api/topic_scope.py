"""Topics and filters that a request names, for actors whose scope has topics (``broker.admin.rights``)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from starlette.requests import Request

from broker.admin.rights import Actor, Need, word_of
from broker.core.errors import Invalid, NotFound
from broker.core.kinds import kinds
from broker.core.resources import resources
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
# Members whose values are messages and events: data, which may have members of any name.
_DATA: Final = frozenset(("payload", "message", "messages_in", "event", "events", "test_cases"))


async def require_topics(
    request: Request, actor: Actor, need: Need, body: Mapping[str, Any]
) -> None:
    """Refuse a request about a topic outside the actor's scope.

    Raises:
        ApiProblem: 403.
    """
    if need.topics == "none":
        return
    try:
        topics = ["#"] if need.topics == "any" else await _topics(request, need, body)
    except _OfRows as rows:
        refusal: str | None = str(rows)
    else:
        refusal = actor.topic_refusal(topics, is_required=need.topics == "required")
    if refusal is not None:
        raise ApiProblem(403, "forbidden", refusal)


class _OfRows(Exception):
    """A stream has rows of rules, which no scope of topics covers."""

    def __init__(self, stream: str) -> None:
        super().__init__(
            f"needs a stream of topics; the stream {stream!r} has rows, which no scope of topics covers"
        )


async def _topics(request: Request, need: Need, body: Mapping[str, Any]) -> list[str]:
    """The topics that a request names or acts on."""
    context: ApiContext = request.app.state.context
    topics = [*_of_parameters(request), *_of_members(body)]
    if isinstance(sql := body.get("sql"), str):
        topics += await asyncio.to_thread(_of_sql, sql)
    if need.resource != "rules":  # of those it is where rows go
        topics += _of_stream(context, body)
    with suppress(NotFound):  # the operation reports it, or creates it
        if need.name:
            topics += _of_item(context, need)
        elif isinstance(name := body.get("name"), str):
            topics += _of_object(context, need.resource, name)
    return topics


def _of_stream(context: ApiContext, value: Mapping[str, Any]) -> list[str]:
    """The topics of the stream that an object or a body names. Raises ``_OfRows``."""
    name = value.get("stream")
    if not isinstance(name, str):
        return []
    try:
        topics = list(_of_members(dict(context.services["streams"].get(name))))
    except NotFound:
        return []  # the operation reports it
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


def _of_item(context: ApiContext, need: Need) -> list[str]:
    """The topics of the item that the path names. Raises ``NotFound``, and ``_OfRows`` for one of rows."""
    if need.resource == "streams" and need.does != "change":
        return _of_stream(context, {"stream": need.name})
    for resource in resources():
        if resource.scoped_by and word_of(resource.name) == need.resource:
            item = getattr(context.service(resource.service), resource.scoped_by)(need.name)
            return [*_of_members(item), *_of_stream(context, item)]
    return _of_object(context, need.resource, need.name)


def _of_object(context: ApiContext, resource: str, name: str) -> list[str]:
    """The topics of an object of a kind. Raises ``NotFound``, and ``_OfRows`` for one that reads rows."""
    word = "rules" if resource == "back-tests" else resource
    kind = next((kind for kind in kinds() if word_of(kind.name) == word), None)
    service = None if kind is None else context.services.get(kind.path)
    if service is None:
        return []
    saved = dict(service.get(name))
    return [*_of_members(saved), *_of_stream(context, saved)]
