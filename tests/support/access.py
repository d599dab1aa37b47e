"""Who may, for tests: users whose passwords cost little, an authenticator over them, rules."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from broker.auth.access import Access
from broker.auth.authorize import AuthorizationSettings
from broker.auth.chain import AuthenticationSettings, AuthenticatorChain, UserAccess
from broker.auth.flapping import FlappingSettings
from broker.auth.hashing import HashPool, PasswordHashingSettings
from broker.auth.login_limits import LoginLimits, LoginLimitSettings
from broker.auth.rules import NamedRuleSettings, Rule
from broker.auth.users import Users
from broker.codec.packets import ConnAck, Connect
from broker.core.clock import Clock
from broker.core.objects import MemorySection, Spec
from broker.net.listener import Listener
from broker.net.settings import ListenerSettings, NamedListener
from broker.observe.alarms import Alarms
from broker.observe.metrics import Metrics
from broker.storage.writer import Writer
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from tests.support.mqtt_server import Node

MakeAccess = Callable[[Writer, Metrics, Clock, Alarms], Access]
BUILTIN: list[Spec] = [{"mechanism": "builtin"}]
USERS: list[Spec] = [
    {"name": "ann", "password": "pencil"},
    {"name": "root", "password": "paper", "is_superuser": True},
    {"name": "dev", "password": "ruler", "clientid": "dev-1"},
]


def access(
    chain: Sequence[Spec] = (),
    *,
    users: Sequence[Spec] = USERS,
    rules: Sequence[Spec] = (),
    flapping: Spec | None = None,
    trusts_anonymous: bool = False,
    hashing: Spec | None = None,
    login_limits: Spec | None = None,
    **authorization: Any,
) -> MakeAccess:
    """What makes the access of a server from settings as files have them."""

    def make(writer: Writer, metrics: Metrics, clock: Clock, alarms: Alarms) -> Access:
        hash_settings = PasswordHashingSettings.model_validate(
            {"iterations": 4096, "threads": 1} | (hashing or {})
        )
        pool = HashPool(hash_settings, metrics)
        store = Users(MemorySection(users), hash_settings, pool, clock)
        store.start()
        settings = AuthenticationSettings.model_validate(list(chain))
        users_of = UserAccess(store, pool)
        made = AuthenticatorChain(
            settings,
            metrics,
            users_of,
            trusts_anonymous=trusts_anonymous,
            clock=clock,
            limits=LoginLimits(
                LoginLimitSettings.model_validate(login_limits or {}), clock, metrics, alarms
            ),
            alarms=alarms,
        )
        sources = (
            [{"type": "file", "rules": list(rules)}, {"type": "built_in"}]
            if rules
            else [{"type": "built_in"}]
        )
        authorization.setdefault("sources", sources)
        return Access.of(
            made,
            writer,
            metrics,
            clock,
            authorization=AuthorizationSettings.model_validate(authorization),
            flapping=FlappingSettings.model_validate(flapping or {}),
            users=store,
            outside=made.outside,
        )

    return make


def use_rules(node: Node, *rules: Spec) -> None:
    """Set the built-in rules, as the API does."""
    authorizer = node.server.hub.access.authorizer
    made = [
        NamedRuleSettings.model_validate({"name": f"r{number}", **rule})
        for number, rule in enumerate(rules)
    ]
    authorizer.built_in.set([Rule(one, one.name, "built_in") for one in made])
    authorizer.changed()


@asynccontextmanager
async def proxied(node: Node) -> AsyncIterator[int]:
    """The port of a listener behind a load balancer, which says where clients come from."""
    settings = ListenerSettings(bind="127.0.0.1:0", proxy_protocol="v1")
    listener = Listener(NamedListener(settings, "proxied"), node.server.hub, node.metrics)
    _, port = await listener.open()
    try:
        yield port
    finally:
        listener.close()
        listener.owner.dismiss(0x8B, "stopped")


async def from_afar(port: int, connect: Connect, address: str = "192.0.2.7") -> WireClient:
    """A client on another machine, through such a listener."""
    client = await WireClient.open(port, connect.version)
    client.send_bytes(
        f"PROXY TCP{6 if ':' in address else 4} {address} {address} 5 1883\r\n".encode()
    )
    client.send(connect)
    assert (await client.expect(ConnAck)).reason_code == 0
    return client
