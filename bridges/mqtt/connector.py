"""The connector type ``mqtt``."""

from __future__ import annotations

from bridges.mqtt.connection import MqttConnection
from bridges.mqtt.settings import MqttActionSettings, MqttSettings, MqttSourceSettings
from bridges.mqtt.sink import MqttSink
from bridges.mqtt.source import MqttSource
from bridges.resource.contract import ConnectorType, Context, Sink, Source


class MqttConnector(MqttConnection):
    """Another broker that actions publish to and sources read from."""

    def sink(self, settings: MqttActionSettings, context: Context) -> Sink:
        """Messages of an action."""
        return MqttSink(self, settings, context)

    def source(self, settings: MqttSourceSettings, context: Context) -> Source:
        """Messages for a source."""
        return MqttSource(self, settings, context)


MQTT = ConnectorType(
    name="mqtt",
    title="MQTT",
    summary="Sends messages to another MQTT broker and reads from it, with all properties, and without loops.",
    connector=MqttSettings,
    make=MqttConnector,
    action=MqttActionSettings,
    source=MqttSourceSettings,
    batch_size=500,
    lanes=4,
)
