"""Share groups with a whole broker and real clients: mosquitto_sub, paho with 3.1.1 and 5; killed and started again."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.end_to_end.clients import Client, MosquittoSub, publish
from tests.support.node import Node, eventually, running
from tests.support.processes import pause

GROUP = "$share/pool/jobs/#"
HOUR_S = 3600


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    config = "shared_subscription { groups { kept { durable = true } } }\n"
    with running(tmp_path / "node", config=config) as started:
        yield started


def group(node: Node, name: str = GROUP) -> dict[str, Any]:
    found: dict[str, Any] = node.call("GET", f"/groups/{quote(name, safe='')}")
    return found


def take_all(client: Client, count: int) -> list[str]:
    return [client.take().payload.decode() for _ in range(count)]


def subscribe_from(client: Client, text: str, start: str, qos: int = 1) -> list[int]:
    """Subscribe with ``stream-offset``; the reason codes."""
    properties = Properties(PacketTypes.SUBSCRIBE)
    properties.UserProperty = [("stream-offset", start)]
    _, mid = client.paho.subscribe(text, qos, properties=properties)
    reasons, _ = client._answer_of(mid)
    return [reason.value for reason in reasons]


def test_clients_of_every_kind_share_the_work(node: Node) -> None:
    with ExitStack() as clients:
        old = clients.enter_context(Client(node, version=paho.MQTTv311))
        new = clients.enter_context(Client(node))
        for client in (old, new):
            client.subscribe(GROUP, 1)
        mosquitto = clients.enter_context(MosquittoSub(node, "-V", "5", "-q", "1", "-t", GROUP))
        for number in range(30):
            publish(node, f"jobs/{number}", str(number), "-q", "1")
        got = [
            *take_all(old, 10),
            *take_all(new, 10),
            *[line.split()[1] for line in mosquitto.take(10)],
        ]
        assert sorted(got, key=int) == [str(number) for number in range(30)]
        shown = group(node)
        assert (shown["members"], shown["connected"], shown["delivered"]) == (3, 3, 30)


def test_what_a_killed_client_had_goes_to_another(node: Node) -> None:
    with Client(node, "stays") as stays:
        stays.subscribe(GROUP, 1)
        silent = MosquittoSub(node, "-V", "5", "-q", "1", "-i", "killed", "-t", GROUP)
        pause(silent.process.pid)
        for number in range(20):
            publish(node, f"jobs/{number}", str(number), "-q", "1")
        eventually(lambda: group(node)["inflight"] >= 5)
        silent.kill()
        got = take_all(stays, 20)
        assert sorted(set(got), key=int) == [str(number) for number in range(20)]


def test_a_durable_group_survives_kill_nine_with_everything_that_was_acknowledged(
    node: Node,
) -> None:
    """Two durable members and one clean one work while the broker is killed again and again."""
    taken: Counter[str] = Counter()
    acknowledged: list[str] = []
    over = threading.Event()

    def work(client_id: str, version: Any, is_clean: bool) -> None:
        while not over.is_set():
            try:
                with Client(
                    node,
                    client_id,
                    version=version,
                    is_clean=is_clean,
                    expiry_s=0 if is_clean else HOUR_S,
                ) as c:
                    c.subscribe(GROUP, 1)
                    while c.paho.is_connected():
                        try:
                            taken[c.messages.get(timeout=0.2).payload.decode()] += 1
                        except Exception:  # noqa: BLE001  an empty queue: look again whether to go on
                            if over.is_set():
                                return
            except Exception:  # noqa: BLE001  the broker is being killed: come again
                over.wait(0.1)

    with Client(node, "w1", expiry_s=HOUR_S, is_clean=False) as first:
        first.subscribe(GROUP, 1)
    workers = [
        threading.Thread(target=work, args=("w1", paho.MQTTv5, False)),
        threading.Thread(target=work, args=("w2", paho.MQTTv311, False)),
        threading.Thread(target=work, args=("w3", paho.MQTTv5, True)),
    ]
    for worker in workers:
        worker.start()
    try:
        number = 0
        for _ in range(3):
            with Client(node, "publisher") as publisher:
                for _ in range(150):
                    publisher.publish("jobs/x", str(number))
                    acknowledged.append(str(number))
                    number += 1
            node.kill()
            node.start()
        eventually(
            lambda: set(acknowledged) <= set(taken), what="every acknowledged message to be taken"
        )
        eventually(
            lambda: group(node)["waiting"] == 0 and group(node)["inflight"] == 0,
            what="the group to be idle",
        )
    finally:
        over.set()
        for worker in workers:
            worker.join(20)
    again = sum(count - 1 for count in taken.values())
    assert again <= 3 * 3 * 32, "more came twice than can have been in flight"


def test_a_kept_group_waits_for_members_that_come_after_a_kill(node: Node) -> None:
    name = "$share/kept/jobs/#"
    with Client(node) as once:
        once.subscribe(name, 1)
    for number in range(10):
        publish(node, "jobs/x", str(number), "-q", "1")
    node.kill()
    node.start()
    assert (group(node, name)["waiting"], group(node, name)["members"]) == (10, 0)
    with Client(node) as member:
        member.subscribe(name, 1)
        assert take_all(member, 10) == [str(number) for number in range(10)]
    node.call("DELETE", f"/groups/{quote(name, safe='')}")
    node.call("GET", f"/groups/{quote(name, safe='')}", expect=404)


def test_subscriptions_and_groups_begin_in_the_past(node: Node) -> None:
    node.call("POST", "/streams", {"name": "jobs", "topics": ["jobs/#"]})
    for number in range(20):
        publish(node, "jobs/x", str(number), "-q", "1")
    with ExitStack() as clients:
        plain = clients.enter_context(Client(node))
        assert subscribe_from(plain, "jobs/+", "earliest") == [1]
        pool = [clients.enter_context(Client(node)) for _ in range(2)]
        for member in pool:
            assert subscribe_from(member, "$share/late/jobs/#", "earliest") == [1]
        for number in range(20, 40):
            publish(node, "jobs/x", str(number), "-q", "1" if number % 2 else "0")
        everything = [str(number) for number in range(40)]
        assert take_all(plain, 40) == everything
        eventually(lambda: sum(member.messages.qsize() for member in pool) == 40)
        got = [
            member.take().payload.decode()
            for member in pool
            for _ in range(member.messages.qsize())
        ]
        assert sorted(got, key=int) == everything
        shown = eventually(
            lambda: (found := group(node, "$share/late/jobs/#"))["behind"] == 0 and found
        )
        assert shown["stream"] == "jobs"
        assert "share group" in str(node.call("DELETE", "/streams/jobs", expect=409))


def test_a_durable_session_goes_on_with_its_replay_after_kill_nine(node: Node) -> None:
    node.call("POST", "/streams", {"name": "jobs", "topics": ["jobs/#"]})
    for number in range(50):
        publish(node, "jobs/x", str(number), "-q", "1")
    taken: list[str] = []
    with Client(node, "reader", expiry_s=HOUR_S, is_clean=False) as reader:
        assert subscribe_from(reader, "jobs/#", "earliest") == [1]
        taken += take_all(reader, 50)
    eventually(lambda: group(node, "$replay/reader/jobs/#")["inflight"] == 0)
    node.kill()
    node.start()
    for number in range(50, 60):
        publish(node, "jobs/x", str(number), "-q", "1")
    with Client(node, "reader", expiry_s=HOUR_S, is_clean=False) as reader:
        while len(set(taken)) < 60:
            taken.append(reader.take().payload.decode())
    assert sorted(set(taken), key=int) == [str(number) for number in range(60)]
    assert taken[-10:] == [str(number) for number in range(50, 60)]


@pytest.mark.parametrize(
    ("text", "start", "why"),
    [
        ("jobs/#", "yesterday", "'yesterday' is not a valid start"),
        ("other/#", "earliest", "no stream captures all topics of 'other/#'"),
    ],
    ids=["not a place", "not captured"],
)
def test_what_cannot_begin_in_the_past_is_refused_with_the_reason(
    node: Node, text: str, start: str, why: str
) -> None:
    node.call("POST", "/streams", {"name": "jobs", "topics": ["jobs/#"]})
    with Client(node) as client:
        properties = Properties(PacketTypes.SUBSCRIBE)
        properties.UserProperty = [("stream-offset", start)]
        _, mid = client.paho.subscribe(text, 1, properties=properties)
        reasons, told = client._answer_of(mid)
        assert [reason.value for reason in reasons] == [0x83]
        assert why in told.ReasonString


def test_where_no_group_keeps_messages_durable_sessions_are_refused(tmp_path: Path) -> None:
    with running(tmp_path / "node", config="shared_subscription.durable = off\n") as node:
        with Client(node) as clean:
            clean.subscribe(GROUP, 1)
        with Client(node, expiry_s=HOUR_S) as durable:
            _, mid = durable.paho.subscribe(GROUP, 1)
            reasons, _ = durable._answer_of(mid)
            assert [reason.value for reason in reasons] == [0x9E]


def test_who_begins_a_group_has_the_retained_messages_where_that_is_set(tmp_path: Path) -> None:
    with running(tmp_path / "node", config="shared_subscription.retained = first_member\n") as node:
        publish(node, "jobs/x", "kept", "-q", "1", "-r")
        with Client(node) as first, Client(node) as second:
            first.subscribe(GROUP, 1)
            second.subscribe(GROUP, 1)
            assert first.take().payload == b"kept"
            publish(node, "jobs/y", "1", "-q", "1")
            publish(node, "jobs/y", "2", "-q", "1")
            assert {first.take().payload, second.take().payload} == {b"1", b"2"}


def test_groups_are_made_shown_and_deleted_by_the_api(node: Node) -> None:
    made = node.call("POST", "/groups", {"group": "$share/api/a/+", "strategy": "hash_topic"})
    assert (made["outlives_members"], made["strategy"], made["members"]) == (True, "hash_topic", 0)
    node.call("POST", "/groups", {"group": "$share/api/a/+"}, expect=409)
    publish(node, "a/1", "x", "-q", "1")
    [listed] = node.call("GET", "/groups")["items"]
    assert (listed["group"], listed["waiting"]) == ("$share/api/a/+", 1)
    problem = node.call("POST", "/groups", {"group": "a/b", "strategy": "best"}, expect=422)
    assert "strategy is 'best'; expected" in problem["errors"][0]["message"]
    problem = node.call(
        "POST", "/groups", {"group": "$share/x/a/#", "start": "earliest"}, expect=422
    )
    assert "no stream captures all topics of 'a/#'" in str(problem)
