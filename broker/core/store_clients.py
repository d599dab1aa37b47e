"""Options and errors of object store clients; obstore and delta-rs call options by the same names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

CONNECT_S: Final = 5
ATTEMPTS: Final = 4
_S3_OPTIONS: Final = {
    "endpoint": "aws_endpoint",
    "region": "aws_region",
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
    "anonymous": "aws_skip_signature",
}
_GS_OPTIONS: Final = {"endpoint": "google_base_url", "anonymous": "google_skip_signature"}
# Without it, reads send no credentials and writes ask the instance for some.
_NO_GS_KEY: Final = (
    '{"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": true}'
)
_ABFSS_OPTIONS: Final = {
    "endpoint": "azure_storage_endpoint",
    "account_key": "azure_storage_account_key",
    "sas_token": "azure_storage_sas_key",
    "tenant_id": "azure_storage_tenant_id",
    "client_id": "azure_storage_client_id",
    "client_secret": "azure_storage_client_secret",
    "anonymous": "azure_skip_signature",
}
_OPTIONS: Final = {"s3": _S3_OPTIONS, "gs": _GS_OPTIONS, "abfss": _ABFSS_OPTIONS}

_OF_STORE: Final = re.compile(
    r"Generic \w+ error|Error performing \w+ |AWS Error|google::cloud|Azure"
)
# Error text of a store's client (a pattern), its meaning, and a remedy.
_STORE_SAYS: Final = (
    (
        r"no ?_?such ?_?bucket|bucket does not exist|ContainerNotFound",
        "has no such bucket",
        "create it",
    ),
    (
        r"169\.254\.169\.254|metadata\.google\.internal|CredentialsNotLoaded",
        "needs credentials, and neither its settings nor the environment nor the instance has any",
        "access_key_id and secret_access_key of lake.stores",
    ),
    (
        (
            r"InvalidAccessKeyId|INVALID_ACCESS_KEY_ID|SignatureDoesNotMatch|SIGNATURE_DOES_NOT_MATCH|ExpiredToken|InvalidToken|"
            r"EXPIRED_TOKEN|AuthenticationFailed|Authentication Failed|401 Unauthorized"
        ),
        "refuses the credentials",
        "other credentials in lake.stores",
    ),
    (
        r"AccessDenied|ACCESS_DENIED|AuthorizationFailure|403 Forbidden",
        "denies access",
        "a policy that allows it",
    ),
    (
        (
            r"NETWORK_CONNECTION|error sending request|dns error|[Cc]ould not connect|timed out|TIMEOUT|SLOW_DOWN|"
            r"50[0234] |INTERNAL_FAILURE|SERVICE_UNAVAILABLE|UNKNOWN"
        ),
        "does not answer",
        "the endpoint in lake.stores",
    ),
)


def store_options(url: str, options: Mapping[str, str]) -> dict[str, str]:
    """The options of a store, whose names are those of its settings, as the clients call them."""
    parts = urlsplit(url)
    renamed = {_OPTIONS[parts.scheme][name]: value for name, value in options.items()}
    if parts.scheme == "abfss" and "endpoint" in options:
        # one for many accounts: Arrow appends the account
        renamed["azure_storage_endpoint"] += f"/{account(parts.hostname)}"
    if parts.scheme == "gs" and "anonymous" in options:
        renamed["google_service_account_key"] = _NO_GS_KEY
    # Two writers must not both put an object: the put of the second one is refused. The other stores always do.
    return {**renamed, "aws_conditional_put": "etag"} if parts.scheme == "s3" else renamed


def client_options(options: Mapping[str, str], answer_s: int) -> dict[str, str]:
    """Time-outs of an answer, and whether clear text is allowed."""
    is_clear = options.get("endpoint", "").startswith("http://")
    times = {"timeout": f"{answer_s}s", "connect_timeout": f"{min(CONNECT_S, answer_s)}s"}
    return {**times, "allow_http": "true"} if is_clear else times


def account(host: str | None) -> str:
    """The account in the host of an ``abfss://`` URL."""
    return (host or "").partition(".")[0]


def store_says(trace: str, path: str) -> str | None:
    """Refusal of the store of ``path``, or None if the trace holds no store error."""
    if not _OF_STORE.search(trace):
        return None
    for pattern, meaning, hint in _STORE_SAYS:
        if match := re.search(pattern, trace, re.IGNORECASE if pattern.startswith("no ?") else 0):
            return f"the store of {path} {meaning} ({match[0].strip()}). Try: {hint}."
    return None
