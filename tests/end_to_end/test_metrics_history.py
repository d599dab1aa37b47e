"""A whole broker keeps the history of its metrics: across a stop and a kill, over the API and the command line."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from broker.core.times import rfc3339
from tests.end_to_end.clients import Client
from tests.support.local_node import Done, Node, command, running
from tests.support.node import TOKEN, Reachable, eventually
from tests.support.node import running as running_process

_ROOT = Path(__file__).parents[2]


def history(node: Reachable, query: str) -> Any:
    return node.call("GET", f"/metrics/history?{query}")


def sluice(node: Reachable, *words: str) -> Done:
    return command("metrics", *words, "--data-dir", str(node.data_dir), SLUICE_API_TOKEN=TOKEN)


def publish(node: Reachable, count: int) -> None:
    with Client(node) as client:
        for _ in range(count):
            client.publish("t", "x")


def values_of(answer: Any, name: str) -> dict[str, float]:
    """The means of a series by their time, without gaps."""
    means: list[float | None] = next(
        (series["mean"] for series in answer["series"] if series["name"] == name), []
    )
    first_s = _seconds(answer["from"])
    times = (first_s + place * answer["step_s"] for place in range(len(means)))
    return {
        rfc3339(time * 10**9): mean
        for time, mean in zip(times, means, strict=True)
        if mean is not None
    }


def _seconds(time: str) -> int:
    return int(datetime.fromisoformat(time).timestamp())


def test_history_survives_a_stop_and_a_kill_with_gaps_and_markers(tmp_path: Path) -> None:
    with running_process(tmp_path / "n") as node:
        publish(node, 50)
        received = "names=messages_received&labels=qos=1&step=1"
        eventually(
            lambda: sum(values_of(history(node, received), "messages_received").values()) > 1
        )
        # A row of ten seconds is there once it was written, with all that its seconds have.
        eventually(
            lambda: len(values_of(history(node, "names=connections&step=10"), "connections")) > 1
        )
        assert node.stop() == 0
        node.start()
        eventually(
            lambda: len(values_of(history(node, "names=connections&step=10"), "connections")) > 3
        )
        before = history(node, "names=messages_received&names=connections&step=10")
        node.kill()
        node.start()
        after = history(node, "names=messages_received&names=connections&step=10")
        # without those that a kill may lose
        complete = sorted(values_of(before, "connections"))[:-2]
        for name in ("messages_received", "connections"):
            was, now = values_of(before, name), values_of(after, name)
            assert {time: now.get(time) for time in complete} == {
                time: was.get(time) for time in complete
            }
        assert max(values_of(after, "messages_received").values()) > 0
        assert min(values_of(after, "messages_received").values()) >= 0
        events = [marker["what"] for marker in after["markers"]]
        assert events == ["started", "stopped", "started", "started_after_crash"]
        stopped, started = (_seconds(after["markers"][place]["at"]) for place in (1, 2))
        seconds = values_of(
            history(node, "names=connections&step=1&from=" + str((stopped - 60) * 1000)),
            "connections",
        )
        assert not [time for time in seconds if stopped + 1 < _seconds(time) < started - 1]


def test_changes_of_objects_and_settings_are_markers_that_survive_a_kill(tmp_path: Path) -> None:
    warm = {"name": "warm", "sql": 'SELECT topic FROM "a/#"', "actions": []}
    with running_process(
        tmp_path / "n", config='streams = [{ name = "fixed" }]\nmqtt.max_inflight = 10'
    ) as node:
        node.call("POST", "/rules", warm)
        node.call("PUT", "/rules/warm", warm | {"description": "warm meters"})
        node.call("POST", "/rules/warm:disable")
        node.call("PUT", "/rules/warm", node.call("GET", "/rules/warm"))
        node.call("DELETE", "/rules/warm")
        (node.data_dir / "sluice.conf").write_text(
            'streams = [{ name = "other" }]\nmqtt.max_inflight = 20'
        )
        node.call("POST", "/config:reload")
        retained = {"topic": "a", "payload": "1", "qos": 1, "retain": True}
        # answered once it is committed, and with it the markers
        node.call("POST", "/messages:publish", retained)
        node.kill()
        node.start()
        markers = history(node, "names=connections")["markers"]
    changes = [f"{marker['kind']} {marker['name']} {marker['what']}" for marker in markers]
    assert [change for change in changes if not change.startswith("broker")] == [
        "rule warm added", "rule warm changed", "rule warm changed", "rule warm removed",
        "stream other added", "stream fixed removed", "configuration  reloaded",
    ]  # fmt: skip
    by = {marker["name"]: marker.get("by") for marker in markers}
    assert (by["warm"], by["fixed"], by["0.2.0"]) == ("administrator", "administrator", None)


def test_quantiles_of_the_time_that_stages_take(tmp_path: Path) -> None:
    with running(tmp_path / "n") as node:
        node.call("POST", "/schemas", {"name": "any", "type": "json", "source": "{}"})
        check = {"strategy": "all_pass", "checks": [{"type": "json", "schema": "any"}]}
        node.call(
            "POST",
            "/validations",
            {"name": "any", "topics": ["a/#"], "failure_action": "drop", **check},
        )
        node.call(
            "POST", "/rules", {"name": "all", "sql": 'SELECT topic FROM "a/#"', "actions": []}
        )
        for _ in range(5):
            node.call("POST", "/messages:publish", {"topic": "a/1", "payload": "1"})
        query = "names=stage_p50_seconds&names=stage_p99_seconds&step=1"
        found = eventually(lambda: history(node, query)["series"])
    values = {
        (one["name"], one["labels"]["stage"]): max(filter(None, one["mean"])) for one in found
    }
    stages = ("validation", "rules", "routing")
    assert values.keys() >= {
        (f"stage_{quantile}_seconds", stage) for quantile in ("p50", "p99") for stage in stages
    }
    assert all(0 < seconds < 1 for seconds in values.values())


def test_the_api_and_the_commands_show_the_same_history(tmp_path: Path) -> None:
    with running(tmp_path / "n") as node:
        publish(node, 5)
        eventually(
            lambda: values_of(history(node, "names=messages_received&step=1"), "messages_received")
        )
        shown = sluice(
            node, "history", "messages_received", "connections", "--last", "2m", "--step", "1s"
        )
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout.split()[:3] == ["time", "messages_received{qos=1}", "connections"]
        assert "broker 0" in shown.stderr
        assert "started" in shown.stderr
        answer = json.loads(
            sluice(node, "history", "connections", "--json", "--label", "qos=1").stdout
        )
        assert answer["series"] == []
        listed = sluice(node, "ls").stdout
        assert "messages_received{qos=1}" in listed
        assert "cpu_seconds" in listed
        refused = sluice(node, "history", "mesages_received")
        assert (refused.returncode, "Try: messages_received" in refused.stderr) == (1, True), (
            refused.stderr
        )
        assert sluice(node, "ls", "--last", "long").returncode == 2


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ("names=mesages_received", 422, "expected a metric of the history, got 'mesages_received'"),
        ("labels=qos", 422, "labels: expected NAME=VALUE, got 'qos'"),
        ("from=yesterday", 422, "expected a time as 2026-01-31T12:00:00Z"),
        ("from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z", 422, "expected a time before `to`"),
        ("step=0", 422, "greater than or equal to 1"),
        ("steps=10", 400, "has no parameter 'steps'"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_refused_in_a_sentence(
    young: Node, query: str, status: int, text: str
) -> None:
    problem = young.call("GET", f"/metrics/history?{query}", expect=status)
    assert text in json.dumps(problem, ensure_ascii=False)


@pytest.fixture(scope="module")
def young(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with running(tmp_path_factory.mktemp("young") / "n") as node:
        yield node
