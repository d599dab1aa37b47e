"""Compatibility modes as they are set while the broker runs: the registry's own, and that of a schema."""

from __future__ import annotations

from collections.abc import Sequence

from broker.config.model import Settings
from broker.core.errors import NotFound
from broker.core.objects import ObjectSection, Spec, apply
from schema_validation.compatibility.verdict import MODES, Mode

_GLOBAL = "*"


class ModeSpec(Settings):
    """The compatibility mode of a schema, or of the registry under the name ``*``."""

    name: str
    compatibility: Mode


class Modes:
    """Modes by schema name, kept in a section of the configuration; ``default`` is the setting's."""

    kind = "compatibility mode"

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
                problems.append(
                    f"{self._section.where(name)}: compatibility {name!r} is one of {', '.join(MODES)}"
                )
        return problems

    @property
    def overall(self) -> Mode:
        """Mode of schemas without their own."""
        return self._modes.get(_GLOBAL, self._default)

    def of(self, name: str) -> Mode | None:
        """Mode set for a schema at runtime, even before a schema of that name exists."""
        return self._modes.get(name)

    def list(self) -> Sequence[Spec]:
        """All that were set while the broker ran."""
        return [self.get(name) for name in self._modes]

    def get(self, name: str) -> Spec:
        """One of them. Raises ``NotFound``."""
        mode = self._modes.get(name)
        if mode is None:
            raise NotFound(self.kind, name)
        return {"name": name, "compatibility": mode.value}

    def create(self, spec: Spec) -> Spec:
        """Set a mode."""
        return self.replace(spec["name"], spec)

    def replace(self, name: str, spec: Spec) -> Spec:
        """Set a mode."""
        self.put(name, Mode(spec["compatibility"]))
        return spec

    def delete(self, name: str) -> None:
        """Take a mode back."""
        self.put(name, None)

    def put(self, name: str | None, mode: Mode | None) -> None:
        """Set the mode of a schema, or without a name the registry's; None takes it back. Saved before it counts."""
        key = _GLOBAL if name is None else name
        if mode is not self._modes.get(key):
            self._section.save(
                {key: None if mode is None else {"name": key, "compatibility": mode.value}}
            )
            apply(self._modes, {key: mode})
