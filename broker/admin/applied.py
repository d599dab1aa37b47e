"""Objects that ``sluice apply`` owns: those of files that were applied. ``--prune`` deletes no others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from typing_extensions import TypedDict

from broker.core.errors import Invalid, Problem
from broker.core.kinds import kinds, kinds_in_files
from broker.core.objects import SavedObject
from broker.core.values import Values

_PREFIX: Final = "applied/"


class AppliedObject(TypedDict):
    """An object that `sluice apply` owns: `id` is the path of its kind and its name."""

    id: str
    kind: str
    name: str


class AppliedList(TypedDict):
    """The objects that `sluice apply` owns."""

    items: list[AppliedObject]


class AppliedObjects:
    """Labels of objects, which end when the object is deleted."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def list(self) -> AppliedList:
        """All labels by their identifiers. For any thread."""
        paths = sorted((kind.path for kind in kinds()), key=len, reverse=True)
        rows = []
        for key in self._values.names(_PREFIX):
            id = key.removeprefix(_PREFIX)
            path = next((path for path in paths if id.startswith(f"{path}/")), "")
            rows.append(AppliedObject(id=id, kind=path, name=id[len(path) + 1 :]))
        return {"items": rows}

    async def mark(self, add: Sequence[str], remove: Sequence[str]) -> None:
        """Add and remove labels by their identifiers; returns when they are in the store.

        Raises:
            Invalid: an identifier does not begin with the path of a kind; nothing was changed.
        """
        paths = tuple(f"{kind.path}/" for kind in kinds())
        if wrong := [id for id in add if not id.startswith(paths)]:
            problem = Problem(f"expected the path of a kind and a name, got {wrong[0]!r}", "/add")
            raise Invalid("the labels cannot be saved", [problem])
        for id in add:
            self._values.put(_PREFIX + id, b"1")
        for id in remove:
            self._values.put(_PREFIX + id, None)
        committed = asyncio.Event()
        self._values.when_committed(lambda _: committed.set())
        await committed.wait()

    def note(self, saved: SavedObject) -> None:
        """Remove the label of an object that was deleted from the file of the API."""
        if saved.after is None and saved.order_of is None:
            self.forget(kinds_in_files()[saved.section].path, saved.name)

    def forget(self, path: str, name: str) -> None:
        """Remove the label of an object that was deleted; ``path`` is that of its kind."""
        self._values.put(f"{_PREFIX}{path}/{name}", None)
