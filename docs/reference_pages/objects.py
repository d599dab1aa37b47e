"""The page of objects: what the management API takes and files hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pydantic import BaseModel

from bridges.resource.specs import ActionSpec, ConnectorSpec, SourceSpec
from bridges.spark.columns.catalog import CatalogSettings
from broker.admin.api_settings import OidcSettings
from broker.auth.client_attributes import ClientAttributeSettings
from broker.config.object_stores import StoreSettings
from broker.connection.sharing.settings import ShareGroupSettings
from broker.core.kinds import Kind, kinds
from broker.net.settings import (
    ListenerSettings,
    SslListenerSettings,
    WsListenerSettings,
    WssListenerSettings,
)
from broker.routing.settings import RetainedBackend
from docs.reference_pages.markdown import page, table
from docs.reference_pages.models import Model, described, members, parts

_TYPED: Final[dict[str, type[BaseModel]]] = {
    "connector": ConnectorSpec,
    "action": ActionSpec,
    "source": SourceSpec,
}
"""Kinds of many types, which have a page: what all types share."""
_LISTENERS: Final = (ListenerSettings, SslListenerSettings, WsListenerSettings, WssListenerSettings)
_MEANINGS: Final = {
    "actions": "What is done with each row, in order.",
    "args": "What is published, as of the rule action [RepublishAction](#republishaction).",
    "auth": "How it is logged in to.",
    "bridge": "The bridge that takes the rows, as `<type>:<name>`.",
    "checks": "Run in order until the strategy is decided.",
    "connector": "The connector that it stands on, of the same type.",
    "dead_letters": "Which rows that are given up are kept.",
    "description": "For people.",
    "direct_dispatch": (
        "Straight to the subscribers: no validation, transformation, rule, stream or retained store sees the message."
    ),
    "enable": "Whether it runs.",
    "error": "The event makes the rule fail; a text must stand in what is said.",
    "event": "The event: `event` and `topic`, and columns by name, as `rules:test` takes them.",
    "expect": "What the rule must make of it.",
    "failure_action": "What becomes of a message that fails; `disconnect` also closes its sender's connection.",
    "fallback_actions": "Run, each of them, when the action fails.",
    "format": "The format of the table.",
    "from": "Sources of a rule in jq: topic filters and event topics.",
    "jq": "The program of a rule in jq; every object it gives is a row.",
    "key": "What is written: `topic`, `qos`, `retain`, `payload`, `payload.a.b` or `user_property.NAME`.",
    "kind": "Says which of the kinds this is.",
    "language": "The language of the rule.",
    "level": "The level of the log line.",
    "log_failure": "How failures are logged.",
    "mechanism": "Says which of the kinds this is.",
    "message_type": "The message type of the Protobuf schema.",
    "mode": "`shadow` counts and tells failures, and lets every message pass as it was.",
    "mqtt_properties": "Templates of MQTT 5 properties by name.",
    "name": "Unique among its kind; does not change.",
    "no_result": "FROM or WHERE does not match.",
    "operations": "Run in order; all of them take effect or none.",
    "parameters": "Of its type.",
    "password": "The password.",
    "payload": "A template: `${column}`, `${column.member}`, `${.}` for the whole row as JSON.",
    "payload_decoder": "How the payload is read.",
    "payload_encoder": "How the payload is written.",
    "qos": "0, 1, 2 or a placeholder.",
    "quarantine": "A stream of rows that keeps the messages it stops.",
    "resource_opts": "How it is watched, and what waits how long.",
    "retain": "true, false or a placeholder.",
    "retention": "How long records are kept; by default as `stream_defaults` says.",
    "rows": "Exactly these rows, in order.",
    "schema": "The name of a registered schema.",
    "sql": "SQL of the rule language.",
    "strategy": "Whether all checks must pass, or one.",
    "stream": "The name of a stream.",
    "tags": "For people.",
    "tests": "Test cases; the rule is saved only when they hold.",
    "token": "The token.",
    "topic": "A template of the topic.",
    "topics": "Topic filters of the messages it is for.",
    "type": "Says which of the kinds this is.",
    "undefined_vars": (
        "What a placeholder without a value writes; `drop` leaves the row out, `fail` fails the action."
    ),
    "user_properties": "Templates of user properties by name, or a placeholder of a map.",
    "username": "The user name.",
    "value": "An expression of [variform](variform.md).",
    "wire_format": "`confluent` reads the schema's identifier in front of the payload.",
}
"""Of members whose model does not say it."""


def objects() -> str:
    """Every kind of object with its members, and the models they are made of once each."""
    told = set[str]()
    return page(
        "Objects",
        "What is sent to the [management API](api.md), or stands in [files](../how-to/configure.md), member by member. "
        "An unknown member is refused. Durations and sizes may be written as in [settings](settings.md): `30d`, "
        "`20GB`.",
        *(section for kind in kinds() for section in _of_kind(kind, told)),
        _heading("Share group in files", "In files, `shared_subscription.groups.NAME`."),
        *_parts_of(ShareGroupSettings, told, also_itself=True),
        _heading(
            "Backend of retained messages", "In files, members of the list `retained.backends`."
        ),
        *_parts_of(RetainedBackend, told, also_itself=True),
        _heading("Client attribute", "In files, members of the list `mqtt.client_attrs_init`."),
        *_parts_of(ClientAttributeSettings, told, also_itself=True),
        _heading("Object store", "In files, members of the list `lake.stores`."),
        *_parts_of(StoreSettings, told, also_itself=True),
        _heading("Sign-in by OpenID Connect", "In files, the section `api.oidc`."),
        *_parts_of(OidcSettings, told, also_itself=True),
        _heading("Iceberg catalog", "In files, members of the list `lake.catalogs`."),
        *_parts_of(CatalogSettings, told, also_itself=True),
    )


def _of_kind(kind: Kind, told: set[str]) -> Iterator[str]:
    if kind.name == "listener":
        yield _listeners()
        yield from _parts_of(ListenerSettings, told, also_itself=True)
        yield from _parts_of(WssListenerSettings, told)
        return
    place = f"`/api/v1/{kind.path}`" + (
        "" if kind.section is None else f", in files `{kind.section}`"
    )
    title, where = kind.name.capitalize(), f"{place}. {kind.about}"
    if kind.name in _TYPED:
        where += " Types and their members: [connectors](connectors.md)."
    models = [_TYPED[kind.name]] if kind.name in _TYPED else kind.spec_models()
    if len(models) == 1:
        yield f"{_heading(title, where)}\n\n{members(models[0], _MEANINGS)}"
        yield from _parts_of(models[0], told)
        return
    yield _heading(title, f"{where} One of:")
    for model in models:
        yield from _parts_of(model, told, also_itself=True)


def _parts_of(model: Model, told: set[str], *, also_itself: bool = False) -> Iterator[str]:
    for part in (model, *parts(model)) if also_itself else parts(model):
        if part.__name__ not in told:
            told.add(part.__name__)
            yield f"### {part.__name__}\n\n{described(part, _MEANINGS)}"


def _heading(title: str, where: str) -> str:
    return f"## {title}\n\n{where}"


def _listeners() -> str:
    own = {
        model: [name for name in model.model_fields if name not in ListenerSettings.model_fields]
        for model in _LISTENERS
    }
    rows = [
        (
            f"`listeners.{model.kind}.NAME`",
            f"`{model.model_fields['bind'].default}`",
            ", ".join(f"`{member}`" for member in names) or "no others",
        )
        for model, names in own.items()
    ]
    return (
        "## Listener\n\n`/api/v1/listeners`, one of them `/api/v1/listeners/KIND:NAME`. All kinds have the members of "
        "[ListenerSettings](#listenersettings):\n\n"
        + table(("in files", "default of `bind`", "and these"), rows)
        + "\n\n`ssl_options` is [TlsSettings](#tlssettings), `websocket` is [WebSocketSettings](#websocketsettings)."
    )
