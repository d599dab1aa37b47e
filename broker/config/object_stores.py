"""Object stores that tables and tiers of streams may be in: where they are, and the credentials by reference."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from broker.config.model import Settings
from broker.config.secret_text import ADDRESS, SecretText
from broker.config.secrets import without_user
from broker.core.placeholders import SECRET_REFERENCE

SCHEMES: Final = ("s3", "gs", "abfss")
_URL: Final = re.compile(
    rf"(?:{'|'.join(SCHEMES)})://[A-Za-z0-9@._-]+(?:/(?!\.)[A-Za-z0-9._=+-]+)*/?"
)
# The schemes that a member is for.
_OF: Final = {
    "region": ("s3",),
    "access_key_id": ("s3",),
    "secret_access_key": ("s3",),
    "session_token": ("s3",),
    "account_key": ("abfss",),
    "sas_token": ("abfss",),
    "tenant_id": ("abfss",),
    "client_id": ("abfss",),
    "client_secret": ("abfss",),
}
_TOGETHER: Final = (
    ("access_key_id", "secret_access_key"),
    ("tenant_id", "client_id", "client_secret"),
)
_REFERENCE: Final = "`${secret:NAME}`, `${env:NAME}` or `${file:PATH}`"


class StoreSettings(Settings):
    """An object store, or a part of one, that tables and tiers of streams may be in."""

    url: Annotated[str, ADDRESS] = Field(
        default="",
        description="Beginning of the paths of its tables and tiers: `s3://BUCKET/...`, `gs://BUCKET/...` or "
        "`abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/...`.",
    )
    endpoint: Annotated[str | None, ADDRESS] = Field(
        default=None,
        pattern=r"^https?://[^/?#@\s]+$",
        description="Address of the store's API, such as `https://minio.example:9000`. Default: the provider's.",
    )
    region: str | None = Field(
        default=None, description="Region of an `s3://` bucket. Default: the environment's."
    )
    access_key_id: SecretText | None = Field(
        default=None,
        description=f"Access key of `s3://`, as {_REFERENCE}. Default: credentials of the environment or the instance.",
    )
    secret_access_key: SecretText | None = Field(
        default=None, description=f"Secret that belongs to `access_key_id`, as {_REFERENCE}."
    )
    session_token: SecretText | None = Field(
        default=None,
        description=f"Session token of temporary `s3://` credentials, as {_REFERENCE}.",
    )
    account_key: SecretText | None = Field(
        default=None,
        description=f"Key of an `abfss://` account, as {_REFERENCE}. Default: credentials of the environment or the "
        "instance.",
    )
    sas_token: SecretText | None = Field(
        default=None,
        description=f"Shared access signature of an `abfss://` account, as {_REFERENCE}.",
    )
    tenant_id: str | None = Field(
        default=None, description="Tenant of an `abfss://` service principal."
    )
    client_id: str | None = Field(
        default=None, description="Client ID of an `abfss://` service principal."
    )
    client_secret: SecretText | None = Field(
        default=None, description=f"Secret of an `abfss://` service principal, as {_REFERENCE}."
    )
    anonymous: bool = Field(default=False, description="Send no credentials.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not _URL.fullmatch(self.url):
            shown = without_user(self.url)
            raise ValueError(
                f"url: expected {', '.join(f'{name}://...' for name in SCHEMES)}, got {shown!r}"
            )
        scheme = self.url.partition("://")[0]
        own_names = {name for name in type(self).model_fields if getattr(self, name) is not None}
        for name in sorted(own_names & _OF.keys()):
            if scheme not in _OF[name]:
                raise ValueError(f"{name}: expected a store of {_OF[name][0]}://, got {scheme}://")
        if self.anonymous and scheme == "abfss":
            raise ValueError(
                "anonymous: expected a store of s3:// or gs://, got abfss://. Try: sas_token"
            )
        for names in _TOGETHER:
            if missing := sorted(set(names) - own_names) if own_names & set(names) else []:
                raise ValueError(
                    f"{missing[0]}: expected together with {', '.join(sorted(own_names & set(names)))}, got none"
                )
        for name in sorted(own_names):
            value = getattr(self, name)
            if isinstance(value, SecretText) and not SECRET_REFERENCE.fullmatch(value.written):
                raise ValueError(
                    f"{name}: expected {_REFERENCE}, got a string. Try: ${{env:SLUICE_SECRET_{name.upper()}}}"
                )
        return self

    def holds(self, url: str) -> bool:
        """True if a URL is in the store, under the store's URL."""
        return url.startswith(self.url.rstrip("/") + "/")

    def options(self) -> dict[str, str]:
        """Options of a connection, by the names of the settings; secrets as they are now. Do not keep them.

        Raises:
            SecretUnreadable: a variable or file that a secret refers to is not there.
        """
        values = {
            name: getattr(self, name)
            for name in type(self).model_fields
            if name not in ("url", "anonymous")
        }
        set_values = {name: value for name, value in values.items() if value is not None}
        plain = {
            name: value.reveal() if isinstance(value, SecretText) else value
            for name, value in set_values.items()
        }
        return {**plain, "anonymous": "true"} if self.anonymous else plain


def store_of(url: str, stores: Sequence[StoreSettings]) -> StoreSettings | None:
    """The store that this URL is in: the one with the longest URL."""
    return max(
        (store for store in stores if store.holds(url)),
        key=lambda store: len(store.url),
        default=None,
    )


def url_problem(url: str, stores: Sequence[StoreSettings]) -> str | None:
    """Reason why nothing can be kept at this URL, None if it can."""
    if not _URL.fullmatch(url):
        return f"expected {', '.join(f'{name}://...' for name in SCHEMES)}, got {without_user(url)}"
    if store_of(url, stores) is None:
        urls = ", ".join(store.url for store in stores) or "none"
        return f"expected a URL in one of the stores of lake.stores ({urls}), got {url}"
    return None
