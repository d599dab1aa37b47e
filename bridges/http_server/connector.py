"""The connector type ``http_server``: what is posted to ``/ingest/NAME``, of the broker's HTTP port or of a listener of
the connector's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from bridges.http_server.authentication import Guard, guard_of
from bridges.http_server.listener import PostListener
from bridges.http_server.receiver import PostReceiver
from bridges.http_server.settings import HttpServerSettings, HttpServerSourceSettings
from bridges.resource.contract import Connector, ConnectorType, Context, Feed, ProbeStep, Source
from bridges.resource.errors import ReconnectFirst, TargetMissing, TargetUnusable
from broker.core.errors import NotFound
from broker.core.receivers import Post, PostRefused, Receiver, Receivers


class HttpServerConnector(Connector):
    """Authentication of senders, and the connector's own listener if it has one. Senders make the connections."""

    def __init__(self, settings: HttpServerSettings, context: Context) -> None:
        self.settings = settings
        self._guard: Guard | None = None
        self._here = Receivers()
        self._listener = (
            None if settings.listen is None else PostListener(settings.listen, self._here.find)
        )

    async def open(self) -> None:
        """Read the secrets, and listen."""
        self._guard = guard_of(self.settings.authentication)
        if self._listener is not None:
            await self._listener.start()

    async def close(self) -> None:
        """Forget them, and listen no more."""
        self._guard = None
        if self._listener is not None:
            await self._listener.stop()

    @property
    def port(self) -> int:
        """Port of the connector's own listener; 0 while it does not listen."""
        return 0 if self._listener is None else self._listener.port

    def add(self, name: str, receiver: Receiver, shared: Receivers) -> Callable[[], None]:
        """Let a source take what is posted; call what is returned to end that."""
        if self._listener is None:
            shared.add(name, receiver)
            return lambda: shared.remove(name, receiver)
        elsewhere = _Elsewhere(name)
        shared.add(name, elsewhere)
        self._here.add(name, receiver)

        def remove() -> None:
            shared.remove(name, elsewhere)
            self._here.remove(name, receiver)

        return remove

    def probe(self) -> Sequence[ProbeStep]:
        """Check that secrets and TLS files can be read."""
        listen = self.settings.listen

        async def secrets() -> str:
            guard_of(self.settings.authentication)
            return f"authentication is {self.settings.authentication.mechanism}"

        async def tls() -> str:
            assert listen is not None
            await asyncio.to_thread(listen.ssl.context)
            return "the certificate can be used" if listen.ssl.certfile else "not encrypted"

        return [
            ProbeStep("authenticate", secrets),
            *([ProbeStep("tls", tls)] if listen is not None else []),
        ]

    def source(self, settings: HttpServerSourceSettings, context: Context) -> Source:
        """The requests that are posted to one name."""
        return HttpServerSource(self, settings, context)

    @property
    def guard(self) -> Guard:
        """Lets requests pass."""
        if self._guard is None:
            raise ReconnectFirst("the connector is closed")
        return self._guard


class _Elsewhere:
    """Says at the broker's HTTP port that a source has a listener of its own."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def receive(self, post: Post) -> Mapping[str, Any]:
        """See ``Receiver``."""
        raise PostRefused(
            404, "not_found", f"source {self._name!r} has a listener of its own; send there"
        )


class HttpServerSource(Source):
    """Takes requests while it runs."""

    def __init__(
        self, connector: HttpServerConnector, settings: HttpServerSourceSettings, context: Context
    ) -> None:
        self._connector = connector
        self._settings = settings
        self._context = context

    async def run(self, feed: Feed) -> NoReturn:
        """Listen until cancelled."""
        services = self._context.services
        name = self._context.name.partition(":")[2]
        connector = self._connector
        receiver = PostReceiver(
            name, connector.guard, connector.settings, self._settings, services, feed
        )
        remove = connector.add(name, receiver, services.endpoints.receivers)
        try:
            await asyncio.Event().wait()
        finally:
            remove()
        raise AssertionError("not reached")

    async def check(self) -> None:
        """Check that the schema exists and can be used here."""
        name = self._settings.schema_name
        schemas = self._context.services.schemas
        if name is None:
            return
        try:
            schemas.serde(name)
        except NotFound as error:
            raise TargetMissing(str(error)) from None
        if schemas.waits(name):
            raise TargetUnusable(
                f"schema {name!r} asks another process; decode with it in a rule, or in a validation"
            )


HTTP_SERVER = ConnectorType(
    name="http_server",
    title="HTTP requests to Sluice",
    summary="Takes what others post to /ingest/NAME of the broker's HTTP port or one of its own, also with TLS.",
    connector=HttpServerSettings,
    make=HttpServerConnector,
    source=HttpServerSourceSettings,
    reads_secrets_again=True,
    is_at_front=True,
)
