"""A whole broker with listeners of every kind, and real clients at them."""

from __future__ import annotations

import contextlib
import queue
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.end_to_end.clients import DEADLINE_S, Client, MosquittoSub, undisturbed
from tests.support.certificates import Authority, Files
from tests.support.node import Node, eventually, running
from tests.support.plain_http import NO_TLS

CONFIG = """
listeners {{
  ssl.default {{ bind = "127.0.0.1:0", ssl_options {{ certfile = "{cert}", keyfile = "{key}", handshake_timeout = 3s }} }}
  ssl.devices {{ bind = "127.0.0.1:0"
    ssl_options {{ certfile = "{cert}", keyfile = "{key}", cacertfile = "{ca}", verify = peer }} }}
  ssl.either {{ bind = "127.0.0.1:0"
    ssl_options {{ certfile = "{cert}", keyfile = "{key}", cacertfile = "{ca}"
                  verify = verify_peer, fail_if_no_peer_cert = false }} }}
  ws.default {{ bind = "127.0.0.1:0" }}
  wss.default {{ bind = "127.0.0.1:0", ssl_options {{ certfile = "{cert}", keyfile = "{key}" }} }}
  tcp.behind {{ bind = "127.0.0.1:0", proxy_protocol = auto }}
  tcp.small {{ bind = "127.0.0.1:0", max_connections = 1 }}
  tcp.off {{ bind = "127.0.0.1:0", enable = false }}
}}
mqtt.client_attrs_init = [
  {{ expression = "nth(1, regex_extract(cert_subject, 'OU=([^,]+)'))", set_as_attr = ou }}
]
message_transformation.transformations = [
  {{ name = ou, topics = ["ou/#"], failure_action = drop
    operations = [{{ key = "user_property.ou", value = "coalesce(client_attrs.ou, 'none')" }}] }}
]
"""  # noqa: E501


@dataclass(frozen=True)
class Site:
    """A broker and what its clients need."""

    node: Node
    authority: Authority
    server: Files
    device: Files

    def port(self, protocol: str, name: str = "default") -> int:
        """Where a listener is."""
        shown = self.node.call("GET", "/status")["listeners"]
        [address] = [
            one["address"] for one in shown if (one["protocol"], one["name"]) == (protocol, name)
        ]
        return int(address.rpartition(":")[2])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("listeners")
    authority = Authority(directory)
    server = authority.sign("server", {"CN": "localhost"}, ["localhost", "127.0.0.1"])
    device = authority.sign("device", {"O": "acme", "OU": "berlin", "CN": "dev-7"})
    config = CONFIG.format(cert=server.cert, key=server.key, ca=authority.file)
    with running(directory / "node", config=config) as node:
        yield Site(node, authority, server, device)


def _mosquitto(program: str, port: int, *options: str) -> subprocess.CompletedProcess[str]:
    command = [program, "-h", "localhost", "-p", str(port), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)


def _round_trip(client: paho.Client, port: int, payload: bytes = b"x" * 5000) -> None:
    """Connect, subscribe, publish, and have it back."""
    connected: queue.Queue[Any] = queue.Queue()
    subscribed: queue.Queue[Any] = queue.Queue()
    messages: queue.Queue[bytes] = queue.Queue()
    client.on_connect = lambda c, u, flags, reason, properties: connected.put(reason)
    client.on_subscribe = lambda c, u, mid, reasons, properties: subscribed.put(reasons)
    client.on_message = lambda c, u, message: messages.put(bytes(message.payload))
    client.connect("localhost", port, 30)
    client.loop_start()
    try:
        assert not connected.get(timeout=DEADLINE_S).is_failure
        topic = f"round/{client._client_id.decode()}"
        client.subscribe(topic, 1)
        subscribed.get(timeout=DEADLINE_S)
        for number in range(3):
            client.publish(topic, payload + b"%d" % number, qos=number)
        got = sorted(messages.get(timeout=DEADLINE_S) for _ in range(3))
        assert got == [payload + b"%d" % number for number in range(3)]
    finally:
        client.disconnect()
        client.loop_stop()


def _paho(client_id: str, transport: Any = "tcp", **options: Any) -> paho.Client:
    return paho.Client(
        CallbackAPIVersion.VERSION2, client_id, transport=transport, protocol=paho.MQTTv5, **options
    )


@pytest.mark.parametrize(
    ("protocol", "name", "transport"),
    [
        ("mqtts", "default", "tcp"),
        ("mqtts", "devices", "tcp"),
        ("mqtts", "either", "tcp"),
        ("ws", "default", "websockets"),
        ("wss", "default", "websockets"),
    ],
)
@pytest.mark.parametrize("size", [10, 300_000])
def test_paho_is_served_by_every_kind_of_listener(
    site: Site, protocol: str, name: str, transport: str, size: int
) -> None:
    client = _paho(f"paho-{protocol}-{name}", transport)
    if protocol != "ws":
        certificate = (
            (str(site.device.cert), str(site.device.key)) if name == "devices" else (None, None)
        )
        client.tls_set(str(site.authority.file), *certificate)
    _round_trip(client, site.port(protocol, name), b"x" * size)


def test_mosquitto_publishes_over_tls_with_and_without_its_certificate(site: Site) -> None:
    ca = ["--cafile", str(site.authority.file), "-q", "1", "-t", "tls", "-m"]
    mine = ["--cert", str(site.device.cert), "--key", str(site.device.key)]
    with MosquittoSub(site.node, "-t", "tls") as subscriber:
        assert _mosquitto("mosquitto_pub", site.port("mqtts"), *ca, "a").returncode == 0
        assert (
            _mosquitto("mosquitto_pub", site.port("mqtts", "devices"), *ca, "b", *mine).returncode
            == 0
        )
        assert (
            _mosquitto("mosquitto_pub", site.port("mqtts", "devices"), *ca, "refused").returncode
            != 0
        )
        assert subscriber.take(2) == ["tls a", "tls b"]


@pytest.mark.parametrize("is_shown", [True, False])
def test_organizational_unit_of_the_certificate_is_a_user_property_with_none_as_fallback(
    site: Site, is_shown: bool
) -> None:
    options = ["--cafile", str(site.authority.file), "-V", "5", "-q", "1", "-t", "ou/x", "-m", "x"]
    if is_shown:
        options += ["--cert", str(site.device.cert), "--key", str(site.device.key)]
    with MosquittoSub(site.node, "-V", "5", "-t", "ou/#", form="%p %P") as subscriber:
        done = _mosquitto("mosquitto_pub", site.port("mqtts", "either"), *options)
        assert done.returncode == 0, done.stderr
        assert subscriber.take(1) == [f"x ou:{'berlin' if is_shown else 'none'}"]


def test_a_load_balancer_says_who_the_client_is(site: Site) -> None:
    for address, code in (
        ("127.0.0.1", 0),
        ("192.0.2.7", 5),
    ):
        # without a login, only this machine's clients enter
        with socket.create_connection(
            ("127.0.0.1", site.port("mqtt", "behind")), DEADLINE_S
        ) as link:
            header = f"PROXY TCP4 {address} 10.0.0.1 56324 1883\r\n"
            link.sendall(header.encode() + b"\x10\x0f\0\4MQTT\4\2\0\0\0\3far")
            assert link.recv(4) == bytes((0x20, 2, 0, code))
    assert _say(site.port("mqtt", "behind"), b"\x10\x0f\0\4MQTT\4\2\0\0\0\3far") == b""


def test_a_full_listener_refuses_in_mqtt_and_counts_it(site: Site) -> None:
    port = site.port("mqtt", "small")
    at = Node(site.node.data_dir)
    at.mqtt = ("127.0.0.1", port)
    with Client(at, "only"):
        refused = _mosquitto("mosquitto_pub", port, "-V", "5", "-t", "x", "-m", "x")
        assert "Quota exceeded" in refused.stderr
        shown = site.node.call("GET", "/status")["listeners"]
        [small] = [one for one in shown if one["name"] == "small"]
        assert (small["connections"], small["max_connections"]) == (1, 1)
        metrics = httpx.get(f"{site.node.url}/metrics", trust_env=False, verify=NO_TLS).text
        assert re.search(r'sluice_listener_connections\{listener="tcp:small"\} 1\b', metrics)
        assert re.search(
            r'listener_connections_refused_total\{listener="tcp:small",reason="max_connections"\} 1\b',
            metrics,
        )
        assert re.search(
            r'sluice_listener_certificate_expires_seconds\{listener="ssl:default"\} 1\d+', metrics
        )


def test_a_browser_that_opens_the_address_is_told_what_it_is(site: Site) -> None:
    for path in ("/mqtt", "/"):
        page = httpx.get(
            f"http://127.0.0.1:{site.port('ws')}{path}", trust_env=False, verify=NO_TLS
        )
        assert (page.status_code, page.headers["upgrade"]) == (426, "websocket")
        assert "not a page" in page.text


def test_hostile_connections_disturb_nobody(site: Site, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "Others").sign("stranger", {"CN": "dev-7"})
    tls, devices, plain, web = (
        site.port("mqtts"),
        site.port("mqtts", "devices"),
        site.node.mqtt[1],
        site.port("ws"),
    )
    with undisturbed(site.node):
        idle = [socket.create_connection(("127.0.0.1", tls), DEADLINE_S) for _ in range(20)]
        for _ in range(10):
            _say(tls, b"\x10\x0f\0\4MQTT\4\2\0\0\0\3abc")
            _say(tls, b"\x16\x03\x01\x02\x00" + b"\xff" * 600)
            _say(web, b"\x16\x03\x01\x02\x00" + b"\xff" * 600)
            _say(web, b"GET /mqtt HTTP/1.1\r\n" + b"x: y\r\n" * 5000)
            context = ssl.create_default_context(cafile=site.authority.file)
            with pytest.raises(OSError):
                _handshake(plain, context)
            context.load_cert_chain(stranger.cert, stranger.key)
            with pytest.raises(OSError):
                _handshake(devices, context)
        for link in idle:  # no handshake within the time for it
            assert link.recv(1) == b""
            link.close()


def _say(port: int, data: bytes) -> bytes:
    """Send bytes and wait until the broker closes; what it said."""
    said = b""
    with (
        socket.create_connection(("127.0.0.1", port), DEADLINE_S) as link,
        contextlib.suppress(ConnectionError),
    ):
        link.sendall(data)
        while piece := link.recv(4096):
            said += piece
    return said


def _handshake(port: int, context: ssl.SSLContext) -> str:
    """The serial number that the broker shows, once it has answered a CONNECT."""
    with (
        socket.create_connection(("127.0.0.1", port), DEADLINE_S) as link,
        context.wrap_socket(link, server_hostname="localhost") as tls,
    ):
        tls.sendall(b"\x10\x0f\0\4MQTT\4\2\0\0\0\3abc")
        if tls.recv(4) != b"\x20\2\0\0":
            raise ConnectionError("no CONNACK")
        shown = tls.getpeercert()
        assert shown is not None
        return str(shown["serialNumber"])


def test_certificates_are_changed_while_clients_stay(site: Site) -> None:
    context = ssl.create_default_context(cafile=site.authority.file)
    port = site.port("mqtts")
    before = _handshake(port, context)
    with (
        socket.create_connection(("127.0.0.1", port), DEADLINE_S) as link,
        context.wrap_socket(link, server_hostname="localhost") as stays,
    ):
        stays.sendall(b"\x10\x10\0\4MQTT\4\2\0\0\0\4stay")
        assert stays.recv(4) == b"\x20\2\0\0"
        site.authority.sign("server", {"CN": "localhost"}, ["localhost", "127.0.0.1"])
        assert site.node.process is not None
        site.node.process.send_signal(signal.SIGHUP)
        eventually(lambda: _handshake(port, context) != before, what="new certificate after SIGHUP")
        again = _handshake(port, context)
        site.authority.sign("server", {"CN": "localhost"}, ["localhost", "127.0.0.1"])
        eventually(lambda: _handshake(port, context) != again, what="new certificate of itself")
        stays.sendall(b"\xc0\0")
        assert stays.recv(2) == b"\xd0\0"


CHECKS = {
    'ssl.s.ssl_options { certfile = "no.pem", keyfile = "no.pem" }': (
        "listener ssl:s: ssl_options.certfile 'no.pem' does not exist"
    ),
    "ssl.s.enable = true": "listener ssl:s: ssl_options.certfile is not set; it names a file in PEM form",
    'ssl.s.ssl_options { certfile = "server.pem", keyfile = "device-key.pem" }': (
        "keyfile 'device-key.pem' is not the key of certfile 'server.pem'"
    ),
    'ssl.s.ssl_options { certfile = "old.pem", keyfile = "old-key.pem" }': "certfile 'old.pem' expired on ",
    'ws.w.bind = "0.0.0.0:8083"': (
        "listener 'ws:w' at 0.0.0.0:8083 can be reached from other machines and nothing checks who connects"
    ),
    'ws.w.bind = "127.0.0.1:1883"': "listener 'ws:w' and listener 'tcp:default' are both at 127.0.0.1:1883",
    "ws.w.websocket.pth = /x": "listeners.ws.w.websocket.pth is not a setting; did you mean 'path'?",
    "ws.w.bnd = x": "listeners.ws.w.bnd is not a setting; did you mean 'bind'?",
    "wsx.w.bind = x": "listeners.wsx is not a section of settings; did you mean 'ws",
    "tcp.t.proxy_protocol = v3": "listeners.tcp.t.proxy_protocol is 'v3'; expected 'off', 'v1', 'v2' or 'auto'",
    "tcp.t.trusted_proxies = [home]": "'home' is not an address or network; write it as '10.0.0.0/8'",
    "ssl.s.ssl_options.versions = [sslv3]": "versions.0 is 'sslv3'; expected 'tlsv1.2' or 'tlsv1.3'",
}


@pytest.mark.parametrize("text", CHECKS)
def test_listeners_that_cannot_be_opened_are_one_sentence(tmp_path: Path, text: str) -> None:
    authority = Authority(tmp_path)
    authority.sign("server", {"CN": "localhost"})
    authority.sign("device", {"CN": "device"})
    authority.sign("old", {"CN": "localhost"}, begins_in=timedelta(days=-60))
    (tmp_path / "sluice.conf").write_text(f"listeners {{ {text} }}")
    environ = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": ""}
    command = [sys.executable, "-m", "broker.cli.main", "config", "check", "sluice.conf"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, cwd=tmp_path, env=environ
    )
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode != 0
    assert CHECKS[text] in said
    assert "Traceback" not in said
