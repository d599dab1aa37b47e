"""Settings of sources that receive messages over HTTP."""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from bridges.resource.headers import header_name
from bridges.resource.settings.address import parse_address
from bridges.resource.settings.secret import SecretText
from bridges.resource.settings.tls import TlsFiles
from broker.config.model import Settings
from broker.config.stamp import stamp_of
from broker.config.units import Duration, Size

HeaderName = Annotated[str, AfterValidator(header_name()), AfterValidator(str.lower)]


class NoAuthentication(Settings):
    """Any client that reaches the port may send."""

    mechanism: Literal["none"]


class TokenAuthentication(Settings):
    """One of some tokens, as ``Authorization: Bearer TOKEN`` or in a header of its own."""

    mechanism: Literal["token"]
    tokens: list[SecretText] = Field(
        min_length=1,
        max_length=100,
        description="Accepted tokens, or `${secret:NAME}`, `${env:NAME}`, `${file:PATH}`.",
    )
    header: HeaderName = Field(
        default="authorization",
        description="Header with the token; in Authorization it follows `Bearer`.",
    )


class BasicAuthentication(Settings):
    """A user name and a password (RFC 7617)."""

    mechanism: Literal["basic"]
    users: dict[str, SecretText] = Field(
        min_length=1,
        max_length=1000,
        description="Passwords by user name, or `${secret:NAME}`, `${env:NAME}`, `${file:PATH}`.",
    )


class HmacAuthentication(Settings):
    """A signature of the body, HMAC with SHA-256, as webhooks have it. Of the body as it is sent, compressed or not."""

    mechanism: Literal["hmac"]
    secrets: list[SecretText] = Field(
        min_length=1,
        max_length=10,
        description="Accepted secrets, or `${secret:NAME}`, `${env:NAME}`, `${file:PATH}`.",
    )
    header: HeaderName = Field(
        default="x-hub-signature-256", description="Header with the signature."
    )
    prefix: str = Field(default="sha256=", description="Text before the signature.")
    encoding: Literal["hex", "base64"] = Field(
        default="hex", description="Encoding of the signature."
    )
    timestamp_header: HeaderName | None = Field(
        default=None,
        description="A header with seconds since 1970. Signed is then that text, a dot and the body, and requests "
        "that are older or newer than `tolerance` are refused, so that they cannot be replayed.",
    )
    tolerance: Duration = Field(
        default=300.0,
        gt=0,
        le=86400,
        description="Maximum difference between timestamp_header and the broker's clock.",
    )


Authentication = Annotated[
    NoAuthentication | TokenAuthentication | BasicAuthentication | HmacAuthentication,
    Field(discriminator="mechanism"),
]


class ServerTls(TlsFiles):
    """`ssl` of a listener; names as of the MQTT listeners."""

    verify: Literal["verify_peer", "verify_none"] = Field(
        default="verify_none",
        description="verify_peer: only senders with a certificate of cacertfile's are let in.",
    )

    @model_validator(mode="after")
    def _clients_fit(self) -> ServerTls:
        if (self.verify == "verify_peer") is not (self.cacertfile is not None):
            raise ValueError(
                "verify = verify_peer and cacertfile belong together; give both or none"
            )
        if self.cacertfile is not None and self.certfile is None:
            raise ValueError("TLS needs certfile and keyfile")
        return self

    def context(self) -> ssl.SSLContext | None:
        """The context of connections; None where they are not encrypted. Reads files.

        Raises:
            BadSettings: a file cannot be used; says which and why.
        """
        if self.certfile is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.limit_versions(context)
        self.load(context)
        return context

    def load(self, context: ssl.SSLContext) -> None:
        """Put what the files hold into a context; those who connect from then on see it.

        Raises:
            BadSettings: a file cannot be used; says which and why.
        """
        self.load_certificate(context)
        if self.cacertfile is not None:
            self.load_authorities(context)
            context.verify_mode = ssl.CERT_REQUIRED

    @property
    def seen(self) -> Sequence[object]:
        """Another whenever a file is another. Asks the file system."""
        return [
            stamp_of(file)
            for file in (self.certfile, self.keyfile, self.cacertfile)
            if file is not None
        ]


class ListenSettings(Settings):
    """A listener of the connector's own."""

    bind: str = Field(
        description="Address to listen on, `host:port`; `0.0.0.0:8443` for all addresses of the machine."
    )
    ssl: ServerTls = Field(
        default_factory=ServerTls, description="TLS; on when certfile and keyfile are given."
    )
    max_connections: int = Field(
        default=1024,
        ge=1,
        le=100_000,
        description="Maximum connections. Where there are more, one that has not authenticated is closed, else "
        "the one that has been idle for longest; where all are busy, the new one.",
    )

    @field_validator("bind")
    @classmethod
    def _bind(cls, value: str) -> str:
        if not re.search(r":\d+$", value):
            raise ValueError(f"{value!r} names no port; write '127.0.0.1:8443' or '0.0.0.0:8443'")
        parse_address(value, 1)
        return value

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return parse_address(self.bind, 1)


class HttpServerSettings(Settings):
    """Authentication of senders, and limits."""

    listen: ListenSettings | None = Field(
        default=None,
        description="A listener of this connector's own. Default: its sources are at the broker's HTTP port.",
    )

    authentication: Authentication = Field(
        description="Authentication of senders: token, basic, hmac or none."
    )
    max_body_size: Size = Field(
        default=1024 * 1024,
        ge=1,
        le=256 * 1024 * 1024,
        description="Maximum size of a body, as sent and unpacked.",
    )
    body_timeout: Duration = Field(
        default=30.0, gt=0, le=3600, description="Time limit for the arrival of a body."
    )
    max_requests: int = Field(
        default=64,
        ge=1,
        le=10_000,
        description="Maximum concurrent requests per source; further ones get 429.",
    )


class HttpServerSourceSettings(Settings):
    """Handling of requests to `/ingest/NAME`."""

    topic: str = Field(
        default="",
        description="The topic; a template over `path`, `query`, `headers`, `payload`. Empty: only rules see messages.",
    )
    payload: str = Field(default="", description="Payload; a template. Empty: as received.")
    qos: Literal[0, 1, 2] = Field(default=1, description="QoS of the messages.")
    retain: bool = Field(default=False, description="Whether the messages are retained.")
    user_properties: dict[str, str] = Field(
        default_factory=dict,
        max_length=64,
        description="User properties; templates. A property whose value is missing is left out.",
    )
    body_format: Literal["auto", "message", "json_array", "ndjson"] = Field(
        default="auto",
        description="A body is one message, a JSON array of messages, or lines of JSON. auto: lines where Content-Type "
        "says application/x-ndjson, else one message.",
    )
    content_types: Sequence[str] = Field(
        default=(),
        max_length=32,
        description="Accepted content types, such as `application/json`; empty for all.",
    )
    schema_name: str | None = Field(
        default=None,
        alias="schema",
        min_length=1,
        description="A schema of the registry that payloads must fit; the column `payload` is then the decoded value.",
    )
    max_messages: int = Field(
        default=10_000, ge=1, le=1_000_000, description="Maximum messages in a body."
    )
    idempotency_header: HeaderName = Field(
        default="idempotency-key",
        description="Header with the idempotency key; a repeated one is answered as before and not published again.",
    )
    idempotency_keys: int = Field(
        default=10_000,
        ge=0,
        le=1_000_000,
        description="Number of idempotency keys that are remembered; 0 for none.",
    )
