"""TLS and HTTP towards servers that users name. Each address is checked by the guard before it is connected to."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from broker.config.http_stream import HttpStream
from broker.config.model import Settings
from broker.config.secret_text import SecretText, SecretUnreadable
from broker.config.ssrf import AddressGuard
from broker.core.errors import SluiceError
from broker.core.lazy_module import LazyModule

if TYPE_CHECKING:
    import httpcore
    import httpx

    _NetworkBackend = httpcore.AsyncNetworkBackend
else:
    httpcore = LazyModule("httpcore")
    httpx = LazyModule("httpx")
    _NetworkBackend = object


class CallFailed(SluiceError):
    """A server gave no answer, or none that can be used; says why."""

    code = "call_failed"


class TlsUnusable(SluiceError):
    """A file of TLS settings cannot be used; says which and why."""

    code = "tls_unusable"


class ClientTls(Settings):
    """TLS towards a server."""

    verify: Annotated[
        Literal["verify_peer", "verify_none"],
        BeforeValidator(lambda value: f"verify_{value}" if value in ("peer", "none") else value),
    ] = Field(
        default="verify_peer",
        description="Whether the server's certificate and its name are checked.",
    )
    cacertfile: str | None = Field(
        default=None,
        description="Authorities that the server's certificate is checked against, PEM; else the system's.",
    )
    certfile: str | None = Field(
        default=None, description="Certificate that is shown to the server, PEM."
    )
    keyfile: str | None = Field(
        default=None, description="Its private key, PEM; else it is in `certfile`."
    )
    password: SecretText | None = Field(default=None, description="Password of the private key.")
    server_name_indication: str | None = Field(
        default=None,
        min_length=1,
        description="The name that the certificate must have; else the host's.",
    )

    def context(self) -> ssl.SSLContext:
        """The TLS settings of connections; reads files. Raises ``TlsUnusable``."""
        if self.certfile is None and self.keyfile is not None:
            raise TlsUnusable("ssl.keyfile is of no use without ssl.certfile")
        files = f"ssl.cacertfile: {self.cacertfile}"
        try:
            context = ssl.create_default_context(cafile=self.cacertfile)
            if self.verify == "verify_none":
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self.certfile is not None:
                files = f"ssl.certfile and ssl.keyfile: {self.certfile}"
                # never asks on a terminal
                password = "" if self.password is None else self.password.reveal()
                context.load_cert_chain(self.certfile, self.keyfile, lambda: password)
        except ssl.SSLError as error:
            reason = error.reason or "it holds nothing in PEM form"
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
        except SecretUnreadable as error:
            reason = str(error)
        else:
            return context
        raise TlsUnusable(f"{files} cannot be used: {reason}")


async def call(
    method: str,
    url: str,
    guard: AddressGuard,
    context: ssl.SSLContext | None,
    *,
    timeout_s: float,
    most_bytes: int,
    server_name: str | None = None,
    headers: Sequence[tuple[str, str]] = (("Accept", "application/json"),),
    content: bytes | None = None,
) -> tuple[int, bytes]:
    """One request on a connection of its own: the status of the answer, whatever it is, and the body.

    Raises:
        AddressDenied: the settings forbid to call the host.
        CallFailed: there is no answer in time, or a longer one.
    """
    sent = [("User-Agent", "sluice"), *headers]
    extensions = {} if server_name is None else {"sni_hostname": server_name}
    network = GuardedNetwork(guard)
    try:
        place = httpx.URL(url)
        target = httpcore.URL(
            scheme=place.raw_scheme, host=place.raw_host, port=place.port, target=place.raw_path
        )
        async with (
            asyncio.timeout(timeout_s),
            httpcore.AsyncConnectionPool(ssl_context=context, network_backend=network) as pool,
            pool.stream(
                method, target, headers=sent, content=content, extensions=extensions
            ) as answer,
        ):
            return answer.status, await body_of(answer, most_bytes)
    except TimeoutError:
        raise CallFailed(f"no answer within {timeout_s:g} s") from None
    except (
        httpcore.NetworkError,
        httpcore.TimeoutException,
        httpcore.ProtocolError,
        httpx.InvalidURL,
        OSError,
    ) as error:
        raise CallFailed(f"it cannot be reached ({error or type(error).__name__})") from None


async def body_of(answer: httpcore.Response, most_bytes: int) -> bytes:
    """The body of an answer. Raises ``CallFailed`` where it is longer."""
    body = bytearray()
    async for chunk in answer.aiter_stream():
        body += chunk
        if len(body) > most_bytes:
            raise CallFailed(f"the answer is longer than {most_bytes} bytes")
    return bytes(body)


class GuardedNetwork(_NetworkBackend):
    """Looks names up itself, and connects to the address that was checked."""

    def __init__(self, guard: AddressGuard) -> None:
        self._guard = guard

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """See ``httpcore.AsyncNetworkBackend``; also raises ``AddressDenied``."""
        del local_address, socket_options
        try:
            addresses = await self._guard.addresses(host, port)
        except OSError as error:
            raise httpcore.ConnectError(f"{host}: {error.strerror or error}") from None
        failure: Exception = httpcore.ConnectError(f"{host} has no address")
        connect = asyncio.get_running_loop().create_connection
        for address in addresses:
            try:
                return await HttpStream.opened(partial(connect, host=address, port=port), timeout)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def sleep(self, seconds: float) -> None:
        """See ``httpcore.AsyncNetworkBackend``."""
        await asyncio.sleep(seconds)
