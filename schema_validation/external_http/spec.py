"""The parameters of an ``external_http`` schema as users write them; names and defaults are those of EMQX."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from broker.config.model import Settings
from broker.config.outgoing import ClientTls, TlsUnusable
from broker.config.secret_text import (
    REFERENCES,
    SecretText,
    SecretUrl,
    has_stars,
    moved_problem,
    with_stored,
)
from broker.config.secrets import MASK
from broker.config.spec_problems import parsed
from broker.config.units import Duration
from broker.core import jsontext
from broker.core.errors import Invalid, Problem
from broker.core.placeholders import NAMED_SECRET

TYPE: Final = "external_http"
MAX_HEADERS: Final = 64
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BAD_VALUE: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_OF_THE_CALL: Final = {"content-length", "transfer-encoding", "connection", "host"}
# Headers whose values are not shown.
_SECRET_HEADER: Final = re.compile(
    r"auth|token|key|secret|password|credential|cookie|signature", re.IGNORECASE
)


class SslSpec(ClientTls):
    """TLS towards the server; used for ``https`` addresses."""

    enable: bool = Field(default=False, description="True if the address must begin with `https:`.")


class Parameters(Settings):
    url: SecretUrl = Field(
        description="The server, `http://...` or `https://...`. Values of its query show as stars."
    )
    method: Literal["post", "get"] = Field(default="post", description="How it is asked.")
    headers: Annotated[dict[str, str], REFERENCES] = Field(
        default_factory=dict,
        max_length=MAX_HEADERS,
        description="Of each call; secret ones are shown as stars. A value may be `${secret:NAME}`.",
    )
    external_params: str = Field(default="", description="Sent with each call as `opts`.")
    request_timeout: Duration = Field(
        default=10.0, gt=0, le=300, description="A call that takes longer has failed; a duration."
    )
    max_retries: int = Field(
        default=2, ge=0, le=10, description="Maximum retries of a failed call."
    )
    connect_timeout: Duration = Field(
        default=15.0,
        gt=0,
        le=300,
        description="An attempt to connect that takes longer has failed; a duration.",
    )
    pool_size: int = Field(default=8, ge=1, le=1024, description="Calls at once; a number.")
    pool_type: Literal["random", "hash"] = Field(
        default="random",
        description="Taken so that configurations from elsewhere fit; makes no difference.",
    )
    enable_pipelining: int = Field(
        default=100,
        ge=1,
        le=10_000,
        description="Times `pool_size`: calls that may wait; a number.",
    )
    max_inactive: Duration = Field(
        default=10.0,
        gt=0,
        le=3600,
        description="A connection that was idle for longer is closed; a duration.",
    )
    ssl: SslSpec = Field(default=SslSpec(), description="TLS.")

    @field_validator("url")
    @classmethod
    def _url(cls, value: SecretUrl) -> SecretUrl:
        text = value.reveal()
        parts = urlsplit(text)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("it must begin with http:// or https:// and name a host")
        if parts.username is not None or parts.password is not None or parts.fragment:
            raise ValueError(
                "user and fragment do not belong into it; send an Authorization header instead"
            )
        if not text.isascii() or any(character <= " " for character in text):
            raise ValueError("it must be ASCII without blanks; write other characters with %")
        _ = parts.port  # raises if the port is not valid
        return value

    @field_validator("headers")
    @classmethod
    def _headers(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if not _HEADER.fullmatch(name):
                raise ValueError(f"{name!r} is not the name of a header")
            if name.lower() in _OF_THE_CALL:
                raise ValueError(f"the header {name} is set by the call itself")
            if NAMED_SECRET.fullmatch(text) and (problem := SecretText(text).why_not_allowed):
                raise ValueError(problem)
            if _BAD_VALUE.search(text) or not text.isascii():
                raise ValueError(f"the header {name} must be one line of ASCII")
        return value

    @model_validator(mode="after")
    def _tls(self) -> Self:
        if self.ssl.enable and self.url.address.startswith("http:"):
            raise ValueError("ssl.enable: expected an address that begins with https://")
        return self

    def secrets(self) -> dict[str, str]:
        """Secrets, by their place."""
        by_place = {
            f"headers/{name}": text
            for name, text in self.headers.items()
            if _SECRET_HEADER.search(name) and not NAMED_SECRET.fullmatch(text)
        }
        return by_place | ({"ssl/password": self.ssl.password.written} if self.ssl.password else {})

    def shown(self) -> dict[str, Any]:
        """View for the API: stars in place of secrets."""
        return _with(self._plain(), dict.fromkeys(self.secrets(), MASK))

    def saved(self) -> dict[str, Any]:
        """Members for the configuration, with secrets."""
        return {**_with(self._plain(), self.secrets()), "url": self.url.written}

    def source(self) -> str:
        """The text of the schema: what is shown, so that no secret is where schemas are read."""
        return jsontext.encode(self.shown()).decode()

    def _plain(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_none=True)


def _with(plain: dict[str, Any], texts: Mapping[str, str]) -> dict[str, Any]:
    members = {**plain, "headers": dict(plain["headers"]), "ssl": dict(plain["ssl"])}
    for place, text in texts.items():
        group, _, name = place.partition("/")
        members[group][name] = text
    return members


def parse_parameters(sent: Any, pointer: str = "") -> Parameters:
    """The checked form of parameters as they were sent.

    Raises:
        Invalid: with every problem; also for stars without a stored secret, and certificates that cannot be read.
    """
    headline = "not a usable external_http schema"
    place = f"{pointer}/parameters"
    parameters = parsed(Parameters, sent, headline, pointer=place)
    if MASK in parameters.secrets().values() or parameters.url.has_stars:
        text = "the stars stand for a secret that is not stored; send the secret itself"
        raise Invalid(headline, [Problem(text, place)])
    try:
        parameters.ssl.context()
    except TlsUnusable as error:
        raise Invalid(headline, [Problem(str(error), f"{place}/ssl")]) from None
    return parameters


def with_stored_secrets(parameters: Any, stored: Parameters) -> Any:
    """The request body with the stored secrets in place of stars. Raises ``Invalid`` where they would go elsewhere."""
    if not isinstance(parameters, Mapping):
        return parameters
    if has_stars(parameters) and str(parameters.get("url")).partition("?")[0] != stored.url.address:
        raise Invalid("not a usable external_http schema", [moved_problem()])
    return with_stored(parameters, stored.saved())
