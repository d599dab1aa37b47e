"""The vectors of ``tests/rules/vectors``, through the service, as the management API runs them."""

from __future__ import annotations

import base64
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from broker.core.errors import Invalid
from rules.service import RuleService

VECTORS = Path(__file__).parent / "vectors"
REFUSED = {"outcome": "refused"}


def load(name: str) -> list[Any]:
    return [
        pytest.param(vector, id=vector["id"])
        for vector in json.loads((VECTORS / f"{name}.json").read_text())
    ]


def same(want: Any, got: Any, *, loose: bool) -> bool:
    """Deep equality by value and type; ``loose`` makes 1 and 1.0 the same."""
    if isinstance(want, dict) and len(want) == 1 and next(iter(want)).startswith("$"):
        return same_marker(want, got)
    if isinstance(want, dict):
        wanted = {key: value for key, value in want.items() if value != {"$undefined": True}}
        return (
            isinstance(got, dict)
            and wanted.keys() == got.keys()
            and all(same(value, got[key], loose=loose) for key, value in wanted.items())
        )
    if isinstance(want, list):
        return (
            isinstance(got, list)
            and len(want) == len(got)
            and all(same(one, other, loose=loose) for one, other in zip(want, got, strict=True))
        )
    if isinstance(want, bool) or isinstance(got, bool) or want is None or got is None:
        return want is got
    if isinstance(want, (int, float)) and isinstance(got, (int, float)):
        return want == got and (loose or type(want) is type(got))
    return type(want) is type(got) and bool(want == got)


def same_marker(want: dict[str, Any], got: Any) -> bool:
    marker, value = next(iter(want.items()))
    if marker == "$base64":
        data = base64.b64decode(got["$base64"]) if isinstance(got, dict) else got.encode()
        return bool(data == base64.b64decode(value))
    if marker == "$float_approx":
        return isinstance(got, float) and math.isclose(got, value, rel_tol=1e-9)
    assert marker == "$regex"
    return isinstance(got, str) and re.fullmatch(value, got, re.DOTALL) is not None


def run(service: RuleService, sql: str, event: dict[str, Any]) -> dict[str, Any]:
    """The answer as it goes over the wire."""
    try:
        answer: dict[str, Any] = json.loads(json.dumps(service.test({"sql": sql, "event": event})))
    except Invalid:
        return REFUSED
    return answer


@pytest.mark.parametrize("vector", load("rule_sql"))
def test_sql(vector: dict[str, Any], node: Any) -> None:
    event = dict(vector["event"])
    if "event" not in event and "retain" in event:
        event["flags"] = {"retain": event.pop("retain"), "dup": False}
    got, want = run(node.service, vector["sql"], event), vector["expect"]
    loose = "jq" in vector["sql"].lower()
    if "parse_error" in want:
        assert got == REFUSED
    elif "error" in want:
        assert got["outcome"] in ("refused", "error")
    elif "no_result" in want or want.get("rows") == []:
        assert got["outcome"] == "no_result" or got["rows"] == []
    elif "rows" in want:
        assert same(want["rows"], got["rows"], loose=loose), got
    else:
        cut = [
            {key: row[key] for key in wanted if key in row}
            for wanted, row in zip(want["rows_contain"], got["rows"], strict=True)
        ]
        assert same(want["rows_contain"], cut, loose=loose), got


@pytest.mark.parametrize("vector", load("rule_funcs"))
def test_function(vector: dict[str, Any], node: Any) -> None:
    context = {"topic": "t/1", **vector["context"]}
    payload = context.get("payload")
    if isinstance(payload, dict) and payload.keys() == {"$base64"}:
        context["payload"] = {"encoding": "base64", "data": payload["$base64"]}
    elif payload is not None and not isinstance(payload, str):
        context["payload"] = {"encoding": "json", "data": payload}
    source = context["topic"] if context["topic"].startswith("$") else "#"
    got, want = (
        run(node.service, f'SELECT {vector["expr"]} AS r FROM "{source}"', context),
        vector["expect"],
    )
    if want == {"$error": True}:
        assert got["outcome"] in ("refused", "error")
    elif want == {"$undefined": True}:
        assert got["rows"] == [{}]
    else:
        assert same({"r": want}, got["rows"][0], loose="jq" in vector["expr"]), got


@pytest.mark.parametrize("vector", load("rule_templates"))
def test_template(vector: dict[str, Any], node: Any) -> None:
    assert (
        node.service.render({"template": vector["template"], "row": vector["selected"]})["text"]
        == vector["expect"]
    )
