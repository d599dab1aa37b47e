"""Sparkplug B payloads, with the names of metrics filled in where messages carry their aliases only.

A node or device sends its aliases once, in its birth message (Sparkplug 3.0.0, section 6.4.6). A tap learns them from
all births that pass, whichever rule reads which topic, so that names are known when the data comes.
"""

from __future__ import annotations

import base64
import binascii
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from broker.core.errors import NotFound
from broker.core.message import Message
from broker.core.schema import SPARKPLUG_B, SchemaError, Serde
from broker.core.stage import TapCall
from rules.functions.registry import Function, Members, StrictText, failure, make
from rules.functions.schemas import Encoded, Schemas
from rules.sql.limits import MAX_SPARKPLUG_ALIASES, MAX_SPARKPLUG_NODES
from rules.sql.values import string

_NAMESPACE = "spBv1.0"
_PAYLOAD = "Payload"
_BIRTHS = ("NBIRTH", "DBIRTH")
_ERRORS = (NotFound, SchemaError)

Source = tuple[str, str, str]
"""Group, edge node, and device; the device of an edge node itself is empty."""


def source_of(topic: Any) -> tuple[str, Source] | None:
    """The message type and the sender that a Sparkplug topic names; None for other topics."""
    if type(topic) is not str or not topic.startswith(_NAMESPACE):
        return None
    levels = topic.split("/")
    if levels[0] != _NAMESPACE or len(levels) not in (4, 5):
        return None
    return levels[2], (levels[1], levels[3], levels[4] if len(levels) == 5 else "")


class Aliases:
    """Names of metrics by sender and alias, from birth messages; bounded, the sender silent for longest goes first."""

    def __init__(self) -> None:
        self._names: OrderedDict[Source, dict[int, str]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._names)

    def copy(self) -> Aliases:
        """The same aliases, to be changed apart."""
        made = Aliases()
        made._names = self._names.copy()  # a birth replaces the names of its sender, it does not change them
        return made

    def learn(self, source: Source, payload: Mapping[str, Any]) -> None:
        """Take the aliases of a birth in place of those known of its sender."""
        names = {
            metric["alias"]: metric["name"]
            for metric in payload.get("metrics", ())[:MAX_SPARKPLUG_ALIASES]
            if "alias" in metric and metric.get("name")
        }
        self._names[source] = names
        self._names.move_to_end(source)
        while len(self._names) > MAX_SPARKPLUG_NODES:
            self._names.popitem(last=False)

    def name(self, source: Source, alias: int) -> str | None:
        """The name of a metric of a device or edge node; an alias is unique in its edge node."""
        group, node, _ = source
        for owner in (source, (group, node, "")):
            names = self._names.get(owner)
            if names is not None and alias in names:
                return names[alias]
        return None


class SparkplugTap:
    """Learns aliases from birth messages; other topics cost nothing."""

    name = "sparkplug"

    def __init__(self, aliases: Aliases, schemas: Schemas) -> None:
        self._aliases, self._schemas = aliases, schemas

    def plan(self, topic: str) -> TapCall | None:
        """What learns from births on this topic; None where none are published."""
        found = source_of(topic)
        if found is None or found[0] not in _BIRTHS:
            return None
        source = found[1]

        def learn(message: Message) -> None:
            try:
                self._aliases.learn(source, self._schemas().serde(SPARKPLUG_B).decode(message.payload, _PAYLOAD))
            except (NotFound, SchemaError):
                return  # rules that decode it report the error; there is nothing to learn

        return learn


def sparkplug_functions(schemas: Schemas, aliases: Aliases) -> list[Function]:
    """``spb_decode``, ``spb_encode``, ``spb_zip_kvs``, and the older ``sparkplug_decode`` and ``sparkplug_encode``."""

    def serde() -> Serde:
        return schemas().serde(SPARKPLUG_B)

    def spb_decode(topic: Any, data: Encoded, message_type: StrictText = _PAYLOAD) -> Any:
        """A Sparkplug B message as a map: bytes_value as base64, names of metrics filled in from births."""
        value = serde().decode(data, message_type)
        found = source_of(topic)
        if found is not None and message_type == _PAYLOAD:
            kind, source = found
            if kind in _BIRTHS:
                aliases.learn(source, value)
            else:
                _fill_names(value, source, aliases)
        return _mapped(value, _as_base64)

    def spb_encode(value: Members, message_type: StrictText = _PAYLOAD) -> bytes:
        """The Sparkplug B message of a map, in which bytes_value is base64."""
        return serde().encode(_mapped(value, _from_base64), message_type)

    def sparkplug_decode(data: Encoded, message_type: StrictText = _PAYLOAD) -> Any:
        """A Sparkplug B message as a map, bytes as they are. Older; use spb_decode."""
        return _mapped(serde().decode(data, message_type), _as_string)

    def sparkplug_encode(value: Members, message_type: StrictText = _PAYLOAD) -> bytes:
        """The Sparkplug B message of a map, bytes as they are. Older; use spb_encode."""
        return serde().encode(value, message_type)

    return [
        make(spb_decode, column="topic", is_pure=False, usage="(data[, message_type])", errors=_ERRORS),
        make(spb_encode, returns="binary", is_pure=False, errors=_ERRORS),
        make(sparkplug_decode, is_pure=False, errors=_ERRORS),
        make(sparkplug_encode, returns="binary", is_pure=False, errors=_ERRORS),
        make(spb_zip_kvs, returns="map"),
    ]


def _fill_names(payload: dict[str, Any], source: Source, aliases: Aliases) -> None:
    for metric in payload["metrics"]:
        if "name" not in metric and "alias" in metric:
            name = aliases.name(source, metric["alias"])
            if name is not None:
                metric["name"] = name


def _mapped(value: Any, convert: Callable[[Any], Any]) -> Any:
    """A copy of a value with each ``bytes_value`` converted, and other bytes as strings."""
    if type(value) is dict:
        return {key: convert(item) if key == "bytes_value" else _mapped(item, convert) for key, item in value.items()}
    if type(value) is list:
        return [_mapped(item, convert) for item in value]
    return string(value) if type(value) is bytes else value


def _as_base64(value: Any) -> Any:
    return base64.b64encode(value).decode() if type(value) is bytes else value


def _as_string(value: Any) -> Any:
    return string(value) if type(value) is bytes else value


def _from_base64(value: Any) -> Any:
    try:
        return binascii.a2b_base64(value.encode(), strict_mode=True) if type(value) is str else value
    except ValueError:
        raise failure("spb_encode", "a bytes_value is not base64") from None


# Keys and values, columns and rows


def spb_zip_kvs(message: Members) -> Any:
    """A decoded message with properties as maps by key, and rows of data sets as maps by column."""
    return _zipped_message(message)


def _zipped_message(message: Any) -> Any:
    if type(message) is not dict or type(message.get("metrics")) is not list:
        return message
    return {**message, "metrics": [_zipped_metric(metric) for metric in message["metrics"]]}


def _zipped_metric(metric: Any) -> Any:
    if type(metric) is not dict:
        return metric
    changed = dict(metric)
    for member, zipped in (
        ("properties", _zipped_properties),
        ("dataset_value", _zipped_rows),
        ("template_value", _zipped_message),
    ):
        if member in changed:
            changed[member] = zipped(changed[member])
    return changed


def _zipped_properties(properties: Any) -> Any:
    """``{"keys": [k], "values": [v]}`` as ``{k: v}``."""
    if type(properties) is not dict or not {"keys", "values"} <= properties.keys():
        return properties
    pairs = _pairs(properties["keys"], properties["values"], "a property set", "keys", "values")
    return {key: _zipped_property(value) for key, value in pairs}


def _zipped_property(value: Any) -> Any:
    if type(value) is not dict:
        return value
    changed = dict(value)
    if "propertyset_value" in changed:
        changed["propertyset_value"] = _zipped_properties(changed["propertyset_value"])
    sets = changed.get("propertysets_value")
    if type(sets) is dict and type(sets.get("propertyset")) is list:
        changed["propertysets_value"] = [_zipped_properties(item) for item in sets["propertyset"]]
    return changed


def _zipped_rows(dataset: Any) -> Any:
    """Rows as maps by column."""
    if type(dataset) is not dict or not {"columns", "rows"} <= dataset.keys():
        return dataset
    rows = dataset["rows"]
    if type(rows) is not list or not all(type(row) is dict for row in rows):
        raise failure("spb_zip_kvs", "the rows of a data set must be an array of maps")
    columns = dataset["columns"]
    zipped = [_pairs(columns, row.get("elements", []), "a row of a data set", "columns", "elements") for row in rows]
    return {**dataset, "rows": [dict(pairs) for pairs in zipped]}


def _pairs(names: Any, values: Any, where: str, of_names: str, of_values: str) -> list[tuple[str, Any]]:
    if type(names) is not list or type(values) is not list or not all(type(name) is str for name in names):
        raise failure("spb_zip_kvs", f"{where} needs an array of strings as {of_names} and an array as {of_values}")
    if len(names) != len(values):
        raise failure("spb_zip_kvs", f"{where} has {len(names)} {of_names} and {len(values)} {of_values}")
    return list(zip(names, values, strict=True))
