"""The connector type ``http``."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from bridges.http.settings import HttpActionSettings, HttpSettings
from bridges.resource.contract import Connector, ConnectorType, Context
from bridges.resource.templates import text_template
from broker.core.action import Row
from broker.core.message import Message


def _make(settings: Any, context: Context) -> Connector:
    from bridges.http.sink import HttpConnector

    return HttpConnector(settings, context)


def _key_of(settings: HttpActionSettings) -> Callable[[Row, Message], Hashable]:
    if not settings.key:
        return lambda row, message: message.client.client_id
    of_row = text_template(settings.key)
    return lambda row, message: of_row(row)


HTTP = ConnectorType(
    name="http",
    title="HTTP service",
    summary="Sends rows to HTTP services: one request for each row, or batches as JSON arrays or lines.",
    connector=HttpSettings,
    make=_make,
    action=HttpActionSettings,
    lanes=16,
    reads_secrets_again=True,
    key_of=_key_of,
    requires=("aiohttp",),
)
