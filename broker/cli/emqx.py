"""Conversion of a configuration of EMQX: its objects as objects of ours, its settings as settings of ours.

Only the mapping: whether an object can be used is for ``broker.app.rehearsal``, which also leaves out members that are
not known here.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from broker.cli import exit_codes
from broker.cli.errors import CommandError
from broker.cli.files import read_text
from broker.config.hocon import MAX_FILE_BYTES, parse_text
from broker.config.hocon_reader import HoconError

Tree = dict[str, Any]

# Types of connectors, actions and sources: EMQX's, and ours.
TYPES: Final[Mapping[str, str]] = {
    "kafka_producer": "kafka",
    "kafka_consumer": "kafka",
    "http": "http",
    "mqtt": "mqtt",
    "pgsql": "postgresql",
    "disk_log": "file",
}
SETTINGS: Final[Mapping[str, str]] = {
    "node.name": "node.name",
    "mqtt.max_packet_size": "mqtt.max_packet_size",
    "mqtt.max_clientid_len": "mqtt.max_client_id_bytes",
    "mqtt.max_qos_allowed": "mqtt.maximum_qos",
    "mqtt.max_topic_levels": "mqtt.max_topic_levels",
    "mqtt.max_topic_alias": "mqtt.topic_alias_maximum",
    "mqtt.max_inflight": "mqtt.max_inflight",
    "mqtt.max_mqueue_len": "mqtt.max_queued_messages",
    "mqtt.max_subscriptions": "mqtt.max_subscriptions",
    "mqtt.max_awaiting_rel": "mqtt.receive_maximum",
    "mqtt.retain_available": "mqtt.retain_available",
    "mqtt.wildcard_subscription": "mqtt.wildcard_subscription_available",
    "mqtt.shared_subscription": "mqtt.shared_subscription_available",
    "mqtt.keepalive_multiplier": "mqtt.keep_alive_factor",
    "mqtt.idle_timeout": "mqtt.connect_timeout",
    "mqtt.response_information": "mqtt.response_information",
    "mqtt.client_attrs_init": "mqtt.client_attrs_init",
    "mqtt.clientid_override": "mqtt.clientid_override",
    "retainer.max_payload_size": "retained.max_payload",
    "retainer.backend.max_retained_messages": "retained.max_messages",
}
_UNSET: Final[tuple[Any, ...]] = (None, "", "infinity", "disabled", [], {})
_NODE: Final = "belongs to Erlang's runtime or to a cluster"
_REASONS: Final[Mapping[str, str]] = {
    "authentication": "create users and authenticators here: sluice users --help; docs/how-to/access.md",
    "authorization": "create access rules here: sluice access --help; docs/how-to/access.md",
    "bridges": "EMQX 5.4 and newer write connectors and actions in its place; upgrade EMQX and export again",
    "cluster": "Sluice is one broker, without a cluster",
    "dashboard": "the management API has one administrator's token; see docs/how-to/run-in-production.md",
    "listeners": "listeners have settings of their own: sluice listeners add --help; docs/how-to/listeners.md",
    "log": "the log goes to standard error; settings log.level and log.format",
    "node": _NODE,
    "rpc": _NODE,
}

# Sections that hold objects and nothing else.
_OBJECTS_IN: Final = ("connectors", "actions", "sources", "rewrite")
# Sections whose settings are checked one by one, and which of their members are objects.
_SETTINGS_IN: Final[Mapping[str, str]] = {
    "mqtt": "",
    "node": "",
    "retainer": "",
    "rule_engine": "rules",
    "schema_registry": "schemas",
    "schema_validation": "validations",
    "message_transformation": "transformations",
    "auto_subscribe": "topics",
}
_EMQX_TTL: Final = "45s"
_REFERENCED: Final = re.compile(r"\$(?:bridges|sources)/([a-z_]+):([-0-9A-Za-z_]+)")


@dataclass(slots=True)
class Item:
    """One object or setting of the file, by its place there, and what it becomes."""

    origin: str
    path: str = ""
    """Path of its kind in the API; empty for a setting and for an item without a counterpart."""
    spec: Tree = field(default_factory=dict)
    setting: str = ""
    """``key = value`` for ``sluice.conf``."""
    changes: list[str] = field(default_factory=list)
    reason: str = ""
    """Reason that it is not imported; empty if it is."""

    @property
    def result(self) -> str:
        """In one or two words."""
        if self.reason:
            return "not supported"
        return "changed" if self.changes or self.setting else "imported"

    @property
    def becomes(self) -> str:
        """The setting or object that it is converted to."""
        return "" if self.reason else self.setting or f"{self.path}/{self.spec['name']}"


def read_emqx(file: str) -> Tree:
    """The tree of a configuration file, or of ``cluster.hocon`` in an archive of ``emqx ctl data export``.

    Raises:
        CommandError: it cannot be read; says where.
    """
    try:
        text = _from_archive(file) if file.endswith((".tar.gz", ".tgz")) else read_text(file)
        return parse_text(text, file).values
    except HoconError as error:
        raise CommandError(str(error), exit_codes.USAGE) from None


def _from_archive(file: str) -> str:
    try:
        with tarfile.open(Path(file)) as archive:
            for member in archive:
                if (
                    member.isfile()
                    and member.name.endswith("cluster.hocon")
                    and member.size <= MAX_FILE_BYTES
                ):
                    extracted = archive.extractfile(member)
                    return "" if extracted is None else extracted.read().decode("utf-8-sig")
    except (OSError, tarfile.TarError, UnicodeDecodeError) as error:
        raise CommandError(f"{file} cannot be read: {error}", exit_codes.USAGE) from None
    raise CommandError(f"{file}: expected an archive with cluster.hocon in it", exit_codes.USAGE)


def planned(tree: Tree) -> list[Item]:
    """All objects of the file, in the order in which to create them."""
    names = _Names(tree)
    items = [
        item
        for kind in ("connectors", "actions", "sources")
        for item in _bridges(kind, tree, names)
    ]
    items[0:0] = _schemas(tree)
    items += _listed(tree, ("schema_validation", "validations"), "validations")
    items += _listed(tree, ("message_transformation", "transformations"), "transforms")
    items += [_rule(id, spec, names) for id, spec in _members(tree, "rule_engine", "rules")]
    items += _numbered(tree.get("rewrite"), "rewrite", "rewrites")
    items += _numbered(
        _at(tree, "auto_subscribe", "topics"), "auto_subscribe.topics", "auto-subscriptions"
    )
    return [*items, *_settings(tree)]


class _Names:
    """Connectors, actions and sources have names of their own here, whatever their type."""

    def __init__(self, tree: Tree) -> None:
        self._names: dict[tuple[str, str, str], str] = {}
        for kind in ("connectors", "actions", "sources"):
            taken: set[str] = set()
            for type, members in _members(tree, kind):
                for name in members if type in TYPES else ():
                    unique = name if name not in taken else f"{name}-{type.replace('_', '-')}"
                    taken.add(unique)
                    self._names[kind, type, name] = unique

    def of(self, kind: str, type: str, name: str) -> str:
        return self._names.get((kind, type, name), name)

    def has(self, kind: str, type: str, name: str) -> bool:
        return (kind, type, name) in self._names


def _bridges(kind: str, tree: Tree, names: _Names) -> Iterator[Item]:
    for type, members in _members(tree, kind):
        for name, spec in _members(members):
            item = Item(f"{kind}.{type}.{name}", kind)
            if type not in TYPES:
                types = ", ".join(sorted(set(TYPES.values())))
                item.reason = f"type {type} does not exist here; expected one of: {types}"
            else:
                _fill_bridge(item, kind, type, name, dict(spec), names)
            yield item


def _fill_bridge(
    item: Item, kind: str, type: str, name: str, settings: Tree, names: _Names
) -> None:
    settings.pop("tags", None)
    settings.pop("created_at", None)
    settings.pop("last_modified_at", None)
    new_name = names.of(kind, type, name)
    if new_name != name:
        item.changes.append(f"named {new_name}, since another one is named {name}")
    if kind != "connectors":
        settings["connector"] = names.of("connectors", type, str(settings.get("connector", "")))
        settings["parameters"] = _copied(settings.pop("kafka", None) or settings.get("parameters"))
    _change_options(item, settings)
    _change_ssl(settings)
    if type.startswith("kafka"):
        _change_kafka(item, kind, settings)
    item.spec = {"name": new_name, "type": TYPES[type], **_referring(item, settings)}


def _change_options(item: Item, settings: Tree) -> None:
    """Waiting without expiry and on disk is the default here, and EMQX writes its own defaults into exports."""
    options = _copied(settings.pop("resource_opts", None))
    if not isinstance(options, dict):
        settings["resource_opts"] = options
        return
    if options.get("request_ttl") == _EMQX_TTL:
        del options["request_ttl"]
        item.changes.append(
            f"resource_opts.request_ttl {_EMQX_TTL}, the default of EMQX, left out: rows do not expire"
        )
    if (mode := options.pop("buffer_mode", None)) is not None:
        item.changes.append(f"resource_opts.buffer_mode {mode} left out: rows wait on disk")
    if options:
        settings["resource_opts"] = options


def _change_ssl(settings: Tree) -> None:
    if not _at(settings, "ssl", "enable"):
        settings.pop("ssl", None)


def _change_kafka(item: Item, kind: str, settings: Tree) -> None:
    if settings.get("authentication") == "none":
        del settings["authentication"]
    if isinstance(settings.get("bootstrap_hosts"), list):
        settings["bootstrap_hosts"] = ",".join(map(str, settings["bootstrap_hosts"]))
    if kind == "connectors":
        return
    parameters = settings["parameters"]
    if not isinstance(parameters, dict):
        return
    if kind == "sources":
        if "topic" in parameters:
            parameters["topics"] = [parameters.pop("topic")]
        for member in ("key_encoding", "value_encoding"):
            if (mode := parameters.pop(f"{member}_mode", None)) is not None:
                parameters[member] = mode
    elif parameters.get("required_acks", "all_isr") != "all_isr":
        parameters["idempotence"] = False
        item.changes.append(
            f"idempotence off, since required_acks is {parameters['required_acks']}"
        )


def _referring(item: Item, value: Any) -> Any:
    """With ``file://PATH``, EMQX's secret in a file, in our form."""
    if isinstance(value, Mapping):
        return {key: _referring(item, inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_referring(item, inner) for inner in value]
    if isinstance(value, str) and value.startswith("file://"):
        item.changes.append(f"{value} written as ${{file:...}}")
        return f"${{file:{value.removeprefix('file://')}}}"
    return value


def _schemas(tree: Tree) -> Iterator[Item]:
    for name, spec in _members(tree, "schema_registry", "schemas"):
        yield Item(f"schema_registry.schemas.{name}", "schemas", {"name": name, **spec})


def _listed(tree: Tree, where: tuple[str, ...], path: str) -> Iterator[Item]:
    section = _at(tree, *where)
    for spec in _dicts(section):
        yield Item(f"{'.'.join(where)}.{spec.get('name')}", path, dict(spec))


def _numbered(value: Any, where: str, path: str) -> Iterator[Item]:
    """Objects that have no names in EMQX."""
    for number, spec in enumerate(_dicts(value), 1):
        yield Item(
            f"{where}[{number}]",
            path,
            {"name": f"{where.partition('.')[0].replace('_', '-')}-{number}", **spec},
        )


def _rule(id: str, rule: Tree, names: _Names) -> Item:
    spec = {
        key: value for key, value in rule.items() if key not in ("id", "metadata", "name", "tags")
    }
    item = Item(f"rule_engine.rules.{id}", "rules", {"name": id, **spec})
    if rule.get("name") not in (None, "", id):
        item.changes.append(f"name {rule['name']} left out: the id is the name")
    if rule.get("metadata"):
        item.changes.append("metadata left out")
    if isinstance(sql := spec.get("sql"), str):
        item.spec["sql"] = _REFERENCED.sub(lambda match: _source(match, names), sql)
        if item.spec["sql"] != sql:
            item.changes.append("sources in FROM renamed")
    if isinstance(actions := spec.get("actions"), list):
        item.spec["actions"] = [
            converted for action in actions for converted in _action(item, action, names)
        ]
    return item


def _source(match: re.Match[str], names: _Names) -> str:
    type = match[1]
    name = match[2]
    return f"$bridges/{TYPES.get(type, type)}:{names.of('sources', type, name)}"


def _action(item: Item, action: Any, names: _Names) -> Iterator[Any]:
    """The action of a rule; none when it leads nowhere here."""
    if isinstance(action, Mapping):
        if action.get("function") in ("republish", "console"):
            yield action
        else:
            item.changes.append(
                f"action {action.get('function')} left out: functions are republish and console"
            )
        return
    type, _, name = str(action).rpartition("bridge:")[2].partition(":")
    if names.has("actions", type, name):
        target = f"{TYPES[type]}:{names.of('actions', type, name)}"
        if target != action:
            item.changes.append(f"action {action} named {target}")
        yield target
    else:
        item.changes.append(f"action {action} left out: it is not imported")


def _settings(tree: Tree) -> Iterator[Item]:
    """Settings by their keys; sections that have nothing here as a whole."""
    for section, value in tree.items():
        if section in _SETTINGS_IN and isinstance(value, Mapping):
            for key, inner in _leaves(
                section,
                {key: member for key, member in value.items() if key != _SETTINGS_IN[section]},
            ):
                yield _setting(key, inner)
        elif section not in _OBJECTS_IN:
            yield Item(
                section, reason=_REASONS.get(section, "this section has no counterpart here")
            )


def _leaves(above: str, value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _leaves(f"{above}.{key}", inner)
        else:
            yield f"{above}.{key}", inner


def _setting(key: str, value: Any) -> Item:
    if key not in SETTINGS:
        return Item(
            key, reason=_NODE if key.startswith("node.") else "this setting does not exist here"
        )
    if value in _UNSET or (
        value == 0 and key.rpartition(".")[2].startswith("max_") and key != "mqtt.max_qos_allowed"
    ):
        return Item(key, reason=f"{value!r} stands for no limit or none; the default here stays")
    return Item(key, spec={"key": SETTINGS[key], "value": value})


def _members(tree: Tree, *path: str) -> list[tuple[str, Any]]:
    section = _at(tree, *path)
    return (
        [(key, inner) for key, inner in section.items() if isinstance(inner, Mapping)]
        if isinstance(section, Mapping)
        else []
    )


def _copied(value: Any) -> Any:
    """A mapping that may be changed; another value as it is, which the check of the object refuses."""
    return dict(value or {}) if value is None or isinstance(value, Mapping) else value


def _dicts(value: Any) -> list[Tree]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _at(tree: Any, *path: str) -> Any:
    for key in path:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree
