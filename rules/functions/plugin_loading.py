"""Finding plugins with functions among the installed packages, and adding them to a node's functions.

Nothing a plugin does wrong stops the broker: what could not be loaded is one sentence, reported at start and in
``sluice functions``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

from rules.functions.library import standard
from rules.functions.plugin import ATTRIBUTE
from rules.functions.registry import STANDARD_ORIGIN, Function, Functions

GROUP = "sluice.functions"


@dataclass(slots=True)
class Plugin:
    """A plugin that was found: its origin, its functions, and its problems."""

    name: str
    package: str
    version: str
    functions: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """View for the API."""
        return asdict(self)


def installed() -> Iterable[EntryPoint]:
    """The entry points of all plugins, in an order that does not depend on the file system."""
    return _installed(tuple(sys.path))


@cache
def _installed(_path: Sequence[str]) -> Sequence[EntryPoint]:
    """Looking through all packages takes as long as all else of a node's rules."""
    return sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value))


def standard_with_plugins() -> Functions:
    """The standard functions and those of installed plugins, for where rules run outside a node."""
    functions = standard()
    load_plugins(functions, installed())
    return functions


def load_plugins(functions: Functions, entry_points: Iterable[EntryPoint]) -> list[Plugin]:
    """Add the functions of plugins, each under its name and under ``plugin.name``; return the outcome for each plugin.

    A name that is taken stays with its first owner, and the plugin's own is called with the plugin's name.
    """
    plugins: list[Plugin] = []
    for entry_point in entry_points:
        package = entry_point.dist
        plugin = Plugin(
            entry_point.name, package.name if package else "", package.version if package else ""
        )
        where = f"plugin '{plugin.name}'" + (
            f" of {plugin.package} {plugin.version}" if plugin.package else ""
        )
        plugins.append(plugin)
        if not plugin.name.isidentifier():
            plugin.problems.append(
                f"{where}: its name cannot be used in a rule; letters, digits and _ can"
            )
        elif any(other.name == plugin.name for other in plugins[:-1]):
            plugin.problems.append(f"{where}: another plugin has that name; remove one of them")
        else:
            _load(functions, entry_point, plugin, where)
    return plugins


def _load(functions: Functions, entry_point: EntryPoint, plugin: Plugin, where: str) -> None:
    try:
        members = _members(entry_point.load())
    except BaseException as error:
        # an import runs what it likes; SystemExit too must not end the broker
        if isinstance(error, KeyboardInterrupt):
            raise
        sentence = f"{where}: {entry_point.value} cannot be loaded: {type(error).__name__}: {error}"
        plugin.problems.append(" ".join(sentence.split()))
        return
    if not members:
        plugin.problems.append(
            f"{where}: {entry_point.value} has no function with @function of rules.functions.plugin"
        )
    for function in members:
        _add(functions, function, plugin, where)


def _members(loaded: Any) -> list[Function]:
    """The functions of a module, in the order of their definition."""
    if not isinstance(loaded, ModuleType):
        raise TypeError("the entry point must name a module")
    marked = (getattr(member, ATTRIBUTE, None) for member in vars(loaded).values())
    return [function for function in marked if isinstance(function, Function)]


def _add(functions: Functions, function: Function, plugin: Plugin, where: str) -> None:
    own = replace(function, origin=plugin.name)
    qualified = f"{plugin.name}.{function.name}"
    functions.add(replace(own, name=qualified))
    plugin.functions.append(qualified)
    taken = functions.get(function.name)
    if taken is None:
        functions.add(own)
        return
    owner = (
        "a function of Sluice" if taken.origin == STANDARD_ORIGIN else f"plugin '{taken.origin}'"
    )
    plugin.problems.append(
        f"{where}: the name '{function.name}' belongs to {owner}; call it as {qualified}"
    )
