"""The connector type ``kafka``."""

from __future__ import annotations

from typing import Any

from bridges.kafka.settings import KafkaActionSettings, KafkaSettings, KafkaSourceSettings
from bridges.resource.contract import Connector, ConnectorType, Context, Positions


def _make(settings: Any, context: Context) -> Connector:
    from bridges.kafka.endpoints import KafkaConnector

    return KafkaConnector(settings, context)


def _key_of(settings: Any) -> Any:
    from bridges.kafka.record import key_of

    return key_of(settings)


def _positions(settings: KafkaActionSettings) -> Positions | None:
    if settings.exactly_once:
        return Positions("exactly_once", in_order=True)
    return Positions("position_headers", in_order=False) if settings.position_headers else None


KAFKA = ConnectorType(
    name="kafka",
    title="Apache Kafka",
    summary="Writes rows to topics of Kafka and reads topics, with the properties of MQTT 5 as headers.",
    connector=KafkaSettings,
    make=_make,
    action=KafkaActionSettings,
    source=KafkaSourceSettings,
    batch_size=2000,
    batch_time_s=0.002,
    lanes=4,
    key_of=_key_of,
    positions=_positions,
    requires=("aiokafka",),
    extra="kafka",
)
