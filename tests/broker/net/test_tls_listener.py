"""TLS of listeners: who is let in, what is learnt of them, files that cannot be used, and files that change."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from broker.codec.packets import ConnAck, Connect, PingReq, PingResp, Publish, SubscriptionRequest
from broker.core import reason
from broker.core.errors import ConfigError
from broker.net.certificate import certificate_of, subject_text
from broker.net.listener import Listener
from broker.net.settings import NamedListener, SslListenerSettings, TlsSettings
from broker.net.tls import TlsContexts
from tests.support.certificates import Authority, Files
from tests.support.connections import dial
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.waiting import within
from tests.support.wire import WireClient


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def server(authority: Authority) -> Files:
    return authority.sign("server", {"CN": "localhost"}, ["localhost", "127.0.0.1"])


@asynccontextmanager
async def listening(node: Node, **options: Any) -> AsyncIterator[tuple[Listener, int]]:
    settings = SslListenerSettings(
        bind="127.0.0.1:0", ssl_options=TlsSettings.model_validate(options)
    )
    listener = Listener(NamedListener(settings, "s"), node.server.hub, node.metrics)
    _, port = await listener.open()
    try:
        yield listener, port
    finally:
        listener.close()


def trusting(authority: Authority, client: Files | None = None) -> ssl.SSLContext:
    """A client's side."""
    context = ssl.create_default_context(cafile=authority.file)
    if client is not None:
        context.load_cert_chain(client.cert, client.key)
    return context


async def opened(port: int, context: ssl.SSLContext, server_name: str = "localhost") -> WireClient:
    reader, writer = await dial(port, ssl=context, server_hostname=server_name)
    return WireClient(reader, writer, 5)


async def connected(port: int, context: ssl.SSLContext, client_id: str = "c") -> ConnAck:
    client = await opened(port, context)
    client.send(Connect(client_id, 5))
    return await client.expect(ConnAck)


@on_loop
async def test_certificate_and_server_name_are_known_of_a_client(
    authority: Authority, server: Files
) -> None:
    subject = {"C": "DE", "O": "acme, inc", "OU": "berlin", "CN": "dev-7"}
    dev = authority.sign(
        "dev", subject, ["dev-7.example", "10.0.0.7", "dev@acme.example", "urn:dev:7"]
    )
    seen = []
    async with running() as node:
        attributes = node.server.hub.logins.attributes
        settled = attributes.settled

        def note(attempt: Any) -> Any:
            seen.append(attempt)
            return settled(attempt)

        attributes.settled = note  # type: ignore[method-assign]
        async with listening(
            node, **server.settings, verify="peer", cacertfile=str(authority.file)
        ) as (_, port):
            await connected(port, trusting(authority, dev))
    [attempt] = seen
    assert (attempt.listener, attempt.server_name, attempt.peer_host) == (
        "ssl:s",
        "localhost",
        "127.0.0.1",
    )
    bindings = attempt.bindings()
    assert bindings["cert_subject"] == "CN=dev-7,OU=berlin,O=acme\\, inc,C=DE"
    assert bindings["cert_common_name"] == "dev-7"
    assert bindings["peersni"] == "localhost"
    assert bindings["cert_san"] == {
        "dns": ["dev-7.example"],
        "ip": ["10.0.0.7"],
        "email": ["dev@acme.example"],
        "uri": ["urn:dev:7"],
    }


@pytest.mark.parametrize(
    ("settings", "client_id", "username"),
    [
        ({}, "c", None),
        ({"peer_cert_as_username": "cn"}, "c", "dev-7"),
        (
            {"peer_cert_as_username": "dn", "peer_cert_as_clientid": "cn"},
            "dev-7",
            "CN=dev-7,OU=berlin",
        ),
    ],
)
@on_loop
async def test_a_certificate_may_name_user_and_client(
    authority: Authority,
    server: Files,
    settings: dict[str, Any],
    client_id: str,
    username: str | None,
) -> None:
    dev = authority.sign("dev", {"OU": "berlin", "CN": "dev-7"})
    asked = {"verify": "peer", "cacertfile": str(authority.file)}
    async with (
        running(**settings) as node,
        listening(node, **server.settings, **asked) as (_, port),
    ):
        client = await opened(port, trusting(authority, dev))
        client.send(Connect("c", 5))
        await client.expect(ConnAck)
        [session] = node.server.hub.sessions
        assert (session.client_id, session.client.username) == (client_id, username)


@on_loop
async def test_a_certificate_that_names_a_client_too_long_is_refused(
    authority: Authority, server: Files
) -> None:
    dev = authority.sign("dev", {"OU": "berlin", "CN": "dev-7-of-the-second-floor"})
    asked = {"verify": "peer", "cacertfile": str(authority.file)}
    for name, code in (("cn", 0), ("dn", reason.CLIENT_IDENTIFIER_NOT_VALID)):
        async with (
            running(peer_cert_as_clientid=name, max_client_id_bytes=30) as node,
            listening(node, **server.settings, **asked) as (_, port),
        ):
            assert (await connected(port, trusting(authority, dev))).reason_code == code


def test_a_subject_is_written_as_rfc_4514_has_it() -> None:
    subject = (
        (("domainComponent", "org"),),
        (("organizationName", " a+b "), ("userId", "#1")),
        (("commonName", 'x"<y>;\\'),),
        (("emailAddress", "a@b"),),
    )
    assert (
        subject_text(subject)
        == 'emailAddress=a@b,CN=x\\"\\<y\\>\\;\\\\,O=\\ a\\+b\\ +UID=\\#1,DC=org'
    )
    assert certificate_of({"subject": subject}).common_name == 'x"<y>;\\'
    assert certificate_of({}).subject == ""


@on_loop
async def test_certificates_that_are_not_good_are_refused_and_harm_nobody(
    authority: Authority, server: Files, tmp_path: Path
) -> None:
    dev = authority.sign("dev", {"CN": "dev"})
    stranger = Authority(tmp_path, "Others").sign("stranger", {"CN": "dev"})
    old = authority.sign("old", {"CN": "old"}, begins_in=timedelta(days=-40))
    lost = authority.sign("lost", {"CN": "lost"})
    crl = authority.revoke(lost)
    asked = {"verify": "peer", "cacertfile": str(authority.file), "crlfile": str(crl)}
    async with running() as node, listening(node, **server.settings, **asked) as (_, port):
        for bad in (None, stranger, old, lost):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await connected(port, trusting(authority, bad))
        assert (await connected(port, trusting(authority, dev))).reason_code == 0
        refused = node.metrics.value(
            "listener_connections_refused", listener="ssl:s", reason="tls_handshake"
        )
        assert refused == 4


ALERTS = {
    "missing": {"TLSv1.2": "HANDSHAKE_FAILURE", "TLSv1.3": "CERTIFICATE_REQUIRED"},
    "stranger": dict.fromkeys(("TLSv1.2", "TLSv1.3"), "UNKNOWN_CA"),
    "old": dict.fromkeys(("TLSv1.2", "TLSv1.3"), "CERTIFICATE_EXPIRED"),
    "lost": dict.fromkeys(("TLSv1.2", "TLSv1.3"), "CERTIFICATE_REVOKED"),
}


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
@on_loop
async def test_a_client_reads_in_an_alert_why_its_certificate_is_refused(
    authority: Authority, server: Files, tmp_path: Path, version: str
) -> None:
    """RFC 8446 6.2. In TLS 1.3 the client has finished its handshake by then, and sends."""
    bad = {
        "missing": None,
        "stranger": Authority(tmp_path, "Others").sign("stranger", {"CN": "dev"}),
        "old": authority.sign("old", {"CN": "old"}, begins_in=timedelta(days=-40)),
        "lost": authority.sign("lost", {"CN": "lost"}),
    }
    revoked = authority.revoke(bad["lost"])  # type: ignore[arg-type]
    asked = {"verify": "peer", "cacertfile": str(authority.file), "crlfile": str(revoked)}
    async with running() as node, listening(node, **server.settings, **asked) as (_, port):
        for name, files in bad.items():
            context = trusting(authority, files)
            context.minimum_version = context.maximum_version = ssl.TLSVersion[
                version.replace(".", "_")
            ]
            alert = await asyncio.to_thread(alert_of, port, context)
            assert alert.removeprefix("TLSV13_").removeprefix("TLSV1_").removeprefix("SSLV3_") == (
                f"ALERT_{ALERTS[name][version]}"
            ), name
            if files is not None:
                said = await asyncio.to_thread(s_client, port, files, version)
                assert f"alert {ALERTS[name][version].lower().replace('_', ' ')}" in said.replace(
                    "unknown CA", "unknown ca"
                )


def alert_of(port: int, context: ssl.SSLContext) -> str:
    """The alert that a client's TLS reports."""
    with pytest.raises(ssl.SSLError) as failed:
        send_much(port, context)
    return failed.value.reason


def send_much(port: int, context: ssl.SSLContext) -> None:
    """Send a lot at once, and wait for an answer."""
    with (
        socket.create_connection(("127.0.0.1", port), 30) as link,
        context.wrap_socket(link, server_hostname="localhost") as tls,
    ):
        tls.sendall(bytes(100_000))
        tls.recv(1)


def s_client(port: int, files: Files, version: str) -> str:
    """What ``openssl s_client`` says."""
    command = [
        "openssl",
        "s_client",
        "-connect",
        f"127.0.0.1:{port}",
        "-cert",
        str(files.cert),
        "-key",
        str(files.key),
    ]
    command += ["-tls1_3" if version == "TLSv1.3" else "-tls1_2"]
    # it ends by itself once it has read the alert: nothing is written to it, and its input stays open
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        assert run.stdout is not None
        return run.stdout.read()


@pytest.mark.parametrize("verify", ["none", "peer"])
@on_loop
async def test_authorities_complete_the_chain_that_is_shown(
    authority: Authority, tmp_path: Path, verify: str
) -> None:
    between = Authority(tmp_path, "Between", issuer=authority)
    leaf = between.sign("leaf", {"CN": "localhost"}, ["localhost"])
    asked = {"verify": verify, "cacertfile": str(between.file), "fail_if_no_peer_cert": False}
    async with running() as node, listening(node, **leaf.settings, **asked) as (_, port):
        assert (await connected(port, trusting(authority))).reason_code == 0


@on_loop
async def test_a_certificate_may_be_optional(authority: Authority, server: Files) -> None:
    asked = {"verify": "peer", "fail_if_no_peer_cert": False, "cacertfile": str(authority.file)}
    async with running() as node, listening(node, **server.settings, **asked) as (_, port):
        assert (await connected(port, trusting(authority))).reason_code == 0


@on_loop
async def test_plain_bytes_silence_and_hangups_at_a_tls_port_are_ended_and_counted(
    authority: Authority, server: Files
) -> None:
    async with (
        running() as node,
        listening(node, **server.settings, handshake_timeout=3.0) as (_, port),
    ):
        silent = await WireClient.open(port)
        plain = await WireClient.open(port)
        plain.send(Connect("c", 5))
        hasty = await WireClient.open(port)
        await hasty.close()
        assert await _end(plain) is not None
        assert (await connected(port, trusting(authority))).reason_code == 0
        assert await _end(silent) == b""

        def refused() -> float:
            names = ("tls_handshake", "tls_timeout")
            return sum(
                node.metrics.value("listener_connections_refused", listener="ssl:s", reason=name)
                for name in names
            )

        await node.until(lambda: refused() == 3)


async def _end(client: WireClient) -> bytes:
    """What comes until the end."""
    return await within(client._reader.read(), 60)


@on_loop
async def test_tls_at_a_plain_port_is_ended(authority: Authority) -> None:
    async with running() as node:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await connected(node.port, trusting(authority))
        await node.client("after")


@on_loop
async def test_each_server_name_has_its_certificate(authority: Authority, server: Files) -> None:
    one = authority.sign("one", {"CN": "one"}, ["a.example"])
    wild = authority.sign("wild", {"CN": "wild"}, ["*.b.example"])
    sni = [
        {"server_name": "a.example", **one.settings},
        {"server_name": "*.b.example", **wild.settings},
    ]
    async with running() as node, listening(node, **server.settings, sni=sni) as (_, port):
        for name, subject in (
            ("A.example", "one"),
            ("x.b.example", "wild"),
            ("localhost", "localhost"),
        ):
            client = await opened(port, trusting(authority), name)
            shown = client._writer.get_extra_info("peercert")
            assert (("commonName", subject),) in shown["subject"]


@on_loop
async def test_changed_files_count_for_the_next_client_and_broken_ones_for_nobody(
    authority: Authority, server: Files, caplog: pytest.LogCaptureFixture
) -> None:
    async with running() as node, listening(node, **server.settings) as (listener, port):
        assert listener.tls is not None
        first = await opened(port, trusting(authority))
        first.send(Connect("first", 5))
        await first.expect(ConnAck)
        good = server.cert.read_bytes()
        server.cert.write_text("broken")
        listener.tls.refresh()
        assert "holds no certificate in PEM form" in str(
            [record.__dict__ for record in caplog.records]
        )
        assert (await connected(port, trusting(authority))).reason_code == 0
        authority.sign("server", {"CN": "renewed"}, ["localhost"])
        assert server.cert.read_bytes() != good
        listener.tls.refresh()
        second = await opened(port, trusting(authority))
        assert (("commonName", "renewed"),) in second._writer.get_extra_info("peercert")["subject"]
        assert await first.subscribe(SubscriptionRequest("t", 1)) == [1]


@on_loop
async def test_a_client_that_reads_nothing_loses_qos_0_instead_of_filling_memory(
    authority: Authority, server: Files
) -> None:
    async with (
        running(max_unsent_bytes=64 * 1024) as node,
        listening(node, **server.settings) as (_, port),
    ):
        stuck = await opened(port, trusting(authority))
        stuck.send(Connect("stuck", 5))
        await stuck.expect(ConnAck)
        await stuck.subscribe(SubscriptionRequest("t", 0))
        stuck._writer.transport.pause_reading()  # type: ignore[attr-defined]
        publisher, sent = await node.client("p"), 0
        while node.metrics.value("deliveries_dropped", reason="queue_full") == 0:
            publisher.send(Publish("t", b"x" * 50_000))
            publisher.send(PingReq())
            await publisher.expect(PingResp)
            node.pass_time(1)  # patience with the stuck one runs out on the server's clock
            sent += 1
            assert sent < 2000


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"certfile": ""}, "ssl_options.certfile is not set"),
        ({"keyfile": "{dir}/none.pem"}, r"keyfile '.*none.pem' does not exist"),
        ({"certfile": "{dir}"}, r"certfile '.*' cannot be read \(is a directory\)"),
        ({"certfile": "{dir}/server-key.pem"}, r"holds no certificate in PEM form"),
        ({"keyfile": "{dir}/server.pem"}, r"holds no private key in PEM form"),
        (
            {"keyfile": "{dir}/other-key.pem"},
            r"'.*other-key.pem' is not the key of certfile '.*server.pem'",
        ),
        ({"keyfile": "{dir}/locked-key.pem"}, r"is encrypted and needs a password; there is none"),
        (
            {"keyfile": "{dir}/locked-key.pem", "password": "no"},
            r"needs a password; the one given does not open it",
        ),
        (
            {"certfile": "{dir}/old.pem", "keyfile": "{dir}/old-key.pem"},
            r"'.*old.pem' expired on \d{4}-\d\d-\d\d",
        ),
        (
            {"certfile": "{dir}/new.pem", "keyfile": "{dir}/new-key.pem"},
            r"'.*new.pem' is not valid before",
        ),
        ({"verify": "peer"}, "ssl_options.verify = peer needs ssl_options.cacertfile"),
        (
            {"verify": "peer", "cacertfile": "{dir}/server-key.pem"},
            "holds no certificate in PEM form",
        ),
        ({"verify": "none", "cacertfile": "{dir}/none"}, "'.*none' does not exist"),
        (
            {"verify": "peer", "cacertfile": "{dir}/ca.pem", "crlfile": "{dir}/none"},
            "'.*none' does not exist",
        ),
        ({"crlfile": "{dir}/none"}, "has no effect without ssl_options.verify = peer"),
        ({"ciphers": "NONSENSE"}, "names no cipher"),
        (
            {"sni": [{"server_name": "x", "certfile": "gone", "keyfile": "gone"}]},
            "sni 'x': certfile 'gone' does not",
        ),
    ],
)
def test_files_that_cannot_be_used_are_one_sentence_each(
    authority: Authority, server: Files, tmp_path: Path, change: dict[str, Any], expected: str
) -> None:
    authority.sign("other", {"CN": "x"})
    authority.sign("locked", {"CN": "x"}, password="secret")
    authority.sign("old", {"CN": "x"}, begins_in=timedelta(days=-40))
    authority.sign("new", {"CN": "x"}, begins_in=timedelta(days=1))
    placed = {
        key: value.format(dir=tmp_path) if isinstance(value, str) else value
        for key, value in change.items()
    }
    with pytest.raises(ConfigError) as refused:
        TlsContexts("ssl:s", TlsSettings.model_validate({**server.settings, **placed}), "mqtt")
    assert all(
        problem.startswith("listener ssl:s: ssl_options.") for problem in refused.value.problems
    )
    assert any(re.search(expected, problem) for problem in refused.value.problems), (
        refused.value.problems
    )


def test_an_encrypted_key_is_opened_with_its_password(authority: Authority) -> None:
    locked = authority.sign("locked", {"CN": "x"}, password="secret")
    TlsContexts(
        "ssl:s", TlsSettings.model_validate({**locked.settings, "password": "secret"}), "mqtt"
    )


def test_a_certificate_that_ends_soon_is_told(
    authority: Authority, server: Files, caplog: pytest.LogCaptureFixture
) -> None:
    soon = datetime.now(UTC) + timedelta(days=20)
    contexts = TlsContexts(
        "ssl:s", TlsSettings.model_validate(server.settings), "mqtt", lambda: soon
    )
    assert contexts.expires > soon
    assert "listener.certificate_expires" in caplog.text
