"""Lists that may be long: as many rows as asked for, and a remark when there are more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from broker.cli.client import ApiClient

_PAGE = 1000

LimitOption = Annotated[int, typer.Option("--limit", min=1, help="At most so many rows.")]


def read_rows(client: ApiClient, path: str, limit: int, **filters: str | None) -> dict[str, Any]:
    """The first rows of a list, page by page; filters that are None do not matter."""
    wanted = {name: value for name, value in filters.items() if value is not None}
    items: list[dict[str, Any]] = []
    cursor: str | None = None
    while len(items) < limit:
        more = {"cursor": cursor} if cursor is not None else {}
        page = client.get(path, limit=min(_PAGE, limit - len(items)), **wanted, **more)
        items += page["items"]
        cursor = page["next"]
        if cursor is None:
            break
    return {"items": items, "next": cursor}


def print_rows(answer: dict[str, Any], columns: Sequence[str], *, as_json: bool) -> None:
    """Rows as a table, or the answer as JSON."""
    from broker.cli.output import print_json, print_table, say

    if as_json:
        print_json(answer)
        return
    print_table(columns, [[item.get(column) for column in columns] for item in answer["items"]])
    if answer["next"] is not None:
        say("there are more; --limit shows more of them")


def flag(value: bool | None) -> str | None:
    """A flag as a query parameter."""
    return None if value is None else str(value).lower()
