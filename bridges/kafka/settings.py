"""Settings of Kafka. Names are EMQX's where it has the same."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import Field, field_validator, model_validator

from bridges.resource.settings.address import parse_addresses
from bridges.resource.settings.oauth import ClientCredentials
from bridges.resource.settings.secret import SecretText
from bridges.resource.settings.tls import TlsOptions
from broker.config.model import Settings
from broker.config.secret_text import ADDRESS
from broker.config.units import Duration, Size
from broker.core.placeholders import ROW_OR_PATH_PLACEHOLDER

DEFAULT_PORT = 9092
_TOPIC: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}", re.ASCII)


def _checked_topic(name: str) -> str:
    """Raise ``ValueError`` for a name that Kafka does not allow for a topic."""
    if not _TOPIC.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a valid Kafka topic; expected up to 249 letters, digits, '.', '_' and '-'"
        )
    return name


class PasswordAuthentication(Settings):
    """SASL by user name and password."""

    mechanism: Literal["plain", "scram_sha_256", "scram_sha_512"] = Field(
        description="SASL mechanism."
    )
    username: str = Field(min_length=1, description="User name.")
    password: SecretText = Field(
        description="Password, or `${secret:NAME}`, `${env:NAME}`, `${file:PATH}`."
    )


class OauthAuthentication(ClientCredentials):
    """SASL OAUTHBEARER with tokens by client credentials."""

    mechanism: Literal["oauth"]
    extensions: dict[str, str] = Field(
        default_factory=dict, description="SASL extensions that are sent along."
    )


Authentication = Annotated[
    PasswordAuthentication | OauthAuthentication, Field(discriminator="mechanism")
]


class KafkaSettings(Settings):
    """A cluster and how to log in to it."""

    bootstrap_hosts: Annotated[str, ADDRESS] = Field(
        default="127.0.0.1:9092",
        description="Some brokers of the cluster, `host:port`, separated by commas.",
    )
    authentication: Authentication | None = Field(
        default=None, description="SASL authentication. Default: none."
    )
    ssl: TlsOptions = Field(default_factory=TlsOptions, description="TLS.")
    client_id: str = Field(
        default="",
        max_length=200,
        description="Client ID, for Kafka's logs and quotas. Default: sluice- and the connector's name.",
    )
    metadata_max_age: Duration = Field(
        default=60.0,
        ge=1,
        le=3600,
        description="Maximum age of metadata about topics and partitions.",
    )

    @field_validator("bootstrap_hosts")
    @classmethod
    def _hosts(cls, value: str) -> str:
        parse_addresses(value, DEFAULT_PORT)
        return value

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Hosts and ports."""
        return list(parse_addresses(self.bootstrap_hosts, DEFAULT_PORT))


class RecordTemplates(Settings):
    """A Kafka record, templates over the row."""

    key: str = Field(
        default="${.clientid}", description="Key; null where the row lacks it. Empty: no key."
    )
    value: str = Field(
        default="${.}", description="Value; null where it is one placeholder that the row lacks."
    )
    timestamp: str = Field(
        default="${.timestamp}",
        description="Timestamp in milliseconds since 1970; else the time of publication.",
    )


class ExtraHeader(Settings):
    """One more header."""

    kafka_ext_header_key: str = Field(min_length=1, description="Name; a template.")
    kafka_ext_header_value: str = Field(
        description="Value; a template. The header is left out where the row lacks it."
    )


class SchemaEncoding(Settings):
    """Values written by a schema of the registry, with the number of its version in front as Confluent does."""

    schema_name: str = Field(
        alias="schema", min_length=1, description="Name of a schema in the registry."
    )
    message_type: str | None = Field(
        default=None, description="Name of the message, for a Protobuf schema."
    )
    wire_format: Literal["confluent", "bare"] = Field(
        default="confluent",
        description="confluent puts the magic byte and the schema's number in front.",
    )


class PublishSettings(Settings):
    """The message that a record becomes; its properties come from the record's headers."""

    topic: str = Field(
        default="",
        description="Topic; a template. Empty: the header `mqtt.topic`, else Kafka's topic.",
    )
    payload: str = Field(
        default="", description="The payload; a template. Empty: the value as it came."
    )
    qos: Literal[0, 1, 2] = Field(
        default=1, description="Maximum QoS; the header `mqtt.qos` may request a lower one."
    )
    retain: bool = Field(
        default=False,
        description="Whether the header `mqtt.retain` decides if the message is retained.",
    )
    client_properties: bool = Field(
        default=False,
        description="Add `mqtt.clientid` and `mqtt.username` of the headers as user properties.",
    )
    time_property: bool = Field(
        default=False,
        description="Add the record's time as the user property `mqtt.ts`, in milliseconds.",
    )
    binary_headers: Literal["base64", "drop"] = Field(
        default="base64",
        description="Header values that are not UTF-8: user properties `name;b64` in base64, or dropped.",
    )


class KafkaSourceSettings(Settings):
    """Topics that are read from Kafka, and the form of their records."""

    topics: list[str] = Field(min_length=1, max_length=1000, description="Topics to read.")
    group_id: str = Field(
        default="",
        max_length=249,
        description="Consumer group. Default: sluice- and the source's name.",
    )
    session_timeout: Duration = Field(
        default=10.0,
        ge=1,
        le=1800,
        description="Time after which the group gives up a member that crashed. Kafka's default limits are 6 s and "
        "30 min.",
    )
    offset_reset_policy: Literal["latest", "earliest"] = Field(
        default="latest", description="Where a group starts that has no valid offset."
    )
    start_time: datetime | None = Field(
        default=None, description="Time at which a group without an offset starts; RFC 3339."
    )
    key_encoding: Literal["none", "base64"] = Field(
        default="none", description="Encoding of the column `key`: as it is (none) or base64."
    )
    value_encoding: Literal["none", "base64", "json"] | SchemaEncoding = Field(
        default="none",
        description="Encoding of the column `value`: as it is (none), base64, parsed JSON, or a schema.",
    )
    publish: PublishSettings | None = Field(
        default=None,
        description="Publish each record as a message; without it only rules see records.",
    )
    max_wait_time: Duration = Field(
        default=1.0, gt=0, le=60, description="Maximum time that Kafka waits for records."
    )
    max_batch_bytes: Size = Field(
        default=896 * 1024,
        ge=1024,
        le=1024**3,
        description="Maximum size of a fetch from a partition.",
    )
    max_poll_records: int = Field(
        default=2000, ge=1, le=100_000, description="Maximum records per commit."
    )
    commit_interval: Duration = Field(
        default=1.0,
        ge=0,
        le=3600,
        description="Interval between commits of the group's offsets to Kafka.",
    )

    @field_validator("topics")
    @classmethod
    def _names(cls, value: list[str]) -> list[str]:
        return [_checked_topic(name) for name in value]


class KafkaActionSettings(Settings):
    """Topic of a row, and the form of its record."""

    topic: str = Field(min_length=1, description="Topic; a template.")
    message: RecordTemplates = Field(default_factory=RecordTemplates, description="The record.")
    value_encoding: Literal["text"] | SchemaEncoding = Field(
        default="text",
        description="text takes the value as it is rendered; or a schema that the row is written by.",
    )
    kafka_headers: str = Field(
        default="",
        description="Headers; one placeholder that is an object, or a list of `key` and `value`.",
    )
    kafka_ext_headers: list[ExtraHeader] = Field(
        default_factory=list, max_length=64, description="Further headers."
    )
    kafka_header_value_encode_mode: Literal["none", "json"] = Field(
        default="none", description="none takes texts only; json writes every value as JSON."
    )
    mqtt_headers: bool = Field(
        default=True,
        description="Add the MQTT message's topic, client, QoS, properties and user properties as headers.",
    )
    position_headers: bool = Field(
        default=False,
        description="Add the row's position in the action's buffer as `sluice.stream`, `sluice.shard` and "
        "`sluice.offset`. A row that is sent again has the same position; needs "
        "`resource_opts.buffer_mode = disk`.",
    )
    partition: str = Field(
        default="", description="Partition; a template. Empty: by partition_strategy."
    )
    partition_strategy: Literal["key_dispatch", "random", "sticky"] = Field(
        default="key_dispatch",
        description="key_dispatch hashes the key as Java's client does, without a key as sticky; sticky puts a batch "
        "into one partition; random each record into any.",
    )
    required_acks: Literal["all_isr", "leader_only", "none"] = Field(
        default="all_isr",
        description="Replicas that must have a record before it counts as written.",
    )
    idempotence: bool = Field(
        default=True, description="Whether Kafka drops what a retry sends twice; needs all_isr."
    )
    compression: Literal["no_compression", "gzip", "snappy", "lz4", "zstd"] = Field(
        default="no_compression", description="Compression of batches."
    )
    max_batch_bytes: Size = Field(
        default=896 * 1024,
        ge=1024,
        le=100 * 1024 * 1024,
        description="Maximum size of a batch to a partition.",
    )
    allow_auto_topic_creation: bool = Field(
        default=False,
        description="Whether a missing topic is created, with the settings new_topic_...",
    )
    new_topic_partitions: int = Field(
        default=6, ge=1, le=10_000, description="Partitions of a created topic."
    )
    new_topic_replication_factor: int = Field(
        default=0,
        ge=0,
        le=100,
        description="Replicas of a created topic. 0: one on each broker, at most three.",
    )
    new_topic_config: dict[str, str] = Field(
        default_factory=dict,
        description="Kafka's settings of a created topic, such as `retention.ms`.",
    )
    exactly_once: bool = Field(
        default=False,
        description="Consumers that read committed records see each row once, across crashes of the broker and of "
        "Kafka; needs `resource_opts.buffer_mode = disk` and idempotence.",
    )
    cursor_topic: str = Field(
        default="sluice-cursors",
        min_length=1,
        max_length=249,
        description="With exactly_once: compacted topic with the position of the last row written; created if missing.",
    )
    transactional_id: str = Field(
        default="",
        max_length=200,
        description="With exactly_once: prefix of the transactional ID. Default: sluice- and the action's name.",
    )

    @field_validator("topic", "cursor_topic")
    @classmethod
    def _name(cls, value: str) -> str:
        return value if "${" in value else _checked_topic(value)

    @field_validator("partition")
    @classmethod
    def _number(cls, value: str) -> str:
        if value and "${" not in value and not value.isdecimal():
            raise ValueError(f"expected a number or a template, got {value!r}")
        return value

    @field_validator("kafka_headers")
    @classmethod
    def _object(cls, value: str) -> str:
        if value and not ROW_OR_PATH_PLACEHOLDER.fullmatch(value):
            raise ValueError(
                f"{value!r} is not one placeholder, as '${{headers}}', for an object or a list"
            )
        return value

    @model_validator(mode="after")
    def _fits(self) -> KafkaActionSettings:
        if self.idempotence and self.required_acks != "all_isr":
            raise ValueError(f"required_acks {self.required_acks} needs idempotence = false")
        if self.exactly_once and not self.idempotence:
            raise ValueError("exactly_once needs idempotence")
        return self
