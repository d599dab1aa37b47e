"""Settings of listeners: sections ``listeners.tcp``, ``listeners.ssl``, ``listeners.ws`` and ``listeners.wss``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, ClassVar, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Field, field_validator

from broker.auth.chain import AnyAuthenticatorSettings
from broker.config.model import Settings
from broker.config.secret_text import SecretText
from broker.config.units import Duration, Size
from broker.core.hosts import checked_address, checked_hosts, is_loopback, split_address
from broker.session.state import DEFAULT_ZONE

Kind = Literal["tcp", "ssl", "ws", "wss"]
ProxyMode = Literal["off", "v1", "v2", "auto"]
TlsVersion = Literal["tlsv1.2", "tlsv1.3"]

# URL scheme of each kind of listener.
PROTOCOLS: Final[dict[Kind, str]] = {"tcp": "mqtt", "ssl": "mqtts", "ws": "ws", "wss": "wss"}

# Names of MQTT inside WebSocket, the first one that a client offers is answered [MQTT-6.0.0-4]; the others are those
# of libraries older than the standard.
SUBPROTOCOLS: Final = ("mqtt", "mqttv3.1.1", "mqttv3.1")


def _off(value: object) -> object:
    """HOCON reads ``off`` as false."""
    return "off" if value is False else value


def _unprefixed(value: object) -> object:
    return value.removeprefix("verify_") if isinstance(value, str) else value


class SniCertificate(Settings):
    """The certificate for clients that ask for one server name."""

    server_name: str = Field(
        min_length=1,
        description="The name clients ask for, as `a.example`, or `*.example` for those one level below.",
    )
    certfile: str = Field(
        min_length=1, description="Certificate and what stands between it and its root, PEM."
    )
    keyfile: str = Field(min_length=1, description="Its private key, PEM.")
    password: SecretText | None = Field(
        default=None, description="What the private key is encrypted with."
    )


class TlsSettings(Settings):
    """Certificates of a listener, and requirements for those of clients. Files are read again when they change."""

    certfile: str | None = Field(
        default=None, description="Certificate and what stands between it and its root, PEM."
    )
    keyfile: str | None = Field(default=None, description="Its private key, PEM.")
    password: SecretText | None = Field(
        default=None, description="What the private key is encrypted with."
    )
    cacertfile: str | None = Field(
        default=None,
        description="Authorities, PEM: they complete the chain of `certfile`, and with `verify = peer` "
        "client certificates are checked against them.",
    )
    crlfile: str | None = Field(
        default=None, description="Certificates that are revoked, PEM; needs `verify = peer`."
    )
    verify: Annotated[Literal["none", "peer"], BeforeValidator(_unprefixed)] = Field(
        default="none",
        description="Whether clients are asked for a certificate, and it is checked.",
    )
    fail_if_no_peer_cert: bool = Field(
        default=True,
        description="Whether clients without a certificate are refused; with `verify = peer`.",
    )
    versions: list[TlsVersion] = Field(
        default=["tlsv1.3", "tlsv1.2"], min_length=1, description="Versions of TLS that are spoken."
    )
    ciphers: str | None = Field(
        default=None,
        description="Ciphers of TLS 1.2 as OpenSSL lists them, best first; else the system's choice.",
    )
    handshake_timeout: Duration = Field(
        default=15, gt=0, description="Seconds that a handshake may take."
    )
    sni: list[SniCertificate] = Field(
        default_factory=list,
        description="Further certificates, by the server name that a client asks for: a list of "
        "objects with `server_name`, `certfile`, `keyfile`, `password`.",
    )


class WebSocketSettings(Settings):
    """MQTT inside WebSocket."""

    path: str | None = Field(
        default=None,
        pattern=r"^/\S*$",
        description="The only path that clients may open, as `/mqtt`. Default: any.",
    )
    max_frame_size: Size = Field(
        default=16 * 1024 * 1024, ge=128, description="Maximum frame of a client, in bytes."
    )
    allowed_origins: list[str] = Field(
        default_factory=list, description="Origins of web pages that may connect, as `https://app.example`; `*` is any."
        " Without any, only pages from the host name that the page connects to. Programs other than browsers "
        "name no origin and are always taken."
    )  # fmt: skip

    allowed_hosts: list[str] = Field(
        default_factory=list,
        description="Host names that requests may have in `Host`, besides `localhost` and loopback addresses; `*` "
        "allows any. Empty: on a loopback address no others, on other addresses any.",
    )

    @field_validator("allowed_hosts")
    @classmethod
    def _check_hosts(cls, value: list[str]) -> list[str]:
        return checked_hosts(value)

    @field_validator("allowed_origins")
    @classmethod
    def _check_origins(cls, value: list[str]) -> list[str]:
        for origin in value:
            if origin != "*" and ("://" not in origin or "/" in origin.partition("://")[2]):
                raise ValueError(
                    f"{origin!r} is not an origin; write it as 'https://app.example' or '*'"
                )
        return [origin.lower() for origin in value]


class TcpSettings(Settings):
    """Options of the sockets of a listener, as the system has them."""

    nodelay: bool = Field(default=True, description="Send small packets at once (TCP_NODELAY).")
    keepalive_idle: Duration = Field(
        default=0,
        ge=0,
        le=32_767,
        description="Seconds without data until the system probes a client (SO_KEEPALIVE, TCP_KEEPIDLE); 0 is off.",
    )
    keepalive_interval: Duration = Field(
        default=30, ge=1, le=32_767, description="Seconds between probes (TCP_KEEPINTVL)."
    )
    keepalive_probes: int = Field(
        default=5,
        ge=1,
        le=127,
        description="Probes without an answer until the connection is closed (TCP_KEEPCNT).",
    )
    send_timeout: Duration = Field(
        default=0,
        ge=0,
        le=86_400,
        description="Seconds that sent data may stay unacknowledged until the connection is closed (TCP_USER_TIMEOUT); "
        "0: the system's choice.",
    )
    send_buffer: Size = Field(
        default=0,
        ge=0,
        le=1024**3,
        description="Bytes of the system's send buffer (SO_SNDBUF), up to net.core.wmem_max; 0: the system's choice.",
    )
    receive_buffer: Size = Field(
        default=0,
        ge=0,
        le=1024**3,
        description="Bytes of the system's receive buffer (SO_RCVBUF), up to net.core.rmem_max; 0: the "
        "system's choice.",
    )
    reuse_address: bool = Field(
        default=True,
        description="Open an address although old connections of it are in TIME_WAIT (SO_REUSEADDR).",
    )
    reuse_port: bool = Field(
        default=False,
        description="Share the port with other processes of this user (SO_REUSEPORT).",
    )


class ListenerSettings(Settings):
    """One address on which MQTT clients are taken."""

    kind: ClassVar[Kind] = "tcp"

    enable: bool = Field(default=True, description="Whether it is opened.")
    name: str | None = Field(
        default=None, min_length=1, description="Shown with its clients; else its key."
    )
    bind: str = Field(
        default="127.0.0.1:1883",
        description="Address and port; port 0 takes any free one.",
        json_schema_extra={"x-first": True},
    )
    zone: str = Field(
        default=DEFAULT_ZONE,
        min_length=1,
        description="The zone of its clients, one of those in `zones`.",
    )
    max_connections: int = Field(
        default=0,
        ge=0,
        description="Maximum concurrent clients; 0 is no limit.",
        json_schema_extra={"x-first": True},
    )
    max_conn_rate: float = Field(
        default=0, ge=0, description="Maximum new connections per second; 0 is no limit."
    )
    max_conn_rate_per_ip: float = Field(
        default=0,
        ge=0,
        description="Maximum new connections per second from one address; 0 is no limit.",
    )
    max_publish_rate: float = Field(
        default=0,
        ge=0,
        description="Maximum publishes per second of all its clients; 0 is no limit.",
    )
    max_publish_bytes_rate: Size = Field(
        default=0,
        ge=0,
        description="Maximum bytes per second that all its clients publish; 0 is no limit.",
    )
    backlog: int = Field(
        default=1024, ge=1, description="Connections the system keeps until they are accepted."
    )
    enable_authn: bool | Literal["quick_deny_anonymous"] = Field(
        default=True, description="Whether its clients are authenticated; `quick_deny_anonymous` refuses those without "
        "a user name and a password before an authenticator is asked. With `false` every client is accepted, and its "
        "names are not believed."
    )  # fmt: skip
    authentication: list[AnyAuthenticatorSettings] | None = Field(
        default=None,
        max_length=20,
        description="Authenticators of its clients in their order, in place of those of the section `authentication`. "
        "Default: those.",
    )
    tcp_options: TcpSettings = Field(
        default_factory=TcpSettings, description="Socket options. A change opens the address again."
    )
    proxy_protocol: Annotated[ProxyMode, BeforeValidator(_off)] = Field(
        default="off", description="Version of the PROXY protocol that a load balancer in front speaks; it says which "
        "address a client has. `auto` takes both. Connections without it are refused."
    )  # fmt: skip
    proxy_protocol_timeout: Duration = Field(
        default=3, gt=0, description="Seconds until the PROXY header is there."
    )
    trusted_proxies: list[str] = Field(
        default=["127.0.0.0/8", "::1"], description="Addresses and networks of load balancers whose PROXY headers are "
        "believed; connections from elsewhere are refused."
    )  # fmt: skip

    @field_validator("bind")
    @classmethod
    def _check_bind(cls, value: str) -> str:
        return checked_address(value, "127.0.0.1:1883")

    @field_validator("trusted_proxies")
    @classmethod
    def _check_proxies(cls, value: list[str]) -> list[str]:
        for text in value:
            try:
                ip_network(text, strict=False)
            except ValueError:
                raise ValueError(
                    f"{text!r} is not an address or network; write it as '10.0.0.0/8'"
                ) from None
        return value

    @property
    def host(self) -> str:
        """The host part, without brackets."""
        return split_address(self.bind)[0]

    @property
    def port(self) -> int:
        """The port part."""
        return split_address(self.bind)[1]

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach it."""
        return is_loopback(self.host)

    @cached_property
    def proxy_networks(self) -> list[IPv4Network | IPv6Network]:
        """``trusted_proxies``, parsed."""
        return [ip_network(text, strict=False) for text in self.trusted_proxies]

    @property
    def tls(self) -> TlsSettings | None:
        """Settings of TLS, where the listener speaks it."""
        return None

    @property
    def web(self) -> WebSocketSettings | None:
        """Settings of WebSocket, where the listener speaks it."""
        return None


class SslListenerSettings(ListenerSettings):
    """One address on which MQTT clients are taken over TLS."""

    kind: ClassVar[Kind] = "ssl"

    bind: str = Field(
        default="127.0.0.1:8883",
        description="Address and port; port 0 takes any free one.",
        json_schema_extra={"x-first": True},
    )
    ssl_options: TlsSettings = Field(default_factory=TlsSettings, description="TLS.")

    @property
    def tls(self) -> TlsSettings | None:
        """Settings of TLS."""
        return self.ssl_options


class WsListenerSettings(ListenerSettings):
    """One address on which MQTT clients are taken over WebSocket."""

    kind: ClassVar[Kind] = "ws"

    bind: str = Field(
        default="127.0.0.1:8083",
        description="Address and port; port 0 takes any free one.",
        json_schema_extra={"x-first": True},
    )
    websocket: WebSocketSettings = Field(
        default_factory=WebSocketSettings, description="WebSocket."
    )

    @property
    def web(self) -> WebSocketSettings | None:
        """Settings of WebSocket."""
        return self.websocket


class WssListenerSettings(WsListenerSettings):
    """One address on which MQTT clients are taken over WebSocket inside TLS."""

    kind: ClassVar[Kind] = "wss"

    bind: str = Field(
        default="127.0.0.1:8084",
        description="Address and port; port 0 takes any free one.",
        json_schema_extra={"x-first": True},
    )
    ssl_options: TlsSettings = Field(default_factory=TlsSettings, description="TLS.")

    @property
    def tls(self) -> TlsSettings | None:
        """Settings of TLS."""
        return self.ssl_options


class TcpListeners(Settings):
    """Section ``listeners.tcp``: further listeners by name; ``default`` is a section of its own."""

    model_config = ConfigDict(extra="allow")
    member: ClassVar[type[Settings]] = ListenerSettings
    __pydantic_extra__: dict[str, ListenerSettings]


class SslListeners(Settings):
    """Section ``listeners.ssl``: listeners by name."""

    model_config = ConfigDict(extra="allow")
    member: ClassVar[type[Settings]] = SslListenerSettings
    __pydantic_extra__: dict[str, SslListenerSettings]


class WsListeners(Settings):
    """Section ``listeners.ws``: listeners by name."""

    model_config = ConfigDict(extra="allow")
    member: ClassVar[type[Settings]] = WsListenerSettings
    __pydantic_extra__: dict[str, WsListenerSettings]


class WssListeners(Settings):
    """Section ``listeners.wss``: listeners by name."""

    model_config = ConfigDict(extra="allow")
    member: ClassVar[type[Settings]] = WssListenerSettings
    __pydantic_extra__: dict[str, WssListenerSettings]


@dataclass(frozen=True, slots=True)
class NamedListener:
    """A listener with its name; ``str`` of it is ``tcp:default``, as expressions, metrics and logs show it."""

    settings: ListenerSettings
    name: str = "default"
    key: str = ""
    """Its key in the configuration, where that is another than its name."""

    @property
    def id(self) -> str:
        """``tcp:default``: its kind, and its key in the configuration."""
        return f"{self.settings.kind}:{self.key or self.name}"

    def __str__(self) -> str:
        return f"{self.settings.kind}:{self.name}"


ListenersByName = TcpListeners | SslListeners | WsListeners | WssListeners


def named_listeners(
    default: ListenerSettings, *sections: ListenersByName, also_disabled: bool = False
) -> list[NamedListener]:
    """The listeners of the configuration that are enabled, in the order in which they are opened."""
    settings_by_key = {("tcp", "default"): default}
    for section in sections:
        settings_by_key |= {
            (settings.kind, key): settings
            for key, settings in (section.__pydantic_extra__ or {}).items()
        }
    return [
        NamedListener(settings, settings.name or key, key)
        for (_, key), settings in settings_by_key.items()
        if settings.enable or also_disabled
    ]
