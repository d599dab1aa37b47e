"""What follows from the reference, line by line: operators, paths, FOREACH, functions, sources, templates at the edges.

``vectors/neighbours.json`` holds a statement, what its event has beside topic, client and an empty payload, and the
rows, compared by value and type; ``vectors/neighbour_templates.json`` rows with templates and their texts.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.rules.conftest import Node
from tests.rules.test_rule_vectors import REFUSED, VECTORS, load, run, same

SERVICE = Node().service
EVENT = {"topic": "t/a", "clientid": "c1", "username": "u1", "qos": 1, "payload": "{}"}


@pytest.mark.parametrize("vector", load("neighbours"))
def test_statement(vector: dict[str, Any]) -> None:
    got, want = run(SERVICE, vector["sql"], EVENT | vector["event"]), vector["expect"]
    if want.get("rows") == []:
        assert got in (
            {"outcome": "rows", "rows": []},
            {"outcome": "no_result", "reason": got.get("reason")},
        )
    elif "rows" in want:
        assert got["outcome"] == "rows"
        assert same(want["rows"], got["rows"], loose=False), got
    elif "no_result" in want:
        assert got["outcome"] == "no_result"
    elif "parse_error" in want:
        assert got == REFUSED
    else:
        assert got["outcome"] in ("refused", "error")


@pytest.mark.parametrize(
    ("row", "template", "text"),
    [
        (group["row"], template, text)
        for group in json.loads((VECTORS / "neighbour_templates.json").read_text())
        for template, text in group["cases"]
    ],
)
def test_template(row: dict[str, Any], template: str, text: str) -> None:
    assert SERVICE.render({"template": template, "row": row})["text"] == text


def test_an_event_and_a_row_that_look_like_bytes_are_objects() -> None:
    assert run(SERVICE, 'SELECT "$base64" AS x FROM "t"', {"$base64": "AA=="}) == {
        "outcome": "no_result"
    }
    assert (
        SERVICE.render({"template": "${.}", "row": {"$base64": "AA=="}})["text"]
        == '{"$base64":"AA=="}'
    )
