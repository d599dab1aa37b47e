"""Addresses that the broker may call for its users: ``rule_engine.ssrf``.

Anyone who may create schemas can have the broker call an address of their choice. Where that must not reach what only
the broker's own network sees, ``enable`` holds every call to these lists, by the addresses that a name resolves to. A
name is resolved once, and the connection goes to the address that was checked: a second lookup may give another.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Annotated, Any, Final, TypeVar

from pydantic import AfterValidator, Field

from broker.config.model import Settings
from broker.core.errors import SluiceError

T = TypeVar("T", bound=asyncio.BaseProtocol)

# Unspecified, loopback, link-local (cloud metadata among them), private and multicast.
_PRIVATE: Final = (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16",
    "224.0.0.0/4", "255.255.255.255/32", "::/128", "::1/128", "fc00::/7", "fe80::/10", "ff00::/8",
)  # fmt: skip
_METADATA: Final = (
    "metadata.google.internal",
    "metadata",
    "instance-data",
    "instance-data.ec2.internal",
)
_NAT64: Final = IPv6Network("64:ff9b::/96")


def _network(text: str) -> str:
    ip_network(text)
    return text


Network = Annotated[str, AfterValidator(_network)]


class SsrfSettings(Settings):
    """Checked in the order of ``deny_hosts``, ``allow_cidrs``, ``deny_cidrs``; what none of them names is allowed."""

    enable: bool = Field(
        default=False, description="Hold calls to servers that users name to the lists below."
    )
    allow_cidrs: list[Network] = Field(
        default_factory=list, description="Networks allowed in any case."
    )
    deny_cidrs: list[Network] = Field(
        default_factory=lambda: list(_PRIVATE),
        description="Networks that are not called: by default loopback, link-local, private and multicast addresses.",
    )
    deny_hosts: list[str] = Field(
        default_factory=lambda: list(_METADATA),
        description="Host names that are not called: by default those of the metadata services of clouds.",
    )


class AddressDenied(SluiceError):
    """The settings forbid to call a host; says why."""

    code = "address_denied"


class AddressGuard:
    """Says which hosts and addresses must not be called."""

    def __init__(self, settings: SsrfSettings) -> None:
        self.is_on = settings.enable
        self._hosts = {host.rstrip(".").lower() for host in settings.deny_hosts}
        self._allowed = [ip_network(text) for text in settings.allow_cidrs]
        self._denied = [ip_network(text) for text in settings.deny_cidrs]

    async def addresses(self, host: str, port: int) -> list[str]:
        """Addresses of a host, without those that must not be called.

        Raises:
            AddressDenied: none is left.
            OSError: the name is not known, or not valid.
        """
        host = host.strip("[]")
        if reason := self.why_not_host(host):
            raise AddressDenied(f"{host} must not be called: {reason}")
        try:
            entries = await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_STREAM
            )
        except UnicodeError:  # an empty label, or one of more than 63 characters
            raise socket.gaierror(socket.EAI_NONAME, f"{host!r} is not a valid host name") from None
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
        allowed = [address for address in addresses if self.why_not_address(address) is None]
        if not allowed:
            raise AddressDenied(f"{host} must not be called: {self.why_not_address(addresses[0])}")
        return allowed

    def why_not_host(self, host: str) -> str | None:
        """Reason why a host must not be called by this name, or None."""
        if self.is_on and host.rstrip(".").lower() in self._hosts:
            return f"rule_engine.ssrf.deny_hosts names {host!r}"
        return None

    def why_not_address(self, text: str) -> str | None:
        """Reason why an address must not be called, or None."""
        if not self.is_on:
            return None
        addresses = _meant(text)
        if any(address in network for network in self._allowed for address in addresses):
            return None
        for network in self._denied:
            if any(address in network for address in addresses):
                return f"rule_engine.ssrf.deny_cidrs has {network}, in which {text} lies"
        return None


class GuardedLoop:
    """An event loop whose connections go to addresses that were checked. For libraries that connect by name; TLS checks
    that name."""

    def __init__(self, loop: asyncio.AbstractEventLoop, guard: AddressGuard) -> None:
        self._loop = loop
        self._guard = guard

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def create_connection(
        self,
        factory: Callable[[], T],
        host: str,
        port: int,
        *,
        ssl: Any = None,
        server_hostname: str | None = None,
    ) -> tuple[asyncio.BaseTransport, T]:
        """See ``asyncio.AbstractEventLoop``; raises as ``AddressGuard.addresses`` as well."""
        expected_name = None if ssl is None else server_hostname or host.strip("[]")
        failure: OSError | None = None
        for address in await self._guard.addresses(host, port):
            try:
                return await self._loop.create_connection(
                    factory, address, port, ssl=ssl, server_hostname=expected_name
                )
            except OSError as error:
                failure = failure or error
        assert failure is not None  # there is an address
        raise failure


def _meant(text: str) -> list[IPv4Address | IPv6Address]:
    """An address, and the version 4 address that is written in it."""
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv4Address):
        return [address]
    inner = address.ipv4_mapped or address.sixtofour
    if address in _NAT64:
        inner = IPv4Address(int(address) & 0xFFFFFFFF)
    return [address] if inner is None else [address, inner]


class GuardedResolver:
    """Looks names up for aiohttp (its ``AbstractResolver``) and leaves out addresses that must not be called.

    ``look_up`` gives the addresses of a host and a port, as ``AddressGuard.addresses`` does.
    """

    def __init__(self, look_up: Callable[[str, int], Awaitable[Sequence[str]]]) -> None:
        self._look_up = look_up

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[dict[str, Any]]:
        """The addresses, in aiohttp's form; raises as ``look_up``."""
        return [
            {
                "hostname": host,
                "host": address,
                "port": port,
                "family": family,
                "proto": 0,
                "flags": 0,
            }
            for address in await self._look_up(host, port)
        ]

    async def close(self) -> None:
        """Nothing is open."""
