"""Members of a request's body, checked: all that is wrong is told at once, each with its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker.core.errors import Invalid, Problem


class Members:
    """Reads the members of one object and remembers what is wrong with them; ``done`` raises it."""

    def __init__(self, body: Mapping[str, Any], place: str = "") -> None:
        self._body, self._place = body, place
        self._known: set[str] = set()
        self.problems: list[Problem] = []

    def text(self, name: str) -> str | None:
        """A text, None where there is none."""
        return self._checked(name, "a text", lambda value: isinstance(value, str))  # type: ignore[no-any-return]

    def needed_text(self, name: str) -> str:
        """A text that must be there."""
        value = self.text(name)
        if value is None and not any(problem.pointer == self._pointer(name) for problem in self.problems):
            self.problems.append(Problem("it is needed, a text", self._pointer(name)))
        return value or ""

    def texts(self, name: str) -> Sequence[str]:
        """An array of texts that must be there."""
        value = self._checked(
            name,
            "an array of texts",
            lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
        )
        if value is None and name not in self._body:
            self.problems.append(Problem("it is needed, an array of texts", self._pointer(name)))
        return value or []

    def flag(self, name: str) -> bool | None:
        """True or false, None where there is neither."""
        return self._checked(name, "true or false", lambda value: isinstance(value, bool))  # type: ignore[no-any-return]

    def number(self, name: str, least: int, most: int) -> int | None:
        """A whole number, None where there is none."""
        return self._checked(  # type: ignore[no-any-return]
            name, f"a whole number from {least} to {most}", lambda value: type(value) is int and least <= value <= most
        )

    def choice(self, name: str, *choices: str) -> str | None:
        """One of these, None where there is none."""
        return self._checked(name, f"one of {', '.join(choices)}", lambda value: value in choices)  # type: ignore[no-any-return]

    def objects(self, name: str) -> list[Members]:
        """The members of each object of an array; what is wrong with them is told here."""
        value = self._checked(
            name,
            "an array of objects",
            lambda value: isinstance(value, list) and all(isinstance(item, dict) for item in value),
        )
        return [Members(item, f"{self._pointer(name)}/{at}") for at, item in enumerate(value or [])]

    def done(self, what: str, *inner: Members) -> None:
        """Raise all that is wrong, members that nobody asked for among it.

        Raises:
            broker.core.errors.Invalid: with ``what`` as its sentence.
        """
        problems = [problem for members in (self, *inner) for problem in (*members.problems, *members.unknown())]
        if problems:
            raise Invalid(what, problems)

    def unknown(self) -> list[Problem]:
        """Members that nobody asked for."""
        there_are = ", ".join(sorted(self._known)) or "none"
        return [
            Problem(f"there is no such member; there are {there_are}", self._pointer(name))
            for name in self._body
            if name not in self._known
        ]

    def _checked(self, name: str, wanted: str, is_right: Any) -> Any:
        self._known.add(name)
        value = self._body.get(name)
        if value is None:
            return None
        if not is_right(value):
            self.problems.append(Problem(f"expected {wanted}", self._pointer(name)))
            return None
        return value

    def _pointer(self, name: str) -> str:
        return f"{self._place}/{name}"
