"""Machines that are lost while others have copies of their cells: these are taken over, and go home when the machine is
back."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

import httpx
import msgspec
import pytest

from broker.cluster.keeping import State
from broker.cluster.nats.board import Board
from broker.cluster.nats.line import Line
from broker.codec.packets import ConnAck, Connect, Disconnect
from broker.core import reason
from tests.end_to_end.clients import Client
from tests.support.machines import Cluster, Machine, machines
from tests.support.mqtt_server import on_loop
from tests.support.node import eventually, sluice
from tests.support.waiting import until
from tests.support.wire import WireClient

_RATE = 20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with machines(
        tmp_path_factory.mktemp("cluster"),
        {"a": 1, "b": 1, "c": 2},
        f"cluster.disconnect_rate = {_RATE}",
        with_nats=True,
    ) as cluster:
        cluster.start()
        yield cluster
        cluster.stop()
        for machine in cluster.machines.values():
            assert "Traceback" not in machine.log.read_text()


def runners(machine: Machine) -> list[str]:
    """The machine of each cell, as a machine shows them."""
    return [row["machine"] for row in machine.call("GET", "/cluster/slots")["items"]]


def are_home(cluster: Cluster) -> bool:
    rows = cluster["a"].call("GET", "/cells")["items"]
    return runners(cluster["a"]) == ["a", "b", "c", "c"] and all(row["links"] == 3 for row in rows)


def test_a_session_continues_on_another_machine_and_at_home_again(cluster: Cluster) -> None:
    name = cluster.client_of(3)
    with Client(cluster["b"], name, is_clean=False, expiry_s=600) as subscriber:
        subscriber.subscribe("t/#", 1)
    with Client(cluster["a"], cluster.client_of(0)) as publisher:
        publisher.publish("t/1", b"before", 1)
        cluster["c"].kill()
        lost_s = time.monotonic()
        eventually(lambda: "c" not in runners(cluster["b"]), 60)
        print(f"taken over after {time.monotonic() - lost_s:.1f} s")
        for cell in (2, 3):
            eventually(partial(_publishes, cluster["b"], cluster.client_of(cell, "other")))
        print(f"a client of it publishes after {time.monotonic() - lost_s:.1f} s")
        publisher.publish("t/2", b"while lost", 1)
        with Client(cluster["b"], name, is_clean=False, expiry_s=600) as subscriber:
            assert [subscriber.take().payload for _ in range(2)] == [b"before", b"while lost"]
        publisher.publish("t/3", b"waits", 1)
        cluster["c"].start()
        eventually(partial(are_home, cluster))
        publisher.publish("t/4", b"at home", 1)
        with Client(cluster["c"], name, is_clean=False, expiry_s=600) as subscriber:
            assert [subscriber.take().payload for _ in range(2)] == [b"waits", b"at home"]


def _state(cluster: Cluster, name: str, of: str = "a") -> tuple[str, list[int]]:
    rows = cluster[of].call("GET", "/cluster/machines")["items"]
    return next((row["state"], row["cells"]) for row in rows if row["name"] == name)


def _leaders(cluster: Cluster) -> list[str]:
    """The server of NATS that leads the log of each cell."""
    assert cluster.nats is not None
    line = Line(cluster.nats.places, "test")
    try:
        answers = [
            json.loads(line.ask(f"$JS.API.STREAM.INFO.sluice_plant_{cell}", b"", 5).payload)
            for cell in range(cluster.count)
        ]
    finally:
        line.close()
    return [answer.get("cluster", {}).get("leader", "") for answer in answers]


def test_the_log_of_a_cell_is_led_by_the_server_of_its_machine(cluster: Cluster) -> None:
    eventually(lambda: _leaders(cluster) == ["nats-0", "nats-1", "nats-2", "nats-2"], 60)


def test_another_cluster_of_this_name_does_not_start(cluster: Cluster, tmp_path: Path) -> None:
    """It would claim the cells of this one, whose logs it takes for its own."""
    network = cluster["c"].network
    known = re.sub(r"  machines\.\w+ {.*}\n", "", cluster["c"].config)
    own = f'machine = x\n  machines.x {{ address = "{network.addresses[0]}:7999" }}\n'
    (tmp_path / "sluice.conf").write_text(known.replace("machine = c\n", own))
    serve = [sys.executable, "-m", "broker.cli.main", "serve", "--data-dir", str(tmp_path)]
    done = subprocess.run(
        network.command(serve), capture_output=True, text=True, timeout=240, cwd=cluster["c"].root
    )
    assert done.returncode == 1, done
    text = "the stream sluice_plant_0 in NATS belongs to another cluster of this name"
    assert text in done.stderr, done
    assert are_home(cluster)


def test_machines_are_not_shown_as_they_were_before_nats_was_lost(cluster: Cluster) -> None:
    assert cluster.nats is not None
    servers = cluster.nats.servers[1:]
    for server in servers:
        server.freeze()
    try:
        unknown = eventually(lambda: cluster["a"].call("GET", "/cluster/machines", expect=503), 30)
        assert unknown["detail"].startswith("the state of the machines is not known: NATS: ")
    finally:
        for server in servers:
            server.thaw()
    eventually(partial(are_home, cluster), 60)


def test_a_clock_that_differs_is_an_alarm(cluster: Cluster) -> None:
    """Of machine b, which does not run: the test writes what it would."""
    assert cluster.nats is not None
    cluster["b"].stop()
    board = Board(cluster.nats.places, "plant", "b", 3)
    numbers = count()
    known = msgspec.json.decode(board.exchange(b"{}")["a"], type=State)

    def alarms(ahead_s: int) -> list[str]:
        clock_ns = time.time_ns() + ahead_s * 1_000_000_000
        said = State(
            "test", next(numbers), [], {}, {}, [1], cluster=known.cluster, clock_ns=clock_ns
        )
        board.exchange(msgspec.json.encode(said))
        rows = cluster["a"].call("GET", "/alarms")["items"]
        return [row["message"] for row in rows if row["name"] == "clock_differs:b"]

    try:
        [alarm] = eventually(lambda: alarms(40), 60, 0.5)
        text = r"the clock of machine b is (39|40) s ahead of that of machine a"
        assert re.fullmatch(text, alarm)
        eventually(lambda: not alarms(0), 60, 0.5)
    finally:
        board.close()
    cluster["b"].start()
    eventually(partial(are_home, cluster), 60)


@pytest.mark.parametrize("name", ["c", "a"])
def test_a_machine_that_is_drained_gives_its_cells_away_and_gets_them_back(
    cluster: Cluster, name: str
) -> None:
    machine = cluster[name]
    client_id = cluster.client_of(machine.cells.start)
    with Client(cluster["b"], client_id, is_clean=False, expiry_s=600) as subscriber:
        subscriber.subscribe("drain/#", 1)
    with Client(cluster["b"], cluster.client_of(1)) as publisher:
        publisher.publish("drain/0", b"0", 1)
        drained = sluice(cluster["b"], "cluster", "drain", name)
        moved = "2 cells moved" if name == "c" else "1 cell moved (0 to "
        assert drained.stdout.startswith(moved), drained
        assert drained.stdout.endswith("; 0 clients had to connect again; nothing was lost\n")
        assert not drained.stdout.startswith("1 cell moved (0 to a)"), drained
        eventually(lambda: _state(cluster, name, "b") == ("drained", []), 60)
        publisher.publish("drain/1", b"1", 1)
        machine.stop()
        eventually(lambda: _state(cluster, name, "b")[0] == "away", 60)
        status = sluice(cluster["b"], "cluster", "status")
        assert status.returncode == 7, status
        assert f"machine {name} is away" in status.stderr
        machine.begin()
        assert machine.first_line(60).startswith("drained:")
        publisher.publish("drain/2", b"2", 1)
        with Client(cluster["b"], client_id, is_clean=False, expiry_s=600) as subscriber:
            assert [subscriber.take().payload for _ in range(3)] == [b"0", b"1", b"2"]
        # the first cell answers there, too
        assert eventually(lambda: _state(cluster, name, name)) == ("drained", [])
        health = httpx.get(f"{machine.url}/readyz", trust_env=False)
        assert (health.status_code, health.text) == (503, "no cell runs here\n")
        resumed = sluice(machine, "cluster", "resume", name)
        assert resumed.returncode == 0, resumed
        assert machine.first_line(60).startswith("sluice ready")
        eventually(partial(are_home, cluster), 60)
    assert _state(cluster, name) == ("running", list(machine.cells))
    assert httpx.get(f"{machine.url}/readyz", trust_env=False).status_code == 200
    eventually(lambda: sluice(cluster["b"], "cluster", "status").returncode == 0)


def test_a_drain_reports_what_came_along(cluster: Cluster) -> None:
    """Sessions that are away and their messages are as many as before; the ones that end with their client are none."""
    names = [cluster.client_of(cell, f"along{number}") for cell in (2, 3) for number in range(5)]
    for name in names:
        with Client(cluster["b"], name, is_clean=False, expiry_s=600) as subscriber:
            subscriber.subscribe(f"along/{name}", 1)
    with Client(cluster["b"], cluster.client_of(2)) as publisher:
        for name in names:
            for _ in range(3):
                publisher.publish(f"along/{name}", b"x", 1)
        rows = cluster["b"].call("GET", "/cells")["items"]
        drained = sluice(cluster["b"], "cluster", "drain", "c", "--json")
    report = json.loads(drained.stdout)
    assert [move["cell"] for move in report["cells"]] == [2, 3]
    assert report["clients"] == 1
    assert report["sessions"] == sum(row["sessions"] for row in rows if row["machine"] == "c") - 1
    assert report["messages"] >= 30
    assert (report["lost_sessions"], report["lost_messages"], report["uncounted"]) == (0, 0, 0)
    cluster["b"].call("POST", "/cluster/machines/c:resume")
    eventually(partial(are_home, cluster), 60)
    for name in names:
        with Client(cluster["b"], name, is_clean=False, expiry_s=0) as subscriber:
            assert [subscriber.take().payload for _ in range(3)] == [b"x"] * 3


def test_load_balancers_have_time_to_notice_a_drain(cluster: Cluster) -> None:
    def ready(machine: str) -> tuple[int, str]:
        answer = httpx.get(f"{cluster[machine].url}/readyz", trust_env=False)
        return answer.status_code, answer.text

    started = sluice(cluster["b"], "cluster", "drain", "c", "--wait", "1h", "--detach")
    job = f"/jobs/{started.stdout.strip()}"
    parting = 503, "its clients are moving to another machine\n"
    eventually(lambda: ready("c") == parting, 60)
    assert ready("b")[0] == 200
    eventually(lambda: _state(cluster, "c", "b") == ("draining", [2, 3]), 60)
    cells = cluster["b"].call("GET", "/cells")["items"]
    assert [row["state"] for row in cells] == ["running"] * 4  # they serve their clients as before
    shown = cluster["b"].call("GET", job)
    assert (shown["kind"], shown["name"], shown["state"]) == ("drain", "c", "running")
    assert shown["progress"] == {"done": 0, "total": 2, "unit": "cells"}
    assert cluster["b"].call("POST", f"{job}:pause")["state"] == "paused"
    again = sluice(cluster["b"], "cluster", "drain", "c")
    assert f"job {shown['id']} (drain c) moves cells" in again.stderr
    refused = cluster["a"].call("POST", "/cluster/machines:rebalance", expect=409)
    assert f"job {shown['id']} (drain c) moves cells" in refused["detail"]
    cluster["b"].call("POST", f"{job}:cancel")
    eventually(lambda: cluster["b"].call("GET", job)["state"] == "cancelled", 60)
    eventually(lambda: ready("c")[0] == 200, 60)
    eventually(lambda: _state(cluster, "c", "b") == ("running", [2, 3]), 60)


def test_a_cell_that_is_moved_stays_until_the_cluster_is_rebalanced(cluster: Cluster) -> None:
    client_id = cluster.client_of(3)
    with Client(cluster["b"], client_id, is_clean=False, expiry_s=600) as subscriber:
        subscriber.subscribe("move/#", 1)
    with Client(cluster["b"], cluster.client_of(1)) as publisher:
        publisher.publish("move/0", b"0", 1)
        moved = sluice(cluster["b"], "cluster", "move", "3", "a")
        assert moved.stdout.startswith("1 cell moved (3 to a); "), moved
        assert runners(cluster["b"]) == ["a", "b", "c", "a"]
        publisher.publish("move/1", b"1", 1)
        cluster["c"].kill()
        eventually(lambda: _state(cluster, "c", "b")[0] == "away", 60)
        cluster["c"].start()
        eventually(lambda: runners(cluster["b"]) == ["a", "b", "c", "a"], 60)
        rows = cluster["b"].call("GET", "/cluster/machines")["items"]
        assert [row["home_cells"] for row in rows] == [[0, 3], [1], [2]]
        rebalanced = sluice(cluster["b"], "cluster", "rebalance")
        assert rebalanced.stdout.startswith("1 cell moved (3 to c); "), rebalanced
        with Client(cluster["a"], client_id, is_clean=False, expiry_s=600) as subscriber:
            assert [subscriber.take().payload for _ in range(2)] == [b"0", b"1"]
    eventually(partial(are_home, cluster), 60)


async def _moving(cluster: Cluster, name: str, connected: list[str]) -> float:
    """When a client of a cell that moves is disconnected. It connects elsewhere then, and has its session."""

    async def connect(machine: Machine) -> tuple[WireClient, ConnAck]:
        client = WireClient(*await asyncio.open_connection(*machine.mqtt), 5)
        expiry = {"Session-Expiry-Interval": 600}
        client.send(Connect(name, 5, clean_start=False, properties=expiry))
        return client, await client.expect(ConnAck)

    client, connack = await connect(cluster["c"])
    assert (connack.reason_code, connack.session_present) == (0, False)
    connected.append(name)
    disconnect = await client.expect(Disconnect)
    ended_s = time.monotonic()
    assert disconnect.reason_code == reason.SERVER_SHUTTING_DOWN
    await client.closed()
    client, connack = await connect(cluster["b"])
    assert (connack.reason_code, connack.session_present) == (0, True)
    await client.close()
    return ended_s


@on_loop
async def test_clients_of_a_cell_that_moves_are_disconnected_at_a_rate(cluster: Cluster) -> None:
    names = [cluster.client_of(3, f"paced{number}") for number in range(3 * _RATE)]
    connected: list[str] = []
    clients = [asyncio.create_task(_moving(cluster, name, connected)) for name in names]
    await until(lambda: len(connected) == len(names))
    moved = await asyncio.to_thread(sluice, cluster["b"], "cluster", "move", "3", "a")
    assert moved.stdout.startswith("1 cell moved (3 to a); "), moved
    assert moved.stdout.endswith(f"; {3 * _RATE} clients had to connect again; nothing was lost\n")
    ended_s = await asyncio.gather(*clients)
    assert max(ended_s) - min(ended_s) > 1  # three seconds, but for lateness
    await asyncio.to_thread(sluice, cluster["b"], "cluster", "rebalance")
    await asyncio.to_thread(eventually, partial(are_home, cluster), 60)


@pytest.mark.parametrize(
    ("name", "cell", "status", "why"),
    [
        ("d", 2, 404, "there is no machine 'd'"),
        ("a", 2, 409, "cell 2 has the API and the streams of machine 'c': move cell 3 first"),
        ("a", 4, 409, "expected a cell from 0 to 3, got 4"),
        ("a", -1, 422, "cell is -1; expected at least 0"),
    ],
)
def test_a_cell_is_moved_to_a_machine_that_can_run_it(
    cluster: Cluster, name: str, cell: int, status: int, why: str
) -> None:
    refused = cluster["b"].call(
        "POST", f"/cluster/machines/{name}:take", {"cell": cell}, expect=status
    )
    assert why in json.dumps(refused)


def test_a_machine_that_is_forgotten_is_not_missed_and_gets_its_cells_when_it_is_resumed(
    cluster: Cluster,
) -> None:
    refused = cluster["b"].call("POST", "/cluster/machines/c:forget", expect=409)
    assert refused["detail"] == "machine 'c' runs: drain it and stop it first"
    cluster["c"].kill()
    eventually(lambda: _state(cluster, "c", "b")[0] == "away", 60)
    refused = cluster["b"].call("POST", "/cluster/machines/c:take", {"cell": 0}, expect=409)
    assert refused["detail"] == "machine 'c' is away"
    forgotten = sluice(cluster["b"], "cluster", "forget", "c", "--yes")
    assert forgotten.stdout == "machine c is forgotten\n", forgotten
    assert _state(cluster, "c", "b") == ("forgotten", [])
    eventually(lambda: sluice(cluster["b"], "cluster", "status").returncode == 0, 60)
    rows = cluster["a"].call("GET", "/cluster/machines")["items"]
    assert [len(row["home_cells"]) for row in rows] == [2, 2, 0]
    cluster["c"].begin()
    assert cluster["c"].first_line(60).startswith("drained:")
    eventually(lambda: _state(cluster, "c", "b") == ("drained", []), 60)
    refused = cluster["b"].call("POST", "/cluster/machines/c:take", {"cell": 3}, expect=409)
    assert refused["detail"] == "machine 'c' is drained, forgotten or stopping: resume it first"
    eventually(lambda: cluster["b"].call("POST", "/cluster/machines/c:resume"))
    assert cluster["c"].first_line(60).startswith("sluice ready")
    eventually(partial(are_home, cluster), 60)
    assert _state(cluster, "c", "b") == ("running", [2, 3])


def test_the_last_machine_that_runs_is_not_drained(cluster: Cluster) -> None:
    for name in ("b", "c"):
        sluice(cluster["a"], "cluster", "drain", name, "--detach")
    refused = cluster["a"].call("POST", "/cluster/machines/a:drain", expect=409)
    assert refused["detail"] == "no other machine than 'a' runs and could take its cells"
    for name in ("b", "c"):
        cluster["a"].call("POST", f"/cluster/machines/{name}:resume")
    eventually(partial(are_home, cluster), 60)
    missing = cluster["a"].call("POST", "/cluster/machines/d:drain", expect=404)
    assert "there is no machine 'd'" in missing["detail"]


def test_a_machine_with_another_configuration_is_an_alarm(cluster: Cluster) -> None:
    why = "cell 1 has another configuration than cell 0: a configuration file of its machine"

    def is_alarm() -> bool:
        rows = cluster["a"].call("GET", "/alarms")["items"]
        return any(row["message"].startswith(why) for row in rows)

    machine = cluster["b"]
    before = machine.config
    for is_other in (True, False):
        machine.stop()
        machine.config = f"{before}\nmqtt.max_topic_levels = 64\n" if is_other else before
        machine.start()
        eventually(partial(are_home, cluster), 60)
        eventually(is_alarm if is_other else lambda: not is_alarm(), 60)


def _publishes(machine: Machine, client_id: str) -> bool:
    with Client(machine, client_id) as client:
        client.publish("other", b"x", 1)
    return True


def test_what_is_saved_while_the_first_machine_is_lost_is_there_when_it_is_back(
    cluster: Cluster,
) -> None:
    cluster["b"].call("POST", "/rules", {"name": "before", "sql": 'SELECT * FROM "x"'})
    cluster["a"].kill()
    eventually(lambda: "a" not in runners(cluster["b"]), 60)
    meanwhile = ["first", "second", "third"]
    for name in meanwhile:
        rule = {"name": name, "sql": 'SELECT * FROM "y"'}
        # refused while a cell is starting
        eventually(partial(cluster["c"].call, "POST", "/rules", rule))
    cluster["a"].start()
    eventually(partial(are_home, cluster))
    for machine in cluster.machines.values():
        names = [rule["name"] for rule in machine.call("GET", "/rules")["items"]]
        assert names == ["before", *meanwhile]
