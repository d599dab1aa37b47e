"""Clients of a whole broker that log in with tokens: paho, an issuer over HTTPS, the API and the command line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.support.certificates import Authority
from tests.support.local_node import Node, running
from tests.support.node import eventually
from tests.support.tokens import SECRET, Issuer, jwk, private_key

CONFIG = """
login_limits.enable = false
authentication = [
  {{ mechanism = jwt
    secret = "${{env:SLUICE_SECRET_TOKEN_SECRET}}"
    jwks_url = "{url}", ssl.cacertfile = "{ca}", refresh_interval = 10s
    leeway = 0
    verify_claims {{ aud = mqtt, client = "${{clientid}}" }}
    username_claim = sub }}
]
"""
CLAIMS = {"aud": "mqtt", "sub": "meter", "client": "paho"}


def token(lasts_s: float = 60, kid: str | None = None, **claims: Any) -> str:
    """A token that ends in so many seconds."""
    made = {"exp": time.time() + lasts_s, **CLAIMS, **claims}
    if kid is None:
        return jwt.encode(made, SECRET, algorithm="HS256")
    return jwt.encode(made, private_key("ES256", kid), algorithm="ES256", headers={"kid": kid})


def wait_for(client: paho.Client, told: list[Any]) -> None:
    """Run a client until it was told something."""

    def is_told() -> bool:
        client.loop(0.05)
        return bool(told)

    eventually(is_told, every_s=0)


class Client:
    """A paho client over MQTT 5 that notes what it is told."""

    def __init__(self, node: Node, password: str, client_id: str = "paho") -> None:
        self.connected: list[int] = []
        self.disconnected: list[int] = []
        self.granted: list[list[int]] = []
        self.acknowledged: list[int] = []
        self.paho = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=paho.MQTTv5)
        self.paho.username_pw_set("whoever", password)
        self.paho.on_connect = lambda _c, _u, _f, code, _p: self.connected.append(code.value)
        self.paho.on_disconnect = lambda _c, _u, _f, code, _p: self.disconnected.append(code.value)
        self.paho.on_subscribe = lambda _c, _u, _m, codes, _p: self.granted.append(
            [code.value for code in codes]
        )
        self.paho.on_publish = lambda _c, _u, _m, code, _p: self.acknowledged.append(code.value)
        self.paho.connect(*node.mqtt)

    def told(self, kind: list[Any]) -> Any:
        """What came first of a kind."""
        wait_for(self.paho, kind)
        return kind.pop(0)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.paho.disconnect()


def login(node: Node, password: str, client_id: str = "paho") -> int:
    """The reason code of a login."""
    with Client(node, password, client_id) as client:
        code: int = client.told(client.connected)
        return code


@contextlib.contextmanager
def serving(issuer: Issuer) -> Iterator[None]:
    """An issuer on a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(issuer.service.up(), loop).result(60)
        yield
    finally:
        asyncio.run_coroutine_threadsafe(issuer.service.down(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Issuer, Path]]:
    directory = tmp_path_factory.mktemp("issuer")
    authority = Authority(directory)
    files = authority.sign("issuer", {"CN": "issuer"}, ["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    made = Issuer(jwk("one"), context=context)
    with serving(made):
        yield made, authority.file


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, issuer: tuple[Issuer, Path]) -> Iterator[Node]:
    config = CONFIG.format(url=issuer[0].url, ca=issuer[1])
    directory = tmp_path_factory.mktemp("tokens") / "node"
    with running(directory, config=config, environ={"SLUICE_SECRET_TOKEN_SECRET": SECRET}) as node:
        yield node


def test_paho_logs_in_with_a_token_and_is_refused_with_another(node: Node) -> None:
    assert login(node, token()) == 0
    assert login(node, token(kid="one")) == 0
    assert login(node, token(-1)) == 0x86
    assert (
        login(node, jwt.encode({"exp": time.time() + 60, **CLAIMS}, "x" * 40, algorithm="HS256"))
        == 0x86
    )
    assert login(node, token(aud="web")) == 0x87
    assert login(node, token(), client_id="somebody-else") == 0x87
    assert login(node, "pencil") == 0x86


def test_the_issuer_changes_its_keys(node: Node, issuer: tuple[Issuer, Path]) -> None:
    issuer[0].keys = [jwk("two")]
    eventually(lambda: login(node, token(kid="two")) == 0)
    assert login(node, token(kid="one")) == 0x86
    [shown] = node.call("GET", "/authentication")["items"]
    assert shown["state"]["jwks"]["status"] == "connected"
    assert shown["state"]["jwks"]["keys"] == 1
    assert shown["secret"] == "${env:SLUICE_SECRET_TOKEN_SECRET}"


def test_the_rules_of_a_token_hold_for_paho(node: Node) -> None:
    acl = [
        {
            "permission": "allow",
            "action": "publish",
            "topic": "meters/${username}/${clientid}/#",
            "qos": 1,
        },
        {"permission": "allow", "action": "subscribe", "topic": "all/#"},
    ]
    with Client(node, token(acl=acl)) as client:
        assert client.told(client.connected) == 0
        client.paho.publish("meters/meter/paho/t", "21.5", qos=1)
        assert client.told(client.acknowledged) in (0, 0x10)
        client.paho.publish("meters/other/paho/t", "21.5", qos=1)
        assert client.told(client.acknowledged) == 0x87
        client.paho.subscribe([("all/x", SubscribeOptions(1)), ("#", SubscribeOptions(1))])
        assert client.told(client.granted) == [1, 0x87]


def test_paho_is_disconnected_when_its_token_ends(node: Node) -> None:
    with Client(node, token(5)) as client:
        assert client.told(client.connected) == 0
        assert client.told(client.disconnected) == 0xA0
    with node.client() as api:
        metrics = api.get(f"{node.url}/metrics").text
    assert "credentials_expired" in metrics


def test_a_login_is_tried_without_a_client(node: Node) -> None:
    client = {"clientid": "paho", "password": token(-30)}
    answer = node.call("POST", "/access:check", {"client": client})
    assert answer["allowed"] is False
    assert "the token ended 3" in answer["authentication"]["why"]
    client["password"] = token(kid="made-up")
    answer = node.call("POST", "/access:check", {"client": client})
    assert (
        answer["authentication"]["why"]
        == "the token is signed with a key that is not among those published"
    )
    client["password"] = token(acl={"pub": ["a"]})
    answer = node.call(
        "POST", "/access:check", {"client": client, "action": "publish", "topic": "b"}
    )
    assert answer["allowed"] is False
    assert answer["username"] == "meter"
    assert answer["rules"] == [
        {"name": "rule 1", "source": "token", "permission": "allow", "topics": ["a"]}
    ]
    allowed = node.call(
        "POST", "/access:check", {"client": client, "action": "publish", "topic": "a"}
    )
    assert allowed["authorization"] == {
        "result": "allow",
        "source": "token",
        "rule": "rule 1",
        "withheld": [],
    }


def test_a_token_is_never_written_to_the_log(node: Node) -> None:
    bad = token(-1)
    assert login(node, bad) == 0x86
    log = eventually(lambda: (text := node.log.read_text()).count("the token ended") and text)
    assert bad.rpartition(".")[2] not in str(log)
    assert SECRET not in str(log)


def test_an_authenticator_is_made_and_its_secret_kept_while_the_broker_runs(tmp_path: Path) -> None:
    def broker_token(**claims: Any) -> str:
        return jwt.encode({"exp": time.time() + 60, **claims}, SECRET, algorithm="HS256")

    with running(tmp_path / "node", config="access.allow_anonymous = true") as node:
        node.call("POST", "/authentication", {"name": "jwt", "secret": SECRET})
        assert login(node, broker_token()) == 0
        assert login(node, "pencil") == 0x86
        shown = node.call("GET", "/authentication/jwt")
        assert shown["secret"] == "******"
        assert "state" not in shown
        node.call("PUT", "/authentication/jwt", {**shown, "verify_claims": {"aud": "mqtt"}})
        assert login(node, broker_token()) == 0x87
        assert login(node, broker_token(aud="mqtt")) == 0
        missing = str(node.data_dir.absolute() / "secrets" / "none.pem")
        refused = node.call(
            "PUT", "/authentication/jwt", {**shown, "public_key": missing}, expect=422
        )
        assert "/none.pem, cannot be used: no such file" in json.dumps(refused)
        assert login(node, broker_token(aud="mqtt")) == 0


def test_paho_names_its_method(node: Node) -> None:
    client = paho.Client(CallbackAPIVersion.VERSION2, "paho", protocol=paho.MQTTv5)
    properties = Properties(PacketTypes.CONNECT)
    properties.AuthenticationMethod = "JWT"
    properties.AuthenticationData = token().encode()
    codes: list[int] = []
    client.on_connect = lambda _c, _u, _f, code, _p: codes.append(code.value)
    client.connect(*node.mqtt, properties=properties)
    wait_for(client, codes)
    client.disconnect()
    assert codes == [0]
