"""Clients and access rules in Redis: the authenticator ``redis``, and the source of rules ``redis``.

::

    HSET mqtt_user:ann password_hash '$2b$12$...' is_superuser 0
    HSET mqtt_acl:ann 'meters/ann/#' publish 'news/#' '{"permission": "deny", "action": "subscribe"}'

Each word of a command is one argument, whatever the value of its placeholder.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from broker.auth.backends.authenticator import OutsideAuthenticator
from broker.auth.backends.backend import BackendUnavailable, Outside, Unreachable
from broker.auth.backends.connections import OptionalTls, Servers, check_installed
from broker.auth.backends.rows import Row, RowAuthenticatorSettings, RowVerifier
from broker.auth.backends.source import OutsideSourceSettings, RowSource
from broker.auth.backends.templates import OF_CLIENT, OF_LOGIN, Facts, Template, checked_template
from broker.config.model import Settings
from broker.config.secret_text import ADDRESS, SecretText
from broker.config.ssrf import AddressDenied
from broker.core import jsontext
from broker.core.hosts import checked_address
from broker.core.lazy_module import LazyModule

if TYPE_CHECKING:
    from redis import asyncio as client
    from redis import exceptions
else:
    client = LazyModule("redis.asyncio", is_optional=True)
    exceptions = LazyModule("redis.exceptions", is_optional=True)

# Commands of an authenticator, and of a source of rules: they only read.
_OF_LOGIN: Final = ("HMGET", "HGETALL")
_OF_RULES: Final = ("HGETALL",)
_LEAST_WORDS: Final = {"HMGET": 3, "HGETALL": 2}


class RedisSettings(Settings):
    """A Redis server, and the connections to it."""

    server: Annotated[str, ADDRESS] = Field(description="`host:port` of the server.")
    database: int = Field(default=0, ge=0, le=65_535, description="Number of the database.")
    username: str = Field(
        default="", description="Name of the broker's user there (ACL); empty for the default user."
    )
    password: SecretText | None = Field(
        default=None, description="Password, or `${secret:NAME}`, `${env:NAME}`, `${file:PATH}`."
    )
    ssl: OptionalTls = Field(default_factory=OptionalTls, description="TLS of the connections.")

    @field_validator("server")
    @classmethod
    def _check_server(cls, server: str) -> str:
        return checked_address(server, "127.0.0.1:6379")


def _check_command(text: str, allowed: Sequence[str], names: tuple[str, ...]) -> None:
    checked_template(text, names)
    words = text.split()
    name = words[0].upper() if words else ""
    if (
        name not in allowed
        or len(words) < _LEAST_WORDS[name]
        or (name == "HGETALL" and len(words) > 2)
    ):
        example = (
            "HMGET mqtt_user:${username} password_hash salt"
            if "HMGET" in allowed
            else "HGETALL mqtt_acl:${username}"
        )
        raise ValueError(f"expected {' or '.join(allowed)} with its arguments. Try: {example}")


class RedisAuthenticatorSettings(RowAuthenticatorSettings, RedisSettings):
    """Settings of a ``redis`` authenticator."""

    mechanism: Literal["redis"]
    cmd: str = Field(
        default="HMGET mqtt_user:${username} password_hash salt is_superuser",
        max_length=2000,
        description="Command for the fields of a client, `HMGET` or `HGETALL`: `password_hash`, and perhaps `salt` and "
        "`is_superuser`.",
    )

    @model_validator(mode="after")
    def _check_cmd(self) -> Self:
        _check_command(self.cmd, _OF_LOGIN, OF_LOGIN)
        return self


class RedisSourceSettings(OutsideSourceSettings, RedisSettings):
    """Access rules in hashes of Redis."""

    type: Literal["redis"]
    cmd: str = Field(
        default="HGETALL mqtt_acl:${username}",
        max_length=2000,
        description="Command for the rules of a client, `HGETALL`: fields are topics, values `publish`, `subscribe`, "
        "`all`, or JSON with `permission`, `action`, `qos`, `retain`.",
    )

    @model_validator(mode="after")
    def _check_cmd(self) -> Self:
        _check_command(self.cmd, _OF_RULES, OF_CLIENT)
        return self


class RedisCommand:
    """One command about clients, and connections to the server."""

    def __init__(self, settings: Any, outside: Outside) -> None:
        check_installed("redis", "redis")
        self._settings = settings
        self._servers = Servers(settings, outside.guard)
        self._timeout_s = settings.timeout
        self._words = [Template(word) for word in settings.cmd.split()]
        self.templates: tuple[Template, ...] = tuple(self._words)
        self._idle: list[Any] = []

    async def check(self) -> None:
        """Raise ``BackendUnavailable`` unless the server answers."""
        await self._answer(["PING"])

    async def close(self) -> None:
        """Close all connections that are not in use."""
        idle = self._idle
        self._idle = []
        for connection in idle:
            await connection.disconnect(nowait=True)

    async def row(self, facts: Facts) -> Row | None:
        """The fields of a client. Raises ``BackendUnavailable``."""
        words = self._filled(facts)
        if words is None:
            return None
        answer = await self._answer(words)
        fields: Mapping[str, str | None]
        if words[0].upper() == "HGETALL":
            fields = _pairs(answer)
        else:
            texts = [_text(value) for value in answer]
            fields = dict(zip(words[2:], texts, strict=True))
        return fields if fields.get("password_hash") is not None else None

    async def rows(self, facts: Mapping[str, str | None]) -> Sequence[Row]:
        """The rules of a client. Raises ``BackendUnavailable``."""
        words = self._filled(facts)
        if words is None:
            return []
        return [_rule(topic, value) for topic, value in _pairs(await self._answer(words)).items()]

    def _filled(self, facts: Facts) -> list[str] | None:
        """The words of the command; None where the client lacks a value, whose key would be that of another."""
        if not all(facts.get(name) for word in self._words for name in word.names):
            return None
        return [word.filled(facts) for word in self._words]

    async def _answer(self, words: Sequence[str]) -> Any:
        if self._servers.has_new_secrets:
            await self.close()
        try:
            for is_last in (False, True):
                is_used = bool(self._idle)
                connection = self._idle.pop() if is_used else await self._connected()
                try:
                    answer = await _exchange(connection, words)
                except exceptions.ResponseError:
                    self._idle.append(connection)
                    raise
                except (exceptions.ConnectionError, OSError):
                    if is_last or not is_used:
                        raise
                    await self.close()  # the server closed idle connections
                else:
                    self._idle.append(connection)
                    return answer
        except (
            exceptions.ConnectionError,
            exceptions.TimeoutError,
            OSError,
            AddressDenied,
        ) as error:
            raise Unreachable(f"{self._settings.server}: {error}") from None
        except exceptions.RedisError as error:
            raise BackendUnavailable(f"{self._settings.server} says: {error}") from None
        raise AssertionError("the second attempt returns or raises")

    async def _connected(self) -> Any:
        settings = self._settings
        servers = self._servers
        failure: Exception | None = None
        for address in await servers.addresses():
            connection = _connection_class()(
                host=address,
                port=servers.port,
                db=settings.database,
                username=settings.username or None,
                password=servers.password() or None,
                socket_timeout=None,  # the request has a time limit
                socket_connect_timeout=self._timeout_s,
                protocol=2,
                driver_info=None,
            )
            connection.tls = servers.context
            connection.tls_name = settings.ssl.server_name_indication or servers.host
            try:
                await connection.connect_check_health(
                    check_health=False, retry_socket_connect=False
                )
            except (exceptions.ConnectionError, exceptions.TimeoutError, OSError) as error:
                await connection.disconnect(nowait=True)
                failure = error
            except BaseException:
                await connection.disconnect(nowait=True)
                raise
            else:
                return connection
        assert failure is not None  # there is an address
        raise failure


async def _exchange(connection: Any, words: Sequence[str]) -> Any:
    """The answer to one command; a connection that has not given it is closed."""
    is_done = False
    try:
        await connection.send_command(*words)
        try:
            answer = await connection.read_response()
        except exceptions.ResponseError:
            is_done = True
            raise
        is_done = True
        return answer
    finally:
        if not is_done:
            await connection.disconnect(nowait=True)


_connection_classes: list[type[Any]] = []


def _connection_class() -> type[Any]:
    """The connection of the library, with TLS that checks the name of a host though it connects to an address."""
    if not _connection_classes:

        class Connection(client.Connection):
            tls: ssl.SSLContext | None = None
            tls_name = ""

            def _connection_arguments(self) -> Mapping[str, Any]:
                arguments = dict(super()._connection_arguments())
                if self.tls is not None:
                    arguments |= {"ssl": self.tls, "server_hostname": self.tls_name}
                return arguments

        _connection_classes.append(Connection)
    return _connection_classes[0]


def _pairs(answer: Any) -> dict[str, str]:
    """Fields and values of HGETALL, which is a list in RESP 2."""
    if isinstance(answer, Mapping):
        return {_text(name) or "": _text(value) or "" for name, value in answer.items()}
    texts = [_text(part) or "" for part in answer or ()]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return None if value is None else str(value)


def _rule(topic: str, value: str) -> dict[str, Any]:
    """A rule in the form of a row; a value that is not one is refused there."""
    if not value.startswith("{"):
        return {"permission": "allow", "action": value, "topic": topic}
    try:
        members = jsontext.decode(value)
    except ValueError:
        members = {}
    names = ("permission", "action", "qos", "retain")
    rule = {name: members[name] for name in names if isinstance(members, dict) and name in members}
    return {"permission": "allow", "action": "", **rule, "topic": topic}


def redis_authenticator(
    settings: RedisAuthenticatorSettings, outside: Outside
) -> OutsideAuthenticator[Row | None]:
    """The authenticator ``redis``."""
    verifier = RowVerifier(settings, RedisCommand(settings, outside), outside)
    return OutsideAuthenticator("redis", settings, verifier, outside)


def redis_source(settings: RedisSourceSettings, outside: Outside, _max_answers: int) -> RowSource:
    """The source of rules ``redis``."""
    return RowSource("redis", settings, RedisCommand(settings, outside), outside)
