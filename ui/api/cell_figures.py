"""Objects that every cell runs, as one: figures added, and the state of the cell where something is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from broker.core.action import CONNECTED, DISABLED, STOPPED
from broker.core.objects import Spec
from ui.api.cell_joins import summed

FIGURES_HEADER: Final = "sluice-figures"
"""Header of a call of the front that needs only the members of objects that are joined here."""
# Members that are figures, with how those of two cells become one.
_FIGURES: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "metrics": summed,
    "dead_letters_waiting": summed,
    "recent_failures": lambda first, second: sorted(
        [*first, *second], key=lambda failure: int(failure["time_ms"])
    ),
    "failure_shapes": lambda first, second: sorted(
        [*first, *second], key=lambda shape: int(shape["count"]), reverse=True
    ),
}
# Members with a state, the one with its reason, and the states that are fine.
_STATES: Final = (
    ("status", "status_reason", (CONNECTED, STOPPED, DISABLED)),
    ("state", "problem", ("running", "disabled")),
)
_JOINED: Final = (
    "name",
    *_FIGURES,
    *(member for names in _STATES for member in names[:2]),
    "last_error",
)


def figures_only(page: Spec) -> Spec:
    """A page of objects without the members that the front has itself: rules may be long."""
    items = [{name: item[name] for name in _JOINED if name in item} for item in page["items"]]
    return {"items": items}


def as_one(own: Spec, others: Mapping[int, Spec]) -> Spec:
    """An object as cells have it; ``others`` are those of other cells. One that has a home is as it is there."""
    if "cell" in own:
        return others.get(own["cell"], own)
    joint = dict(own)
    for cell, other in sorted(others.items()):
        for name, join in _FIGURES.items():
            if name in joint and name in other:
                joint[name] = join(joint[name], other[name])
        for state, reason, good in _STATES:
            if joint.get(state) in good and other.get(state, joint.get(state)) not in good:
                joint[state] = other[state]
                joint[reason] = f"cell {cell}: {other[reason]}" if other.get(reason) else None
        if joint.get("last_error", ()) is None:
            joint["last_error"] = other.get("last_error")
    return joint


def joined_by_name(
    items: Iterable[Spec], answers: Mapping[int, Spec], key: str = "name"
) -> list[Spec]:
    """Objects as one, with those of the same name in the answers of other cells, each of one object or a page."""
    by_name: dict[str, dict[int, Spec]] = {}
    for cell, answer in answers.items():
        for item in answer.get("items", [answer]):
            by_name.setdefault(str(item.get(key)), {})[cell] = item
    return [as_one(item, by_name.get(str(item.get(key)), {})) for item in items]
