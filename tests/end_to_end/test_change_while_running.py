"""Listeners and settings that change under a running broker, and a broker that is told to stop."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from broker.cli import exit_codes
from tests.support.certificates import Authority
from tests.support.local_node import Node, command, running
from tests.support.node import TOKEN, Reachable, eventually
from tests.support.node import running as running_process
from tests.support.processes import free_port
from tests.support.processor import ended

BASE = 'listeners.tcp.default.bind = "127.0.0.1:0"\n'


def _cli(node: Reachable, *arguments: str, status: int = 0) -> str:
    done = command(*arguments, "--data-dir", str(node.data_dir), SLUICE_API_TOKEN=TOKEN)
    assert done.returncode == status, f"{done.returncode}: {done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


class Client:
    """paho at an address; remembers with which reason it was disconnected."""

    def __init__(self, port: int, client_id: str, **options: Any) -> None:
        self.reasons: list[int] = []
        self.payloads: list[bytes] = []
        self._is_connected = threading.Event()
        self.paho = paho.Client(
            CallbackAPIVersion.VERSION2, client_id, protocol=paho.MQTTv5, **options
        )
        self.paho.on_connect = lambda *_: self._is_connected.set()
        self.paho.on_disconnect = lambda client, data, flags, reason, properties: (
            self.reasons.append(reason.value)
        )
        self.paho.on_message = lambda client, data, message: self.payloads.append(
            bytes(message.payload)
        )
        self.paho.connect("127.0.0.1", port)
        self.paho.loop_start()
        assert self._is_connected.wait(60)

    def close(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("change") / "data", config=BASE) as started:
        yield started


def test_a_listener_is_added_retuned_moved_and_removed_by_the_command_line(node: Node) -> None:
    first, second = free_port(), free_port()
    _cli(node, "listeners", "add", "tcp:extra", "--bind", f"127.0.0.1:{first}")
    client = Client(first, "stays")
    _cli(node, "listeners", "update", "tcp:extra", "--set", "max_connections=1")
    assert node.call("GET", "/listeners/tcp:extra")["settings"]["max_connections"] == 1
    _cli(node, "listeners", "update", "tcp:extra", "--bind", f"127.0.0.1:{second}")
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", first), 2)
    shown = node.call("GET", "/listeners/tcp:extra")
    assert (shown["address"], shown["connections"], shown["state"]) == (
        f"127.0.0.1:{second}",
        1,
        "running",
    )
    assert client.reasons == []
    assert "tcp:extra" in _cli(node, "listeners", "list")
    _cli(node, "listeners", "remove", "tcp:extra", "--yes")
    eventually(lambda: client.reasons == [0x98])
    client.close()
    assert "there is no listener" in _cli(
        node, "listeners", "show", "tcp:extra", status=exit_codes.NOT_FOUND
    )


def test_a_listener_names_what_fixes_its_settings(node: Node) -> None:
    assert node.call("GET", "/listeners/tcp:default")["fixed"] == {"bind": "command line"}
    node.call("POST", "/listeners/tcp:extra", {"bind": "127.0.0.1:0", "backlog": 5})
    assert node.call("GET", "/listeners/tcp:extra")["fixed"] == {}
    change = node.call("PATCH", "/listeners/tcp:extra?dry_run=true", {"backlog": None})
    assert (change["before"]["backlog"], change["after"]["backlog"]) == (5, 1024)
    assert change["consequences"] == ["Its address is opened again; connected clients stay."]
    node.call("DELETE", "/listeners/tcp:extra")


def test_a_listener_is_stopped_and_started_and_may_drain(node: Node) -> None:
    port = free_port()
    node.call("POST", "/listeners/tcp:pause", {"bind": f"127.0.0.1:{port}"})
    client = Client(port, "drains")
    assert node.call("POST", "/listeners/tcp:pause:stop?drain=true")["state"] == "stopped"
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), 2)
    assert client.reasons == []
    assert node.call("POST", "/listeners/tcp:pause:start")["state"] == "running"
    node.call("POST", "/listeners/tcp:pause:restart")
    eventually(lambda: client.reasons == [0x98])
    client.close()
    node.call("DELETE", "/listeners/tcp:pause")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("POST", "/listeners/tcp:x", {"bind": "nowhere"}, 422, "not an address"),
        ("POST", "/listeners/udp:x", {}, 422, "KIND:NAME"),
        ("POST", "/listeners/ssl:x", {"bind": "127.0.0.1:0"}, 422, "certfile is not set"),
        ("POST", "/listeners/tcp:x", {"bind": "0.0.0.0:0"}, 422, "nothing checks who connects"),
        ("POST", "/listeners/tcp:default", {}, 409, "exists already"),
        ("PATCH", "/listeners/tcp:default", {"bind": "127.0.0.1:1"}, 409, "fixed by"),
        ("PATCH", "/listeners/tcp:none", {}, 404, "no listener"),
        ("DELETE", "/listeners/tcp:default", None, 409, "always there"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    node: Node, method: str, path: str, body: Any, status: int, words: str
) -> None:
    before = node.call("GET", "/listeners")
    assert words in str(node.call(method, path, body, expect=status))
    assert node.call("GET", "/listeners") == before


def test_an_address_that_is_taken_is_refused_and_nothing_is_written(node: Node) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        assert "another program listens there" in str(
            node.call("POST", "/listeners/tcp:x", {"bind": bind}, expect=503)
        )
    node.call("GET", "/listeners/tcp:x", expect=404)


def test_a_changed_file_is_put_in_force_and_a_bad_one_changes_nothing(tmp_path: Path) -> None:
    with running(tmp_path / "data", config=BASE) as node:
        port, file = free_port(), node.data_dir / "sluice.conf"
        file.write_text(
            BASE
            + f'listeners.tcp.more.bind = "127.0.0.1:{port}"\n'
            + "mqtt { max_packet_size = 1KB, max_cached_plans = 100 }\n"
            + "log.level = warning\nrewrites = [ { name = ab, source_topic = a, dest_topic = b } ]\n"
            + 'streams = [ { name = all, topics = ["b"] } ]\n'
        )
        effect = node.call("POST", "/config:reload?dry_run=true")
        assert (
            effect["before"]["mqtt.max_packet_size"],
            effect["after"]["mqtt.max_packet_size"],
        ) == (1048576, 1024)
        assert {(one["kind"], one["name"], one["how"]) for one in effect["affected"]} == {
            ("listener", "tcp:more", "is added"), ("rewrite", "ab", "is added"), ("stream", "all", "is added"),
        }  # fmt: skip
        assert "mqtt.max_cached_plans: needs a restart." in effect["consequences"]
        planned = _cli(node, "config", "reload", "--dry-run").splitlines()
        assert planned[0] == "dry run: It would be reloaded."
        assert "  log.level: info → warning" in planned
        assert node.call("GET", "/rewrites")["total"] == 0
        done = _cli(node, "config", "reload")
        for line in (
            "active: mqtt.max_packet_size", "active: listener tcp:more added", "active: rewrite 'ab' added",
            "active: stream 'all' added", "active: log.level", "needs a restart: mqtt.max_cached_plans",
        ):  # fmt: skip
            assert line in done
        client = Client(port, "c")
        client.paho.publish("a", b"x", 1).wait_for_publish(60)
        eventually(
            lambda: node.call("GET", "/streams/all/positions")["shards"][0]["next_offset"] == "1"
        )
        file.write_text(BASE + "mqtt.max_packet_size = many\nlisteners.tcp.more.bind = 5\n")
        told = str(node.call("POST", "/config:reload", expect=422))
        assert "max_packet_size" in told
        assert str(node.call("POST", "/config:reload?dry_run=true", expect=422)["errors"]) in told
        assert "listeners.tcp.more.bind" in told
        assert node.call("GET", "/listeners/tcp:more")["connections"] == 1
        file.write_text(
            BASE + 'rewrites = [ { name = ab, source_topic = "a/#/b", dest_topic = b } ]\n'
        )
        assert "must be the whole last level" in str(
            node.call("POST", "/config:reload", expect=422)
        )
        assert client.reasons == []
        file.write_text(BASE)
        ends = node.call("POST", "/config:reload?dry_run=true")
        assert "listener 'tcp:more': 1 client is disconnected." in ends["consequences"]
        drained = node.call("POST", "/config:reload?drain=true&dry_run=true")["consequences"]
        assert "listener 'tcp:more': 1 client may stay connected until they disconnect." in drained
        assert client.reasons == []
        node.reload()
        eventually(lambda: client.reasons == [0x98])
        assert node.call("GET", "/rewrites")["total"] == 0
        client.close()


def _shown_name(port: int, server_name: str, ca: Path) -> str:
    context = ssl.create_default_context(cafile=str(ca))
    with (
        socket.create_connection(("127.0.0.1", port), 10) as raw,
        context.wrap_socket(raw, server_hostname=server_name) as link,
    ):
        shown = link.getpeercert()
        assert shown is not None
        subject: Any = shown["subject"]
        return str(dict(part for rdn in subject for part in rdn)["commonName"])


def test_certificates_are_read_again_and_more_of_them_added_while_clients_stay(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    old = authority.sign("server", {"CN": "old"}, ["localhost"])
    other = authority.sign("other", {"CN": "other"}, ["b.example"])
    port = free_port()
    with running(tmp_path / "data", config=BASE) as node:
        settings = {"bind": f"127.0.0.1:{port}", "ssl_options": old.settings}
        node.call("POST", "/listeners/ssl:tls", settings)
        assert _shown_name(port, "localhost", authority.file) == "old"
        client = paho.Client(CallbackAPIVersion.VERSION2, "tls")
        client.tls_set(str(authority.file))
        client.connect("localhost", port)
        client.loop_start()
        eventually(client.is_connected)
        new = authority.sign("newer", {"CN": "new"}, ["localhost"])
        old.cert.write_bytes(new.cert.read_bytes())
        old.key.write_bytes(new.key.read_bytes())
        node.call("POST", "/config:reload")
        eventually(lambda: _shown_name(port, "localhost", authority.file) == "new")
        sni = [{"server_name": "b.example", **other.settings}]
        node.call("PATCH", "/listeners/ssl:tls", {"ssl_options": {"sni": sni}})
        assert _shown_name(port, "b.example", authority.file) == "other"
        assert client.is_connected()
        # those that only looked leave
        eventually(lambda: node.call("GET", "/listeners/ssl:tls")["connections"] == 1)
        client.disconnect()
        client.loop_stop()


def test_sigterm_tells_clients_finishes_what_is_under_way_and_ends_in_time(tmp_path: Path) -> None:
    with running_process(
        tmp_path / "data", config=BASE + 'streams = [ { name = all, topics = ["t/#"] } ]\n'
    ) as node:
        port = node.mqtt[1]
        watcher, publisher = Client(port, "w"), Client(port, "p")
        watcher.paho.subscribe("wills/#", 1)
        publisher.paho.will_clear()
        slow = socket.create_connection(("127.0.0.1", port))
        slow.sendall(b"\x10\x0f\0\4MQTT\4\2\0\x3c\0\3abc\x82\x08\0\1\0\3t/#\1")
        for number in range(500):
            publisher.paho.publish(f"t/{number % 5}", bytes(10_000), 1)
        assert node.process is not None
        assert ended(node.process) < 15
        assert node.stop() == 0
        eventually(lambda: publisher.reasons == [0x8B] and watcher.reasons == [0x8B])
        assert watcher.payloads == []
        slow.close()
        for client in (watcher, publisher):
            client.paho.loop_stop()


@pytest.mark.statement("own:R6")
def test_a_setting_that_is_no_more_stops_the_start_and_names_its_successor(tmp_path: Path) -> None:
    (tmp_path / "sluice.conf").write_text("mqtt.session_expiry_limit = 1h\n")
    done = subprocess.run(
        [sys.executable, "-m", "broker.cli.main", "serve", "--data-dir", str(tmp_path), "--mqtt", "127.0.0.1:0"],
        capture_output=True, text=True, timeout=240, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 1
    assert "line 1" in done.stderr
    assert "mqtt.session_expiry_limit was removed. Try: mqtt.max_session_expiry" in done.stderr


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_it_runs_on_either_loop(tmp_path: Path, loop: str) -> None:
    with running(tmp_path / "data", config=BASE + f"node.event_loop = {loop}\n") as node:
        client = Client(node.mqtt[1], "c")
        client.paho.subscribe("t", 1)
        client.paho.publish("$delayed/0/t", b"x", 1)
        eventually(lambda: client.payloads == [b"x"])
        client.close()
