"""A cluster from nothing, with two commands on each machine: it runs its own servers of NATS."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from broker.cluster.certificates import context_of
from broker.cluster.founding import found
from broker.cluster.nats.check import problems_of_own
from broker.core.errors import ConfigError
from tests.cluster.founded import Founded, founded, sluice, start_all
from tests.end_to_end.clients import Client
from tests.support.certificates import Authority
from tests.support.node import Node, eventually


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Founded]]:
    with founded(tmp_path_factory.mktemp("founded")) as machines:
        start_all(machines)
        yield machines


def _rows(machine: Node) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = machine.call("GET", "/cluster/machines")["items"]
    return rows


def _has_copies(machine: Node) -> bool:
    return all(row["state"] == "running" and len(row["copies"]) == 2 for row in _rows(machine))


def _publishes(machine: Node, client_id: str) -> bool:
    with Client(machine, client_id) as client:
        client.publish("t", b"x", 1)
    return True


def test_three_machines_become_a_cluster_that_loses_one(machines: Mapping[str, Founded]) -> None:
    eventually(partial(_has_copies, machines["b"]), 60)
    for machine in machines.values():
        text = (machine.data_dir / "nats" / "nats.conf").read_text()
        assert "sync_interval: always" in text
        assert "verify: true" in text
    machines["c"].kill()
    eventually(lambda: [row["cells"] for row in _rows(machines["b"])].count([]) == 1, 60)
    for name in ("a", "b"):
        eventually(partial(_publishes, machines[name], "device"))
    machines["c"].start()
    eventually(partial(_has_copies, machines["a"]), 60)


def test_a_server_outlives_a_supervisor_that_was_killed(machines: Mapping[str, Founded]) -> None:
    machine = machines["b"]
    server = machine.server()
    machine.kill_supervisor()
    assert server.is_running()
    machine.start()
    assert machine.server() == server
    eventually(partial(_has_copies, machines["a"]), 60)


def test_a_server_that_was_killed_is_started_again(machines: Mapping[str, Founded]) -> None:
    machine = machines["b"]
    server = machine.server()
    server.kill()
    eventually(lambda: _has_another_server(machine, server), 60)
    eventually(partial(_has_copies, machines["a"]), 60)


def _has_another_server(machine: Founded, server: psutil.Process) -> bool:
    try:
        return bool(machine.server() != server)
    except psutil.NoSuchProcess:  # the file is still that of the one before
        return False


def test_who_has_no_certificate_of_the_cluster_gets_nothing_of_nats(
    machines: Mapping[str, Founded],
) -> None:
    machine = machines["a"]
    host = machine.network.addresses[0]
    program = (
        "import socket,ssl;"
        f"s=socket.create_connection(({host!r},4222),5);s.recv(4096);"
        "c=ssl.create_default_context();c.check_hostname=False;c.verify_mode=ssl.CERT_NONE;"
        "t=c.wrap_socket(s);t.sendall(b'CONNECT {}\\r\\nPING\\r\\n');print(t.recv(100))"
    )
    done = subprocess.run(
        machine.network.command([sys.executable, "-c", program]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "PONG" not in done.stdout
    assert "certificate required" in done.stderr.lower().replace("_", " "), done.stderr


def _files_of(directory: Path, machine: str) -> list[str]:
    """The certificate, the key and the authority in the file of a machine, as files."""
    made = json.loads((directory / f"{machine}.machine.json").read_text())
    files = []
    for name in ("certfile", "keyfile", "cacertfile"):
        file = directory / f"{machine}.{name}"
        file.write_text(made[name])
        files.append(str(file))
    return files


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> None:
    """A handshake in memory. Raises ``ssl.SSLError``."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while sides:
        try:
            sides[0].do_handshake()
            sides.pop(0)
        except ssl.SSLWantReadError:
            sides.reverse()


def test_machines_trust_each_other_whatever_the_release_of_python(tmp_path: Path) -> None:
    """Those since 3.13 check certificates more strictly; files that were made before have to stay valid."""
    found("plant", {name: f"127.0.0.{at}" for at, name in enumerate("abc", 1)}, 1, 7946, tmp_path)
    client = context_of(*_files_of(tmp_path, "a"), is_server=False)
    server = context_of(*_files_of(tmp_path, "b"), is_server=True)
    for context in (client, server):
        assert not context.verify_flags & ssl.VERIFY_X509_STRICT
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    _shake_hands(client, server, "b")


def test_certificates_of_the_page_are_strict_ones(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "run-a-cluster.md"
    [recipe] = re.findall(r"```text\n(openssl req .*?)```", page.read_text(), re.DOTALL)
    subprocess.run(["sh", "-ec", recipe], cwd=tmp_path, check=True, capture_output=True)
    files = [str(tmp_path / name) for name in ("a.pem", "a.key", "ca.pem")]
    client, server = (context_of(*files, is_server=is_server) for is_server in (False, True))
    for context in (client, server):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    _shake_hands(client, server, "a")


@pytest.mark.process
def test_an_address_is_the_same_however_it_is_written(tmp_path: Path) -> None:
    found("plant", {"a": "FD00::1", "b": "fd00::2", "c": "fd00::3"}, 1, 7946, tmp_path)
    [certfile, *_] = _files_of(tmp_path, "a")
    assert problems_of_own("FD00::1", certfile) == []
    [problem] = problems_of_own("fd00::4", certfile)
    assert problem.startswith("cluster.tls.certfile: expected a certificate for fd00::4 too")
    assert problem.endswith("; got one for a, fd00::1")


def test_a_key_with_a_passphrase_is_refused_in_one_sentence(tmp_path: Path) -> None:
    three = {name: f"127.0.0.{at}" for at, name in enumerate("abc", 1)}
    files = Authority(tmp_path, "tests").sign("plant", {"CN": "plant"}, password="secret")
    file = tmp_path / "plant.authority.pem"
    file.write_bytes(files.key.read_bytes() + files.cert.read_bytes())
    with pytest.raises(ConfigError, match=r"plant\.authority\.pem: expected a key without a passp"):
        found("plant", three, 1, 7946, tmp_path)


def test_wrong_input_is_one_sentence(tmp_path: Path) -> None:
    three = [f"--machine={name}=127.0.0.{at}" for at, name in enumerate("abc", 1)]
    init = partial(sluice, "init", status=1)
    here = ("--directory", tmp_path)
    assert init("plant", *three[:2], *here) == (
        "Error: cluster: nats.run: expected 3 machines or more, got 2\n"
    )
    assert init("Plant", *three, *here).startswith("Error: cluster: name: expected small letters")
    assert init("plant", "--machine=a", *here) == "Error: --machine: expected NAME=HOST, got 'a'\n"
    assert "given more than once" in init("plant", *three, three[0], *here)
    for host in ("10.0.0.1:99", "ü", "a b"):
        said = init("plant", f"--machine=a={host}", *three[1:], *here)
        assert said.startswith("Error: --machine a: expected an address or a name in DNS"), said
    assert list(tmp_path.iterdir()) == []
    sluice("init", "plant", *three, *here)
    sluice("join", tmp_path / "a.machine.json", "--data-dir", tmp_path / "a")
    other = sluice("join", tmp_path / "b.machine.json", "--data-dir", tmp_path / "a", status=1)
    assert "expected the data of machine 'b', got that of machine 'a'" in other
    none = sluice("join", tmp_path / "plant.authority.pem", "--data-dir", tmp_path / "b", status=1)
    assert "expected the file of a machine, as 'sluice cluster init' writes it" in none
    text = (tmp_path / "a.machine.json").read_text()
    (tmp_path / "wrong.json").write_text(text.replace('"cells": 1', '"cells": "many"'))
    wrong = sluice("join", tmp_path / "wrong.json", "--data-dir", tmp_path / "c", status=1)
    assert "cluster.machines.a.cells is 'many'; expected a whole number" in wrong
    before = (tmp_path / "a" / "cluster" / "machine.pem").read_text()
    sluice("init", "plant", *three, *here)
    sluice("join", tmp_path / "a.machine.json", "--data-dir", tmp_path / "a")
    assert (tmp_path / "a" / "cluster" / "machine.pem").read_text() != before
