"""Listeners with authenticators of their own, without any, and that refuse anonymous clients at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from broker.codec.packets import ConnAck, Connect
from broker.core import reason
from broker.core.errors import ConfigError
from broker.net.listener import Listener, check_exposure
from broker.net.settings import ListenerSettings, NamedListener
from tests.support.access import BUILTIN, access
from tests.support.http_service import Reply, Service
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.wire import WireClient

WRONG = reason.BAD_USER_NAME_OR_PASSWORD
OWN = {
    "mechanism": "cinfo",
    "checks": [{"is_match": "str_eq(username, 'plant')", "result": "allow"}],
}


def named(**settings: Any) -> NamedListener:
    made = ListenerSettings.model_validate({"bind": "127.0.0.1:0", **settings})
    return NamedListener(made, "plant")


@asynccontextmanager
async def listening(node: Node, **settings: Any) -> AsyncIterator[int]:
    """The port of a further listener."""
    listener = Listener(named(**settings), node.server.hub, node.metrics)
    _, port = await listener.open()
    try:
        yield port
    finally:
        listener.close()
        listener.owner.dismiss(0x8B, "stopped")


async def code_of(port: int, username: str | None, password: str | None = None) -> int:
    wire = await WireClient.open(port, 5)
    sent = None if password is None else password.encode()
    wire.send(Connect("c1", 5, username=username, password=sent))
    code = (await wire.expect(ConnAck)).reason_code
    await wire.close()
    return code


@on_loop
async def test_a_listener_asks_all_authenticators_its_own_or_none() -> None:
    async with running(access=access(BUILTIN)) as node:
        assert await code_of(node.port, "ann", "pencil") == 0
        assert await code_of(node.port, "plant", "x") == WRONG
        async with listening(node, authentication=[OWN]) as port:
            assert await code_of(port, "ann", "pencil") == WRONG
            assert await code_of(port, "plant", "x") == 0
        async with listening(node, enable_authn=False) as port:
            for username in ("ann", "plant", None):
                assert await code_of(port, username) == 0
        assert await code_of(node.port, "plant", "x") == WRONG


@on_loop
async def test_names_of_clients_that_are_not_authenticated_are_not_believed() -> None:
    rules = [{"permission": "allow", "who": {"username": "ann"}, "topics": ["#"]}]
    made = access(BUILTIN, rules=rules, no_match="deny")
    async with running(access=made) as node, listening(node, enable_authn=False) as port:
        wire = await WireClient.connected(port, Connect("c1", 5, username="ann"))
        subject = next(c.subject for c in node.server.hub.connections)
        assert subject is not None
        assert "username" not in subject.facts
        await wire.close()


@on_loop
async def test_anonymous_clients_are_refused_before_a_service_is_asked() -> None:
    async with Service(lambda request: Reply(body=b'{"result": "allow"}')) as service:
        made = access([{"mechanism": "http", "url": service.url}])
        async with (
            running(access=made) as node,
            listening(node, enable_authn="quick_deny_anonymous") as port,
        ):
            assert await code_of(port, None) == reason.NOT_AUTHORIZED
            assert service.received == []
            assert await code_of(port, "ann") == 0


@on_loop
async def test_a_service_of_a_listener_has_an_alarm_of_its_own() -> None:
    async with Service(lambda request: Reply(body=b'{"result": "allow"}')) as service:
        await service.down()
        chain = [{"mechanism": "http", "url": service.url}]
        async with (
            running(access=access(BUILTIN)) as node,
            listening(node, authentication=chain) as port,
        ):
            assert await code_of(port, "ann", "pencil") == reason.SERVER_UNAVAILABLE
            assert await code_of(node.port, "ann", "pencil") == 0
            [alarm] = node.alarms.active()
            assert alarm.name.startswith("authenticator_unavailable:http@")
            await service.up()
            node.pass_time(2)
            await node.until(lambda: not node.alarms.active())


def test_a_listener_with_its_own_authenticators_may_be_reached_from_elsewhere() -> None:
    closed: list[dict[str, Any]] = [{"authentication": [OWN]}, {"enable_authn": False}]
    for settings in closed:
        check_exposure(
            [named(bind="0.0.0.0:0", **settings)], allow_anonymous=False, has_authenticator=False
        )
    open_ones: list[dict[str, Any]] = [
        {"authentication": []},
        {"authentication": [{**OWN, "enable": False}]},
        {},
    ]
    for settings in open_ones:
        with pytest.raises(ConfigError):
            check_exposure(
                [named(bind="0.0.0.0:0", **settings)],
                allow_anonymous=False,
                has_authenticator=False,
            )
