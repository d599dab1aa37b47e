"""Which machine runs a cell, by what all of them have written: decided by each keeper for itself, without I/O.

Two that decide differently cost a takeover and never a message (``broker.cluster.keeper``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from typing import Final

import msgspec

from broker.cluster.keeping import State

# Records that a copy may be behind when its machine gets the cell.
_BEHIND: Final = 2000


class Views(msgspec.Struct, frozen=True):
    """All that a decision is made of. ``states`` are of the machines that are not silent, with this one."""

    own: str
    homes: Mapping[int, str]
    states: Mapping[str, State]
    forgotten: Sequence[str] = ()

    def is_out(self, name: str) -> bool:
        """True if a machine is drained, or was forgotten: it runs no cell that another one can run."""
        return self.states[name].is_drained or name in self.forgotten


def runner_of(views: Views, cell: int) -> str:
    """The machine that runs a cell; empty for none."""
    for name, state in views.states.items():
        if cell in state.runs:
            return name
    return ""


def reached_at(views: Views, cell: int) -> str:
    """The other machine where processes of this one reach a cell; empty where that is as it was. What runs here is
    reached here until its process has ended, whatever others want: the sockets of theirs would take the place of its
    own."""
    here = views.states.get(views.own)
    if here is not None and cell in here.runs:
        return ""
    return next((name for name, state in views.states.items() if _has(state, cell)), "")


def turn_of(views: Views, cell: int) -> int | None:
    """Number of machines that should take a cell over before this one; None if it has no copy that follows."""
    home = views.homes[cell]
    ready = [
        (views.is_out(name), name != home, -state.copies.get(cell, 0), name)
        for name, state in views.states.items()
        if not state.is_leaving
        and (cell in state.copies or (name == home and cell not in state.behind))
    ]
    order = [name for *_, name in sorted(ready)]
    return order.index(views.own) if views.own in order else None


def yields(views: Views, cell: int) -> bool:
    """True if another machine runs a cell after all, or wants it, too, and goes first."""
    others = {name: state for name, state in views.states.items() if name != views.own}
    rivals = [name for name, state in others.items() if cell in state.runs]
    runs = any(_has(state, cell) for state in others.values())
    return runs or min([views.own, *rivals]) != views.own


def _has(state: State, cell: int) -> bool:
    """True if a machine runs a cell, and does not only want to."""
    return cell in state.runs and cell not in state.wants


def followers(views: Views, cell: int) -> Sequence[str]:
    """The machines that may get a cell which this one runs, the best first: its own machine, or also others where this
    one is drained or forgotten."""
    home = views.homes[cell]
    names = views.states if views.is_out(views.own) else [home]
    able = [
        (name != home, -state.copies[cell], name)
        for name in names
        if name != views.own
        and (state := views.states.get(name)) is not None
        and not (state.is_leaving or views.is_out(name))
        and cell in state.copies
    ]
    return [name for *_, name in sorted(able)]


def leaves_for(views: Views, cell: int) -> str:
    """The machine that gets a cell which this one runs; empty where it stays for now."""
    end = views.states[views.own].ends.get(cell)
    if end is None:
        return ""
    near = (
        name for name in followers(views, cell) if views.states[name].copies[cell] >= end - _BEHIND
    )
    return next(near, "")


def is_leaving(views: Views, cell: int, runner: str) -> bool:
    """True if a cell is about to move from the machine that runs it. Where all machines are drained, none does."""
    state = views.states[runner]
    home = views.homes[cell]
    is_taken = any(not (views.is_out(name) or one.is_leaving) for name, one in views.states.items())
    return (
        state.is_leaving
        or (views.is_out(runner) and is_taken)
        or (home != runner and home in views.states)
    )


def is_held(views: Views, cell: int, machines: Sequence[str]) -> bool:
    """True if a cell runs, and all these machines run it or have a copy that follows."""
    states = [views.states.get(name) for name in machines]
    return bool(runner_of(views, cell)) and all(
        state is not None and (cell in state.runs or cell in state.copies) for state in states
    )


def spread(
    homes: Mapping[int, str], copied: Mapping[int, Sequence[str]], forgotten: Container[str]
) -> Mapping[int, str]:
    """The machines that cells belong to, without those that are forgotten: each cell of these goes to the machine with
    a copy (``copied``) that has the fewest cells. Where there is none, it stays."""
    counts = Counter(home for home in homes.values() if home not in forgotten)
    found = dict(homes)
    for cell, home in sorted(homes.items()):
        able = [name for name in copied[cell] if name not in forgotten]
        if home in forgotten and able:
            found[cell] = min(able, key=lambda name: (counts[name], name))
            counts[found[cell]] += 1
    return found
