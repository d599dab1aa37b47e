"""Access tokens by OAuth 2.0's client credentials (RFC 6749, section 4.4), kept until shortly before they end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Annotated, Any, Final

import httpx
from pydantic import Field

from bridges.resource.errors import BadSettings, ReconnectFirst
from bridges.resource.settings.secret import SecretText
from bridges.resource.settings.tls import TlsOptions, client_context
from broker.config.model import Settings
from broker.config.secret_text import ADDRESS
from broker.config.ssrf import AddressGuard

_EARLY_S: Final = 30.0
"""A token is replaced so long before it expires, or when a tenth of its life is left."""
_LIFE_S: Final = 300.0
"""Of a token whose server does not say."""
_TIMEOUT_S: Final = 10.0


class ClientCredentials(Settings):
    """Where tokens come from."""

    endpoint_uri: Annotated[str, ADDRESS] = Field(pattern=r"^https?://", description="Address of the token endpoint.")
    client_id: str = Field(min_length=1, description="Name of the client.")
    client_secret: SecretText = Field(description="Secret of the client, or `${env:NAME}`, `${file:PATH}`.")
    scope: str | None = Field(default=None, description="Scope of the token.")
    ssl: TlsOptions = Field(default_factory=lambda: TlsOptions(enable=True), description="TLS of an https endpoint.")


class Tokens:
    """The token of one client, asked for when it is needed."""

    def __init__(
        self, settings: ClientCredentials, guard: AddressGuard, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings, self._guard, self._now_s = settings, guard, now_s
        self._token, self._ends_s = "", 0.0
        self._asking = asyncio.Lock()

    def forget(self) -> None:
        """The token was refused: ask for another next time."""
        self._token = ""

    async def token(self) -> str:
        """A token that is good for a while.

        Raises:
            BadSettings: the endpoint refuses the client.
            ReconnectFirst: the endpoint cannot be reached or gives what is no token.
        """
        async with self._asking:
            if not self._token or self._now_s() >= self._ends_s:
                await self._ask()
            return self._token

    async def _ask(self) -> None:
        settings = self._settings
        form = {
            "grant_type": "client_credentials",
            "client_id": settings.client_id,
            "client_secret": settings.client_secret.reveal(),
            **({"scope": settings.scope} if settings.scope else {}),
        }
        address = httpx.URL(settings.endpoint_uri)
        if why := self._guard.why_not_host(address.host):
            raise BadSettings(f"{settings.endpoint_uri} must not be called: {why}")
        context = await asyncio.to_thread(client_context, settings.ssl)
        try:
            async with httpx.AsyncClient(verify=context or True, timeout=_TIMEOUT_S, trust_env=False) as client:
                answer = await client.post(address, data=form)
        except httpx.HTTPError as error:
            raise ReconnectFirst(
                f"the token endpoint {settings.endpoint_uri}: {error or type(error).__name__}"
            ) from None
        if answer.status_code in (400, 401, 403):
            raise BadSettings(f"the token endpoint {settings.endpoint_uri} refuses the client: {_reason(answer)}")
        found = _members(answer)
        if answer.status_code != 200 or not isinstance(found.get("access_token"), str):
            raise ReconnectFirst(f"the token endpoint {settings.endpoint_uri} gives no token: {_reason(answer)}")
        life_s = _number(found.get("expires_in"))
        self._token = found["access_token"]
        self._ends_s = self._now_s() + life_s - min(_EARLY_S, life_s / 10)


def _members(answer: httpx.Response) -> dict[str, Any]:
    try:
        found = answer.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _reason(answer: httpx.Response) -> str:
    found = _members(answer)
    said = found.get("error_description") or found.get("error") or answer.reason_phrase
    return f"{answer.status_code} {said}"


def _number(value: Any) -> float:
    try:
        return max(float(value), 1.0)
    except (TypeError, ValueError):
        return _LIFE_S
