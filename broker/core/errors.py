"""Every error that Sluice raises on purpose.

::

    SluiceError
    ├── Invalid            what was sent cannot be saved or evaluated; carries problems with their places
    ├── NotFound           no object of that name
    ├── Conflict
    │   ├── AlreadyExists  the name is taken
    │   └── InUse          another object refers to it; names the object
    ├── ReadOnly           the object or setting is fixed by a file or the environment
    ├── ConfigError        settings that cannot be used; carries every problem, each with its place
    ├── MissingDependency  an extra or a runtime (Java) is not installed; says what to install
    ├── Unavailable        cannot be done now (store full, peer away); may be tried again
    └── PeerError          what a peer sent breaks the protocol; carries the MQTT reason code (broker.core.reason)

A message says what, where and what to do, in one sentence, and holds no secret. What a caller decides on is an
attribute; texts are never parsed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

# Problems that an error names one by one.
MOST_PROBLEMS: Final = 50
# Known names that a name is compared with: some 10 ms.
_MOST_COMPARED: Final = 500
# Maximum length, in characters, of a name for which similar names are searched.
_LONGEST_NAME: Final = 256


class Rename(str):
    """The suggestion to write the name ``by`` in place of ``name``, which an editor can do: ``did you mean 'upper'?``.

    ``name`` is at the place of the problem or after it, unless ``place`` says where it is.
    """

    name: str
    by: str
    place: tuple[int, int] | None

    def __new__(
        cls, name: str, by: str, text: str = "", place: tuple[int, int] | None = None
    ) -> Rename:
        """``text`` is the sentence, where it is another one."""
        rename = super().__new__(cls, text or f"did you mean '{by}'?")
        rename.name = name
        rename.by = by
        rename.place = place
        return rename

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.name, self.by, str(self), self.place


def closest(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar of the known names, or of the first 500 where there are more; None if none is similar.

    Names that differ in case only are similar, but another name with the same case comes first.
    """
    if len(name) > _LONGEST_NAME:
        return None
    compared = [other for other in islice(names, _MOST_COMPARED) if len(other) <= _LONGEST_NAME]
    if close := difflib.get_close_matches(name, compared, 1):
        return close[0]
    by_lower = {other.lower(): other for other in reversed(compared)}
    close = difflib.get_close_matches(name.lower(), by_lower, 1)
    return by_lower[close[0]] if close else None


def did_you_mean(name: str, names: Iterable[str]) -> Rename | None:
    """The most similar of the known names, as a suggestion."""
    close = closest(name, names)
    return Rename(name, close) if close else None


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem in a request, with its place.

    ``pointer`` is a JSON pointer into the request body (``/sql``, ``/actions/0/topic``); ``line`` and ``column`` count
    from 1 inside the text that the pointer names; ``suggestion`` is a sentence, or a ``Rename``.
    """

    message: str
    pointer: str = ""
    line: int | None = None
    column: int | None = None
    suggestion: str | None = None

    def __str__(self) -> str:
        place = f"line {self.line}, column {self.column}: " if self.line is not None else ""
        tail = f"; {self.suggestion}" if self.suggestion else ""
        return f"{place}{self.message}{tail}"


class SluiceError(Exception):
    """Root of all errors raised on purpose. ``code`` is stable and may be scripted against."""

    code = "error"


class Invalid(SluiceError):
    """The request cannot be saved or evaluated. ``members`` are further details for programs.

    Only the first ``MOST_PROBLEMS`` problems are kept.
    """

    code = "invalid"

    def __init__(
        self,
        what: str,
        problems: Sequence[Problem] = (),
        *,
        code: str | None = None,
        members: Mapping[str, Any] | None = None,
    ) -> None:
        self.what = what
        self.members = dict(members or {})
        if len(problems) > MOST_PROBLEMS:
            problems = (
                *problems[:MOST_PROBLEMS],
                Problem(f"there are more; the first {MOST_PROBLEMS} are listed"),
            )
        self.problems = tuple(problems) or (Problem(what),)
        if code is not None:
            self.code = code
        detail = "; ".join(str(problem) for problem in problems)
        super().__init__(f"{what}: {detail}" if detail else what)


class NotFound(SluiceError):
    """No object of that kind and name."""

    code = "not_found"

    def __init__(self, kind: str, name: str, suggestion: str | None = None) -> None:
        self.kind = kind
        self.name = name
        tail = f"; {suggestion}" if suggestion else ""
        super().__init__(f"there is no {kind} {name!r}{tail}")


class Conflict(SluiceError):
    """The request conflicts with the current state."""

    code = "conflict"


class AlreadyExists(Conflict):
    """The name is taken."""

    code = "already_exists"

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        self.name = name
        super().__init__(f"a {kind} named {name!r} exists already")


class InUse(Conflict):
    """Other objects refer to the object. ``users`` are references, or texts."""

    code = "in_use"

    def __init__(self, kind: str, name: str, users: Sequence[object]) -> None:
        self.kind, self.name, self.users = kind, name, tuple(map(str, users))
        super().__init__(
            f"{kind} {name!r} is used by {', '.join(self.users)}; change or delete those first"
        )


class ReadOnly(SluiceError):
    """The object or setting is fixed by a file or the environment and cannot be changed at run time."""

    code = "read_only"


class ConfigError(SluiceError):
    """Settings that cannot be used. ``problems`` are sentences, each with file, key, value and what was expected."""

    code = "configuration"

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problems))


class MissingDependency(SluiceError):
    """An extra or a runtime is not installed; the text says what to install."""

    code = "missing_dependency"


class Unavailable(SluiceError):
    """Cannot be done now. ``retry_after_s`` is when to try again, where that is known."""

    code = "unavailable"

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class Undecided(Unavailable):
    """It is not known whether a change is kept: the commit log may have it."""


class Unreadable(SluiceError):
    """Files that cannot be read, so that their content is unknown."""

    code = "unreadable"


class PeerError(SluiceError):
    """A peer broke the protocol. ``reason_code`` is the MQTT 5 code for the error."""

    code = "peer"

    def __init__(self, reason_code: int, message: str) -> None:
        self.reason_code = reason_code
        super().__init__(message)
