"""Clients and access rules in a real OpenLDAP: bind and hash, hostile names, groups, TLS, a server that goes."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bcrypt
import pytest
from pydantic import ValidationError

from broker.auth.backends.ldap import LdapAuthenticatorSettings
from broker.auth.backends.ldap_protocol import encoded_filter, escaped_in_filter
from broker.codec.packets import ConnAck, Connect, PubAck, Publish, SubscriptionRequest
from broker.core import reason
from tests.support.access import BUILTIN, access
from tests.support.certificates import Authority
from tests.support.ldap_server import ADMIN, BASE, PASSWORD, LdapServer
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.wire import WireClient

WRONG = reason.BAD_USER_NAME_OR_PASSWORD


def salted(name: str) -> str:
    """A hash of ``pencil`` with a salt, as OpenLDAP's modules store it."""
    digest = hashlib.new(
        {"SSHA": "sha1", "SSHA256": "sha256", "SSHA512": "sha512"}[name], b"pencilsalt"
    ).digest()
    return f"{{{name}}}{base64.b64encode(digest + b'salt').decode()}"


PASSWORDS = {
    "ann": salted("SSHA"),
    "strong": salted("SSHA256"),
    "stronger": salted("SSHA512"),
    "crypt": "{CRYPT}" + bcrypt.hashpw(b"pencil", bcrypt.gensalt(4)).decode(),
    "weak": "pencil",
    "boss": salted("SSHA"),
}


def ldif() -> str:
    """The directory: people, and a group of one of them."""
    entries = [
        f"dn: {BASE}\nobjectClass: domain\ndc: example",
        f"dn: ou=people,{BASE}\nobjectClass: organizationalUnit\nou: people",
        f"dn: ou=groups,{BASE}\nobjectClass: organizationalUnit\nou: groups",
    ]
    for name, stored in PASSWORDS.items():
        is_superuser = "TRUE" if name == "boss" else "FALSE"
        entries.append(
            f"dn: uid={name},ou=people,{BASE}\nobjectClass: inetOrgPerson\nobjectClass: mqttAccess\nuid: {name}\n"
            f"cn: {name}\nsn: {name}\nisSuperuser: {is_superuser}\nuserPassword: {stored}"
        )
    entries.append(
        f"dn: cn=meters,ou=groups,{BASE}\nobjectClass: groupOfNames\nobjectClass: mqttAccess\ncn: meters\n"
        f"member: uid=ann,ou=people,{BASE}\nmqttPublishTopic: up/${{username}}\nmqttSubscriptionTopic: down/#"
    )
    return "\n\n".join(entries) + "\n"


@pytest.fixture(scope="module")
def server() -> Iterator[LdapServer]:
    with LdapServer(ldif()) as server:
        yield server


def settings_of(server: LdapServer, **settings: Any) -> dict[str, Any]:
    own = {"server": f"127.0.0.1:{server.port}", "username": ADMIN, "password": PASSWORD}
    return {**own, "base_dn": f"ou=people,{BASE}", **settings}


def chain(server: LdapServer, **settings: Any) -> list[dict[str, Any]]:
    return [{"mechanism": "ldap", **settings_of(server, **settings)}]


async def code_of(node: Node, username: str, password: str, client_id: str = "c1") -> int:
    wire = await WireClient.open(node.port, 5)
    wire.send(Connect(client_id, 5, username=username, password=password.encode()))
    code = (await wire.expect(ConnAck)).reason_code
    await wire.close()
    return code


async def published(client: WireClient, topic: str) -> int:
    client.send(Publish(topic, b"", 1, packet_id=1))
    return (await client.expect(PubAck)).reason_code


@on_loop
async def test_a_client_is_bound_as_its_entry(server: LdapServer) -> None:
    async with running(access=access(chain(server), no_match="deny")) as node:
        for name in ("ann", "weak"):
            assert await code_of(node, name, "pencil", name) == 0
            assert await code_of(node, name, "wrong", name) == WRONG
        assert await code_of(node, "bob", "pencil", "bob") == WRONG
        # a bind without a password would succeed
        assert await code_of(node, "ann", "", "ann") == WRONG
        client = await node.client("boss", 5, username="boss", password=b"pencil")
        assert await published(client, "any") == 0x10


@on_loop
async def test_the_hash_of_an_entry_is_compared(server: LdapServer) -> None:
    async with running(access=access(chain(server, method="hash"))) as node:
        for name in ("strong", "stronger", "crypt"):
            assert await code_of(node, name, "pencil", name) == 0
            assert await code_of(node, name, "wrong", name) == WRONG
        for name in ("ann", "weak"):
            assert await code_of(node, name, "pencil", name) == WRONG
    async with running(access=access(chain(server, method="hash", allow_weak=True))) as node:
        for name in ("ann", "weak"):
            assert await code_of(node, name, "pencil", name) == 0
            assert await code_of(node, name, "wrong", name) == WRONG


@on_loop
async def test_a_name_is_a_value_whatever_is_in_it(server: LdapServer) -> None:
    async with running(access=access(chain(server), login_limits={"enable": False})) as node:
        for name in (
            "*",
            "an*",
            "ann)(uid=*",
            "ann))(|(uid=*",
            "\\61nn",
            "ann\x01",
            "é😀",
            "(" * 500,
        ):
            assert await code_of(node, name, "pencil") == WRONG, name
        assert await code_of(node, "ann", "pencil") == 0
        assert node.alarms.active() == []


@on_loop
async def test_a_name_in_a_base_stays_one_part_of_it(server: LdapServer) -> None:
    base = f"uid=${{username}},ou=people,{BASE}"
    settings = {"base_dn": base, "scope": "base", "filter": "(objectClass=person)"}
    async with running(
        access=access(chain(server, **settings), login_limits={"enable": False})
    ) as node:
        for name in ("ann,ou=people", "x,uid=ann", "ann+uid=boss", 'ann"', "ann\\"):
            assert await code_of(node, name, "pencil") == WRONG, name
        assert await code_of(node, "ann", "pencil") == 0


@on_loop
async def test_groups_give_rules_and_leaving_one_takes_them(server: LdapServer) -> None:
    source = {
        "type": "ldap",
        **settings_of(server, base_dn=f"ou=groups,{BASE}"),
        "filter": f"(&(objectClass=groupOfNames)(member=uid=${{username}},ou=people,{BASE}))",
    }
    async with running(access=access(BUILTIN, sources=[source], no_match="deny")) as node:
        client = await node.client("c1", 5, username="ann", password=b"pencil")
        assert await published(client, "up/ann") == 0x10
        assert await published(client, "up/bob") == reason.NOT_AUTHORIZED
        assert await client.subscribe(
            SubscriptionRequest("down/x", 1), SubscriptionRequest("up/#")
        ) == [1, 0x87]
        change = (
            f"dn: cn=meters,ou=groups,{BASE}\nchangetype: modify\nreplace: member\nmember: uid="
        )
        server.modify(f"{change}boss,ou=people,{BASE}\n")
        try:
            node.pass_time(301)
            await node.until(lambda: not node.server.hub.sessions.by_client_id["c1"].subscriptions)
            assert await published(client, "up/ann") == reason.NOT_AUTHORIZED
        finally:
            server.modify(f"{change}ann,ou=people,{BASE}\n")


@on_loop
async def test_a_wrong_password_of_the_broker_is_the_reason_of_the_alarm(
    server: LdapServer,
) -> None:
    async with running(access=access(chain(server, password="planted"))) as node:
        assert await code_of(node, "ann", "pencil") == reason.SERVER_UNAVAILABLE
        [alarm] = node.alarms.active()
        assert "result 49" in alarm.message
        assert "planted" not in alarm.message


@on_loop
async def test_a_directory_without_the_entry_of_all_clients_is_not_a_wrong_password(
    server: LdapServer,
) -> None:
    gone = chain(server, base_dn=f"ou=gone,{BASE}")
    async with running(access=access(gone)) as node:
        assert await code_of(node, "ann", "pencil") == reason.SERVER_UNAVAILABLE
    own = chain(server, base_dn=f"uid=${{username}},ou=people,{BASE}", scope="base")
    async with running(access=access(own)) as node:
        assert await code_of(node, "ann", "pencil") == 0
        assert await code_of(node, "nobody", "pencil") == WRONG


@on_loop
async def test_over_tls_the_name_of_the_certificate_is_checked(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.sign("directory", {"CN": "directory"}, ["127.0.0.1"])
    with LdapServer(ldif(), (str(files.cert), str(files.key))) as secure:
        tls = {"enable": True, "cacertfile": str(authority.file)}
        async with running(access=access(chain(secure, ssl=tls))) as node:
            assert await code_of(node, "ann", "pencil") == 0
        other = {**tls, "server_name_indication": "other.example"}
        async with running(access=access(chain(secure, ssl=other))) as node:
            assert await code_of(node, "ann", "pencil") == reason.SERVER_UNAVAILABLE


@on_loop
async def test_a_server_that_is_stopped_and_started_under_connects(server: LdapServer) -> None:
    async with running(access=access(chain(server, timeout="2s"))) as node:
        stays = await node.client("stays", 5, username="ann", password=b"pencil")

        async def connects(count: int) -> set[int]:
            return set(
                await asyncio.gather(
                    *(code_of(node, "ann", "pencil", f"c{n}") for n in range(count))
                )
            )

        assert await connects(50) == {0}
        server.process.kill()
        try:
            assert await connects(200) == {reason.SERVER_UNAVAILABLE}
            await stays.silence()
        finally:
            await asyncio.to_thread(server.process.start)
        node.pass_time(2)
        await node.until(lambda: not node.alarms.active())
        assert await connects(50) == {0}
        server.process.freeze()
        try:
            assert await connects(20) == {reason.SERVER_UNAVAILABLE}
        finally:
            server.process.thaw()
        node.pass_time(2)
        await node.until(lambda: not node.alarms.active())
        assert await connects(5) == {0}


@pytest.mark.parametrize(
    ("filter", "problem"),
    [
        ("uid=${username}", "expected '('"),
        ("(uid=${username}", "expected ')'"),
        ("(uid=${username}))", "got more"),
        ("(&)", "expected ')'"),
        ("(uid)", "(attribute=value)"),
        ("(uid=a\\zz)", "two hexadecimal digits"),
        ("(uid=${nothing})", "got ${nothing}"),
        ("(!" * 30 + "(a=b)" + ")" * 30, "levels of parentheses"),
    ],
)
def test_filters_that_cannot_be_used_are_refused(filter: str, problem: str) -> None:
    settings = {"mechanism": "ldap", "server": "127.0.0.1:389", "base_dn": BASE, "filter": filter}
    with pytest.raises(ValidationError) as raised:
        LdapAuthenticatorSettings.model_validate(settings)
    assert problem in str(raised.value)


def test_filters_are_encoded_as_the_standard_says() -> None:
    assert encoded_filter("(uid=ann)") == b"\xa3\x0a\x04\x03uid\x04\x03ann"
    assert encoded_filter("(uid=*)") == b"\x87\x03uid"
    assert encoded_filter("(uid=a*b)") == b"\xa4\x0d\x04\x03uid0\x06\x80\x01a\x82\x01b"
    assert encoded_filter(f"(uid={escaped_in_filter('*)(')})") == b"\xa3\x0a\x04\x03uid\x04\x03*)("
