"""Pages of several cells are those of one list, whatever the cells hold and the limit is."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core import jsontext
from ui.api.cell_joins import Joining, interleaved, merged_pages, summed
from ui.api.objects import page_of
from ui.api.parameters import decode_cursor, encode_cursor

Items = list[tuple[int, str]]
NUMBERS = st.integers(-3, 3)


@st.composite
def shared_out(draw: st.DrawFn) -> list[Items]:
    """Items with unique names, in two to four cells."""
    cells: list[Items] = [[] for _ in range(draw(st.integers(2, 4)))]
    names = draw(st.lists(st.text("ab/-é", min_size=1, max_size=3), unique=True, max_size=25))
    for name in names:
        cells[draw(st.integers(0, len(cells) - 1))].append((draw(NUMBERS), name))
    return cells


def walk(cells: list[Items], limit: int, page: Any, key: str = "", by: str = "") -> list[Any]:
    """All items, page by page as the front does it: it asks each cell that is not at its end."""
    starts: list[Any] = [None] * len(cells)
    items: list[Any] = []
    for _ in range(200):
        going = {
            cell: page(cells[cell], starts[cell])
            for cell, start in enumerate(starts)
            if start is not False
        }
        answer = merged_pages(going, starts, limit, Joining(key=key), by)
        assert 0 <= len(answer["items"]) <= limit
        assert all(
            item["number"] == dict(map(reversed, cells[item["cell"]]))[item["name"]]
            for item in answer["items"]
        )
        items += [(item["number"], item["name"]) for item in answer["items"]]
        if answer["next"] is None:
            return items
        starts = jsontext.decode(base64.urlsafe_b64decode(answer["next"]))
    raise AssertionError("the pages do not end")


@given(shared_out(), st.integers(1, 8), st.booleans(), st.booleans())
def test_pages_with_places(
    cells: list[Items], limit: int, number_falls: bool, name_falls: bool
) -> None:
    def key(item: tuple[int, str]) -> tuple[int, list[int]]:
        number, name = item
        letters = (
            [-ord(letter) for letter in name] + [1]
            if name_falls
            else [ord(letter) for letter in name]
        )
        return (-number if number_falls else number), letters

    def page(items: Items, start: Any) -> Any:
        ordered = sorted(items, key=key)
        if start is not None:
            ordered = [item for item in ordered if key(item) > key(tuple(start))]
        shown = ordered[:limit]
        return {
            "items": [{"number": number, "name": name} for number, name in shown],
            "next": encode_cursor(*shown[-1]) if len(ordered) > limit else None,
            "total": len(items),
            "places": [list(item) for item in shown],
            "falls": [number_falls, name_falls],
        }

    every = [item for items in cells for item in items]
    assert walk(cells, limit, page) == sorted(every, key=key)


@given(shared_out(), st.integers(1, 8), st.sampled_from(["", "number", "-number", "name"]))
def test_pages_of_whole_lists(cells: list[Items], limit: int, by: str) -> None:
    member = by.lstrip("-")
    sign = -1 if by.startswith("-") else 1

    def page(items: Items, start: Any) -> Any:
        rows: list[dict[str, Any]] = [{"number": number, "name": name} for number, name in items]
        if member == "number":
            rows.sort(key=lambda row: sign * row["number"])
        elif member:
            rows.sort(key=lambda row: row["name"])
        cursor = None if start is None else encode_cursor(*start)
        assert cursor is None or decode_cursor(cursor, (int, str))
        return page_of(rows, limit, cursor)

    found = walk(cells, limit, page, key="name", by=by)
    every = [item for items in cells for item in items]
    assert sorted(found) == sorted(every)
    if member:
        at = 0 if member == "number" else 1
        assert [item[at] for item in found] == [
            item[at] for item in sorted(every, key=lambda item: item[at], reverse=sign < 0)
        ]
    else:
        assert found == every


@given(shared_out(), st.integers(1, 8))
def test_pages_without_places_follow_each_other(cells: list[Items], limit: int) -> None:
    def page(items: Items, start: Any) -> Any:
        first = 0 if start is None else start[0]
        shown = items[first : first + limit]
        return {
            "items": [{"number": number, "name": name} for number, name in shown],
            "next": encode_cursor(first + limit) if first + limit < len(items) else None,
            "total": None,
        }

    assert walk(cells, limit, page) == [item for items in cells for item in items]


def test_sums() -> None:
    first = {"n": 1, "is": False, "by": {"a": 1, "b": 2.5}, "items": [1], "name": "x", "no": None}
    second = {"n": 2, "is": True, "by": {"b": 1, "c": 4}, "items": [2], "name": "y", "no": 3}
    assert summed(first, second) == {
        "n": 3, "is": True, "by": {"a": 1, "b": 3.5, "c": 4}, "items": [1, 2], "name": "x", "no": 3,
    }  # fmt: skip


def test_an_error_of_a_source_of_lines_is_raised() -> None:
    async def good() -> Any:
        yield b"1\n"

    async def bad() -> Any:
        yield b"2\n"
        raise RuntimeError("broken")

    lines: list[bytes] = []

    async def read() -> None:
        async for line in interleaved([good(), bad()]):
            lines.append(line)  # noqa: PERF401 - those before the error count

    with pytest.raises(RuntimeError, match="broken"):
        asyncio.run(read())
    assert sorted(lines) == [b"1\n", b"2\n"]


@given(
    st.lists(
        st.dictionaries(st.text("ab/", min_size=1), st.integers(0, 9)), min_size=2, max_size=4
    ),
    st.integers(1, 6),
)
def test_parts_of_one_name_are_added_wherever_pages_end(
    cells: list[dict[str, int]], limit: int
) -> None:
    joining = Joining(key="name", merged_by="name", is_summed=True)
    starts: list[Any] = [None] * len(cells)
    items: list[tuple[str, int]] = []
    for _ in range(200):
        going = {}
        for cell, start in enumerate(starts):
            if start is False:
                continue
            names = sorted(name for name in cells[cell] if start is None or name > start[1])
            shown = names[:limit]
            at = 0 if start is None else start[0] + 1
            going[cell] = {
                "items": [{"name": name, "count": cells[cell][name]} for name in shown],
                "next": encode_cursor(at + len(shown) - 1, shown[-1])
                if len(names) > limit
                else None,
                "total": len(cells[cell]),
            }
        answer = merged_pages(going, starts, limit, joining, "name")
        assert len(answer["items"]) <= limit
        items += [(item["name"], item["count"]) for item in answer["items"]]
        if answer["next"] is None:
            break
        starts = jsontext.decode(base64.urlsafe_b64decode(answer["next"]))
    every = sorted({name for cell in cells for name in cell})
    assert items == [(name, sum(cell.get(name, 0) for cell in cells)) for name in every]
