"""Iceberg catalogs that tables may be registered in: how they are reached, and the credentials by reference."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self
from urllib.parse import unquote

from pydantic import Field, model_validator

from broker.config.model import Settings
from broker.config.secret_text import ADDRESS, SecretText
from broker.config.secrets import without_user
from broker.core.errors import Unavailable
from broker.core.placeholders import SECRET_REFERENCE

if TYPE_CHECKING:
    from bridges.spark.columns.place import CatalogEntry

DEFAULT_NAMESPACE: Final = "sluice"
_REFERENCE: Final = "`${secret:NAME}`, `${env:NAME}` or `${file:PATH}`"
_PASSWORD: Final = re.compile(
    r"://[^@]*:.*@|[?&;][^=]*(?:password|passwd|pwd|secret|token)[^=]*=", re.IGNORECASE
)
# The type that a member is for.
_OF: Final = {"password": "sql"} | dict.fromkeys(
    ("token", "client_id", "client_secret", "oauth_uri", "scope", "signing_region", "signing_name"),
    "rest",
)


class CatalogSettings(Settings):
    """A catalog of Iceberg tables."""

    name: str = Field(default="", description="Name of the catalog, which tables refer to.")
    type: Literal["rest", "sql"] = Field(
        default="rest",
        description="`rest`: Iceberg's REST protocol, as Polaris, Nessie, Unity and Glue speak it. `sql`: a database.",
    )
    uri: Annotated[str, ADDRESS] = Field(
        default="",
        description="Address: `https://HOST/PATH` of a REST catalog, without `/v1`, or an SQLAlchemy URL such as "
        "`postgresql+psycopg2://USER@HOST/DATABASE`.",
    )
    warehouse: str = Field(
        default="", description="Warehouse in the catalog. Default: the catalog's only one."
    )
    token: SecretText | None = Field(default=None, description=f"Bearer token, as {_REFERENCE}.")
    client_id: str = Field(default="", description="Client ID for OAuth 2 client credentials.")
    client_secret: SecretText | None = Field(
        default=None, description=f"Secret of the client, as {_REFERENCE}."
    )
    oauth_uri: Annotated[str, ADDRESS] = Field(
        default="",
        description="OAuth 2 token endpoint. Default: the catalog's own, `/v1/oauth/tokens`.",
    )
    scope: str = Field(
        default="", description="OAuth 2 scope, such as `PRINCIPAL_ROLE:ALL`. Default: `catalog`."
    )
    signing_region: str = Field(
        default="",
        description="AWS region of a catalog that requires SigV4 signatures, with the credentials of the environment "
        "or the instance.",
    )
    signing_name: str = Field(
        default="glue", description="AWS service that requests are signed for."
    )
    password: SecretText | None = Field(
        default=None, description=f"Password of the database user in `uri`, as {_REFERENCE}."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        set_fields = {
            name for name in type(self).model_fields if getattr(self, name)
        } & self.model_fields_set
        if not self.name:
            raise ValueError("name: expected a name, got none")
        if not re.match(r"https?://." if self.type == "rest" else r"\w+(\+\w+)?://", self.uri):
            expected = "https://HOST/PATH" if self.type == "rest" else "an SQLAlchemy URL"
            raise ValueError(f"uri: expected {expected}, got {without_user(self.uri)!r}")
        if _PASSWORD.search(unquote(self.uri)):
            raise ValueError(f"uri: expected no password, got one. Try: password = {_REFERENCE}.")
        for name, url in (
            ("uri", self.uri if self.type == "rest" else ""),
            ("oauth_uri", self.oauth_uri),
        ):
            if "@" in url or "?" in url:
                raise ValueError(
                    f"{name}: expected no user and no query, got {without_user(url)!r} with one"
                )
        for name in sorted(set_fields):
            value = getattr(self, name)
            if self.type != _OF.get(name, self.type):
                raise ValueError(
                    f"{name}: expected a member of type {self.type!r}, got one of type {_OF[name]!r}"
                )
            if isinstance(value, SecretText) and not SECRET_REFERENCE.fullmatch(value.written):
                raise ValueError(
                    f"{name}: expected {_REFERENCE}, got a string. Try: ${{env:SLUICE_SECRET_{name.upper()}}}"
                )
        if ("client_id" in set_fields) != ("client_secret" in set_fields):
            raise ValueError(
                "client_secret: expected it together with client_id, got only one of them"
            )
        return self

    def entry(self, table: str, name: str) -> CatalogEntry:
        """Connection of a table to its catalog, with the present secrets. Do not keep it.

        Args:
            table: its namespace and name, separated by dots.
            name: its name where ``table`` is empty.

        Raises:
            SecretUnreadable: a variable or file that a secret refers to is not there.
        """
        from bridges.spark.columns.place import CatalogEntry  # of Spark's extra

        identifier = tuple((table or f"{DEFAULT_NAMESPACE}.{name}").split("."))
        properties = self._rest() if self.type == "rest" else {"uri": self._url()}
        if self.warehouse:
            properties["warehouse"] = self.warehouse
        return CatalogEntry(self.name, self.type, self.uri, identifier, properties)

    def _rest(self) -> dict[str, Any]:
        uri = self.uri.rstrip("/")
        properties: dict[str, Any] = {"uri": uri}
        if self.token is not None:
            properties["token"] = self.token.reveal()
        elif self.client_secret is not None:
            properties["credential"] = f"{self.client_id}:{self.client_secret.reveal()}"
            properties["oauth2-server-uri"] = self.oauth_uri or f"{uri}/v1/oauth/tokens"
            properties["scope"] = self.scope
        else:
            properties["auth"] = {"type": "noop"}
        if self.signing_region:
            properties["rest.sigv4-enabled"] = "true"
            properties["rest.signing-region"] = self.signing_region
            properties["rest.signing-name"] = self.signing_name
        return properties

    def _url(self) -> str:
        from sqlalchemy import make_url

        password = None if self.password is None else self.password.reveal()
        return make_url(self.uri).set(password=password).render_as_string(hide_password=False)


def entry_of(spec: Mapping[str, Any]) -> CatalogEntry | None:
    """The catalog entry of a table's spec, as the API gives specs; None where the table is in no catalog.

    Raises:
        Unavailable: the configuration no longer has the catalog.
        SecretUnreadable: a variable or file that a secret refers to is not there.
    """
    name = spec.get("catalog")
    settings = spec.get("catalog_settings")
    if not name:
        return None
    if not settings:
        raise Unavailable(
            f"catalog: expected one of lake.catalogs, got {name!r}, which the configuration does not have"
        )
    return CatalogSettings.model_validate(settings).entry(spec["catalog_table"], spec["name"])
