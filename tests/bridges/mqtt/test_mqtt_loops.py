"""Whole brokers beside each other, with rules into the bridge and sources through the pipeline: one copy each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from broker.core.cells import cell_of
from tests.support.node import Node, eventually
from tests.support.node import running as running_node
from tests.support.peers import Peer, mosquitto

BOTH_WAYS = """
connectors {{ far {{ type = mqtt, server = "127.0.0.1:{port}", proto_ver = {version}, clientid = {name},
  resource_opts {{ reconnect_interval = 50ms, health_check_interval = 1s }} }} }}
sources {{ from-far {{ type = mqtt, connector = far, parameters {{ topics = ["plant/#"], publish {{}} }} }} }}
actions {{ to-far {{ type = mqtt, connector = far, parameters {{}} }} }}
rule_engine {{ rules {{ to-far {{ sql = "SELECT * FROM \\"plant/#\\"", actions = ["mqtt:to-far"] }} }} }}
"""
PUSH = """
connectors {{ far {{ type = mqtt, server = "127.0.0.1:{port}", clientid = {name},
  resource_opts {{ reconnect_interval = 50ms, health_check_interval = 1s }} }} }}
actions {{ to-far {{ type = mqtt, connector = far, parameters {{}} }} }}
rule_engine {{ rules {{ to-far {{ sql = "SELECT * FROM \\"plant/#\\"", actions = ["mqtt:to-far"] }} }} }}
"""
PULL = """
connectors {{ far {{ type = mqtt, server = "127.0.0.1:{port}", clientid = {name},
  resource_opts {{ reconnect_interval = 50ms, health_check_interval = 1s }} }} }}
sources {{ from-far {{ type = mqtt, connector = far, parameters {{ topics = ["plant/#"], publish {{}} }} }} }}
"""


class Ends:
    """A subscriber and publisher at one broker."""

    def __init__(self, port: int, topic_filter: str = "plant/#", client_id: str = "") -> None:
        self.payloads: list[bytes] = []
        self._is_subscribed = False
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=paho.MQTTv5)
        self._client.on_message = lambda _client, _data, message: self.payloads.append(
            bytes(message.payload)
        )
        self._client.on_subscribe = self._subscribed
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        self._client.subscribe(topic_filter, 1)
        eventually(lambda: self._is_subscribed, what="subscribed")

    def _subscribed(self, *_: object) -> None:
        self._is_subscribed = True

    def publish(self, payload: str) -> None:
        self._client.publish("plant/a", payload, 1).wait_for_publish(60)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def ends(stack: ExitStack, *ports: int) -> list[Ends]:
    made = []
    for port in ports:
        end = Ends(port)
        stack.callback(end.close)
        made.append(end)
    return made


def configured(stack: ExitStack, directory: Path, config: str) -> Node:
    return stack.enter_context(running_node(directory, config=config))


def all_connected(node: Node) -> bool:
    kinds = ("connectors", "actions", "sources")
    found = [one for kind in kinds for one in node.call("GET", f"/{kind}")["items"]]
    return bool(found) and all(one["status"] == "connected" for one in found)


def one_copy_each(all_ends: list[Ends]) -> None:
    """Each end says something and behind that the last word; each has everything once."""
    said = [f"{number} {word}" for number in range(len(all_ends)) for word in [*range(20), "end"]]
    for number, end in enumerate(all_ends):
        for word in [*range(20), "end"]:
            end.publish(f"{number} {word}")
    wanted = {text.encode() for text in said}
    for end in all_ends:
        eventually(lambda end=end: wanted <= set(end.payloads), what="every message")  # type: ignore[misc]
    settled = [f"settled {number}" for number in range(len(all_ends))]
    for number, end in enumerate(all_ends):
        end.publish(settled[number])
    for end in all_ends:
        last = {text.encode() for text in settled}
        eventually(lambda end=end, last=last: last <= set(end.payloads), what="the last")  # type: ignore[misc]
        more = {payload: count for payload, count in Counter(end.payloads).items() if count > 1}
        assert more == {}


@pytest.mark.parametrize("version", ["v4", "v5"])
def test_broker_with_mosquitto_both_ways_has_one_copy_each(
    tmp_path: Path, stack: ExitStack, version: str
) -> None:
    remote: Peer = stack.enter_context(mosquitto(tmp_path / "mosquitto"))
    node = configured(
        stack, tmp_path / "node", BOTH_WAYS.format(port=remote.port, version=version, name="node")
    )
    eventually(lambda: all_connected(node))
    one_copy_each(ends(stack, node.mqtt[1], remote.port))


def test_cells_with_mosquitto_both_ways_have_one_copy_each(
    tmp_path: Path, stack: ExitStack
) -> None:
    remote: Peer = stack.enter_context(mosquitto(tmp_path / "mosquitto"))
    config = BOTH_WAYS.format(port=remote.port, version="v5", name="node")
    node = stack.enter_context(running_node(tmp_path / "node", config=config, workers=2))
    eventually(lambda: all_connected(node))
    names = [next(f"end-{at}" for at in range(99) if cell_of(f"end-{at}", 2) == c) for c in (0, 1)]
    found = [Ends(node.mqtt[1], client_id=name) for name in names] + [Ends(remote.port)]
    for end in found:
        stack.callback(end.close)
    one_copy_each(found)


def test_bridge_that_mosquitto_knows_as_one_has_one_copy_each(
    tmp_path: Path, stack: ExitStack
) -> None:
    remote: Peer = stack.enter_context(mosquitto(tmp_path / "mosquitto"))
    config = BOTH_WAYS.format(port=remote.port, version="v4", name="node").replace(
        "type = mqtt, server", "bridge_mode = true, type = mqtt, server"
    )
    node = configured(stack, tmp_path / "node", config)
    eventually(lambda: all_connected(node))
    one_copy_each(ends(stack, node.mqtt[1], remote.port))


@pytest.mark.parametrize("version", [pytest.param("v4", marks=pytest.mark.heavy), "v5"])
def test_two_sluices_bridged_both_ways_by_one_of_them(
    tmp_path: Path, stack: ExitStack, version: str
) -> None:
    far = configured(stack, tmp_path / "far", "")
    node = configured(
        stack, tmp_path / "node", BOTH_WAYS.format(port=far.mqtt[1], version=version, name="node")
    )
    eventually(lambda: all_connected(node))
    one_copy_each(ends(stack, node.mqtt[1], far.mqtt[1]))


@pytest.mark.parametrize(
    "how", [pytest.param(PUSH, id="push", marks=pytest.mark.heavy), pytest.param(PULL, id="pull")]
)
def test_two_sluices_that_each_bridge_to_the_other(
    tmp_path: Path, stack: ExitStack, how: str
) -> None:
    far = configured(stack, tmp_path / "far", "")
    node = configured(stack, tmp_path / "node", how.format(port=far.mqtt[1], name="node"))
    bridge(far, how.format(port=node.mqtt[1], name="far"))
    eventually(lambda: all_connected(node) and all_connected(far))
    one_copy_each(ends(stack, node.mqtt[1], far.mqtt[1]))


@pytest.mark.parametrize(
    "how", [pytest.param(PUSH, id="push"), pytest.param(PULL, id="pull", marks=pytest.mark.heavy)]
)
def test_ring_of_three_sluices(tmp_path: Path, stack: ExitStack, how: str) -> None:
    first = configured(stack, tmp_path / "n1", "")
    second = configured(stack, tmp_path / "n2", how.format(port=first.mqtt[1], name="n2"))
    third = configured(stack, tmp_path / "n3", how.format(port=second.mqtt[1], name="n3"))
    bridge(first, how.format(port=third.mqtt[1], name="n1"))
    nodes = [first, second, third]
    eventually(lambda: all(map(all_connected, nodes)))
    one_copy_each(ends(stack, *(node.mqtt[1] for node in nodes)))


def bridge(node: Node, config: str) -> None:
    """The same bridge through the API, for the node that the others must know first."""
    port = int(config.split("127.0.0.1:")[1].split('"')[0])
    options = {"reconnect_interval": "50ms", "health_check_interval": "1s"}
    node.call(
        "POST",
        "/connectors",
        {
            "name": "far",
            "type": "mqtt",
            "server": f"127.0.0.1:{port}",
            "clientid": "back",
            "resource_opts": options,
        },
    )
    if "sources" in config:
        parameters = {"topics": ["plant/#"], "publish": {}}
        node.call(
            "POST",
            "/sources",
            {"name": "from-far", "type": "mqtt", "connector": "far", "parameters": parameters},
        )
    else:
        node.call(
            "POST",
            "/actions",
            {"name": "to-far", "type": "mqtt", "connector": "far", "parameters": {}},
        )
        sql = 'SELECT * FROM "plant/#"'
        node.call("POST", "/rules", {"name": "to-far", "sql": sql, "actions": ["mqtt:to-far"]})


def test_rule_over_what_came_in_goes_back_under_another_topic(
    tmp_path: Path, stack: ExitStack
) -> None:
    """Sluice beside a broker: it reads, a rule works the value out, and the result is sent there."""
    remote: Peer = stack.enter_context(mosquitto(tmp_path / "mosquitto"))
    config = (
        BOTH_WAYS.format(port=remote.port, version="v5", name="node")
        .replace('sql = "SELECT * FROM', "sql = \"SELECT payload.t * 2 AS t, 'hot' AS topic FROM")
        .replace(
            "parameters {}", 'parameters { topic = "made/${topic}", payload = "{\\"t\\": ${t}}" }'
        )
    )
    node = configured(stack, tmp_path / "node", config)
    eventually(lambda: all_connected(node))
    seen = Ends(remote.port, "made/#")
    stack.callback(seen.close)
    seen.publish('{"t": 21}')
    eventually(lambda: seen.payloads, what="what the rule made")
    assert [json.loads(payload) for payload in seen.payloads] == [{"t": 42}]


def test_sys_topic_says_whether_the_bridge_is_up(tmp_path: Path, stack: ExitStack) -> None:
    remote: Peer = stack.enter_context(mosquitto(tmp_path / "mosquitto"))
    node = configured(
        stack, tmp_path / "node", BOTH_WAYS.format(port=remote.port, version="v5", name="node")
    )
    eventually(lambda: all_connected(node))
    seen = Ends(node.mqtt[1], "$SYS/broker/connection/far/state")
    stack.callback(seen.close)
    last: Callable[[], bytes] = lambda: seen.payloads[-1] if seen.payloads else b""  # noqa: E731
    eventually(lambda: last() == b"1")
    remote.process.kill()
    eventually(lambda: last() == b"0")
