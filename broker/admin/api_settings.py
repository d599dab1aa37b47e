"""Settings of the management API: section ``api``."""

from __future__ import annotations

from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from broker.admin.rights import Role
from broker.config.model import Settings
from broker.config.outgoing import ClientTls
from broker.config.secret_text import SecretText
from broker.config.units import Duration, Size
from broker.core.hosts import checked_address, checked_hosts, is_loopback, split_address


class LiveSettings(Settings):
    """Bounds of the live channel, `/api/v1/live`."""

    max_connections: int = Field(
        default=64, ge=0, le=65_535, description="Maximum concurrent connections."
    )
    max_channels: int = Field(
        default=100, ge=1, le=10_000, description="Maximum channels per connection."
    )
    max_bytes: Size = Field(
        default=16 * 1024 * 1024,
        ge=1024 * 1024,
        description="Maximum bytes kept for all channels: what they show, and the latest changes of each for pages "
        "that are slow or reconnect.",
    )


class OidcSettings(Settings):
    """Sign-in to the dashboard by OpenID Connect."""

    issuer: str = Field(
        description="Address of the issuer, exactly as it names itself, as `https://login.example`."
    )
    client_id: str = Field(min_length=1, description="Identifier of the broker at the issuer.")
    client_secret: SecretText | None = Field(
        default=None, description="Its secret; none for a public client."
    )
    url: str | None = Field(
        default=None,
        description="Address of the dashboard for browsers, as `https://sluice.example`. The issuer must allow "
        "`URL/api/v1/session/oidc` to be returned to. Default: `bind`.",
    )
    label: str = Field(
        default="Sign in with your organization", max_length=100, description="Text of the button."
    )
    scopes: list[str] = Field(
        default=["openid", "profile"], min_length=1, description="Scopes that are requested."
    )
    name_claim: str = Field(
        default="preferred_username", description="Claim with the name; without it, `sub`."
    )
    role_claim: str = Field(
        default="groups", description="Claim with groups or roles, a string or a list."
    )
    roles: dict[str, Role] = Field(
        default_factory=dict,
        description="Role by value of that claim. The first that the claim has counts.",
    )
    default_role: Role | None = Field(
        default=None,
        description="Role where no value of the claim is in `roles`. Default: the sign-in is refused.",
    )
    leeway: Duration = Field(
        default=30, ge=0, le=300, description="Seconds that the clocks may differ."
    )
    ssl: ClientTls = Field(default_factory=ClientTls, description="TLS towards the issuer.")

    @field_validator("issuer", "url")
    @classmethod
    def _check_address(cls, value: str | None) -> str | None:
        if value is None or value.startswith("https://"):
            return value
        place = urlsplit(value)
        if place.scheme == "http" and place.hostname is not None and is_loopback(place.hostname):
            return value
        raise ValueError(f"expected an address with https, got {value!r}")


class ApiSettings(Settings):
    """Section ``api``."""

    bind: str = Field(
        default="127.0.0.1:18083",
        description="Address and port of the management API; port 0 takes any.",
    )
    allow_clear_text: bool = Field(
        default=False,
        description="Whether `bind` may be an address that other machines reach without TLS: tokens, passwords and all "
        "data travel unencrypted.",
    )
    certfile: str | None = Field(
        default=None,
        description="Certificate of the API and those between it and its root, PEM. With it the API speaks HTTPS. "
        "It is read again within ten seconds of a change.",
    )
    keyfile: str | None = Field(
        default=None, description="Private key of the certificate, PEM, unencrypted."
    )
    oidc: OidcSettings | None = Field(default=None, description="Sign-in by OpenID Connect.")
    metrics: Literal["open", "token"] = Field(
        default="open",
        description="Access to `/metrics`: `open` to every client that reaches the API, or with the `token` of an "
        "actor that may read metrics.",
    )
    max_connections: int = Field(
        default=256,
        ge=1,
        le=65_535,
        description="Maximum concurrent connections, at most an eighth of the open files that the system permits. At "
        "the limit, a connection that has not authenticated is closed, else the one that has been idle for longest.",
    )
    header_timeout: Duration = Field(
        default=10,
        gt=0,
        le=3600,
        description="Seconds until request line and headers are complete, also of the next request on a connection; "
        "on the live channel, until a channel is subscribed.",
    )
    body_timeout: Duration = Field(
        default=30,
        gt=0,
        le=3600,
        description="Seconds until the body of a request is complete, and until a client reads on in an answer. "
        "Requests to `/ingest` have the `body_timeout` of their connector. On the live channel, seconds between pings, "
        "and until each is answered.",
    )
    live: LiveSettings = Field(default_factory=LiveSettings, description="The live channel.")
    allowed_hosts: list[str] = Field(
        default_factory=list,
        description="Host names that requests may have in `Host`, besides `localhost` and loopback addresses; `*` "
        "allows any. Empty: on a loopback address no others, on other addresses any.",
    )

    @field_validator("bind")
    @classmethod
    def _check_bind(cls, value: str) -> str:
        return checked_address(value, "127.0.0.1:18083")

    @field_validator("allowed_hosts")
    @classmethod
    def _check_hosts(cls, value: list[str]) -> list[str]:
        return checked_hosts(value)

    @model_validator(mode="after")
    def _check_exposure(self) -> Self:
        if (self.certfile is None) is not (self.keyfile is None):
            raise ValueError("expected certfile and keyfile, or neither")
        if not (self.is_loopback or self.has_tls or self.allow_clear_text):
            raise ValueError(
                f"expected a loopback address for bind, got {self.bind!r}: the API speaks HTTP without TLS. Try: "
                "set api.certfile and api.keyfile, bind it to 127.0.0.1 with a proxy for TLS in front, or set "
                "api.allow_clear_text = true"
            )
        return self

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return split_address(self.bind)

    @property
    def has_tls(self) -> bool:
        """True if it speaks HTTPS."""
        return self.certfile is not None

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach it."""
        return is_loopback(self.address[0])
