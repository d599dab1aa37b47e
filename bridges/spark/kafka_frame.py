"""Records of Spark's source for Kafka as messages, for ``bridges.spark.rule_frame.rule_rows``."""

from __future__ import annotations

from typing import Any, Final

from broker.core.errors import Invalid, Problem
from pyspark_sluice.records import COLUMNS

_WANTED: Final = ("topic", "partition", "offset", "timestamp", "value")


def _text(binary: str) -> str:
    return f"try_validate_utf8(CAST({binary} AS STRING))"


def _header(name: str) -> str:
    """The value of the last header of a name, null without one."""
    return f"try_element_at(filter(headers, one -> one.key = '{name}'), -1).value"


# Headers that are not user properties.
_TAKEN: Final = (
    *("content-type", "reply-to", "correlation-id", "mqtt.payload-format", "mqtt.expires-at"),
    *("mqtt.topic", "mqtt.clientid", "mqtt.username", "mqtt.qos", "mqtt.retain"),
)
_USER_PROPERTIES: Final = (
    f"transform(nullif(filter(headers, one -> one.key NOT IN {_TAKEN} AND {_text('one.value')} IS NOT NULL), array()), "
    rf"one -> array(regexp_replace(one.key, r'^mqtt\.up\.', ''), {_text('one.value')}))"
)
_PROPERTIES: Final = (
    f"named_struct('Content-Type', {_text(_header('content-type'))}, 'Response-Topic', {_text(_header('reply-to'))}, "
    f"'Correlation-Data', if({_header('correlation-id')} IS NULL, NULL, "
    f"named_struct('$base64', base64({_header('correlation-id')}))), "
    f"'Payload-Format-Indicator', try_cast({_text(_header('mqtt.payload-format'))} AS INT), "
    f"'User-Property', {_USER_PROPERTIES})"
)
# The expression of each column of ``format("sluice")`` over a record of Kafka, in Spark SQL.
_OF_RECORD: Final = {
    "shard": "partition",
    "offset": "offset",
    "ts": "timestamp",
    "payload": "coalesce(value, X'')",
    "qos": f"coalesce(try_cast({_text(_header('mqtt.qos'))} AS TINYINT), 1Y)",
    "retain": f"coalesce({_header('mqtt.retain')} = X'31', false)",
    "client_id": _text(_header("mqtt.clientid")),
    "username": _text(_header("mqtt.username")),
    "properties": f"nullif(to_json({_PROPERTIES}), '{{}}')",
    "rule": "CAST(NULL AS STRING)",
}
_NO_HEADERS: Final = "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers"


def kafka_records(frame: Any, topic: str | None = None) -> Any:
    """The records of a DataFrame of ``format("kafka")``, batch or streaming, as ``format("sluice")`` gives messages.

    The shard is the partition, the time of arrival the timestamp of the record, the payload its value, empty where that
    is null. With the option ``includeHeaders``, client, user, QoS, retain flag and properties are those that an action
    of type ``kafka`` wrote as headers, and other headers are user properties.

    Args:
        frame: the columns of Spark's source for Kafka.
        topic: the topic that the rule reads, in Spark SQL over these columns, such as ``replace(topic, '.', '/')`` or
            ``CAST(key AS STRING)``; records where it is null are left out. Default: that of the header ``mqtt.topic``,
            without it the name of the Kafka topic.

    Raises:
        broker.core.errors.Invalid: the frame lacks a column of Kafka's.
    """
    if missing := [name for name in _WANTED if name not in frame.columns]:
        text = (
            f"frame: expected the columns {', '.join(_WANTED)}, got none named {', '.join(missing)}"
        )
        raise Invalid(text, [Problem("Try: spark.read.format('kafka')")])
    if "headers" not in frame.columns:
        frame = frame.selectExpr("*", _NO_HEADERS)
    wanted = topic or f"coalesce({_text(_header('mqtt.topic'))}, topic)"
    columns = {**_OF_RECORD, "topic": wanted}
    return frame.where(f"{wanted} IS NOT NULL").selectExpr(
        *(f"{columns[name]} AS {name}" for name in COLUMNS)
    )
