"""Sparkplug B payloads, with names and datatypes of metrics filled in where messages carry their aliases only.

A node or device sends names, aliases and datatypes once, in its birth message (Sparkplug 3.0.0, section 6.4.6). A tap
learns them from all births that pass, whichever rule reads which topic, so that they are known when the data comes.

Signed integers are on the wire in unsigned fields, as two's complement; here they are themselves.
"""

from __future__ import annotations

import base64
import binascii
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

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

# Group, edge node, and device; the device of an edge node itself is empty.
Source = tuple[str, str, str]


def source_of(topic: Any) -> tuple[str, Source] | None:
    """The message type and the sender that a Sparkplug topic names; None for other topics."""
    if type(topic) is not str or not topic.startswith(_NAMESPACE):
        return None
    levels = topic.split("/")
    if levels[0] != _NAMESPACE or len(levels) not in (4, 5):
        return None
    return levels[2], (levels[1], levels[3], levels[4] if len(levels) == 5 else "")


class BirthMetric(NamedTuple):
    """Definition of a metric in a birth; ``members`` are those of its template, ``parameters`` the types of its
    parameters by name."""

    name: str
    datatype: int | None
    members: BirthMetrics
    parameters: Mapping[str, int]


# Metrics by name, and by alias if they have one.
BirthMetrics = Mapping[int | str, BirthMetric]

_NO_METRICS: Final[BirthMetrics] = {}


class Births:
    """The metrics of birth messages by sender; bounded, the sender silent for longest goes first."""

    def __init__(self) -> None:
        self._metrics: OrderedDict[Source, BirthMetrics] = OrderedDict()

    def __len__(self) -> int:
        return len(self._metrics)

    def copy(self) -> Births:
        """The same births, to be changed apart."""
        births = Births()
        # a birth replaces the metrics of its sender, it does not change them
        births._metrics = self._metrics.copy()
        return births

    def learn(self, source: Source, payload: Mapping[str, Any]) -> None:
        """Take the metrics of a birth in place of those known of its sender."""
        self._metrics[source] = _birth_metrics(payload, iter(range(MAX_SPARKPLUG_ALIASES)))
        self._metrics.move_to_end(source)
        while len(self._metrics) > MAX_SPARKPLUG_NODES:
            self._metrics.popitem(last=False)

    def metric(self, source: Source, metric: Mapping[str, Any]) -> BirthMetric | None:
        """The birth of a metric of a device or edge node; an alias is unique in its edge node."""
        key = _key(metric)
        birth = self._metrics.get(source, _NO_METRICS).get(key)
        if birth is None and type(key) is int:
            group, node, _ = source
            birth = self._metrics.get((group, node, ""), _NO_METRICS).get(key)
        return birth

    def definition(self, source: Source, template: Mapping[str, Any]) -> BirthMetric | None:
        """The definition of a template, which is a metric of its edge node."""
        group, node, _ = source
        return self._metrics.get((group, node, ""), _NO_METRICS).get(
            template.get("template_ref", "")
        )


def _key(metric: Mapping[str, Any]) -> Any:
    return metric.get("name") or metric.get("alias", "")


def _birth_metrics(message: Mapping[str, Any], budget: Iterator[int]) -> BirthMetrics:
    """The metrics of a payload or template, as many as the budget has left."""
    metrics: dict[int | str, BirthMetric] = {}
    for metric, _ in zip(message.get("metrics", ()), budget, strict=False):
        template = metric.get("template_value", {})
        pairs = zip(template.get("parameters", ()), budget, strict=False)
        parameters = {
            item["name"]: item["type"] for item, _ in pairs if {"name", "type"} <= item.keys()
        }
        members = _birth_metrics(template, budget)
        birth = BirthMetric(metric.get("name", ""), metric.get("datatype"), members, parameters)
        metrics |= {metric[key]: birth for key in ("name", "alias") if key in metric}
    return metrics


class SparkplugTap:
    """Learns metrics from birth messages; other topics cost nothing."""

    name = "sparkplug"

    def __init__(self, births: Births, schemas: Schemas) -> None:
        self._births = births
        self._schemas = schemas

    def plan(self, topic: str) -> TapCall | None:
        """The call that learns from births on this topic; None for other topics."""
        parsed_topic = source_of(topic)
        if parsed_topic is None or parsed_topic[0] not in _BIRTHS:
            return None
        source = parsed_topic[1]

        def learn(message: Message) -> None:
            try:
                self._births.learn(
                    source, self._schemas().serde(SPARKPLUG_B).decode(message.payload, _PAYLOAD)
                )
            except (NotFound, SchemaError):
                return  # rules that decode it report the error; there is nothing to learn

        return learn


def sparkplug_functions(schemas: Schemas, births: Births) -> list[Function]:
    """``spb_decode``, ``spb_encode``, ``spb_zip_kvs``, and the older ``sparkplug_decode`` and ``sparkplug_encode``."""

    def serde() -> Serde:
        return schemas().serde(SPARKPLUG_B)

    def spb_decode(topic: Any, data: Encoded, message_type: StrictText = _PAYLOAD) -> Any:
        """A Sparkplug B message as a map: bytes_value as base64, names and datatypes of metrics filled in from
        births."""
        value = serde().decode(data, message_type)
        sender = source_of(topic)
        if sender is not None and message_type == _PAYLOAD:
            kind, source = sender
            if kind in _BIRTHS:
                births.learn(source, value)
            for metric in value["metrics"]:
                birth = births.metric(source, metric)
                _fill_in(metric, [] if birth is None else [birth], source, births)
        _convert_integers(value, message_type, _signed)
        return _mapped(value, _as_base64)

    def spb_encode(value: Members, message_type: StrictText = _PAYLOAD) -> bytes:
        """The Sparkplug B message of a map, in which bytes_value is base64."""
        message = _mapped(value, _from_base64)
        _convert_integers(message, message_type, _unsigned)
        return serde().encode(message, message_type)

    def sparkplug_decode(data: Encoded, message_type: StrictText = _PAYLOAD) -> Any:
        """A Sparkplug B message as a map, bytes as they are. Older; use spb_decode."""
        value = serde().decode(data, message_type)
        _convert_integers(value, message_type, _signed)
        return _mapped(value, _as_string)

    def sparkplug_encode(value: Members, message_type: StrictText = _PAYLOAD) -> bytes:
        """The Sparkplug B message of a map, bytes as they are. Older; use spb_encode."""
        message = _mapped(value, _as_string)
        _convert_integers(message, message_type, _unsigned)
        return serde().encode(message, message_type)

    return [
        make(
            spb_decode,
            column="topic",
            is_pure=False,
            usage="(data[, message_type])",
            errors=_ERRORS,
        ),
        make(spb_encode, returns="binary", is_pure=False, errors=_ERRORS),
        make(sparkplug_decode, is_pure=False, errors=_ERRORS),
        make(sparkplug_encode, returns="binary", is_pure=False, errors=_ERRORS),
        make(spb_zip_kvs, returns="map"),
    ]


def _fill_in(
    metric: dict[str, Any], definitions: Sequence[BirthMetric], source: Source, births: Births
) -> None:
    """Add what a metric leaves out: as its birth has it, and in a template also as the template's definition has it."""
    for birth in definitions:
        if birth.name:
            metric.setdefault("name", birth.name)
        if birth.datatype is not None:
            metric.setdefault("datatype", birth.datatype)
    template = metric.get("template_value")
    if template is None:
        return
    if (definition := births.definition(source, template)) is not None:
        definitions = [*definitions, definition]
    for parameter in template["parameters"]:
        name = parameter.get("name", "")
        if types := [birth.parameters[name] for birth in definitions if name in birth.parameters]:
            parameter.setdefault("type", types[0])
    for member in template["metrics"]:
        key = _key(member)
        _fill_in(
            member,
            [birth.members[key] for birth in definitions if key in birth.members],
            source,
            births,
        )


# Signed integers


# Bits of signed integers by the number of their datatype: Int8, Int16, Int32 and Int64.
_SIGNED_BITS: Final = {1: 8, 2: 16, 3: 32, 4: 64}
_FIELD_BITS: Final = {"int_value": 32, "long_value": 64}

# Bits of an integer's datatype, and those of its field.
Convert = Callable[[int, int, int], int]


def _signed(value: int, bits: int, field_bits: int) -> int:
    """The integer that a field stands for, with its sign extended over the field or not, as publishers do both."""
    negative = (value & ((1 << bits) - 1)) - (1 << bits)
    is_negative = value >> (bits - 1) & 1 and value in (
        negative % (1 << bits),
        negative % (1 << field_bits),
    )
    return negative if is_negative else value


def _unsigned(value: int, bits: int, field_bits: int) -> int:
    """The field of an integer; what is out of the range of its datatype stays, and is refused as what it is."""
    return value % (1 << field_bits) if -(1 << (bits - 1)) <= value < 0 else value


def _convert_integers(value: Any, message_type: str, convert: Convert) -> None:
    walk = _WALKS.get(message_type.rpartition(".")[2])
    if walk is not None:
        walk(value, convert)


def _convert(holder: dict[str, Any], datatype: Any, convert: Convert) -> None:
    bits = _SIGNED_BITS.get(datatype) if type(datatype) is int else None
    if bits is not None:
        for name, field_bits in _FIELD_BITS.items():
            if type(holder.get(name)) is int:
                holder[name] = convert(holder[name], bits, field_bits)


def _walk_message(message: Any, convert: Convert) -> None:
    for metric in _maps(message, "metrics"):
        _walk_metric(metric, convert)
    for parameter in _maps(message, "parameters"):
        _walk_value(parameter, convert)


def _walk_metric(metric: Any, convert: Convert) -> None:
    _convert(metric, metric.get("datatype"), convert)
    _walk_properties(metric.get("properties"), convert)
    _walk_dataset(metric.get("dataset_value"), convert)
    _walk_message(metric.get("template_value"), convert)


def _walk_properties(properties: Any, convert: Convert) -> None:
    for value in _maps(properties, "values"):
        _walk_value(value, convert)


def _walk_value(value: Any, convert: Convert) -> None:
    """A value with its own type: a property, or a parameter of a template."""
    _convert(value, value.get("type"), convert)
    _walk_properties(value.get("propertyset_value"), convert)
    _walk_sets(value.get("propertysets_value"), convert)


def _walk_sets(sets: Any, convert: Convert) -> None:
    for properties in _maps(sets, "propertyset"):
        _walk_properties(properties, convert)


def _walk_dataset(dataset: Any, convert: Convert) -> None:
    rows = _maps(dataset, "rows")
    types = dataset.get("types") if rows else None
    if type(types) is list:
        for row in rows:
            for element, datatype in zip(_maps(row, "elements"), types, strict=False):
                _convert(element, datatype, convert)


def _maps(holder: Any, name: str) -> Sequence[dict[str, Any]]:
    """The elements of a member that is an array of maps."""
    items = holder.get(name) if type(holder) is dict else None
    return items if type(items) is list and all(type(item) is dict for item in items) else ()


# Walks over messages, by the last part of the type's name.
_WALKS: Final[Mapping[str, Callable[[Any, Convert], None]]] = {
    _PAYLOAD: _walk_message,
    "Template": _walk_message,
    "Metric": _walk_metric,
    "Parameter": _walk_value,
    "PropertyValue": _walk_value,
    "PropertySet": _walk_properties,
    "PropertySetList": _walk_sets,
    "DataSet": _walk_dataset,
}


def _mapped(value: Any, convert: Callable[[Any], Any]) -> Any:
    """A copy of a value with each ``bytes_value`` converted, and other bytes as strings."""
    if type(value) is dict:
        return {
            key: convert(item) if key == "bytes_value" else _mapped(item, convert)
            for key, item in value.items()
        }
    if type(value) is list:
        return [_mapped(item, convert) for item in value]
    return string(value) if type(value) is bytes else value


def _as_base64(value: Any) -> Any:
    return base64.b64encode(value).decode() if type(value) is bytes else value


def _as_string(value: Any) -> Any:
    return string(value) if type(value) is bytes else value


def _from_base64(value: Any) -> Any:
    try:
        return (
            binascii.a2b_base64(value.encode(), strict_mode=True) if type(value) is str else value
        )
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
    zipped = [
        _pairs(columns, row.get("elements", []), "a row of a data set", "columns", "elements")
        for row in rows
    ]
    return {**dataset, "rows": [dict(pairs) for pairs in zipped]}


def _pairs(
    names: Any, values: Any, where: str, of_names: str, of_values: str
) -> list[tuple[str, Any]]:
    if (
        type(names) is not list
        or type(values) is not list
        or not all(type(name) is str for name in names)
    ):
        raise failure(
            "spb_zip_kvs",
            f"{where} needs an array of strings as {of_names} and an array as {of_values}",
        )
    if len(names) != len(values):
        raise failure(
            "spb_zip_kvs", f"{where} has {len(names)} {of_names} and {len(values)} {of_values}"
        )
    return list(zip(names, values, strict=True))
