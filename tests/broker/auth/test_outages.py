"""An outage is never the answer to a wrong password: services that are away, and keys that are not read."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import bcrypt
import pytest

from broker.auth.backends.backend import Outside
from broker.auth.backends.rows import Row, RowAuthenticatorSettings, RowVerifier
from broker.auth.backends.templates import Facts, Template
from broker.auth.decision import Decision
from broker.auth.hashing import HashPool, PasswordHashingSettings
from broker.codec.packets import ConnAck, Connect
from broker.core import reason
from broker.observe.metrics import Metrics
from tests.support.access import BUILTIN, access
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.processes import free_port
from tests.support.wire import WireClient


def away(mechanism: str, **settings: Any) -> dict[str, Any]:
    """An authenticator over a service that is not there."""
    address = f"127.0.0.1:{free_port()}"
    own: dict[str, Any] = {"server": address}
    if mechanism == "http":
        own = {"url": f"http://{address}/auth"}
    elif mechanism == "ldap":
        own |= {"base_dn": "dc=example,dc=org"}
    elif mechanism in ("postgresql", "mysql"):
        own |= {"database": "sluice", "username": "sluice"}
    return {"mechanism": mechanism, **own, **settings}


CHEAP = bcrypt.hashpw(b"pencil", bcrypt.gensalt(4)).decode()
SERVICES = ["http", "postgresql", "mysql", "redis", "ldap"]


async def code_of(node: Node, username: str, password: str, client_id: str = "c1") -> int:
    wire = await WireClient.open(node.port, 5)
    wire.send(Connect(client_id, 5, username=username, password=password.encode()))
    code = (await wire.expect(ConnAck)).reason_code
    await wire.close()
    return code


@on_loop
@pytest.mark.parametrize("mechanism", SERVICES)
async def test_a_client_that_only_a_service_that_is_away_knows_has_not_failed(
    mechanism: str,
) -> None:
    chain = [away(mechanism, on_unavailable="ignore"), *BUILTIN]
    async with running(access=access(chain, login_limits={"max_failures_per_user": 2})) as node:
        for _ in range(5):
            assert await code_of(node, "bob", "pencil") == reason.SERVER_UNAVAILABLE
        assert await code_of(node, "ann", "pencil") == 0
        assert await code_of(node, "ann", "planted") == reason.BAD_USER_NAME_OR_PASSWORD
        chain = [*BUILTIN, away(mechanism, on_unavailable="ignore")]
    async with running(access=access(chain)) as node:
        assert await code_of(node, "bob", "pencil") == reason.SERVER_UNAVAILABLE


class Directory:
    """One user, known by a bcrypt hash."""

    templates: tuple[Template, ...] = ()

    async def row(self, facts: Facts) -> Row | None:
        return {"password_hash": CHEAP} if facts["username"] == "ann" else None

    async def check(self) -> None:
        """Always there."""

    async def close(self) -> None:
        """Nothing to close."""


@on_loop
async def test_an_unknown_user_for_whom_no_thread_is_free_meets_a_busy_server() -> None:
    """Passwords of unknown users are hashed, too, so that they cannot be told from others."""
    pool = HashPool(PasswordHashingSettings(threads=1, max_waiting=1), Metrics())
    settings = RowAuthenticatorSettings.model_validate({})
    verifier = RowVerifier(settings, Directory(), replace(Outside.alone(), pool=pool))

    async def decided(name: str) -> Decision:
        facts = {"username": name, "password": "pencil", "peerhost": "192.0.2.1"}
        return await verifier.decision(await verifier.asked(facts), facts)

    assert (await decided("ann")).is_allowed
    assert (await decided("bob")).verdict == "ignore"
    async with pool.turn("192.0.2.2"):
        waiting = asyncio.create_task(decided("ann"))
        await asyncio.sleep(0)
        assert (await decided("bob")).reason_code == reason.SERVER_BUSY
        assert (await decided("ann")).reason_code == reason.SERVER_BUSY
    assert (await waiting).is_allowed
    pool.close()
