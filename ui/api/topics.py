"""Topics: the tree of what is published."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from broker.admin.topics import TopicService
from broker.core.objects import Spec
from ui.api.models.topics import TopicPage
from ui.api.objects import Cursor, Limit
from ui.api.operation import Operations
from ui.api.parameters import decode_cursor, encode_cursor
from ui.api.traffic import pattern_of


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
