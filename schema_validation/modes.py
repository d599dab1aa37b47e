"""Compatibility modes as they are set while the broker runs: the registry's own, and that of a schema."""

from __future__ import annotations

from broker.core.objects import ObjectSection, apply
from schema_validation.compatibility.verdict import MODES, Mode

_GLOBAL = "*"


class Modes:
    """Modes by schema name, kept in a section of the configuration; ``default`` is the setting's."""

    def __init__(self, section: ObjectSection, default: Mode) -> None:
        self._section = section
        self._default = default
        self._modes: dict[str, Mode] = {}

    def load(self) -> list[str]:
        """Take the modes of the configuration; gives a sentence for each that cannot be used."""
        problems = []
        for spec in self._section.load():
            name = spec["name"]
            mode = str(spec.get("compatibility"))
            if mode in MODES:
                self._modes[name] = Mode(mode)
            else:
                problems.append(f"{self._section.where(name)}: compatibility {name!r} is one of {', '.join(MODES)}")
        return problems

    @property
    def overall(self) -> Mode:
        """Mode of schemas without their own."""
        return self._modes.get(_GLOBAL, self._default)

    def of(self, name: str) -> Mode | None:
        """Mode set for a schema at runtime, even before a schema of that name exists."""
        return self._modes.get(name)

    def put(self, name: str | None, mode: Mode | None) -> None:
        """Set the mode of a schema, or without a name the registry's; None takes it back. Saved before it counts."""
        key = _GLOBAL if name is None else name
        if mode is not self._modes.get(key):
            self._section.save({key: None if mode is None else {"name": key, "compatibility": mode.value}})
            apply(self._modes, {key: mode})
