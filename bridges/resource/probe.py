"""The step-by-step test of a connection: each step with its duration and what it found, up to the first that fails."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, Literal, cast

from typing_extensions import TypedDict

from bridges.resource.contract import Connector, ProbeStep
from bridges.resource.errors import BadSettings, ReconnectFirst, connection_error, understood
from bridges.resource.settings.tls import TlsOptions, client_context
from broker.config.ssrf import AddressDenied, AddressGuard, GuardedLoop

STEP_TIMEOUT_S: Final = 10.0
_CLOSE_S: Final = 5.0


class ProbeStepResult(TypedDict):
    """A step of a test; steps after one that failed are skipped."""

    name: str
    result: Literal["ok", "failed", "skipped"]
    duration_ms: float
    message: str


class ProbeResult(TypedDict):
    """A test of a connection, step by step."""

    ok: bool
    steps: list[ProbeStepResult]


async def run_probe(
    connector: Connector,
    more: Sequence[ProbeStep],
    hide: Callable[[str], str],
    close: Callable[[], Awaitable[None]] | None = None,
) -> ProbeResult:
    """Run the steps of a connector that was never opened, then ``more``; ``close`` what they opened, and it."""
    steps: list[ProbeStepResult] = []
    failed = False
    try:
        for step in (*connector.probe(), *more):
            if failed:
                steps.append(
                    {"name": step.name, "result": "skipped", "duration_ms": 0.0, "message": ""}
                )
                continue
            shown = await _run(step, hide)
            failed = shown["result"] != "ok"
            steps.append(shown)
    finally:
        for end in (close, connector.close):
            with suppress(Exception):
                async with asyncio.timeout(_CLOSE_S):
                    if end is not None:
                        await end()
    return {"ok": not failed, "steps": steps}


async def _run(step: ProbeStep, hide: Callable[[str], str]) -> ProbeStepResult:
    started_s = time.perf_counter()
    try:
        async with asyncio.timeout(STEP_TIMEOUT_S) as limit:
            message = await step.run()
        result: Literal["ok", "failed"] = "ok"
    except Exception as error:  # noqa: BLE001 - whatever is raised is what the step found
        message = (
            f"no answer within {STEP_TIMEOUT_S:g} s" if limit.expired() else str(understood(error))
        )
        result = "failed"
    took_ms = (time.perf_counter() - started_s) * 1000
    return {
        "name": step.name,
        "result": result,
        "duration_ms": round(took_ms, 1),
        "message": hide(message),
    }


async def resolve(host: str, port: int, guard: AddressGuard) -> Sequence[str]:
    """The addresses of a host that may be called.

    Raises:
        ReconnectFirst: the name is not known.
        BadSettings: the broker's settings forbid to call it.
    """
    try:
        return await guard.addresses(host, port)
    except AddressDenied as error:
        raise BadSettings(str(error)) from None
    except OSError as error:
        raise ReconnectFirst(
            f"the name {host!r} cannot be resolved: {(error.strerror or str(error)).lower()}"
        ) from None


def resolve_step(host: str, port: int, guard: AddressGuard) -> ProbeStep:
    """The step ``resolve``."""

    async def run() -> str:
        return f"{host} is {', '.join(await resolve(host, port, guard))}"

    return ProbeStep("resolve", run)


def connect_step(host: str, port: int, guard: AddressGuard) -> ProbeStep:
    """The step ``connect``: a TCP connection, closed at once."""

    async def run() -> str:
        await _connect(host, port, guard, None)
        return f"{host}:{port} accepts connections"

    return ProbeStep("connect", run)


def tls_step(host: str, port: int, guard: AddressGuard, options: TlsOptions) -> ProbeStep:
    """The step ``tls``: a handshake, and the connection closed at once."""

    async def run() -> str:
        context = await asyncio.to_thread(
            client_context, options.model_copy(update={"enable": True})
        )
        return await _connect(host, port, guard, context)

    return ProbeStep("tls", run)


async def _connect(
    host: str, port: int, guard: AddressGuard, context: ssl.SSLContext | None
) -> str:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    try:
        transport, _ = await GuardedLoop(loop, guard).create_connection(
            lambda: protocol, host, port, ssl=context
        )
    except (OSError, AddressDenied) as error:
        raise connection_error(error, f"{host}:{port}") from None
    writer = asyncio.StreamWriter(cast("asyncio.WriteTransport", transport), protocol, reader, loop)
    try:
        session = writer.get_extra_info("ssl_object")
        return "" if session is None else f"{session.version()}, {session.cipher()[0]}"
    finally:
        writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(1.0):
                await writer.wait_closed()
