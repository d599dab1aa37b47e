"""Rules written in jq alone: what is told of those that cannot be saved."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.errors import Invalid
from tests.rules.conftest import Node


def refused(node: Node, **members: Any) -> list[tuple[str, str]]:
    with pytest.raises(Invalid) as caught:
        node.service.create(
            {"name": "r1", "language": "jq", "jq": "{a: .topic}", "from": ["t/#"], **members}
        )
    return [(problem.pointer, problem.message) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("members", "pointer", "message"),
    [
        ({"from": ["a/#/b"]}, "/from", "'#' must be the whole last level"),
        ({"from": ["$events/nosuch"]}, "/from", "no event has the topic"),
        ({"from": []}, "/from", "expected a list of topic filters or events"),
        ({"from": "t"}, "/from", "expected a list of topic filters or events"),
        ({"jq": ""}, "/jq", "expected a jq program"),
        ({"jq": "{a"}, "/jq", "syntax error"),
        ({"sql": 'SELECT * FROM "t"'}, "/sql", "a rule in jq takes no sql"),
    ],
)
def test_what_is_wrong_is_told_where_it_was_sent(
    node: Node, members: dict[str, Any], pointer: str, message: str
) -> None:
    ((where, what),) = refused(node, **members)
    assert where == pointer
    assert message in what


def test_a_rule_that_is_shown_can_be_sent_back(node: Node) -> None:
    node.service.create({"name": "r1", "language": "jq", "jq": "{a: .topic}", "from": ["t/#"]})
    node.service.replace("r1", node.service.get("r1"))
    assert node.service.get("r1")["from"] == ["t/#"]
