"""Settings of HTTP services. Names are EMQX's where it has the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator
from yarl import URL

from bridges.resource.headers import header_name
from bridges.resource.settings.oauth import ClientCredentials
from bridges.resource.settings.secret import SecretTemplate, SecretText
from bridges.resource.settings.tls import TlsOptions
from broker.config.model import Settings
from broker.config.secret_text import ADDRESS, SecretUrl
from broker.config.secrets import without_user
from broker.config.units import Duration, Size

# Headers that make the message what it is: nothing else sets them.
_OURS: Final = (
    "connection",
    "content-length",
    "expect",
    "host",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
)
_STATUS: Final = re.compile(r"[1-5](?:xx|[0-9]{2})")


HeaderName = Annotated[str, AfterValidator(header_name(_OURS))]


def _address(text: str) -> str:
    try:
        url = URL(text)
    except ValueError:
        url = URL()
    if url.scheme not in ("http", "https") or not url.host:
        shown = without_user(text)
        raise ValueError(
            f"{shown!r} is not an address; write 'http://host:port' or 'https://host/path'"
        )
    if url.user is not None or url.password is not None:
        raise ValueError(
            "an address with a password in it would be shown; put it into 'authentication'"
        )
    if "${" in text:
        raise ValueError(
            "the address is the same for all rows; put '${...}' into the path of the action"
        )
    if url.query_string or url.fragment:
        raise ValueError("an address has no query; put it into 'query' of the action")
    return text


Address = Annotated[str, AfterValidator(_address)]


def _printable(path: SecretUrl) -> SecretUrl:
    if not re.fullmatch("[!-~]*", path.reveal()):
        raise ValueError("expected printable ASCII without spaces. Try: other characters as %XX")
    return path


class BasicAuthentication(Settings):
    """A user name and a password with each request (RFC 7617)."""

    mechanism: Literal["basic"]
    username: str = Field(min_length=1, pattern=r"^[^:]*$", description="Name of the client.")
    password: SecretText = Field(
        description="Password, or `${secret:NAME}`, `${env:NAME}`, `${file:PATH}`."
    )


class BearerAuthentication(Settings):
    """A token with each request (RFC 6750)."""

    mechanism: Literal["bearer"]
    token: SecretText = Field(
        description="Token, or `${secret:NAME}`, `${env:NAME}`, `${file:PATH}`."
    )


class OauthAuthentication(ClientCredentials):
    """Tokens by OAuth 2.0 client credentials; a refused token is replaced."""

    mechanism: Literal["oauth"]


Authentication = Annotated[
    BasicAuthentication | BearerAuthentication | OauthAuthentication,
    Field(discriminator="mechanism"),
]


class ProxySettings(Settings):
    """A proxy on the way: requests to http go through it, to https through a tunnel (CONNECT)."""

    url: Annotated[Address, ADDRESS] = Field(
        pattern=r"^http://", description="Address of the proxy, `http://host:port`."
    )
    username: str = Field(
        default="", pattern=r"^[^:]*$", description="User name; empty for no login."
    )
    password: SecretText | None = Field(
        default=None, description="Password, or `${secret:NAME}`, `${env:NAME}`, `${file:PATH}`."
    )


class HttpSettings(Settings):
    """A service and how it is reached."""

    url: Annotated[Address, ADDRESS] = Field(
        description="Address of the service, `http://host:port` or `https://host/base`; paths of actions follow it."
    )
    headers: dict[HeaderName, SecretText] = Field(
        default_factory=dict,
        max_length=64,
        description="Headers of every request; shown as stars unless they are `${secret:NAME}`, `${env:NAME}` or "
        "`${file:PATH}`.",
    )
    authentication: Authentication | None = Field(
        default=None, description="Authentication: basic, bearer or oauth. Default: none."
    )
    ssl: TlsOptions = Field(
        default_factory=TlsOptions, description="TLS options of an https address."
    )
    connect_timeout: Duration = Field(
        default=5.0, gt=0, le=300, description="Time limit of an attempt to connect."
    )
    pool_size: int = Field(
        default=16,
        ge=1,
        le=1024,
        description="Maximum connections, for all actions of the connector.",
    )
    max_inactive: Duration = Field(
        default=60.0,
        ge=0,
        le=3600,
        description="Maximum idle time of a connection that is used again.",
    )
    proxy: ProxySettings | None = Field(
        default=None, description="HTTP proxy. Default: none; the environment is ignored."
    )
    health_check_path: Annotated[SecretUrl, AfterValidator(_printable)] | None = Field(
        default=None,
        description="Path below `url` that health checks request with GET. Values of its query show as stars. Default: "
        "they only connect.",
    )

    @field_validator("headers")
    @classmethod
    def _whole_references(cls, value: Mapping[str, SecretText]) -> Mapping[str, SecretText]:
        for name, secret in value.items():
            if "${" in secret.written and secret.shown != secret.written:
                raise ValueError(
                    f"the header {name!r} must be a string, or all of it `${{secret:NAME}}`, `${{env:NAME}}` or "
                    "`${file:PATH}`"
                )
        return value

    @model_validator(mode="after")
    def _fits(self) -> HttpSettings:
        if self.ssl.enable and not self.url.startswith("https:"):
            raise ValueError("ssl is on and the address begins with http:; write https:")
        return self


class RowAnswers(Settings):
    """Position of each row's outcome in the answer to a batch: one element of an array for each, in order."""

    at: str = Field(
        default="",
        description="Path of the array in the answer, such as `items`; empty for the answer itself.",
    )
    status: str = Field(
        default="status",
        min_length=1,
        description="Path of the status in an element, as `index.status`; missing is 200.",
    )
    reason: str = Field(default="error", description="Path of the reason in an element.")


class HttpActionSettings(Settings):
    """The request that a row becomes."""

    method: Literal["post", "put", "patch", "get", "delete"] = Field(
        default="post", description="Method of the request."
    )
    path: SecretUrl = Field(
        default=SecretUrl(""),
        description="Path below the connector's `url`; a template. Values are encoded and stay within their segment. "
        "Shown in full, but for the values of a query: they show as stars unless they are placeholders alone.",
    )
    query: dict[str, SecretTemplate] = Field(
        default_factory=dict,
        max_length=64,
        description="Query parameters; templates, also with `${secret:NAME}`. A parameter whose value is missing is "
        "left out. Shown as stars unless they are placeholders and references alone.",
    )
    headers: dict[HeaderName, SecretTemplate] = Field(
        default_factory=dict,
        max_length=64,
        description="Headers; templates, also with `${secret:NAME}`. A header whose value is missing is left out. "
        "Shown as stars unless they are placeholders and references alone.",
    )
    body: str | None = Field(
        default=None,
        description="Body of the request; a template. Default: the row as JSON, and none with get and delete.",
    )
    batch: Literal["none", "json_array", "ndjson", "joined"] = Field(
        default="none",
        description="none sends a request for each row. Else up to resource_opts.batch_size rows whose address and "
        "headers are the same share one: as a JSON array, as lines, or joined by batch_separator.",
    )
    batch_separator: str = Field(default="\n", description="Separator of joined rows.")
    batch_prefix: str = Field(default="", description="Text before joined rows.")
    batch_suffix: str = Field(default="", description="Text after joined rows.")
    row_answers: RowAnswers | None = Field(
        default=None,
        description="Where the answer to a batch reports the outcome of each row. Default: all rows share its status.",
    )
    split_refused: bool = Field(
        default=True,
        description="Whether a batch that is refused permanently (such as 400, 413 or 422) is sent in halves until the "
        "rows at fault are found.",
    )
    retry_statuses: list[str] = Field(
        default=["5xx", "408", "425", "429"],
        description="Statuses after which a row is sent again, such as `503` or `5xx`.",
    )
    max_answer_size: Size = Field(
        default=1024 * 1024,
        ge=0,
        le=64 * 1024 * 1024,
        description="Maximum size of an answer; the rest is not read.",
    )
    max_redirects: int = Field(
        default=0,
        ge=0,
        le=10,
        description="Maximum redirections that are followed (307 and 308; all with get). 0 follows none.",
    )
    idempotency_header: HeaderName | None = Field(
        default=None,
        description="Header with a key that is the same whenever a row is sent again, such as `Idempotency-Key`.",
    )
    mqtt_headers: bool = Field(
        default=False,
        description="Whether the MQTT message's topic, client, QoS and properties are sent as headers `mqtt-...`.",
    )
    key: str = Field(
        default="", description="Key whose rows are sent in order; a template. Empty: the client."
    )
    check_method: Literal["head", "options", "get"] | None = Field(
        default=None,
        description="Method of a request that checks whether the path exists, if it is the same for all rows.",
    )

    @field_validator("path")
    @classmethod
    def _is_path(cls, value: SecretUrl) -> SecretUrl:
        text = value.reveal()
        if (
            "://" in value.address
            or "#" in text
            or any(ord(character) <= 0x20 for character in text)
        ):
            raise ValueError(
                "a path has no host, no '#' and no spaces; the host is the connector's"
            )
        return value

    @field_validator("retry_statuses")
    @classmethod
    def _statuses(cls, value: list[str]) -> list[str]:
        wrong = [text for text in value if not _STATUS.fullmatch(text)]
        if wrong:
            raise ValueError(f"{wrong[0]!r} is not a status; write '503' or '5xx'")
        return value

    @model_validator(mode="after")
    def _fits(self) -> HttpActionSettings:
        if self.batch == "none" and self.row_answers is not None:
            raise ValueError("row_answers reads the answer to a batch; set batch")
        if self.batch != "none" and self.method in ("get", "delete"):
            raise ValueError(
                f"batch needs a body, and {self.method} has none; use post, put or patch"
            )
        if self.check_method is not None and "${" in self.path.reveal():
            raise ValueError(
                "check_method asks for one path, and the path has placeholders; leave it out"
            )
        return self
