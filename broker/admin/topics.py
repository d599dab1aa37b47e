"""Topics as an explorer shows them: the tree of published topics, by level, from the broker's own counters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set
from fnmatch import translate
from re import compile as compiled
from typing import Any, Final

from typing_extensions import TypedDict

from broker.connection.hub import Hub
from broker.core.errors import Invalid, Problem
from broker.core.objects import Spec
from broker.core.times import rfc3339_or_none
from broker.core.topic import TopicFilter
from broker.core.topic_keys import FilterWalk
from broker.pipeline.topic_counts import Level

# Levels compared with a pattern in one turn of the loop: some milliseconds.
_AT_ONCE: Final = 500
# Retained messages whose topics the tree begins with.
_SEEDS: Final = 1024
_SEEDS_AT_ONCE: Final = 256
_SEED_BYTES: Final = 1024 * 1024

# The row after which a page begins: its number in the order, 0 in that of names, and its topic.
Cursor = tuple[int, str]


class TopicRow(TypedDict):
    """One level of the topic tree. Its numbers are those of its own topic, if it is one, and of all topics below.

    `levels` counts those right below it that have rows; where several cells count, it is the most that one of them has.
    Rates are per second since the last look, null before there are two.
    """

    name: str
    topic: str
    is_topic: bool
    topics: int
    levels: int
    messages: int
    message_rate: float | None
    bytes: int
    byte_rate: float | None
    mean_bytes: int | None
    last_at: str | None
    retained: bool


class TopicRest(TypedDict):
    """Topics at a level that have no row, since others took their room, as one."""

    topics: int
    messages: int
    bytes: int
    last_at: str | None


# The numbers that rows may be put in the order of; names decide between equal ones.
ORDERS: Final[Mapping[str, Callable[[Level], int]]] = {
    "name": lambda level: 0,
    "rate": lambda level: round((level.rate or 0) * 1000),
    "messages": lambda level: level.all_messages,
    "bytes": lambda level: level.all_bytes,
    "topics": lambda level: level.all_topics,
    "last_at": lambda level: level.all_last_ns,
}
# Names of orders whose member in a row is called otherwise.
_MEMBERS: Final = {"rate": "message_rate", "name": "topic"}


def joined(page: Spec, pages: Sequence[Spec], values: Mapping[str, Any]) -> Spec:
    """The page that is merged from those of several cells, with one row for each level.

    A level that one cell shows on this page and another one on a later page has a row on both, each with its part.
    """
    by_topic: dict[str, list[Spec]] = {}
    for row in page["items"]:
        by_topic.setdefault(row["topic"], []).append(row)
    rows = [_one_row(rows) for rows in by_topic.values()]
    sort: str = values["sort"]
    name = _MEMBERS.get(sort.lstrip("-"), sort.lstrip("-"))
    nothing = "" if name in ("topic", "last_at") else 0
    rows.sort(key=lambda row: (row[name] or nothing, row["topic"]), reverse=sort.startswith("-"))
    under = _one_row([page["under"] for page in pages])
    is_whole = page["next"] is None and values.get("cursor") is None
    if is_whole and values.get("search") is None:
        under["levels"] = len(rows)
    last = [page["rest"]["last_at"] or "" for page in pages]
    return {
        **page,
        "items": rows,
        "total": len(rows) if is_whole else page["total"],
        "total_is_estimate": page["total_is_estimate"] or not is_whole,
        "under": under,
        "rest": {**page["rest"], "last_at": max(last) or None},
        "counting_since": max(page["counting_since"] for page in pages),
    }


def _one_row(rows: Sequence[Spec]) -> Spec:
    joined_row = {**rows[0]}
    joined_row.pop("cell", None)
    for row in rows[1:]:
        for name in ("topics", "messages", "message_rate", "bytes", "byte_rate"):
            values = [value for value in (joined_row[name], row[name]) if value is not None]
            joined_row[name] = sum(values) if values else None
        for name in ("is_topic", "retained", "levels"):
            joined_row[name] = max(joined_row[name], row[name])
        joined_row["last_at"] = max(joined_row["last_at"] or "", row["last_at"] or "") or None
    joined_row["mean_bytes"] = (
        joined_row["bytes"] // joined_row["messages"] if joined_row["messages"] else None
    )
    return joined_row


class TopicService:
    """Shows the tree of topics. Used on the event loop; long work is done a part in each of its turns."""

    def __init__(self, hub: Hub) -> None:
        self._counts = hub.topic_counts
        self._retained = hub.retained

    async def page(
        self, under: str | None, search: str | None, sort: str, limit: int, cursor: Cursor | None
    ) -> Spec:
        """A page of the levels right below ``under``, None being the root; with ``search``, of all topics below it that
        match the pattern. ``next`` is where the following page begins.

        Raises:
            Invalid: there is no such order.
        """
        name = sort.removeprefix("-")
        number = ORDERS.get(name)
        if number is None:
            detail = f"sort: expected one of {', '.join(ORDERS)}, got {name!r}"
            raise Invalid("the list has no such order", [Problem(detail, "/query/sort")])
        if not self._counts.is_on:
            await self._begin()
        self._counts.look()
        above = self._counts.find(under)
        if above is None:
            above = Level(None, "", under or "")
        levels = (
            list(above.children.values()) if search is None else await self._matching(above, search)
        )
        page, following = _page(levels, number, limit, cursor, is_falling=sort.startswith("-"))
        retained = await self._retained.among_all(
            [level.topic for level in (above, *page) if level.is_topic]
        )
        return {
            "items": [_row(level, retained) for level in page],
            "next": following,
            "total": len(levels),
            "places": [(number(level), level.topic) for level in page],
            "falls": (sort.startswith("-"), sort.startswith("-")),
            "total_is_estimate": above.rest_topics > 0,
            "under": _row(above, retained),
            "rest": _rest(above),
            "counting_since": rfc3339_or_none(self._counts.since_ns),
            "is_sampled": self._counts.is_sampled,
        }

    async def _begin(self) -> None:
        """Show topics that have a retained message before anything is published."""
        walk = FilterWalk(TopicFilter.parse("#"))
        at = b""
        self._counts.look()
        for _ in range(_SEEDS // _SEEDS_AT_ONCE):
            entries, following = self._retained.read(walk, at, _SEEDS_AT_ONCE, _SEED_BYTES)
            for entry in entries:
                self._counts.add(entry.message.topic, entry.message.received_ns)
            if following is None:
                break
            at = following
            await asyncio.sleep(0)
        self._counts.sum_up()

    async def _matching(self, above: Level, pattern: str) -> list[Level]:
        matches = compiled(translate(pattern)).match
        matching = list[Level]()
        for number, level in enumerate(self._counts.below(above), 1):
            if matches(level.topic):
                matching.append(level)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        return matching


def _page(
    levels: list[Level],
    number: Callable[[Level], int],
    limit: int,
    cursor: Cursor | None,
    *,
    is_falling: bool,
) -> tuple[list[Level], Cursor | None]:
    def place(level: Level) -> Cursor:
        return number(level), level.topic

    ordered = sorted(levels, key=place, reverse=is_falling)
    if cursor is not None:
        ordered = [
            level
            for level in ordered
            if (place(level) < cursor if is_falling else place(level) > cursor)
        ]
    page = ordered[:limit]
    return page, place(page[-1]) if len(ordered) > limit else None


def _rest(level: Level) -> TopicRest:
    is_root = not level.is_topic  # what is there of its own is of topics too long for a level
    return {
        "topics": level.rest_topics,
        "messages": level.rest_messages + is_root * level.messages,
        "bytes": level.rest_bytes + is_root * level.bytes,
        "last_at": rfc3339_or_none(max(level.rest_last_ns, is_root * level.last_ns)),
    }


def _row(level: Level, retained: Set[str]) -> TopicRow:
    messages = level.all_messages
    return {
        "name": level.name,
        "topic": level.topic,
        "is_topic": level.is_topic,
        "topics": level.all_topics,
        "levels": len(level.children),
        "messages": messages,
        "message_rate": None if level.rate is None else round(level.rate, 3),
        "bytes": level.all_bytes,
        "byte_rate": None if level.byte_rate is None else round(level.byte_rate, 1),
        "mean_bytes": level.all_bytes // messages if messages else None,
        "last_at": rfc3339_or_none(level.all_last_ns),
        "retained": level.is_topic and level.topic in retained,
    }
