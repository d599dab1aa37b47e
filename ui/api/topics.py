"""Topics: the tree of what is published, tails, and the latest messages."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from starlette.responses import StreamingResponse

from broker.admin.tails import MAX_BYTES, MAX_LATEST, MAX_MESSAGES, MessageTails, check_filter
from broker.admin.topics import TopicService
from broker.core import jsontext
from broker.core.objects import Spec
from ui.api.bodies import plain
from ui.api.models.topics import LatestMessages, TailLine, TopicPage
from ui.api.objects import Cursor, Limit
from ui.api.operation import Operations
from ui.api.parameters import decode_cursor, encode_cursor
from ui.api.traffic import pattern_of

_LINES: Final = "application/x-ndjson"

Filter = Annotated[str, Query(description="A topic filter.")]


def add_topics(router: APIRouter, service: TopicService) -> None:
    """Add ``/topics``."""
    ops = Operations(router, "Topics")

    @ops.get("/topics", "listTopics", "List topics by level", answer=TopicPage, problems=(422,))
    async def list_topics(
        under: Annotated[
            str | None, Query(description="The level whose next levels are listed; else the root.")
        ] = None,
        search: Annotated[
            str | None,
            Query(description="A pattern with `*`, `?` and `[abc]`: list all matching topics below instead."),
        ] = None,
        sort: Annotated[
            str,
            Query(
                description="`rate`, `messages`, `bytes`, `topics`, `last_at` or `name`; with `-` in front, descending."
            ),
        ] = "-rate",
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> Spec:
        """Returns the next levels of the topic tree with rates, sizes and times.

        The first request starts the counting, and five minutes after the last one it ends. What is known before is the
        topics that were published lately or have a retained message, with zero messages. At most 20,000 levels are
        counted: the topics with the fewest messages are then counted together, as the `rest` of the level above.
        """
        page = await service.page(
            under, pattern_of(search), sort, limit, None if cursor is None else decode_cursor(cursor)
        )
        following = page["next"]
        shown = None if following is None else encode_cursor(*following)
        return {**page, "next": shown, "total_is_estimate": page["rest"]["topics"] > 0}


def add_tails(router: APIRouter, tails: MessageTails) -> None:
    """Add ``/topics/tail`` and ``/topics/latest``."""
    ops = Operations(router, "Topics")

    @ops.get(
        "/topics/tail",
        "tailTopics",
        "Follow the messages of a filter",
        answer=TailLine,
        media=_LINES,
        problems=(422,),
        outcome="Messages and statuses, a line each",
    )
    def tail(
        filter: Filter,
        messages_per_s: Annotated[
            int, Query(ge=1, le=MAX_MESSAGES, description="Maximum number of messages per second.")
        ] = MAX_MESSAGES,
        bytes_per_s: Annotated[
            int, Query(ge=1024, le=MAX_BYTES, description="Maximum bytes of payloads per second.")
        ] = MAX_BYTES,
        count: Annotated[int | None, Query(ge=1, description="Ends after so many messages.")] = None,
        seconds: Annotated[float, Query(gt=0, le=86_400, description="Ends after so many seconds.")] = 10,
    ) -> StreamingResponse:
        """Returns messages as they pass, one JSON object per line, with what became of each.

        It is a sample: what exceeds the bounds is counted as skipped, and delivery is not slowed. Payloads are decoded
        by the schema that a validation binds to the topic, and cut after 64 KiB. Messages that access rules refuse are
        not shown.
        """
        check_filter(filter)
        lines = tails.stream(filter, messages_per_s, bytes_per_s, count, seconds, _line)
        return StreamingResponse(lines, media_type=_LINES)

    @ops.get("/topics/latest", "listLatestMessages", "List the latest messages", answer=LatestMessages, problems=(422,))
    async def latest(
        filter: Filter,
        limit: Annotated[int, Query(ge=1, le=MAX_LATEST, description="Maximum number of items in the answer.")] = 1,
        wait: Annotated[
            float, Query(ge=0, le=30, description="Maximum wait for a message where none is stored, in seconds.")
        ] = 0,
    ) -> Spec:
        """Returns the latest messages on a filter's topics, newest first: from streams and retained messages, else
        those that are published while it waits and reach rules.

        `event` is the message as validations and transformations left it, which `POST /rules:test` takes as its event.
        Where all that is published meanwhile is dropped before rules, the answer has what was dropped, and `refusal`
        says why. `message` is what `POST /transforms:preview`, `POST /validations:test` and
        `POST /pipeline:preview` take as their message.
        """
        return await tails.latest(filter, limit, wait)


def _line(value: Any) -> bytes:
    return jsontext.encode(plain(value)) + b"\n"
