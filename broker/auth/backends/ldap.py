"""Clients and access rules in an LDAP directory: the authenticator ``ldap``, and the source of rules ``ldap``.

The broker searches for the entry of a client. Then it binds as that entry with the client's password (``bind``), or
compares the password with the hash in the entry (``hash``). Rules are topics in attributes of entries, such as groups.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import Field, field_validator, model_validator

from broker.auth.backends.authenticator import OutsideAuthenticator, OutsideAuthenticatorSettings
from broker.auth.backends.backend import BackendUnavailable, Outside, Unreachable
from broker.auth.backends.connections import OptionalTls, Servers
from broker.auth.backends.ldap_protocol import (
    INVALID_CREDENTIALS,
    NO_SUCH_OBJECT,
    SIZE_LIMIT,
    SUCCESS,
    Entry,
    LdapConnection,
    LdapError,
    Result,
    encoded_filter,
    escaped_in_dn,
    escaped_in_filter,
)
from broker.auth.backends.password_hashes import HashUnusable, matches_ldap
from broker.auth.backends.rows import is_true, off_loop
from broker.auth.backends.source import MOST_ROWS, OutsideSourceSettings, RowSource
from broker.auth.backends.templates import OF_CLIENT, OF_LOGIN, Facts, Template, checked_template
from broker.auth.decision import DENIED, IGNORED, Decision
from broker.config.model import Settings
from broker.config.secret_text import ADDRESS, SecretText
from broker.config.ssrf import AddressDenied
from broker.core import reason
from broker.core.errors import Unavailable
from broker.core.hosts import checked_address
from broker.core.placeholders import CLIENT_PLACEHOLDER

_BUSY: Final = Decision("deny", reason.SERVER_BUSY)
# Result codes of a server that is not able to work: busy, unavailable, unwilling to perform.
_AWAY_CODES: Final = (51, 52)
T = TypeVar("T")
Scope = Literal["base", "one", "sub"]
AttributeName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.;-]*$", max_length=200)]


class LdapSettings(Settings):
    """A directory, and the search for entries."""

    server: Annotated[str, ADDRESS] = Field(description="`host:port` of the server.")
    username: str = Field(
        default="", description="Distinguished name that the broker searches as; empty: anonymous."
    )
    password: SecretText | None = Field(
        default=None,
        description="Its password, or `${secret:NAME}`, `${env:NAME}`, `${file:PATH}`.",
    )
    ssl: OptionalTls = Field(
        default_factory=OptionalTls, description="TLS of the connections (ldaps)."
    )
    base_dn: str = Field(
        min_length=1,
        max_length=2000,
        description="Entry below which is searched; placeholders are escaped.",
    )
    scope: Scope = Field(
        default="sub", description="Depth of the search: the entry itself, one level, or all below."
    )

    @field_validator("server")
    @classmethod
    def _check_server(cls, server: str) -> str:
        return checked_address(server, "127.0.0.1:389")


def _check_search(base_dn: str, filter: str, names: tuple[str, ...]) -> None:
    checked_template(base_dn, names)
    checked_template(filter, names)
    encoded_filter(CLIENT_PLACEHOLDER.sub("x", filter))


class LdapAuthenticatorSettings(OutsideAuthenticatorSettings, LdapSettings):
    """Settings of an ``ldap`` authenticator."""

    mechanism: Literal["ldap"]
    filter: str = Field(
        default="(&(objectClass=person)(uid=${username}))",
        max_length=2000,
        description="Filter for the entry of a client; values of placeholders are escaped.",
    )
    method: Literal["bind", "hash"] = Field(
        default="bind", description="`bind` logs in to the server with the client's password; `hash` reads the hash in "
        "`password_attribute`."
    )  # fmt: skip
    password_attribute: AttributeName = Field(
        default="userPassword", description="Attribute with the hash."
    )
    is_superuser_attribute: AttributeName = Field(
        default="isSuperuser", description="Attribute that is `TRUE` for superusers."
    )
    allow_weak: bool = Field(
        default=False,
        description="Whether weak hashes are accepted: plain, MD5, SHA-1, and those without a salt.",
    )

    @model_validator(mode="after")
    def _check_templates(self) -> Self:
        _check_search(self.base_dn, self.filter, OF_LOGIN)
        return self


class LdapSourceSettings(OutsideSourceSettings, LdapSettings):
    """Access rules in attributes of entries, such as the groups of a client."""

    type: Literal["ldap"]
    filter: str = Field(
        default="(&(objectClass=groupOfNames)(member=uid=${username},ou=people,dc=example,dc=org))",
        max_length=2000,
        description="Filter for the entries with rules; values of placeholders are escaped.",
    )
    publish_attribute: AttributeName = Field(
        default="mqttPublishTopic",
        description="Attribute with topics that the client may publish to.",
    )
    subscribe_attribute: AttributeName = Field(
        default="mqttSubscriptionTopic",
        description="Attribute with topics that it may subscribe to.",
    )
    all_attribute: AttributeName = Field(
        default="mqttPubSubTopic", description="Attribute with topics that it may do both with."
    )

    @model_validator(mode="after")
    def _check_templates(self) -> Self:
        _check_search(self.base_dn, self.filter, OF_CLIENT)
        return self


class Directory:
    """Searches and binds at one server."""

    def __init__(self, settings: Any, outside: Outside) -> None:
        self.settings = settings
        self._servers = Servers(settings, outside.guard)
        self._base = Template(settings.base_dn)
        self._filter = Template(settings.filter)
        self.templates: tuple[Template, ...] = (self._base, self._filter)
        self._searching: list[LdapConnection] = []
        self._binding: list[LdapConnection] = []

    async def check(self) -> None:
        """Raise ``BackendUnavailable`` unless the server answers."""
        await self._with(self._searching, lambda connection: self._login(connection))

    async def close(self) -> None:
        """Close all connections that are not in use."""
        idle = [*self._searching, *self._binding]
        self._searching.clear()
        self._binding.clear()
        for connection in idle:
            await connection.end()

    async def entries(self, facts: Facts, attributes: Sequence[str], most: int) -> list[Entry]:
        """Entries of a client, none where it lacks a value of the search. Raises ``BackendUnavailable``, also where the
        entry of all clients is missing, as in a directory that was restored in part."""
        if not all(facts.get(name) for template in self.templates for name in template.names):
            return []
        base = self._base.filled(facts, escaped_in_dn)
        encoded = encoded_filter(self._filter.filled(facts, escaped_in_filter))
        scope = self.settings.scope

        async def search(connection: LdapConnection) -> list[Entry]:
            result, entries = await connection.search(base, scope, encoded, attributes, most)
            if result.code == NO_SUCH_OBJECT and self._base.names:
                return []
            if result.code != SIZE_LIMIT:
                self._check(result)
            return entries

        return await self._with(self._searching, search)

    async def bind(self, dn: str, password: bytes) -> bool:
        """True if the password is that of an entry. Raises ``BackendUnavailable``."""

        async def bind(connection: LdapConnection) -> bool:
            result = await connection.bind(dn, password)
            if result.code == INVALID_CREDENTIALS:
                return False
            self._check(result)
            return True

        return await self._with(self._binding, bind)

    async def _login(self, connection: LdapConnection) -> None:
        self._check(
            await connection.bind(self.settings.username, self._servers.password().encode()),
            is_own=True,
        )

    def _check(self, result: Result, *, is_own: bool = False) -> None:
        if result.code == SUCCESS:
            return
        text = f"{self.settings.server} says: result {result.code} {result.text}".rstrip()
        raise (
            Unreachable(text) if is_own or result.code in _AWAY_CODES else BackendUnavailable(text)
        )

    async def _with(
        self, idle: list[LdapConnection], work: Callable[[LdapConnection], Awaitable[T]]
    ) -> T:
        """Result of work with a connection, which is closed where it fails."""
        if self._servers.has_new_secrets:
            await self.close()
        try:
            for is_last in (False, True):
                is_used = bool(idle)
                connection = (
                    idle.pop() if is_used else await self._connected(idle is self._searching)
                )
                is_done = False
                try:
                    result = await work(connection)
                    is_done = True
                except BackendUnavailable:
                    is_done = True
                    raise
                except (OSError, EOFError, LdapError):
                    if is_last or not is_used:
                        raise
                else:
                    return result
                finally:
                    if is_done:
                        idle.append(connection)
                    else:
                        connection.close()
                for other in idle:  # the server closed idle connections
                    other.close()
                idle.clear()
        except (OSError, EOFError, AddressDenied) as error:
            reason_text = str(error) or type(error).__name__
            raise Unreachable(f"{self.settings.server}: {reason_text}") from None
        except LdapError as error:
            raise BackendUnavailable(f"{self.settings.server}: {error}") from None
        raise AssertionError("the second attempt returns or raises")

    async def _connected(self, logs_in: bool) -> LdapConnection:
        failure: OSError | None = None
        for address in await self._servers.addresses():
            try:
                connection = await LdapConnection.open(
                    address, self._servers.port, self._servers.context
                )
            except OSError as error:
                failure = error
                continue
            is_done = False
            try:
                if logs_in:
                    await self._login(connection)
                is_done = True
            finally:
                if not is_done:
                    connection.close()
            return connection
        assert failure is not None  # there is an address
        raise failure


class LdapVerifier:
    """Checks clients by their entries."""

    needs_password = True

    def __init__(self, settings: LdapAuthenticatorSettings, outside: Outside) -> None:
        self._settings = settings
        self._directory = Directory(settings, outside)
        self.templates = self._directory.templates
        self._pool = outside.pool
        self.check = self._directory.check
        self.close = self._directory.close

    async def asked(self, facts: Mapping[str, str | None]) -> Decision | Entry:
        """The decision, or the entry whose hash has to be compared. Raises ``BackendUnavailable``."""
        settings = self._settings
        attributes = [settings.is_superuser_attribute]
        if settings.method == "hash":
            attributes.append(settings.password_attribute)
        entries = await self._directory.entries(facts, attributes, 2)
        if not entries:
            return IGNORED
        if len(entries) > 1:
            raise BackendUnavailable("the filter matches more than one entry for the client")
        if settings.method == "hash":
            return entries[0]
        is_right = await self._directory.bind(entries[0].dn, (facts["password"] or "").encode())
        return self._allowed(entries[0]) if is_right else DENIED

    async def decision(self, answer: Decision | Entry, facts: Mapping[str, str | None]) -> Decision:
        """Decision by the hash of an entry."""
        if isinstance(answer, Decision):
            return answer
        password = (facts["password"] or "").encode()
        hashes = answer.attributes.get(self._settings.password_attribute.lower(), [])[:5]
        problem = "the entry of the client has no password that the broker may read"
        for stored in hashes:
            text = stored.decode(errors="replace")
            try:
                if await self._is_right(password, text, facts):
                    return self._allowed(answer)
                problem = ""
            except HashUnusable as error:
                problem = str(error)
            except Unavailable:
                return _BUSY
        return Decision("deny", DENIED.reason_code, why=problem)

    async def _is_right(
        self, password: bytes, stored: str, facts: Mapping[str, str | None]
    ) -> bool:
        def check() -> bool:
            return matches_ldap(password, stored, allow_weak=self._settings.allow_weak)

        if not stored.upper().startswith("{CRYPT}"):
            return check()
        return await off_loop(check, self._pool, facts.get("peerhost"))

    def _allowed(self, entry: Entry) -> Decision:
        values = entry.attributes.get(self._settings.is_superuser_attribute.lower(), [])
        return Decision(
            "allow",
            is_superuser=any(is_true(value.decode(errors="replace").lower()) for value in values),
        )


class LdapRules:
    """Reads rules in attributes of entries."""

    def __init__(self, settings: LdapSourceSettings, outside: Outside) -> None:
        self._directory = Directory(settings, outside)
        self._actions = {
            settings.publish_attribute: "publish",
            settings.subscribe_attribute: "subscribe",
            settings.all_attribute: "all",
        }
        self.check = self._directory.check
        self.close = self._directory.close

    async def rows(self, facts: Mapping[str, str | None]) -> Sequence[Mapping[str, Any]]:
        """The rules of a client. Raises ``BackendUnavailable``."""
        entries = await self._directory.entries(facts, list(self._actions), MOST_ROWS)
        return [
            {"permission": "allow", "action": action, "topic": topic.decode(errors="replace")}
            for entry in entries
            for attribute, action in self._actions.items()
            for topic in entry.attributes.get(attribute.lower(), [])
        ]


def ldap_authenticator(
    settings: LdapAuthenticatorSettings, outside: Outside
) -> OutsideAuthenticator[Decision | Entry]:
    """The authenticator ``ldap``."""
    return OutsideAuthenticator("ldap", settings, LdapVerifier(settings, outside), outside)


def ldap_source(settings: LdapSourceSettings, outside: Outside, _max_answers: int) -> RowSource:
    """The source of rules ``ldap``."""
    return RowSource("ldap", settings, LdapRules(settings, outside), outside)
