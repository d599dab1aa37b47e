"""Answers of several cells as one: numbers added, pages merged, metrics with the label of their cell."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

from broker.core import jsontext
from broker.core.objects import Spec
from ui.api.filters import STEP_S

# Chunks of lines that wait to be sent.
_WAITING: Final = 32
# Members of pages that only the front reads: the place of each item for a cursor, its key in the order of the list
# where that is another, and which parts of it fall.
_OF_MERGING: Final = ("places", "keys", "falls")
# Members with the time of the first or last of something.
_ENDS: Final[Mapping[str, Callable[..., Any]]] = {"oldest": min, "newest": max}
# Members of which the largest counts: quantiles, and how far something is behind.
_LARGEST: Final = ("p50", "p99", "lag_s")
_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_OTHER_CELL: Final = re.compile(r'(^|,)cell="')

SHOWS_PLACES: ContextVar[bool] = ContextVar("shows_places", default=False)
"""True if pages of lists have the members by which the front merges them."""


@dataclass(frozen=True, slots=True)
class Joining:
    """Members by which answers are joined, as ``broker.core.resources.Verb`` describes them."""

    sums: Sequence[str] = ()
    merged_by: str | Mapping[str, str] = ""
    key: str = ""
    absent: Mapping[str, Any] | None = None
    is_paged: bool = False
    join: Callable[[Spec, Sequence[Spec], Mapping[str, Any]], Spec] | None = None
    is_summed: bool = False
    """True if items of one ``key`` are parts of one, whose figures are added."""


def without_places(page: Mapping[str, Any]) -> Spec:
    """A page without the members that only the front reads."""
    return {name: value for name, value in page.items() if name not in _OF_MERGING}


class Falling:
    """A value that comes before smaller ones."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: Falling) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Falling) and self.value == other.value

    __hash__ = None  # type: ignore[assignment]  # only compared


def summed(first: Any, second: Any) -> Any:
    """Two answers as one: numbers added, lists one behind the other, members by their names."""
    if first is None or second is None:
        return second if first is None else first
    if isinstance(first, bool) or isinstance(second, bool):
        return first or second
    if isinstance(first, (int, float)) and isinstance(second, (int, float)):
        return first + second
    if isinstance(first, list) and isinstance(second, list):
        return [*first, *second]
    if isinstance(first, dict) and isinstance(second, dict):
        return {
            **first,
            **{
                name: _larger(first.get(name), value)
                if name in _LARGEST
                else summed(first.get(name), value)
                for name, value in second.items()
            },
        }
    return first


def _larger(first: Any, second: Any) -> Any:
    return max((value for value in (first, second) if value is not None), default=None)


def added(first: Spec, second: Mapping[str, Any], names: Sequence[str]) -> Spec:
    """The members of these names of two answers, added: of times the first or the last, of notes each once."""
    total = {name: summed(first.get(name), second[name]) for name in names if name in second}
    for name, which in _ENDS.items():
        if name in total:
            times = [time for time in (first.get(name), second[name]) if time is not None]
            total[name] = which(times, default=None)
    if "notes" in total:
        total["notes"] = list(dict.fromkeys(total["notes"]))
    return total


def labelled_series(answer: Spec, cell: int) -> Spec:
    """The series of an answer with the label ``cell``."""
    series = [
        {**points, "labels": {**points.get("labels", {}), "cell": str(cell)}}
        for points in answer["series"]
    ]
    return {**answer, "series": series}


async def labelled_metrics(texts: Mapping[int, str], count: int) -> str:
    """Metrics of cells as one text: those of one name together, each with the label ``cell``. A label of that name that
    they have already, of another cell, becomes ``peer``. Others have their turn: 2,000 lines take 11 ms."""
    heads: dict[str, dict[str, str]] = {}
    samples: dict[str, list[str]] = {}
    until_s = perf_counter() + STEP_S
    for cell, text in sorted(texts.items()):
        family = ""
        for line in text.splitlines():
            if perf_counter() > until_s:
                await asyncio.sleep(0)
                until_s = perf_counter() + STEP_S
            if line.startswith("# "):
                _, word, family, *_ = line.split(" ", 3)
                heads.setdefault(family, {}).setdefault(word, line)
            elif (sample := _SAMPLE.fullmatch(line)) is not None:
                name, labels, value = sample.groups()
                more = _OTHER_CELL.sub(r'\1peer="', labels or "")
                shown = f'cell="{cell}"' + (f",{more}" if more else "")
                samples.setdefault(family, []).append(f"{name}{{{shown}}} {value}")
    lines = ["# HELP sluice_cell_up 1 if the cell answers", "# TYPE sluice_cell_up gauge"]
    lines += [f'sluice_cell_up{{cell="{cell}"}} {int(cell in texts)}' for cell in range(count)]
    for family in sorted(samples):
        lines += [*heads.get(family, {}).values(), *samples[family]]
    return "\n".join(lines) + "\n"


async def interleaved(sources: Iterable[AsyncIterable[Any]]) -> AsyncGenerator[Any, None]:
    """The chunks of all sources, as they come."""
    queue: asyncio.Queue[Any] = asyncio.Queue(_WAITING)
    ended = object()

    async def drain(source: AsyncIterable[Any]) -> None:
        try:
            async for chunk in source:
                await queue.put(chunk)
        except Exception as error:  # noqa: BLE001 - raised to the reader
            await queue.put(error)
        await queue.put(ended)

    tasks = [asyncio.create_task(drain(source), name="lines of cells") for source in sources]
    try:
        going = len(tasks)
        while going:
            chunk = await queue.get()
            if chunk is ended:
                going -= 1
            elif isinstance(chunk, Exception):
                raise chunk
            else:
                yield chunk
    finally:
        for task in tasks:
            task.cancel()


def sort_key(item: Mapping[str, Any], by: str) -> Any:
    """The value of a member for sorting; with ``-`` in front of its name, larger ones come first."""
    value = item[by.lstrip("-")]
    return Falling(value) if by.startswith("-") else value


def is_place(start: Any) -> bool:
    """True if a value of a cursor can be the place of an item."""
    return (
        isinstance(start, list)
        and 0 < len(start) <= 4
        and all(type(value) in (int, str) for value in start)
    )


def merged_pages(
    pages: Mapping[int, Spec], starts: Sequence[Any], limit: int, joining: Joining, by: str
) -> Spec:
    """The first items of the pages of cells in their common order, and where the following page begins."""
    key = joining.key
    rows: list[tuple[Any, int, int]] = []
    places: dict[int, list[Any]] = {}
    for cell, page in sorted(pages.items()):
        items = page["items"]
        if key:
            first = starts[cell][0] + 1 if starts[cell] else 0
            places[cell] = [[first + at, item[key]] for at, item in enumerate(items)]
        elif "places" in page:
            places[cell] = page["places"]
        for at, item in enumerate(items):
            order: Any = ()
            if by:
                order = (sort_key(item, by),)
            elif "places" in page:
                falls = page.get("falls") or ()
                keys: Sequence[Any] = page.get("keys") or page["places"]
                order = tuple(
                    Falling(value) if part < len(falls) and falls[part] else value
                    for part, value in enumerate(keys[at])
                )
            rows.append((order, cell, at))
    is_ordered = bool(by) or all("places" in page for page in pages.values())
    rows.sort(key=lambda row: (row[0], row[1], row[2]) if is_ordered else (row[1], row[2]))
    if not key and not all(cell in places for cell in pages):
        first_cell = next((cell for _, cell, _ in rows), None)
        rows = [row for row in rows if row[1] == first_cell]  # one cell follows the other
    shown = rows[:limit]
    if joining.is_summed and shown:
        shown = [row for row in rows if row[0] <= shown[-1][0]]
    taken = dict.fromkeys(pages, 0)
    for _, cell, _ in shown:
        taken[cell] += 1
    following = list(starts)
    for cell, page in pages.items():
        following[cell] = _after(page, taken[cell], starts[cell], places.get(cell))
    is_over = all(following[cell] is False for cell in pages)
    totals = [page.get("total") for page in pages.values()]
    first_page = pages[min(pages)] if pages else {"items": []}
    extra = without_places(first_page)
    for cell in sorted(pages)[1:]:
        extra = {
            name: summed(value, pages[cell].get(name))
            if name not in ("items", "next", "total", "total_is_estimate")
            else value
            for name, value in extra.items()
        }
    is_estimate = any(page.get("total_is_estimate") for page in pages.values())
    counts = [total for total in totals if total is not None]
    total = sum(counts) if len(counts) == len(totals) else None
    items = [{**pages[cell]["items"][at], "cell": cell} for _, cell, at in shown]
    if joining.is_summed:
        items = parts_added(items, key)
        if total is not None:
            total = max(counts)
            is_estimate = is_estimate or min(counts) < total
    return {
        **extra,
        "items": items,
        "next": None if is_over else encoded_places(following),
        "total": total,
        "total_is_estimate": is_estimate,
    }


def parts_added(items: Iterable[Mapping[str, Any]], key: str) -> list[Spec]:
    """Items in order, those of one name as one."""
    by_name: dict[Any, Spec] = {}
    for item in items:
        part = {name: value for name, value in item.items() if name != "cell"}
        by_name[item[key]] = summed(by_name.get(item[key]), part)
    return list(by_name.values())


def encoded_places(places: Sequence[Any]) -> str:
    """The cursor with the place of each cell."""
    return base64.urlsafe_b64encode(jsontext.encode([*places])).decode()


def _after(page: Spec, taken: int, start: Any, places: Sequence[Any] | None) -> Any:
    """The place of a cell behind the items that are shown: False at its end, the old one where none is shown."""
    if taken == len(page["items"]):
        following: str | None = page["next"]
        return following is not None and jsontext.decode(
            base64.urlsafe_b64decode(following.encode())
        )
    if taken == 0:
        return start
    assert places is not None  # else a cell's whole page is shown
    return places[taken - 1]
