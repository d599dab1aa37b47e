"""Settings of bridges to other MQTT brokers. Names are EMQX's where it has one."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from bridges.mqtt.server import PATH, Server, check_path, parse_server
from bridges.resource.errors import BadSettings
from bridges.resource.headers import header_name
from bridges.resource.settings.secret import SecretText
from bridges.resource.settings.tls import TlsOptions
from broker.config.model import Settings
from broker.config.names import repeated
from broker.config.secret_text import ADDRESS, SecretUrl
from broker.config.units import Duration, Size
from broker.core.errors import PeerError
from broker.core.topic import TopicFilter, check_topic_name, split_share

# Largest ``max_inflight``; messages use the packet identifiers up to it, subscribing those above.
MOST_INFLIGHT: Final = 1000
_INFLIGHT: Final = 100
_INFLIGHT_BELOW_V5: Final = 20
_LONGEST_EXPIRY_S: Final = 0xFFFFFFFF
VERSIONS: Final = {"v3": 3, "v4": 4, "v5": 5}


_OURS: Final = ("connection", "host", "upgrade")


class WebSocketOptions(Settings):
    """`websocket` of a connector whose server is `ws://` or `wss://`."""

    path: SecretUrl = Field(
        default=SecretUrl(PATH),
        description="Path of MQTT, if the address of the server has none. Values of its query show as stars.",
    )
    headers: dict[
        Annotated[str, AfterValidator(header_name(_OURS, "sec-websocket-"))], SecretText
    ] = Field(
        default_factory=dict,
        max_length=64,
        description="Further headers of the request that opens the WebSocket; `${secret:NAME}`, `${env:NAME}`, "
        "`${file:PATH}`.",
    )

    @field_validator("path")
    @classmethod
    def _path(cls, value: SecretUrl) -> SecretUrl:
        check_path(value.reveal())
        return value

    def revealed(self) -> dict[str, str]:
        """The headers as they are sent.

        Raises:
            BadSettings: a secret cannot be read, or does not fit into a header.
        """
        values = {name: secret.reveal() for name, secret in self.headers.items()}
        for name, value in values.items():
            if not value.isascii() or not value.isprintable():
                raise BadSettings(
                    f"websocket.headers.{name} holds what no header can: it must be printable ASCII"
                )
        return values


class MqttSettings(Settings):
    """Another broker and how to log in to it."""

    server: Annotated[SecretUrl, ADDRESS] = Field(
        description="`host:port`, without a port 1883, with TLS 8883; or `ws://host:port/path`, `wss://...` for MQTT "
        "over WebSocket, without a port 80 and 443. `mqtts://` and `wss://` are `ssl.enable`. Values of a query show "
        "as stars."
    )
    proto_ver: Literal["v3", "v4", "v5"] = Field(
        default="v5", description="MQTT 3.1, 3.1.1 or 5.0."
    )
    bridge_mode: bool = Field(
        default=False,
        description="Announce a bridge to mosquitto, by its own protocol level: it then does not send back what came "
        "from here, and keeps the RETAIN flag. For v3 and v4; other brokers refuse it.",
    )
    clientid: str = Field(
        default="",
        description="Client identifier. Default: clientid_prefix, the node's and the connector's name; with copies on "
        "other machines, the name of the node that connected first.",
    )
    clientid_prefix: str = Field(
        default="sluice", description="Prefix of the default client identifier."
    )
    username: str | None = Field(default=None, description="User name.")
    password: SecretText | None = Field(
        default=None, description="Password, or `${secret:NAME}`, `${env:NAME}`, `${file:PATH}`."
    )
    clean_start: bool = Field(
        default=False,
        description="Begin a new session at each connection. If off, the other broker queues messages in between.",
    )
    session_expiry: Duration = Field(
        default=86_400.0,
        ge=0,
        le=_LONGEST_EXPIRY_S,
        description="Session expiry interval at the other broker (MQTT 5).",
    )
    keepalive: Duration = Field(
        default=60.0, ge=0, le=65_535, description="Keep-alive interval. 0 turns it off."
    )
    max_inflight: int | None = Field(
        default=None,
        ge=1,
        le=MOST_INFLIGHT,
        description="Maximum unconfirmed messages sent. Default: 100, and 20 below MQTT 5, where brokers announce no "
        "limit: mosquitto loses messages with QoS 2 above its 20.",
    )
    receive_maximum: int = Field(
        default=1000,
        ge=1,
        le=65_535,
        description="Maximum unacknowledged messages received (MQTT 5).",
    )
    max_qos: Literal[0, 1, 2] = Field(
        default=2,
        description="Maximum QoS of messages sent. MQTT 5 brokers announce theirs; of the older ones, some close the "
        "connection at a higher QoS.",
    )
    max_packet_size: Size | None = Field(
        default=None,
        ge=16,
        le=256 * 1024 * 1024,
        description="Maximum packet size of the other broker. MQTT 5 brokers announce it.",
    )
    max_received_size: Size = Field(
        default=16 * 1024 * 1024,
        ge=16,
        le=256 * 1024 * 1024,
        description="Maximum size of a packet from the other broker.",
    )
    status_topic: str = Field(
        default="",
        description="On the other broker: retained `1` while connected, `0` when not (will). `${clientid}` and "
        "`${name}` are replaced. Empty: no status is published.",
    )
    loop_prevention: bool = Field(
        default=True,
        description="Recognise what comes back, and mark what is sent with the user property `sluice-bridge` (MQTT 5).",
    )
    ssl: TlsOptions = Field(default_factory=TlsOptions, description="TLS.")
    websocket: WebSocketOptions = Field(
        default_factory=WebSocketOptions, description="MQTT over WebSocket."
    )

    @field_validator("server")
    @classmethod
    def _server(cls, value: SecretUrl) -> SecretUrl:
        parse_server(value.reveal())
        return value

    @model_validator(mode="after")
    def _fits(self) -> MqttSettings:
        if self.bridge_mode and self.proto_ver == "v5":
            raise ValueError("bridge_mode is for v3 and v4; in v5 subscriptions have this option")
        if self.password is not None and self.username is None and self.proto_ver != "v5":
            raise ValueError("a password needs a username before v5")
        if self.status_topic:
            _checked_topic(self.status_topic)
        self._websocket_fits(parse_server(self.server.reveal()))
        return self

    def _websocket_fits(self, server: Server) -> None:
        if not server.is_websocket and self.websocket != WebSocketOptions():
            raise ValueError(
                "'websocket' is for servers that are written 'ws://host:port' or 'wss://host:port'"
            )
        path = self.websocket.path
        if server.path and path.reveal() not in (PATH, server.path):
            shown = SecretUrl(server.path).shown
            raise ValueError(
                f"the server's path is {shown!r} and websocket.path {path.shown!r}; keep one"
            )

    @property
    def address(self) -> Server:
        """Address of the other broker."""
        parsed = parse_server(self.server.reveal(), is_encrypted=self.ssl.enable)
        return (
            parsed._replace(path=parsed.path or self.websocket.path.reveal())
            if parsed.is_websocket
            else parsed
        )

    @property
    def tls(self) -> TlsOptions:
        """``ssl``, enabled also where only the address says so."""
        return self.ssl.model_copy(update={"enable": self.address.is_encrypted})

    @property
    def window(self) -> int:
        """Maximum unconfirmed messages sent."""
        if self.max_inflight is not None:
            return self.max_inflight
        return _INFLIGHT if self.proto_ver == "v5" else _INFLIGHT_BELOW_V5

    @property
    def version(self) -> int:
        """3, 4 or 5."""
        return VERSIONS[self.proto_ver]


class MqttActionSettings(Settings):
    """The message of a row on the other broker."""

    topic: str = Field(default="${topic}", min_length=1, description="Topic; a template.")
    local_prefix: str = Field(default="", description="Prefix removed from the topic.")
    remote_prefix: str = Field(default="", description="Prefix added to the topic.")
    payload: str = Field(
        default="${payload}", description="The payload; a template. `${.}`: the row as JSON."
    )
    qos: int | str = Field(
        default="${qos}",
        description="0, 1, 2 or a template; the message's own where the row says none.",
    )
    retain: bool | str = Field(
        default="${flags.retain}",
        description="true, false or a template; the message's own where the row says none.",
    )
    properties: bool = Field(
        default=True,
        description="Pass the message's properties on (MQTT 5): user properties, content type and so on.",
    )

    @field_validator("qos")
    @classmethod
    def _qos(cls, value: int | str) -> int | str:
        if isinstance(value, str) and value.isdigit():
            value = int(value)
        if isinstance(value, int) and value not in (0, 1, 2):
            raise ValueError("qos is 0, 1, 2 or a template such as '${qos}'")
        if isinstance(value, str) and "${" not in value:
            raise ValueError(
                f"qos: expected 0, 1, 2 or a template such as '${{qos}}', got {value!r}"
            )
        return value

    @field_validator("topic")
    @classmethod
    def _topic(cls, value: str) -> str:
        return _checked_topic(value)


def _as_filter(value: object) -> object:
    return {"topic": value} if isinstance(value, str) else value


class RemoteFilter(Settings):
    """A topic filter to subscribe to."""

    topic: str = Field(description="Topic filter, also `$share/GROUP/FILTER` or `$queue/FILTER`.")
    qos: Literal[0, 1, 2] = Field(default=1, description="Maximum QoS of its messages.")

    @field_validator("topic")
    @classmethod
    def _filter(cls, value: str) -> str:
        try:
            TopicFilter.parse(value)
        except PeerError as error:
            raise ValueError(str(error)) from None
        return value


class LocalSettings(Settings):
    """The message that is published here."""

    prefix: str = Field(default="", description="Prefix added to the topic.")
    topic: str = Field(
        default="",
        description="Topic; a template over the source's columns. Empty: the remote topic, with prefix.",
    )
    payload: str = Field(default="", description="Payload; a template. Empty: as received.")
    qos: Literal[0, 1, 2] = Field(default=2, description="Maximum QoS of the published message.")
    retain: bool = Field(
        default=True, description="Whether messages that were retained there are retained here."
    )


class MqttSourceSettings(Settings):
    """Topics that are read from the other broker."""

    topic: str = Field(default="", description="Topic filter, if there is only one.")
    qos: Literal[0, 1, 2] = Field(default=1, description="Maximum QoS of its messages.")
    topics: list[Annotated[RemoteFilter, BeforeValidator(_as_filter)]] = Field(
        default_factory=list, description="Filters, each as text or as `{topic, qos}`."
    )
    remote_prefix: str = Field(
        default="",
        description="Prefix added to each filter and removed from the topics received, as in mosquitto.conf.",
    )
    retain_handling: Literal[0, 1, 2] = Field(
        default=1,
        description="When retained messages are sent: at each connection (0), with a new session (1), never (2).",
    )
    no_local: bool = Field(
        default=True,
        description="Whether messages that this connector sent are not received again (MQTT 5; not with `$share`).",
    )
    publish: LocalSettings | None = Field(
        default=None,
        description="Publish received messages, through all stages. Default: only rules read them.",
    )

    @model_validator(mode="after")
    def _fits(self) -> MqttSourceSettings:
        if bool(self.topic) is bool(self.topics):
            raise ValueError("expected either 'topic' (one filter) or 'topics' (several)")
        if self.topic:
            RemoteFilter(topic=self.topic, qos=self.qos)
        if twice := repeated(filter.topic for filter in self.filters):
            raise ValueError(f"the filter {twice[0]!r} is given twice in 'topics'")
        return self

    @property
    def filters(self) -> list[RemoteFilter]:
        """All filters as they are sent to the other broker."""
        remote_filters = self.topics or [RemoteFilter(topic=self.topic, qos=self.qos)]
        return [
            RemoteFilter(topic=_prefixed(self.remote_prefix, filter.topic), qos=filter.qos)
            for filter in remote_filters
        ]


def _prefixed(prefix: str, text: str) -> str:
    share, body = split_share(text)
    return share + prefix + body


def _checked_topic(value: str) -> str:
    """A template for a topic: what is not a placeholder must be fit for one."""
    try:
        check_topic_name(value.replace("${", "{"))
    except PeerError as error:
        raise ValueError(str(error)) from None
    return value
