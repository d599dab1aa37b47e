"""``sluice import emqx`` on a running broker: the objects are there, over a restart, and are not replaced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.broker.cli.test_import_emqx import EXPORTED
from tests.support.local_node import Node, command, running
from tests.support.node import TOKEN


def imported(node: Node, file: Path, status: int) -> dict[str, dict[str, Any]]:
    words = ["import", "emqx", str(file), "--json", "--data-dir", str(node.data_dir)]
    done = command(*words, SLUICE_API_TOKEN=TOKEN)
    assert done.returncode == status, f"{done.stdout}\n{done.stderr}"
    return {item["item"]: item for item in json.loads(done.stdout)["items"]}


def test_objects_are_created_once_and_stay(tmp_path: Path) -> None:
    secret = tmp_path / "data" / "secrets" / "db"
    secret.parent.mkdir(parents=True)
    secret.write_text("pass")
    file = tmp_path / "cluster.hocon"
    file.write_text(EXPORTED.replace("PASSWORD_FILE", str(secret)))
    with running(tmp_path / "data") as node:
        first = imported(node, file, 0)
        made = [
            item["becomes"]
            for item in first.values()
            if not item["reason"] and "=" not in item["becomes"]
        ]
        assert len(made) == 13
        assert [
            path for path in made if node.call("GET", f"/{path}")["name"] != path.partition("/")[2]
        ] == []
        again = imported(node, file, 1)
        assert all(again[name]["reason"] for name, item in first.items() if item["becomes"] in made)
        assert "the broker refused it: " in again["rule_engine.rules.rule_x1"]["reason"]
        node.stop()
        node.start()
        rule = node.call("GET", "/rules/rule_x1")
        assert [action.get("bridge", action["type"]) for action in rule["actions"]] == [
            "kafka:orders",
            "republish",
        ]
        options = node.call("GET", "/actions/orders")["resource_opts"]
        assert (options["buffer_mode"], options["request_ttl"]) == ("disk", "infinity")
