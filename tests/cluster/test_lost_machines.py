"""Three machines, each in a network of its own: clients, the API and streams across, and a machine that is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from queue import Queue

import paho.mqtt.client as paho
import pyarrow as pa
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from pyspark_sluice.client import Positions, StreamClient
from tests.end_to_end.clients import Client, Raw
from tests.support.machines import Cluster, Machine, machines
from tests.support.node import TOKEN, eventually, running, sluice


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with machines(tmp_path_factory.mktemp("cluster"), {"a": 1, "b": 2, "c": 1}) as cluster:
        cluster.start()
        yield cluster
        for machine in cluster.machines.values():
            assert machine.stop() == 0
            assert "Traceback" not in machine.log.read_text()


def test_every_machine_answers_for_all(cluster: Cluster) -> None:
    cluster["c"].call("POST", "/rules", {"name": "far", "sql": 'SELECT * FROM "far"'})
    with Client(cluster["b"], cluster.client_of(2)) as client:
        client.publish("far", b"{}", 1)
        for machine in cluster.machines.values():
            eventually(partial(_has_matched_once, machine))
            rows = machine.call("GET", "/cells")["items"]
            assert [(row["number"], row["state"]) for row in rows] == [
                (number, "running") for number in range(4)
            ]
            shown = machine.call("GET", f"/clients/{client.client_id}")
            # as the client has it, although the connection came over another machine
            assert shown["address"].rpartition(":")[0] == cluster["b"].network.outside
    cluster["a"].call("DELETE", "/rules/far")
    eventually(lambda: cluster["b"].call("GET", "/rules/far", expect=404))


def _has_matched_once(machine: Machine) -> bool:
    return bool(machine.call("GET", "/rules/far")["metrics"]["matched"] == 1)


def test_commands_and_pages_work_at_every_machine(cluster: Cluster) -> None:
    for machine in cluster.machines.values():
        done = sluice(machine, "cluster", "machines", "--json")
        assert done.returncode == 0, done.stderr
        found = [
            (row["name"], row["first_cell"], row["last_cell"])
            for row in json.loads(done.stdout)["items"]
        ]
        assert found == [("a", 0, 0), ("b", 1, 2), ("c", 3, 3)]
        with machine.client() as api:
            page = api.get(f"{machine.url}/")
            assert page.status_code == 200
            assert "<html" in page.text


def test_the_table_of_slots_names_the_machine_of_each_client(cluster: Cluster) -> None:
    slots = cluster["b"].call("GET", "/cluster/slots")["items"]
    assert (slots[0]["first"], slots[-1]["last"]) == (0, 1023)
    assert [(row["cell"], row["machine"]) for row in slots] == [
        (0, "a"),
        (1, "b"),
        (2, "b"),
        (3, "c"),
    ]
    assert slots[3]["mqtt"] == f"{cluster['c'].mqtt[0]}:{cluster['c'].mqtt[1]}"


@pytest.mark.parametrize("way", ["tls", "websocket"])
def test_a_client_is_relayed_whatever_it_speaks(cluster: Cluster, way: str) -> None:
    name = cluster.client_of(2, way)
    client = paho.Client(
        CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5,
        transport="websockets" if way == "websocket" else "tcp",
    )  # fmt: skip
    if way == "tls":
        client.tls_set(str(cluster.authority.file))
        client.tls_insecure_set(True)  # its name is no address
    messages: Queue[bytes] = Queue()

    def subscribe() -> None:
        client.subscribe(way, 1)

    def publish() -> None:
        client.publish(way, b"x" * 60_000, 1)

    client.on_message = lambda _client, _data, message: messages.put(bytes(message.payload))
    client.on_connect = lambda *_: subscribe()
    client.on_subscribe = lambda *_: publish()
    host = cluster["c"].mqtt[0]
    client.connect(host, 8883 if way == "tls" else 8083)
    client.loop_start()
    try:
        assert messages.get(timeout=60) == b"x" * 60_000
        shown = cluster["a"].call("GET", f"/clients/{name}")
        assert shown["address"].rpartition(":")[0] == cluster["c"].network.outside
        assert shown["listener"] == ("ssl:tls" if way == "tls" else "ws:web")
    finally:
        client.disconnect()
        client.loop_stop()


def test_a_secret_and_what_uses_it_work_on_every_machine(cluster: Cluster) -> None:
    front = cluster["a"]
    front.call("POST", "/users", {"name": "bridge", "password": "a-password-of-bridge"})
    cluster["c"].call("POST", "/secrets", {"name": "bridge", "value": "a-password-of-bridge"})
    server = f"{front.mqtt[0]}:{front.mqtt[1]}"
    connector = {
        "name": "front", "type": "mqtt", "server": server,
        "username": "bridge", "password": "${secret:bridge}",
    }  # fmt: skip
    front.call("POST", "/connectors", connector)
    action = {"name": "out", "type": "mqtt", "connector": "front", "parameters": {"topic": "out"}}
    front.call("POST", "/actions", action)
    rule = {"name": "out", "sql": 'SELECT payload FROM "in"', "actions": ["mqtt:out"]}
    front.call("POST", "/rules", rule)
    with Client(front, cluster.client_of(0, "out")) as listener:
        listener.subscribe("out", 1)
        for cell in range(4):
            with Client(cluster.machine_of(cell), cluster.client_of(cell, "in")) as client:
                client.publish("in", str(cell), 1)
        assert {bytes(listener.take().payload) for _ in range(4)} == {b"0", b"1", b"2", b"3"}
    for path in (
        "rules/out",
        "actions/out",
        "connectors/front",
        "secrets/bridge",
        "users/bridge",
    ):
        front.call("DELETE", f"/{path}")


def test_records_are_read_from_the_machine_that_has_them(cluster: Cluster) -> None:
    front = cluster["a"]
    front.call("POST", "/streams", {"name": "kept", "shards": 1, "topics": ["kept/#"]})
    told = set()
    for cell in range(4):
        machine = cluster.machine_of(cell)
        with Client(machine, cluster.client_of(cell, "keeper")) as client:
            for number in range(3):
                client.publish(f"kept/{cell}", f"{cell}-{number}", 1)
                told.add(f"{cell}-{number}".encode())
    for machine in cluster.machines.values():
        reader = StreamClient(machine.url, TOKEN, "kept")
        where = eventually(partial(_full, reader, 12))
        assert where is not None
        addresses = {where.place(shard)[0] for shard in range(4)}
        assert len(addresses) == 3
        reader.check()
        found = set()
        for shard in where.shards:
            for batch in reader.read(where, shard.shard, shard.first, shard.next):
                found.update(pa.Table.from_batches([batch])["payload"].to_pylist())
        assert found == told
        # pages come from the cell itself
        page = machine.call("GET", "/streams/kept/records?shard=3&from=0")
        assert [item["payload"]["data"] for item in page["items"]] == ["3-0", "3-1", "3-2"]


def _full(reader: StreamClient, records: int) -> Positions | None:
    where = reader.positions()
    return where if sum(shard.next - shard.first for shard in where.shards) == records else None


def test_a_machine_that_is_lost_is_away_and_loses_nothing(cluster: Cluster) -> None:
    lost, front, other = cluster["b"], cluster["a"], cluster["c"]
    name = cluster.client_of(2, "lasting")
    told = {
        f"t/{qos}": [str(number).encode() for number in range(qos - 1, 20, 2)] for qos in (1, 2)
    }
    with Client(front, name, expiry_s=3600) as client:
        client.subscribe("t/#", 2)
    with Client(other, cluster.client_of(3, "live")) as live:
        live.subscribe("t/#", 1)
        lost.kill()
        with Client(front, cluster.client_of(0, "teller")) as teller:
            for number in range(20):
                qos = 1 + number % 2
                teller.publish(f"t/{qos}", str(number), qos)
            assert _taken(live) == told
            answer = other.call("GET", "/clients")
            assert [entry["cell"] for entry in answer["incomplete"]] == [1, 2]
            eventually(lambda: "cell_away:2" in _alarms(front))
            # a client of the lost machine is refused at any machine
            with Raw(other) as raw:
                raw.socket.settimeout(30)
                with pytest.raises(AssertionError, match=r"\\x88"):
                    raw.connect(cluster.client_of(1, "early"))
            lost.start()
            eventually(lambda: "incomplete" not in other.call("GET", "/clients"))
        assert not live.farewell.qsize()
    with Client(other, name, is_clean=False, expiry_s=3600) as client:
        assert client.flags.session_present
        assert _taken(client) == told
    eventually(lambda: "cell_away:2" not in _alarms(front))


def _taken(client: Client) -> dict[str, list[bytes]]:
    taken: dict[str, list[bytes]] = {"t/1": [], "t/2": []}
    for _ in range(20):
        message = client.take()
        taken[message.topic].append(bytes(message.payload))
    return taken


def _alarms(machine: Machine) -> str:
    return json.dumps(machine.call("GET", "/alarms")["items"])


def test_a_backup_of_a_cluster_becomes_a_broker_on_one_machine(
    cluster: Cluster, tmp_path: Path
) -> None:
    names = [cluster.client_of(cell, "kept") for cell in range(4)]
    for name in names:
        with Client(cluster["c"], name, expiry_s=3600) as client:
            client.subscribe("backup", 1)
    with Client(cluster["a"], cluster.client_of(0, "teller")) as teller:
        teller.publish("backup", b"kept", 1)
    file = str(tmp_path / "cluster.backup")
    made = sluice(cluster["a"], "backup", file, "--with-messages")
    assert made.returncode == 0, made.stderr
    restored = sluice(cluster["a"], "restore", file, "--data-dir", str(tmp_path / "one"))
    assert restored.returncode == 0, restored.stderr
    with running(tmp_path / "one", workers=4) as node:
        for name in names:
            with Client(node, name, is_clean=False, expiry_s=3600) as client:
                assert client.flags.session_present
                assert client.take().payload == b"kept"
    for name in names:
        cluster["b"].call("DELETE", f"/sessions/{name}")


def test_what_was_saved_while_a_machine_was_away_is_there_when_it_is_back(cluster: Cluster) -> None:
    cluster["c"].kill()
    cluster["b"].call("POST", "/users", {"name": "late", "password": "a-password-of-late"})
    cluster["c"].start()
    cluster["a"].kill()
    # it goes on with what it has; the API needs the first machine
    with cluster["c"].client() as api:
        answer = api.get("/status")
        assert answer.status_code == 503
        assert "cell 0" in answer.json()["detail"]
    text = (cluster["c"].data_dir / "api.hocon").read_text()
    assert "late" in text
    with Client(cluster["c"], cluster.client_of(3, "alone"), version=paho.MQTTv311) as client:
        client.publish("alone", b"", 1)
    cluster["a"].start()
    eventually(lambda: cluster["c"].call("GET", "/users/late"))


def _refused(machine: Machine, *options: str) -> str:
    """What a machine says that does not start."""
    serve = [sys.executable, "-m", "broker.cli.main", "serve", "--data-dir", str(machine.data_dir)]
    done = subprocess.run(
        machine.network.command([*serve, *options]),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("was", "now", "why"),
    [
        ("machine = c", "machine = a", "expected the data of machine 'a', got that of machine 'c'"),
        ("name = plant", "name = other", "got that of another name, or with other machines or"),
        ("cells = 2", "cells = 3", "got that of another name, or with other machines or cells"),
        ("machine = c", "machine = d", "expected one of a, b, c; got 'd'"),
        ("cluster {", "other {", "other"),
    ],
)
def test_a_machine_starts_with_its_own_data_only(
    cluster: Cluster, was: str, now: str, why: str
) -> None:
    machine = cluster["c"]
    if machine.is_running:
        machine.stop()
    file = machine.data_dir / "sluice.conf"
    try:
        file.write_text(machine.config.replace(was, now))
        assert why in _refused(machine)
    finally:
        file.write_text(machine.config)


def test_its_number_of_cells_is_fixed(cluster: Cluster) -> None:
    machine = cluster["c"]
    if machine.is_running:
        machine.stop()
    assert "expected 1, as cluster.machines.c has it, got 3" in _refused(machine, "--workers", "3")
    resized = sluice(machine, "cells", "resize", "2", "--data-dir", str(machine.data_dir))
    assert resized.returncode != 0
    assert "machine 'c' of a cluster" in resized.stderr
    machine.start()


def test_the_data_of_a_broker_without_a_cluster_is_refused(
    cluster: Cluster, tmp_path: Path
) -> None:
    with running(tmp_path / "data"):
        pass
    (tmp_path / "data" / "sluice.conf").write_text(cluster["c"].config)
    other = Machine("c", cluster["c"].network, tmp_path / "data", "", range(1))
    assert "expected an empty directory for machine 'c' of a cluster" in _refused(other)
