"""Objects in configuration files: a list of objects with names, or an object of objects by name.

::

    streams = [ { name = meters, topics = ["meters/#"] } ]
    streams { meters { topics = ["meters/#"] } }
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from broker.config.assignments import KeyPath
from broker.config.layers import Layer
from broker.core.objects import Spec


@dataclass(frozen=True, slots=True)
class LayerObjects:
    """The objects of one kind that one layer holds, in order."""

    layer: Layer
    objects: tuple[Spec, ...]

    def places(self, path: KeyPath) -> dict[str, str]:
        """File and line of each object by its name; ``path`` is that of the kind."""
        written = self.layer.written
        return {
            name: written.get((*path, name)) or self.layer.where((*path, str(number)))
            for number, name in enumerate(spec["name"] for spec in self.objects)
        }


def objects_in(layer: Layer, path: KeyPath) -> tuple[LayerObjects, list[str]]:
    """The objects below a path of a layer, and their problems; objects with problems are left out."""
    key = ".".join(path)
    value: Any = layer.values
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    if value is None:
        return LayerObjects(layer, ()), []
    if isinstance(value, dict):
        entries = [((*path, name), name, spec) for name, spec in value.items() if spec is not None]
    elif isinstance(value, list):
        entries = [((*path, str(number)), None, spec) for number, spec in enumerate(value)]
    else:
        return LayerObjects(layer, ()), [f"{layer.where(path)}: {key} must be a list of objects"]
    return _read(layer, key, entries)


def _read(
    layer: Layer, key: str, entries: Iterable[tuple[KeyPath, str | None, Any]]
) -> tuple[LayerObjects, list[str]]:
    objects: dict[str, Spec] = {}
    problems = []
    for place, name_as_key, spec in entries:
        try:
            named = _named(spec, name_as_key)
        except ValueError as error:
            problems.append(f"{layer.where(place)}: {key}{_index(place, name_as_key)}: {error}")
            continue
        if named["name"] in objects:
            problems.append(f"{layer.where(place)}: {key} has two objects named {named['name']!r}")
            continue
        objects[named["name"]] = named
    return LayerObjects(layer, tuple(objects.values())), problems


def _named(spec: Any, name_as_key: str | None) -> Spec:
    if not isinstance(spec, dict):
        raise ValueError("must be an object { ... }")
    name = spec.get("name", name_as_key)
    if not isinstance(name, str) or not name:
        raise ValueError("needs a name, a string")
    if name_as_key is not None and name != name_as_key:
        raise ValueError(
            f"is named {name_as_key!r} by its key and {name!r} inside; keep one of the two"
        )
    return {"name": name, **{member: value for member, value in spec.items() if member != "name"}}


def _index(place: KeyPath, name_as_key: str | None) -> str:
    return f".{name_as_key}" if name_as_key is not None else f"[{place[-1]}]"


def without_objects(values: dict[str, Any], paths: Iterable[KeyPath]) -> dict[str, Any]:
    """A tree of settings with the objects taken out."""
    result = values
    for path in paths:
        result = _without(result, path)
    return result


def _without(values: dict[str, Any], path: KeyPath) -> dict[str, Any]:
    if path[0] not in values:
        return values
    rest = {key: value for key, value in values.items() if key != path[0]}
    inner = values[path[0]]
    if len(path) == 1:
        return rest
    if not isinstance(inner, dict):
        return values
    remaining = _without(inner, path[1:])
    return {**rest, path[0]: remaining} if remaining else rest
