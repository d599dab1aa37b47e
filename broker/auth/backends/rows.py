"""Clients found as a row of a database: a stored password hash, and perhaps a salt and whether it is a superuser."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from pydantic import Field

from broker.auth.backends.authenticator import OutsideAuthenticatorSettings
from broker.auth.backends.backend import Driver, Outside
from broker.auth.backends.password_hashes import HashUnusable, PasswordHashSettings, matches
from broker.auth.backends.templates import Facts, Template
from broker.auth.decision import DENIED, IGNORED, Decision
from broker.auth.login_limits import network_of
from broker.core import reason
from broker.core.errors import Unavailable

_BUSY: Final = Decision("deny", reason.SERVER_BUSY)
_TRUE: Final = (True, 1, "1", "true", "t")

Row = Mapping[str, Any]


class RowAuthenticatorSettings(OutsideAuthenticatorSettings):
    """Settings of an authenticator that finds clients in a database."""

    password_hash_algorithm: PasswordHashSettings = Field(
        default_factory=PasswordHashSettings, description="Form of the stored hashes."
    )


class Lookup(Driver, Protocol):
    """Finds the row of a client."""

    templates: tuple[Template, ...]

    async def row(self, facts: Facts) -> Row | None:
        """The row with ``password_hash``, ``salt``, ``is_superuser``; None if there is none. Raises
        ``BackendUnavailable``."""
        ...


class RowVerifier:
    """Checks passwords against rows. A client without a row costs as much as one with a wrong password, once a row was
    seen."""

    needs_password = True

    def __init__(
        self, settings: RowAuthenticatorSettings, lookup: Lookup, outside: Outside
    ) -> None:
        self.templates = lookup.templates
        self._hash = settings.password_hash_algorithm
        self._lookup = lookup
        self._pool = outside.pool
        self._decoy: tuple[str, str] | None = None

    async def check(self) -> None:
        """See ``Driver``."""
        await self._lookup.check()

    async def close(self) -> None:
        """See ``Driver``."""
        await self._lookup.close()

    async def asked(self, facts: Facts) -> Row | None:
        """The row of a client. Raises ``BackendUnavailable``."""
        return await self._lookup.row(facts)

    async def decision(self, answer: Row | None, facts: Facts) -> Decision:
        """Decision by the row; ``ignore`` without one."""
        password = (facts["password"] or "").encode()
        if answer is None:
            if self._decoy is not None:
                try:
                    await self._is_right(password, *self._decoy, facts)
                except Unavailable:
                    return _BUSY
            return IGNORED
        stored = answer.get("password_hash")
        if not isinstance(stored, (str, bytes)) or not stored:
            return Decision(
                "deny", DENIED.reason_code, why="the row of the client has no password_hash"
            )
        text = stored.decode(errors="replace") if isinstance(stored, bytes) else stored
        salt = answer.get("salt")
        salt_text = salt.decode(errors="replace") if isinstance(salt, bytes) else str(salt or "")
        try:
            is_right = await self._is_right(password, text, salt_text, facts)
        except HashUnusable as error:
            return Decision("deny", DENIED.reason_code, why=str(error))
        except Unavailable:
            return _BUSY
        self._decoy = (text, salt_text)
        return (
            Decision("allow", is_superuser=is_true(answer.get("is_superuser")))
            if is_right
            else DENIED
        )

    async def _is_right(self, password: bytes, stored: str, salt: str, facts: Facts) -> bool:
        def check() -> bool:
            return matches(self._hash, password, stored, salt)

        if not self._hash.is_slow:
            return check()
        return await off_loop(check, self._pool, facts.get("peerhost"))


def is_true(value: Any) -> bool:
    """True if a column or member means yes."""
    return (value.decode(errors="replace") if isinstance(value, bytes) else value) in _TRUE


async def off_loop(check: Callable[[], bool], pool: Any, address: str | None) -> bool:
    """The result of a check on a thread that hashes passwords; addresses take turns. Raises ``Unavailable``."""
    if pool is None:
        return await asyncio.to_thread(check)
    async with pool.turn(network_of(address)):
        result: bool = await pool.work(check)
    return result
