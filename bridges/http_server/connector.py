"""The connector type ``http_server``: what is posted to ``/ingest/NAME`` of the broker's own HTTP port."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NoReturn

from bridges.http_server.authentication import Guard, guard_of
from bridges.http_server.receiver import PostReceiver
from bridges.http_server.settings import HttpServerSettings, HttpServerSourceSettings
from bridges.resource.contract import Connector, ConnectorType, Context, Feed, ProbeStep, Source
from bridges.resource.errors import BadSettings, ReconnectFirst, TargetMissing
from broker.core.errors import NotFound
from broker.core.schema import WaitingSchemas


class HttpServerConnector(Connector):
    """Who may send. There is no connection: senders make them."""

    def __init__(self, settings: HttpServerSettings, context: Context) -> None:
        self.settings = settings
        self._guard: Guard | None = None

    async def open(self) -> None:
        """Read the secrets."""
        self._guard = guard_of(self.settings.authentication)

    async def close(self) -> None:
        """Forget them."""
        self._guard = None

    def probe(self) -> Sequence[ProbeStep]:
        """Whether the secrets can be read."""

        async def secrets() -> str:
            await self.open()
            return f"authentication is {self.settings.authentication.mechanism}"

        return [ProbeStep("authenticate", secrets)]

    def source(self, settings: HttpServerSourceSettings, context: Context) -> Source:
        """What is posted to one name."""
        return HttpServerSource(self, settings, context)

    @property
    def guard(self) -> Guard:
        """Lets requests pass."""
        if self._guard is None:
            raise ReconnectFirst("the connector is closed")
        return self._guard


class HttpServerSource(Source):
    """Takes requests while it runs."""

    def __init__(self, connector: HttpServerConnector, settings: HttpServerSourceSettings, context: Context) -> None:
        self._connector, self._settings, self._context = connector, settings, context

    async def run(self, feed: Feed) -> NoReturn:
        """Stand at the door until cancelled."""
        services, name = self._context.services, self._context.name.partition(":")[2]
        connector = self._connector
        receiver = PostReceiver(name, connector.guard, connector.settings, self._settings, services, feed)
        services.receivers.add(name, receiver)
        try:
            await asyncio.Event().wait()
        finally:
            services.receivers.remove(name, receiver)
        raise AssertionError("not reached")

    async def check(self) -> None:
        """Whether the schema is there, and can be used here."""
        name, schemas = self._settings.schema_name, self._context.services.schemas
        if name is None:
            return
        try:
            schemas.serde(name)
        except NotFound as error:
            raise TargetMissing(str(error)) from None
        if isinstance(schemas, WaitingSchemas) and schemas.waits(name):
            raise BadSettings(f"schema {name!r} asks another process; decode with it in a rule, or in a validation")


HTTP_SERVER = ConnectorType(
    name="http_server",
    title="HTTP requests to Sluice",
    summary="Takes what others post to /ingest/NAME of the broker's HTTP port, with tokens, passwords or signatures.",
    connector=HttpServerSettings,
    make=HttpServerConnector,
    source=HttpServerSourceSettings,
)
