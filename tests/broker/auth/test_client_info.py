"""Client attributes and the authenticator that decides from what is known of a client."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from pydantic import ValidationError

from broker.auth.attempt import Certificate, ConnectAttempt
from broker.auth.authenticators.cinfo import CinfoAuthenticator, CinfoSettings
from broker.auth.chain import AuthenticationSettings, AuthenticatorChain
from broker.auth.client_attributes import ClientAttributes, ClientAttributeSettings
from broker.auth.decision import Decision
from broker.codec.packets import ConnAck, Connect
from broker.core import reason
from broker.observe.metrics import Metrics
from tests.support.access import access
from tests.support.mqtt_server import on_loop
from tests.support.wire import WireClient
from tests.support.zoned import zoned

CERTIFICATE = Certificate("CN=dev-7,OU=berlin,O=acme", "dev-7", {"dns": ("a.example", "b.example")})
CLIENT = ConnectAttempt(
    "c1",
    "u1",
    b"secret",
    "10.0.0.7",
    4711,
    5,
    "tcp:default",
    (("site", "1"), ("site", "2")),
    certificate=CERTIFICATE,
)


def attributes(client: ConnectAttempt, **expressions: str) -> dict[str, str]:
    settings = [
        ClientAttributeSettings(expression=text, set_as_attr=name)
        for name, text in expressions.items()
    ]
    return ClientAttributes(settings, Metrics()).of(client)


def decide(client: ConnectAttempt, *checks: tuple[str | list[str], str]) -> str:
    written = [{"is_match": is_match, "result": result} for is_match, result in checks]
    settings = CinfoSettings.model_validate({"mechanism": "cinfo", "checks": written})
    return CinfoAuthenticator(settings).decide(client).verdict


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("clientid", "c1"),
        ("username", "u1"),
        ("peerhost", "10.0.0.7"),
        ("peername", "10.0.0.7:4711"),
        ("listener", "tcp:default"),
        ("cert_common_name", "dev-7"),
        ("cn", "dev-7"),
        ("dn", "CN=dev-7,OU=berlin,O=acme"),
        ("nth(1, regex_extract(cert_subject, 'OU=([a-z]+)'))", "berlin"),
        ("nth(2, cert_san.dns)", "b.example"),
        ("user_property.site", "2"),
        ("coalesce(user_property.none, 'default')", "default"),
        ("concat(['a', proto_ver])", "a5"),
    ],
)
def test_an_attribute_is_worked_out_from_what_is_known(expression: str, value: str) -> None:
    assert attributes(CLIENT, x=expression) == {"x": value}


@pytest.mark.parametrize(
    "expression",
    ["''", "user_property.none", "nth(1, cert_san.ip)", "unescape('a\\nb')", "cert_san.dns"],
)
def test_an_attribute_that_is_empty_fails_or_has_control_characters_is_not_set(
    expression: str,
) -> None:
    assert attributes(CLIENT, x=expression, y="clientid") == {"y": "c1"}


def test_a_later_entry_replaces_and_none_sees_another() -> None:
    settings = [
        ClientAttributeSettings(expression="clientid", set_as_attr="x"),
        ClientAttributeSettings(expression="client_attrs.x", set_as_attr="y"),
        ClientAttributeSettings(expression="username", set_as_attr="x"),
    ]
    metrics = Metrics()
    assert ClientAttributes(settings, metrics).of(CLIENT) == {"x": "u1"}
    assert metrics.value("client_attributes_failed") == 1


@pytest.mark.parametrize(
    ("override", "client_id"),
    [
        ("concat([client_attrs.x, '-a'])", "c1-a"),
        ("''", "c1"),
        ("user_property.none", "c1"),
        ("cn", "dev-7"),
    ],
)
def test_a_client_may_get_another_identifier_after_its_attributes(
    override: str, client_id: str
) -> None:
    settings = [ClientAttributeSettings(expression="clientid", set_as_attr="x")]
    settled = ClientAttributes(settings, Metrics(), override).settled(CLIENT)
    assert (settled.client_id, settled.attributes) == (client_id, {"x": "c1"})


@pytest.mark.parametrize(
    ("client", "checks", "verdict"),
    [
        (replace(CLIENT, username=None), [("is_empty_val(username)", "deny")], "deny"),
        (CLIENT, [("is_empty_val(username)", "deny")], "ignore"),
        (ConnectAttempt("a", "a"), [("str_eq(username, clientid)", "allow")], "allow"),
        (
            ConnectAttempt("super"),
            [(["not(is_empty_val(username))", "str_eq(clientid,'super')"], "allow")],
            "ignore",
        ),
        (CLIENT, [("coalesce(username, clientid, 'x')", "deny")], "ignore"),
        (
            ConnectAttempt("c"),
            [("str_eq(clientid, coalesce(cert_common_name,''))", "allow"), ("true", "deny")],
            "deny",
        ),
        (CLIENT, [("client_attrs.none", "deny"), ("true", "allow")], "allow"),
        (CLIENT, [("str_eq(clientid, 'c1')", "ignore"), ("true", "deny")], "ignore"),
        (CLIENT, [("regex_match(clientid, '^c[0-9]+$')", "allow")], "allow"),
        (
            CLIENT,
            [
                (
                    "str_eq(nth(1, tokens(username, '1')), nth(1, regex_extract(dn, 'OU=([a-z]+)')))",
                    "allow",
                )
            ],
            "ignore",
        ),
        (
            replace(CLIENT, password=sha256(b"c1secret").hexdigest().encode()),
            [("str_eq(password, hash('sha256', concat([clientid, 'secret'])))", "allow")],
            "allow",
        ),
    ],
)
def test_the_first_check_that_matches_decides(
    client: ConnectAttempt, checks: list[Any], verdict: str
) -> None:
    assert decide(client, *checks) == verdict


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("username", "u1"),
        ("clientid", "c1"),
        ("password", "secret"),
        ("peerhost", "10.0.0.7"),
        ("peername", "10.0.0.7:4711"),
        ("listener", "tcp:default"),
        ("zone", "default"),
        ("protocol", "mqtt"),
        ("cert_subject", "CN=dev-7,OU=berlin,O=acme"),
        ("dn", "CN=dev-7,OU=berlin,O=acme"),
        ("cert_common_name", "dev-7"),
        ("cn", "dev-7"),
        ("client_attrs.site", "berlin"),
        ("user_property.site", "2"),
        ("peersni", "mqtt.example"),
    ],
)
def test_checks_see_every_variable(name: str, value: str) -> None:
    client = replace(CLIENT, attributes={"site": "berlin"}, server_name="mqtt.example")
    assert decide(client, (f"str_eq({name}, '{value}')", "allow"), ("true", "deny")) == "allow"


OU = "nth(1, regex_extract(cert_subject, 'OU=([a-z]+)'))"


@pytest.mark.parametrize(
    ("username", "client_id", "password", "verdict"),
    [
        (None, "v1-a", None, "deny"),
        ("berlin-7", "v1-a", None, "allow"),
        ("berlin-7", "x", None, "deny"),
        ("paris-7", "v1-a", None, "deny"),
        ("paris-7", "v1-b", b"wrong", "deny"),
        ("paris-7", "v1-b", sha256(b"v1-b!pepper").hexdigest().encode(), "allow"),
    ],
)
def test_the_four_examples(
    username: str | None,
    client_id: str,
    password: bytes | None,
    verdict: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLUICEVAR_PEPPER_OF_TEST", "!pepper")
    client = replace(CLIENT, username=username, client_id=client_id, password=password)
    checks: list[tuple[str | list[str], str]] = [
        ("is_empty_val(username)", "deny"),
        ("not(regex_match(clientid, '^v1-'))", "deny"),
        (f"str_eq(nth(1, tokens(username, '-')), {OU})", "allow"),
        ("str_eq(password, hash('sha256', concat([clientid, getenv('PEPPER_OF_TEST')])))", "allow"),
        ("true", "deny"),
    ]
    assert decide(client, *checks) == verdict


@pytest.mark.parametrize("client_id", ["a", "b", "c"])
@pytest.mark.parametrize("first", ["str_eq(clientid, 'a')", "str_eq(cert_subject, 'x')"])
def test_a_check_with_or_equals_two_checks(first: str, client_id: str) -> None:
    client, second = ConnectAttempt(client_id), "str_eq(clientid, 'b')"
    two = decide(client, (first, "allow"), (second, "allow"), ("true", "deny"))
    assert decide(client, (f"or({first}, {second})", "allow"), ("true", "deny")) == two
    both = decide(client, ([first, second], "allow"), ("true", "deny"))
    assert decide(client, (f"and({first}, {second})", "allow"), ("true", "deny")) == both


@pytest.mark.parametrize(
    "checks",
    [[], [{"is_match": [], "result": "allow"}], [{"is_match": "", "result": "deny"}],
     [{"is_match": "nosuch(1)", "result": "deny"}], [{"is_match": "true", "result": "maybe"}]],
)  # fmt: skip
def test_checks_that_cannot_be_used_are_refused(checks: list[Any]) -> None:
    with pytest.raises(ValidationError):
        CinfoSettings.model_validate({"mechanism": "cinfo", "checks": checks})


def test_the_chain_asks_in_order_and_refuses_when_nobody_decides() -> None:
    written = [
        {"mechanism": "cinfo", "checks": [{"is_match": "str_eq(clientid,'x')", "result": "deny"}]},
        {"mechanism": "cinfo", "enable": False, "checks": [{"is_match": "true", "result": "deny"}]},
        {
            "mechanism": "cinfo",
            "precondition": "str_eq(username,'v')",
            "checks": [{"is_match": "true", "result": "deny"}],
        },
        {"mechanism": "cinfo", "checks": [{"is_match": "str_eq(clientid,'y')", "result": "allow"}]},
    ]
    metrics = Metrics()
    chain = AuthenticatorChain(AuthenticationSettings.model_validate(written), metrics)
    clients = [
        ConnectAttempt("x"),
        ConnectAttempt("y"),
        ConnectAttempt("z"),
        ConnectAttempt("z", "v"),
    ]
    denied = reason.BAD_USER_NAME_OR_PASSWORD
    decisions = [chain.authenticate(client) for client in clients]
    codes = [decision.reason_code for decision in decisions if isinstance(decision, Decision)]
    assert codes == [denied, 0, reason.NOT_AUTHORIZED, denied]
    assert [
        metrics.value(f"authentication_{name}") for name in ("allowed", "denied", "undecided")
    ] == [1, 2, 1]


def test_a_password_is_never_shown() -> None:
    assert "secret" not in repr(CLIENT)


@on_loop
async def test_expressions_over_clients_see_the_zone_of_their_listener() -> None:
    checks = [
        {"is_match": "str_eq(zone, 'memory')", "result": "deny"},
        {"is_match": "true", "result": "allow"},
    ]
    init = [{"expression": "zone", "set_as_attr": "zone"}]
    chain = access([{"mechanism": "cinfo", "checks": checks}])
    async with zoned(access=chain, client_attrs_init=init) as node:
        await node.client("default", "a")
        refused = await WireClient.open(node.ports["memory"], 5)
        refused.send(Connect("b", 5))
        assert (await refused.expect(ConnAck)).reason_code == reason.BAD_USER_NAME_OR_PASSWORD
        session = node.node.server.hub.sessions.get("a")
        assert session is not None
        assert session.client.attributes == {"zone": "default"}
