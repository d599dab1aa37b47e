"""What a connector must bring to be certified: its outside system, and how that is taken away and looked into.

``tests/contracts/test_connectors.py`` runs the list of ``docs/bridges/certification.md`` on every class of ``ALL``. An
entry is one class with the outside system as a real part: a server process, a folder, a socket.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.support.bridges import Outside, scripted
from tests.support.certified_http import CertifiedHttp
from tests.support.certified_mqtt import CertifiedMqtt
from tests.support.certified_servers import CertifiedKafka, CertifiedPostgres

Row = dict[str, Any]


class Certified(Protocol):
    """One connector type with its outside system. Made for each test, with a folder of its own; ``up`` comes first.

    Rows are ``{"n": 17, "key": "k2"}``; the action must write them so that ``arrived`` can give ``(key, n)`` back.
    """

    type: str
    secret: str
    """A secret that stands in the settings of ``connector``; it must be seen nowhere. Empty: the type has no logins."""
    has_targets: bool
    """Whether a target can be missing, beside the outside system as a whole."""
    asks_for_target: bool
    """Whether the outside system can be asked for the target without anything being sent there."""

    def __init__(self, directory: Path) -> None: ...

    def kinds(self) -> Sequence[Any]:
        """Types to be registered beside the built-in ones."""
        ...

    async def up(self) -> None:
        """Start the outside system; or start it again, at the same address and with what it held."""
        ...

    async def down(self) -> None:
        """Take it away as a crash or a pulled cable would."""
        ...

    async def close(self) -> None:
        """For good."""
        ...

    def connector(self) -> Row:
        """The members of a connector that works, without ``name`` and ``type``."""
        ...

    def bad_credentials(self) -> Row:
        """The same with credentials that are refused; of types with logins."""
        ...

    def parameters(self) -> Row:
        """The parameters of an action that works."""
        ...

    def missing_target(self) -> Row:
        """The same with a target that is not there, or closed to us; of types with targets."""
        ...

    async def arrived(self) -> list[tuple[str, int]]:
        """What the outside system holds: key and number, in its order."""
        ...


class CertifiedFile:
    """The type ``file``; a folder that is moved away is the outage."""

    type = "file"
    secret = ""
    has_targets = asks_for_target = False

    def __init__(self, directory: Path) -> None:
        self._folder, self._away = directory / "rows", directory / "away"

    def kinds(self) -> Sequence[Any]:
        return ()

    async def up(self) -> None:
        if self._away.exists():
            self._away.rename(self._folder)
        self._folder.mkdir(exist_ok=True)

    async def down(self) -> None:
        self._folder.rename(self._away)

    async def close(self) -> None:
        """Nothing runs."""

    def connector(self) -> Row:
        return {"filepath": str(self._folder / "rows.log")}

    def bad_credentials(self) -> Row:
        raise NotImplementedError

    def parameters(self) -> Row:
        return {}

    def missing_target(self) -> Row:
        raise NotImplementedError

    async def arrived(self) -> list[tuple[str, int]]:
        lines = (self._folder / "rows.log").read_text().splitlines()
        return [(row["key"], row["n"]) for row in map(json.loads, lines)]


class CertifiedScripted:
    """The type that the tests of the framework use."""

    type = "scripted"
    secret = "open sesame"
    has_targets = asks_for_target = True

    def __init__(self, directory: Path) -> None:
        self._outside = Outside()

    def kinds(self) -> Sequence[Any]:
        return [scripted(self._outside)]

    async def up(self) -> None:
        self._outside.is_there = True

    async def down(self) -> None:
        self._outside.is_there = False

    async def close(self) -> None:
        """Nothing runs."""

    def connector(self) -> Row:
        return {"password": self.secret}

    def bad_credentials(self) -> Row:
        return {"password": "wrong password"}

    def parameters(self) -> Row:
        return {}

    def missing_target(self) -> Row:
        return {"topic": "not-there"}

    async def arrived(self) -> list[tuple[str, int]]:
        return [(key, value) for _, key, value in self._outside.arrived]


ALL: dict[str, type[Certified]] = {
    "file": CertifiedFile,
    "http": CertifiedHttp,
    "kafka": CertifiedKafka,
    "mqtt": CertifiedMqtt,
    "postgresql": CertifiedPostgres,
    "scripted": CertifiedScripted,
}
