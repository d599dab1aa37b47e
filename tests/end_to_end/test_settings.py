"""Settings by key path on a running broker: read, changed, reset, refused, kept after a restart and reverted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.local_node import Node, command, running
from tests.support.node import TOKEN

MAIN = 'listeners.tcp.default.bind = "127.0.0.1:0"\nmqtt.max_inflight = 20\n'
RULE = {"sql": 'SELECT 1 AS one FROM "a/#"', "actions": []}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    data_dir = tmp_path_factory.mktemp("settings") / "data"
    data_dir.mkdir()
    (data_dir / "base.hocon").write_text(
        f"mqtt.max_topic_levels = 64\nrule_engine.rules.shipped = {json.dumps(RULE)}\n"
    )
    with running(
        data_dir, config=MAIN, environ={"SLUICE_MQTT__MAX_QUEUED_MESSAGES": "500"}
    ) as started:
        yield started


def _cli(node: Node, *arguments: str, status: int = 0) -> str:
    done = command(*arguments, "--data-dir", str(node.data_dir), SLUICE_API_TOKEN=TOKEN)
    assert done.returncode == status, f"{done.returncode}: {done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def _value(node: Node, key: str) -> Any:
    return node.call("GET", f"/config/{key}")["value"]


def test_a_setting_is_shown_with_its_help_default_and_source(node: Node) -> None:
    shown = node.call("GET", "/config/mqtt.max_inflight")
    assert shown["value"] == 20
    assert shown["default"] == "32"
    assert shown["type"] == "whole number"
    assert "QoS" in shown["description"]
    assert shown["set_by"].endswith("sluice.conf line 2")
    assert (shown["is_saved"], shown["needs_restart"]) == (False, False)
    assert node.call("GET", "/config/.mqtt.max_inflight")["key"] == "mqtt.max_inflight"
    assert node.call("GET", "/config/mqtt")["value"]["max_inflight"] == 20
    assert node.call("GET", "/config:tree")["value"]["mqtt"]["max_inflight"] == 20
    assert node.call("GET", "/config/store.durability")["needs_restart"]
    missing = node.call("GET", "/config/mqtt.max_inflite", expect=404)
    assert "did you mean 'max_inflight'" in missing["detail"]
    for wrong in (
        "a..b",
        "mqtt[x]",
        "mqtt.",
        "%22",
        "%22%5Cx%22",
        "%22%5Cud800%22",
        "mqtt.client_attrs_init." + "9" * 5000,
        "a[" + "9" * 50 + "]",
        ".".join("a" * 100),
    ):
        assert node.call("GET", f"/config/{wrong}", expect=(404, 422))


def test_a_list_is_filtered_by_text_group_and_what_changed(node: Node) -> None:
    every = node.call("GET", "/config?limit=1000")["items"]
    assert len(every) > 200
    mqtt = node.call("GET", "/config?limit=1000&group=mqtt")["items"]
    assert {row["group"] for row in mqtt} == {"mqtt"}
    changed = node.call("GET", "/config?limit=1000&group=mqtt&changed=true")["items"]
    assert {"mqtt.max_inflight", "mqtt.max_queued_messages", "mqtt.max_topic_levels"} <= {
        row["key"] for row in changed
    }
    assert [
        row["key"] for row in node.call("GET", "/config?text=levels TOPIC&group=mqtt")["items"]
    ] == ["mqtt.max_topic_levels"]


def test_a_change_is_applied_saved_recorded_and_reverted(node: Node) -> None:
    effect = node.call("PUT", "/config/mqtt.max_packet_size?dry_run=true", {"value": "2MB"})
    assert effect["change"] == "replace"
    changed = node.call("PUT", "/config/mqtt.max_packet_size", {"value": "2MB"})
    assert changed["value"] == 2 * 1024 * 1024
    assert changed["set_by"].endswith("api.hocon")
    shown = node.call("GET", "/config/mqtt.max_packet_size")
    assert shown["changed_by"] == "administrator"
    assert shown["changed_at"]
    assert 'mqtt = {"max_packet_size": "2MB"}' in (node.data_dir / "api.hocon").read_text()
    [entry, *_] = node.call("GET", "/audit-log?kind=setting&name=mqtt.max_packet_size")["items"]
    differences = node.call("GET", f"/audit-log/{entry['id']}")["changes"][0]["differences"]
    assert [(one["pointer"], one["before"]) for one in differences] == [
        ("/value", 1_048_576),
        ("/is_saved", False),
    ]
    node.call("POST", f"/audit-log/{entry['id']}:revert")
    again = node.call("GET", "/config/mqtt.max_packet_size")
    assert (again["value"], again["set_by"], again["is_saved"]) == (1_048_576, "default", False)
    assert (node.data_dir / "api.hocon").read_text().endswith("mqtt = null\n")


def test_a_reset_returns_to_the_next_layer(node: Node) -> None:
    node.call("PUT", "/config/mqtt.max_topic_levels", {"value": 32})
    assert _value(node, "mqtt.max_topic_levels") == 32
    node.call("DELETE", "/config/mqtt.max_topic_levels")
    shown = node.call("GET", "/config/mqtt.max_topic_levels")
    assert (shown["value"], shown["set_by"].rpartition("/")[2]) == (64, "base.hocon line 1")
    node.call("DELETE", "/config/mqtt.no_such_setting", expect=404)


def test_what_a_stronger_layer_sets_is_refused_with_its_name(node: Node) -> None:
    problem = node.call("PUT", "/config/mqtt.max_inflight", {"value": 50}, expect=409)
    assert "sluice.conf line 2" in problem["detail"]
    problem = node.call("PUT", "/config/mqtt.max_queued_messages", {"value": 50}, expect=409)
    assert "environment variable SLUICE_MQTT__MAX_QUEUED_MESSAGES" in problem["detail"]
    problem = node.call("PUT", "/config/api.bind", {"value": "127.0.0.1:1"}, expect=409)
    assert "command line" in problem["detail"]
    problem = node.call("PUT", "/config/mqtt", {"value": {"max_inflight": 50}}, expect=409)
    assert "sluice.conf line 2" in problem["detail"]


def test_a_wrong_value_is_refused_with_the_current_one(node: Node) -> None:
    problem = node.call("PUT", "/config/mqtt.maximum_qos", {"value": 7}, expect=422)
    assert "it stays 2" in problem["detail"]
    assert "expected" in problem["errors"][0]["message"]
    problem = node.call("PUT", "/config/mqtt.maximum_qoss", {"value": 1}, expect=422)
    assert "did you mean 'maximum_qos'" in str(problem["errors"])
    node.call("PUT", "/config/no_such_root", {"value": {"a": 1}}, expect=422)
    node.call("PUT", "/config/mqtt.maximum_qos", {}, expect=422)
    assert _value(node, "mqtt.maximum_qos") == 2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("allowed.secret_directories", ["/"]),
        ("allowed", {"secret_directories": ["/"]}),
        ("log.file", "/tmp/x"),
        ("log", {"level": "info", "file": "/tmp/x"}),
        ("rule_engine.ssrf.enable", False),
        ("rule_engine", {"ssrf": {"enable": True}}),
        ("rule_engine.rules.hot", {"sql": 'SELECT 1 FROM "a"'}),
        ("streams", {"hot": {}}),
        ("authentication", []),
        ("users.root", {"password": "x"}),
    ],
)
def test_what_only_files_may_set_or_has_an_address_of_its_own_is_refused(
    node: Node, key: str, value: Any
) -> None:
    problem = node.call("PUT", f"/config/{key}", {"value": value}, expect=(409, 422))
    assert problem["detail"]


def test_a_root_is_put_patched_and_keeps_its_objects(node: Node) -> None:
    node.call("PUT", "/rules/kept", {"sql": 'SELECT 1 AS one FROM "a/#"', "actions": []})
    whole = node.call("GET", "/config/rule_engine")["value"]
    node.call("PUT", "/config/rule_engine", {"value": {**whole, "max_republish_depth": 5}})
    node.call("PATCH", "/config/rule_engine", {"value": {"jq_workers": 1}})
    assert node.call("GET", "/config/rule_engine.max_republish_depth")["in_files"]["value"] == 5
    assert node.call("GET", "/config/rule_engine.jq_workers")["needs_restart"]
    assert "rule_engine.jq_workers" in node.call("GET", "/config:status")["pending"]
    node.call("PATCH", "/config/mqtt", {"value": {"max_topic_levels": 11}})
    assert node.call("GET", "/config/mqtt.max_topic_levels")["changed_by"] == "administrator"
    assert node.call("GET", "/config/mqtt.publish_rate_burst")["changed_by"] is None
    node.call("DELETE", "/config/mqtt.max_topic_levels")
    node.call("PATCH", "/config/rule_engine", {"value": {"jq_workers": None}})
    assert "rule_engine.jq_workers" not in node.call("GET", "/config:status")["pending"]
    node.call("DELETE", "/config/rule_engine")
    assert node.call("GET", "/config:status")["pending"] == []
    assert node.call("GET", "/rules/kept")["sql"]


def test_an_item_of_a_list_is_changed_and_added(node: Node) -> None:
    key = "mqtt.client_attrs_init"
    node.call(
        "PUT", f"/config/{key}", {"value": [{"expression": "clientid", "set_as_attr": "one"}]}
    )
    node.call("PUT", f"/config/{key}[0].set_as_attr", {"value": "two"})
    node.call("PUT", f"/config/{key}[1]", {"value": {"expression": "username", "set_as_attr": "b"}})
    shown = node.call("GET", f"/config/{key}")
    assert (shown["value"], shown["needs_restart"]) == ([], True)
    assert [item["set_as_attr"] for item in shown["in_files"]["value"]] == ["two", "b"]
    assert node.call("GET", f"/config/{key}[1].expression")["in_files"]["value"] == "username"
    node.call("PUT", f"/config/{key}[7]", {"value": {}}, expect=404)
    node.call("DELETE", f"/config/{key}[0]", expect=422)
    node.call("DELETE", f"/config/{key}")
    assert node.call("GET", "/config:status")["pending"] == []
    node.call("PUT", "/config/authorization.trusted_client_attributes", {"value": ["a", "b"]})
    node.call("PUT", "/config/authorization.trusted_client_attributes[1]", {"value": "c"})
    assert _value(node, "authorization.trusted_client_attributes") == ["a", "c"]
    node.call("DELETE", "/config/authorization.trusted_client_attributes")


def test_a_zone_is_added_changed_and_removed(node: Node) -> None:
    node.call("PUT", "/config/zones.plant.mqtt.max_inflight", {"value": 7})
    assert _value(node, "zones.plant.mqtt.max_inflight") == 7
    node.call("DELETE", "/config/zones.plant")
    node.call("GET", "/config/zones.plant", expect=404)


def test_files_that_changed_meanwhile_refuse_a_change(node: Node) -> None:
    file = node.data_dir / "sluice.conf"
    file.write_text(f"{MAIN}mqtt.max_topic_bytes = 1000\n")
    try:
        problem = node.call("PUT", "/config/mqtt.max_client_id_bytes", {"value": 99}, expect=409)
        assert "sluice config reload" in problem["detail"]
        assert str(file) in problem["detail"]
        node.call("POST", "/config:reload")
        node.call("PUT", "/config/mqtt.max_client_id_bytes", {"value": 99})
    finally:
        file.write_text(MAIN)
        node.call("POST", "/config:reload")
        node.call("DELETE", "/config/mqtt.max_client_id_bytes")


def test_the_command_line_reads_sets_and_unsets(node: Node) -> None:
    assert "max_subscriptions = 77 (" in _cli(node, "config", "set", "mqtt.max_subscriptions", "77")
    assert (
        json.loads(_cli(node, "config", "get", "mqtt.max_subscriptions", "--json"))["value"] == 77
    )
    assert (
        json.loads(_cli(node, "config", "get", "--json"))["value"]["mqtt"]["max_subscriptions"]
        == 77
    )
    assert "max_subscriptions = 10000 (default)" in _cli(
        node, "config", "unset", "mqtt.max_subscriptions"
    )
    assert "is set by" in _cli(node, "config", "set", "mqtt.max_inflight", "1", status=6)
    assert "after a restart" in _cli(node, "config", "set", "store.durability", "os")
    _cli(node, "config", "unset", "store.durability")


def test_a_change_is_kept_after_a_restart(node: Node) -> None:
    node.call("PUT", "/config/mqtt.max_topic_alias_bytes", {"value": "64KB"})
    node.call("PUT", "/config/retained.max_messages", {"value": 5})
    assert _value(node, "retained.max_messages") == 0
    node.stop()
    node.start()
    assert _value(node, "retained.max_messages") == 5
    assert node.call("GET", "/config/mqtt.max_topic_alias_bytes")["changed_by"] == "administrator"


def test_what_is_shown_may_be_sent_back_with_another_value(node: Node) -> None:
    shown = node.call("GET", "/config/mqtt.max_topic_alias_bytes_total")
    node.call("PUT", "/config/mqtt.max_topic_alias_bytes_total", shown)
    assert not node.call("GET", "/config/mqtt.max_topic_alias_bytes_total")["is_saved"]
    node.call("PUT", "/config/mqtt.max_topic_alias_bytes_total", {**shown, "value": 9_000_000})
    assert node.call("GET", "/config/mqtt.max_topic_alias_bytes_total")["is_saved"]
    node.call("PUT", "/config/mqtt.max_topic_alias_bytes_total", shown)
    assert not node.call("GET", "/config/mqtt.max_topic_alias_bytes_total")["is_saved"]


def test_an_object_of_the_base_file_is_changed_reset_and_kept_after_a_restart(node: Node) -> None:
    changed = {**RULE, "sql": 'SELECT 2 AS two FROM "a/#"'}
    assert "base.hocon" in node.call("DELETE", "/rules/shipped", expect=409)["detail"]
    node.call("PUT", "/rules/shipped", changed)
    node.stop()
    node.start()
    assert node.call("GET", "/rules/shipped")["sql"] == changed["sql"]
    node.call("POST", "/config:reload")
    assert node.call("GET", "/rules/shipped")["sql"] == changed["sql"]
    assert node.call("DELETE", "/rules/shipped?dry_run=true")["change"] == "replace"
    node.call("DELETE", "/rules/shipped")
    assert node.call("GET", "/rules/shipped")["sql"] == RULE["sql"]
    [entry, *_] = node.call("GET", "/audit-log?kind=rule&name=shipped")["items"]
    node.call("POST", f"/audit-log/{entry['id']}:revert")
    assert node.call("GET", "/rules/shipped")["sql"] == changed["sql"]
    node.call("DELETE", "/rules/shipped")
    (node.data_dir / "base.hocon").write_text(
        f"mqtt.max_topic_levels = 64\nrule_engine.rules.shipped = {json.dumps({**RULE, 'description': 'new'})}\n"
    )
    node.call("POST", "/config:reload")
    assert node.call("GET", "/rules/shipped")["description"] == "new"
    assert (node.data_dir / "api.hocon").read_text().endswith("rule_engine.rules.shipped = null\n")
