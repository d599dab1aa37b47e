"""Columns and paths: what a name in the SQL is in the message, read once however often the rule names it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rules.sql.code import NOTHING, Code, Scope, Value
from rules.sql.tree import END_INDEX, Path


class Reading(Code):
    """Reads what the rule names."""

    def _read(self, path: Path, scope: Scope | None) -> Value:
        """The value of a path, or the part of it that a range names."""
        if path.range is None:
            return self._read_steps(path, scope)
        value = self._read_steps(Path(path.root, path.steps), scope)
        if value.is_payload:
            value = self._payload_json()
        return self._part(value, path)

    def _part(self, value: Value, path: Path) -> Value:
        assert path.range is not None
        return self._let(path.root or "part", f"_part({value.code}, {path.range[0]}, {path.range[1]})")

    def _read_steps(self, path: Path, scope: Scope | None) -> Value:
        """The path tried against names selected so far, innermost list first, then against the event's columns."""
        found: Value | None = None
        level = scope
        while level is not None:
            value = level.names.get(path.root)
            if value is not None and value != self._known.get(path.root):
                found = self._or_else(found, partial(self._read_name, value, path, scope))
                if found.kind not in ("any", "undefined"):
                    return found
            level = level.outer
        if self._columns.source(path.root) is None:
            return found or NOTHING
        return self._or_else(found, lambda: self._read_column(path, scope))

    def _read_name(self, value: Value, path: Path, scope: Scope | None) -> Value:
        if value.is_payload and path.steps:
            value = self._soft_payload_json()
        return self._descend(value, path, scope)

    def _or_else(self, found: Value | None, read: Callable[[], Value]) -> Value:
        """``found`` where it is defined, else what ``read`` gives."""
        if found is None or found is NOTHING:
            return read()
        result = self._fresh("v")
        self._emit(f"{result} = {found.code}")
        self._emit(f"if {result} is _undefined:")
        with self._block():
            other = read()
            self._emit(f"{result} = {other.code}")
        return Value(result)

    def _read_column(self, path: Path, scope: Scope | None) -> Value:
        if path.root == "payload" and path.steps:
            return self._descend(self._payload_json(), path, scope, is_payload=True)
        return self._descend(self._column(path.root), path, scope)

    def _column(self, name: str) -> Value:
        if name in self._known:
            return self._known[name]
        source = self._columns.source(name)
        if source is None:
            return NOTHING
        self._uses_client = self._uses_client or "client." in source
        value = self._let(name, source)
        if name == "payload":
            value = Value(value.code, is_payload=True)
        self._known[name] = value
        return value

    def _payload_json(self) -> Value:
        if "payload as JSON" not in self._known:
            self._known["payload as JSON"] = self._let("payload", f"{self._columns.argument}.json()")
        return self._known["payload as JSON"]

    def _soft_payload_json(self) -> Value:
        """The payload under another name: what is no JSON has no members."""
        if "payload as JSON" in self._known:
            return self._known["payload as JSON"]
        if "soft payload" not in self._known:
            self._known["soft payload"] = self._let("payload", f"_soft_json({self._columns.argument})")
        return self._known["soft payload"]

    def _descend(self, value: Value, path: Path, scope: Scope | None, *, is_payload: bool = False) -> Value:
        """The steps of a path, each read at most once from any one value."""
        text = path.root or "v"
        for step in path.steps:
            text += f"_{step}" if isinstance(step, (str, int)) else "_item"
            key = f"{value.code} {step!r}"
            if key in self._known:
                value = self._known[key]
                continue
            value = self._let(text, self._step_source(value.code, step, scope, is_payload=is_payload))
            if isinstance(step, (str, int)):
                self._known[key] = value
        return value

    def _step_source(self, code: str, step: Any, scope: Scope | None, *, is_payload: bool) -> str:
        if isinstance(step, str):
            return f"{code}.get({step!r}, _undefined) if type({code}) is dict else _key({code}, {step!r})"
        if step is END_INDEX:
            return "_undefined"
        if isinstance(step, int):
            return f"_index({code}, {step})"
        position = self._read(step, scope)
        if is_payload:  # the row first, then the payload
            inner = Path("payload", (step.root, *step.steps))
            position = self._or_else(position, lambda: self._read_column(inner, scope))
        return f"_index({code}, {position.code})"
