"""A Kafka cluster with its sinks and sources."""

from __future__ import annotations

from bridges.kafka.cluster import KafkaCluster
from bridges.kafka.settings import KafkaActionSettings, KafkaSourceSettings
from bridges.kafka.sink import KafkaSink
from bridges.kafka.source import KafkaSource
from bridges.kafka.transactions import TransactionalSink
from bridges.resource.contract import Context, Sink, Source


class KafkaConnector(KafkaCluster):
    """A cluster that actions write to and sources read from."""

    def sink(self, settings: KafkaActionSettings, context: Context) -> Sink:
        """Records of an action."""
        return (TransactionalSink if settings.exactly_once else KafkaSink)(self, settings, context)

    def source(self, settings: KafkaSourceSettings, context: Context) -> Source:
        """Records of a source."""
        return KafkaSource(self, settings, context)
