"""Dry runs: what a write would change, and which objects use what it changes.

The write runs as it would, up to where it would begin to change something (``broker.core.objects.saving``).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from inspect import isawaitable
from typing import Annotated, Any, Final, Literal

from fastapi import Query
from starlette.responses import Response

from broker.core.contributor import Change as ObjectChange
from broker.core.contributor import Contributors
from broker.core.kinds import Kind
from broker.core.objects import DryRunEnd, Reference, Spec, dry_run
from broker.core.schema import SchemaEffect
from ui.api.json_bodies import answer
from ui.api.models.shapes import Affected, Effect

DryRun = Annotated[
    bool, Query(description="Check the request, and return its effect; nothing is changed.")
]
Change = Literal["create", "replace", "delete", "none"]
_BREAKS = "would break: "
_SUMMARIES: Final[Mapping[Change, str]] = {
    "create": "It would be created.",
    "replace": "It would be replaced.",
    "delete": "It would be deleted.",
    "none": "Nothing would change.",
}
_ALONE: Final = " Nothing else is affected."
_NUMBER: Final = re.compile(r"\d")


async def would_change(act: Callable[[], Any | Awaitable[Any]]) -> bool:
    """Return whether a write would change anything. Raises the errors of the write."""
    with dry_run():
        try:
            outcome = act()
            if isawaitable(outcome):
                await outcome
        except DryRunEnd as end:
            return end.changes
    return False


def effect_of(
    change: Change,
    before: Spec | None,
    after: Spec | None,
    affected: Iterable[Affected] = (),
    consequences: Sequence[str] = (),
    warnings: Sequence[Mapping[str, Any]] = (),
    done: str = "",
) -> Spec:
    """The answer to a dry run. ``done`` is the object after a verb: ``stopped``."""
    touched = [] if change == "none" else [item.model_dump() for item in affected]
    sentences = [] if change == "none" else list(consequences)
    summary = f"It would be {done}." if done and change != "none" else _SUMMARIES[change]
    is_alone = change != "none" and not touched and not sentences
    return Effect.model_validate(
        {"dry_run": True, "change": change, "before": before, "after": after, "affected": touched}
        | {"consequences": sentences, "summary": f"{summary}{_ALONE if is_alone else ''}"}
        | {"warnings": list(warnings)}
    ).model_dump(exclude_unset=True)


def in_all_cells(effects: Mapping[int, Spec]) -> Spec:
    """The answers of cells to one dry run as one. A sentence with a number names its cell where several have one."""
    changing = [effect for effect in effects.values() if effect["change"] != "none"]
    joint: Spec = dict(changing[0] if changing else next(iter(effects.values())))
    said = {cell: effect["consequences"] for cell, effect in effects.items()}
    counting = [cell for cell, sentences in said.items() if any(map(_NUMBER.search, sentences))]
    joint["consequences"] = list(
        dict.fromkeys(
            f"In cell {cell}: {sentence}"
            if len(counting) > 1 and _NUMBER.search(sentence)
            else sentence
            for cell, sentences in said.items()
            for sentence in sentences
        )
    )
    if joint["consequences"]:
        joint["summary"] = joint["summary"].removesuffix(_ALONE)
    return joint


async def effect_of_verb(
    contributors: Contributors,
    target: Reference,
    verb: str,
    options: Mapping[str, Any],
    done: str = "deleted",
) -> Response:
    """The answer to a dry run of a verb on something outside the configuration; no change if it has no
    consequence."""
    sentences = await consequences_of(contributors, ObjectChange(target, {}, None, verb, options))
    change: Change = "delete" if sentences else "none"
    return answer(effect_of(change, None, None, (), sentences, done=done))


async def consequences_of(contributors: Contributors, change: ObjectChange) -> list[str]:
    """Consequences of a change for clients, messages, rows and files."""
    sentences = []
    for sentence in contributors.consequences(change):
        if sentence is None:
            await asyncio.sleep(0)  # others have their turn
        else:
            sentences.append(sentence)
    return sentences


def moves(kind: Kind, before: Sequence[str], after: Sequence[str]) -> list[Affected]:
    """The objects that get another place in the order."""
    return [
        Affected(
            kind=kind.name, name=name, how=f"moves from place {before.index(name) + 1} to {at}"
        )
        for at, name in enumerate(after, 1)
        if before.index(name) + 1 != at
    ]


def users_of(
    contributors: Contributors, changed: Reference, effects: Sequence[SchemaEffect] = ()
) -> list[Affected]:
    """The objects that use an object, and those that use these; ``effects`` say more of some."""
    affected = {
        effect.user: Affected(
            kind=effect.user.kind,
            name=effect.user.name,
            how=f"{_BREAKS if effect.breaks else ''}{effect.why}",
        )
        for effect in effects
    }
    for user, used in reversed(contributors.all_users_of(changed).items()):
        how = "uses it" if used == changed else f"uses {used}"
        affected.setdefault(user, Affected(kind=user.kind, name=user.name, how=how))
    return list(affected.values())
