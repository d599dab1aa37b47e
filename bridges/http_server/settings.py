"""Settings of what is taken over HTTP."""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from bridges.resource.settings.address import parse_address
from bridges.resource.settings.header_names import header_name
from bridges.resource.settings.secret import SecretText
from bridges.resource.settings.tls import TlsFiles
from broker.config.model import Settings
from broker.config.stamp import stamp_of
from broker.config.units import Duration, Size

HeaderName = Annotated[str, AfterValidator(header_name()), AfterValidator(str.lower)]


class NoAuthentication(Settings):
    """Whoever reaches the port may send."""

    mechanism: Literal["none"]


class TokenAuthentication(Settings):
    """One of some tokens, as ``Authorization: Bearer TOKEN`` or in a header of its own."""

    mechanism: Literal["token"]
    tokens: list[SecretText] = Field(
        min_length=1, max_length=100, description="Tokens that are accepted, or `${env:NAME}`, `${file:PATH}`."
    )
    header: HeaderName = Field(
        default="authorization", description="Where the token is; in Authorization it stands behind `Bearer`."
    )


class BasicAuthentication(Settings):
    """A user name and a password (RFC 7617)."""

    mechanism: Literal["basic"]
    users: dict[str, SecretText] = Field(
        min_length=1, max_length=1000, description="Passwords by user name, or `${env:NAME}`, `${file:PATH}`."
    )


class HmacAuthentication(Settings):
    """A signature of the body, HMAC with SHA-256, as webhooks have it. Of the body as it is sent, compressed or not."""

    mechanism: Literal["hmac"]
    secrets: list[SecretText] = Field(
        min_length=1, max_length=10, description="Secrets that are accepted, or `${env:NAME}`, `${file:PATH}`."
    )
    header: HeaderName = Field(default="x-hub-signature-256", description="Where the signature is.")
    prefix: str = Field(default="sha256=", description="What stands before the signature.")
    encoding: Literal["hex", "base64"] = Field(default="hex", description="How the signature is written.")
    timestamp_header: HeaderName | None = Field(
        default=None,
        description="A header with seconds since 1970. Signed is then that text, a dot and the body, and requests "
        "that are older or newer than `tolerance` are refused, so that nobody can send them once more.",
    )
    tolerance: Duration = Field(default=300.0, gt=0, le=86400, description="See timestamp_header; a duration.")


Authentication = Annotated[
    NoAuthentication | TokenAuthentication | BasicAuthentication | HmacAuthentication, Field(discriminator="mechanism")
]


class ServerTls(TlsFiles):
    """`ssl` of a listener; names as of the MQTT listeners."""

    verify: Literal["verify_peer", "verify_none"] = Field(
        default="verify_none", description="verify_peer: only senders with a certificate of cacertfile's are let in."
    )

    @model_validator(mode="after")
    def _clients_fit(self) -> ServerTls:
        if (self.verify == "verify_peer") is not (self.cacertfile is not None):
            raise ValueError("verify = verify_peer and cacertfile belong together; give both or none")
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
        return [stamp_of(file) for file in (self.certfile, self.keyfile, self.cacertfile) if file is not None]


class ListenSettings(Settings):
    """A listener of the connector's own."""

    bind: str = Field(description="Where it listens, `host:port`; `0.0.0.0:8443` for all addresses of the machine.")
    ssl: ServerTls = Field(default_factory=ServerTls, description="TLS, where certfile and keyfile are given.")
    max_connections: int = Field(
        default=1024, ge=1, le=100_000, description="Connections at once; further ones are closed. A number."
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
    """Who may send, and how much at once."""

    listen: ListenSettings | None = Field(
        default=None,
        description="A listener for the sources of this connector alone. Absent: they are at the broker's HTTP port.",
    )

    authentication: Authentication = Field(
        description="Who may send: token, basic, hmac, or none, which has to be said."
    )
    max_body_size: Size = Field(
        default=1024 * 1024,
        ge=1,
        le=256 * 1024 * 1024,
        description="A body, as it is sent and unpacked, at most; a size.",
    )
    body_timeout: Duration = Field(
        default=30.0, gt=0, le=3600, description="A body that takes longer to arrive is not waited for; a duration."
    )
    max_requests: int = Field(
        default=64, ge=1, le=10_000, description="Requests at once; further ones get 429. A number for each source."
    )


class HttpServerSourceSettings(Settings):
    """What becomes of requests to `/ingest/NAME`."""

    topic: str = Field(
        default="",
        description="The topic; a template over `path`, `query`, `headers`, `payload`. Empty: only rules see messages.",
    )
    payload: str = Field(default="", description="The payload; a template. Empty: as it came.")
    qos: Literal[0, 1, 2] = Field(default=1, description="The QoS of the messages.")
    retain: bool = Field(default=False, description="Whether the messages are retained.")
    user_properties: dict[str, str] = Field(
        default_factory=dict,
        max_length=64,
        description="User properties; templates. Left out where the value is missing.",
    )
    body_format: Literal["auto", "message", "json_array", "ndjson"] = Field(
        default="auto",
        description="A body is one message, a JSON array of messages, or lines of JSON. auto: lines where Content-Type "
        "says application/x-ndjson, else one message.",
    )
    content_types: Sequence[str] = Field(
        default=(), max_length=32, description="Content types that are accepted, as `application/json`; empty for all."
    )
    schema_name: str | None = Field(
        default=None,
        alias="schema",
        min_length=1,
        description="A schema of the registry that payloads must fit; the column `payload` is then the decoded value.",
    )
    max_messages: int = Field(default=10_000, ge=1, le=1_000_000, description="Messages in a body, at most; a number.")
    idempotency_header: HeaderName = Field(
        default="idempotency-key",
        description="A request whose key was seen is answered as before, and not taken again.",
    )
    idempotency_keys: int = Field(
        default=10_000, ge=0, le=1_000_000, description="Keys that are remembered, the newest; 0 for none. A number."
    )
