"""A table created from a rule on a whole broker: all that it needs, or nothing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.local_node import Node, running, sluice
from tests.support.node import Reachable, eventually
from tests.support.node import running as running_process

SQL = 'SELECT payload.t AS t FROM "m/#"'
ROWS = {"follows": "rows"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(
        tmp_path_factory.mktemp("rule-tables") / "data", config="lake.run_spark = false\n"
    ) as node:
        yield node


def names(node: Reachable, path: str) -> set[str]:
    return {one["name"] for one in node.call("GET", f"/{path}")["items"]}


def test_a_table_comes_with_its_stream_and_the_action_of_the_rule(node: Node) -> None:
    node.call("POST", "/rules", {"name": "warm", "sql": SQL, "actions": [{"type": "console"}]})
    effect = node.call(
        "POST", "/rules/warm:create-table?dry_run=true", {"format": "iceberg", **ROWS}
    )
    assert (effect["change"], effect["after"]["format"]) == ("create", "iceberg")
    assert "a replay cannot rebuild older ones" in effect["consequences"][0]
    touched = [(one["kind"], one["name"], one["how"]) for one in effect["affected"]]
    assert touched == [
        ("stream", "warm", "would be created"),
        ("rule", "warm", "would write its rows to stream warm"),
    ]
    assert "warm" not in names(node, "streams") | names(node, "lake/tables")
    table = node.call("POST", "/rules/warm:create-table", {"format": "iceberg", **ROWS})
    assert (table["name"], table["stream"], table["format"]) == ("warm", "warm", "iceberg")
    assert "warm" in names(node, "streams") & names(node, "lake/tables")
    actions = node.call("GET", "/rules/warm")["actions"]
    assert [action["type"] for action in actions] == ["console", "stream"]
    again = node.call("POST", "/rules/warm:create-table", ROWS, expect=409)
    assert "warm" in again["detail"]


def test_the_stream_that_a_rule_writes_to_is_followed(node: Node) -> None:
    node.call("POST", "/streams", {"name": "kept"})
    node.call(
        "POST",
        "/rules",
        {"name": "keeps", "sql": SQL, "actions": [{"type": "stream", "stream": "kept"}]},
    )
    dry = sluice(node, "rules", "create-table", "keeps", "--follows", "rows", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "kept" in dry.stdout
    assert "kept" not in names(node, "lake/tables")
    done = sluice(node, "rules", "create-table", "keeps", "--follows", "rows")
    assert done.stdout == "created table kept of stream kept\n", done.stderr
    assert node.call("GET", "/rules/keeps")["version"] == 1


def test_a_table_runs_the_rule_over_messages_unless_asked_otherwise(node: Node) -> None:
    node.call(
        "POST", "/rules", {"name": "replayable", "sql": 'SELECT payload.t AS t FROM "x/1", "y/+"'}
    )
    effect = node.call("POST", "/rules/replayable:create-table?dry_run=true", {})
    touched = [(one["kind"], one["name"], one["how"]) for one in effect["affected"]]
    assert touched == [("stream", "replayable-messages", "would be created, and capture x/1, y/+")]
    assert "rebuilds older rows" in effect["consequences"][0]
    assert "replayable-messages" not in names(node, "streams")
    done = sluice(node, "rules", "create-table", "replayable")
    assert done.stdout == (
        "created table replayable of stream replayable-messages, over which it runs rule replayable\n"
    ), done.stderr
    table = node.call("GET", "/lake/tables/replayable")
    assert (table["stream"], table["rule"]) == ("replayable-messages", "replayable")
    assert node.call("GET", "/streams/replayable-messages")["topics"] == ["x/1", "y/+"]
    assert node.call("GET", "/rules/replayable")["version"] == 1


def test_the_narrowest_stream_that_has_all_messages_is_followed(node: Node) -> None:
    streams = {
        "everything": ["#"],
        "halves": ["n/1/#", "n/2/#"],
        "near": ["n/#"],
        "half": ["n/1/#"],
    }
    for name, topics in streams.items():
        node.call("POST", "/streams", {"name": name, "topics": topics})
    for rule, sources, stream in (
        ("one", '"n/1/x"', "half"),
        ("both", '"n/1/x", "n/2/+"', "halves"),
        ("all", '"n/+/x"', "near"),
        ("other", '"o/1"', "everything"),
    ):
        node.call("POST", "/rules", {"name": rule, "sql": f"SELECT payload.t AS t FROM {sources}"})
        effect = node.call("POST", f"/rules/{rule}:create-table?dry_run=true", {})
        assert (effect["after"]["stream"], effect["affected"]) == (stream, []), rule
        assert node.call("POST", f"/rules/{rule}:create-table", {})["stream"] == stream
    for name in streams:
        node.call("DELETE", f"/streams/{name}", expect=(204, 409))
    for rule in ("one", "both", "all", "other"):
        node.call("DELETE", f"/lake/tables/{rule}")
    for name in streams:
        node.call("DELETE", f"/streams/{name}", expect=(204, 404))


@pytest.mark.parametrize(
    ("rule", "sql", "why"),
    [
        ("comings", 'SELECT clientid FROM "$events/client_connected"', "it reads events only"),
        (
            "mixed",
            'SELECT clientid FROM "m/#", "$events/client_connected"',
            "got FROM '$events/client_connected'",
        ),
        (
            "bound",
            "SELECT getenv('HOME') AS home FROM \"m/#\"",
            "getenv reads the environment of the broker",
        ),
    ],
)
def test_a_rule_that_cannot_run_over_messages_gets_a_table_of_rows_only(
    node: Node, rule: str, sql: str, why: str
) -> None:
    node.call("POST", "/rules", {"name": rule, "sql": sql})
    before = names(node, "streams"), names(node, "lake/tables")
    for query in ("?dry_run=true", ""):
        assert (
            why in node.call("POST", f"/rules/{rule}:create-table{query}", {}, expect=422)["detail"]
        )
    assert (names(node, "streams"), names(node, "lake/tables")) == before
    assert node.call("POST", f"/rules/{rule}:create-table", ROWS)["stream"] == rule


@pytest.mark.parametrize(
    ("rule", "stands_in_the_way"),
    [
        ("captured", ("/streams", {"name": "captured", "topics": ["m/#"]})),
        ("taken", ("/lake/tables", {"name": "taken", "stream": "other"})),
    ],
)
def test_nothing_is_created_when_a_part_cannot_be(
    node: Node, rule: str, stands_in_the_way: tuple[str, Any]
) -> None:
    if "other" not in names(node, "streams"):
        node.call("POST", "/streams", {"name": "other"})
    node.call("POST", *stands_in_the_way)
    node.call("POST", "/rules", {"name": rule, "sql": SQL})
    before = names(node, "streams"), names(node, "lake/tables"), node.call("GET", f"/rules/{rule}")
    for query in ("?dry_run=true", ""):
        assert node.call("POST", f"/rules/{rule}:create-table{query}", ROWS, expect=(409, 422))[
            "detail"
        ]
    after = names(node, "streams"), names(node, "lake/tables"), node.call("GET", f"/rules/{rule}")
    assert after[:2] == before[:2]
    assert (after[2]["version"], after[2]["actions"]) == (1, [])


def test_a_rule_that_changed_meanwhile_gets_no_table(node: Node) -> None:
    node.call("POST", "/rules", {"name": "changed", "sql": SQL})
    with node.client() as client:
        answer = client.post(
            "/rules/changed:create-table", json=ROWS, headers={"If-Match": '"another"'}
        )
    assert answer.status_code == 412
    assert "changed" not in names(node, "streams")
    node.call("POST", "/rules/none:create-table", {}, expect=404)


def test_a_table_asked_for_twice_with_one_key_is_created_once(node: Node) -> None:
    node.call("POST", "/rules", {"name": "once", "sql": SQL})
    headers = {"Idempotency-Key": "one-table"}
    with node.client() as client:
        first, again = (
            client.post("/rules/once:create-table", json=ROWS, headers=headers) for _ in range(2)
        )
    assert (first.status_code, again.status_code) == (200, 200), again.text
    assert first.json() == again.json()
    assert again.headers["Idempotent-Replayed"] == "true"


def test_killed_at_any_instant_a_rule_has_its_stream_and_its_table_or_neither(
    tmp_path: Path,
) -> None:
    with running_process(tmp_path / "data", config="lake.run_spark = false\n") as node:
        file = node.data_dir / "api.hocon"
        for round_ in range(3):
            rules = [f"r{round_}-{number}" for number in range(60)]
            for name in rules:
                node.call("POST", "/rules", {"name": name, "sql": SQL})
            answered: list[str] = []
            creating = threading.Thread(target=_create_tables, args=(node, rules, answered))
            creating.start()
            eventually(lambda: answered)  # noqa: B023 # awaited in this round
            before = file.stat()
            eventually(lambda: file.stat() != before, every_s=0)  # noqa: B023
            node.kill()  # at the first thing that is saved
            creating.join()
            assert len(answered) < len(rules)
            node.start()
            streams, tables = (
                names(node, "streams?limit=1000"),
                names(node, "lake/tables?limit=1000"),
            )
            writing = {
                one["name"]
                for one in node.call("GET", "/rules?limit=1000")["items"]
                if one["actions"]
            }
            assert streams == tables == writing
            assert writing >= set(answered)


def _create_tables(node: Reachable, rules: list[str], answered: list[str]) -> None:
    with contextlib.suppress(httpx.HTTPError), node.client() as client:
        for name in rules:
            client.post(f"/rules/{name}:create-table", json=ROWS).raise_for_status()
            answered.append(name)
