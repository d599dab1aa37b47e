"""What is wrong with an object that people sent: the member, what it is, what was expected."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.errors import Invalid
from rules.spec import parse_spec as parse_rule
from schema_validation.spec import parse_spec as parse_validation
from transforms.messages.spec import parse_spec as parse_transformation

CHECK = {"type": "json", "schema": "s"}
VALIDATION = {
    "name": "v",
    "topics": ["t"],
    "strategy": "all_pass",
    "failure_action": "drop",
    "checks": [CHECK],
}
TRANSFORMATION = {"name": "x", "topics": ["t"], "failure_action": "drop"}
RULE = {"name": "r", "sql": "SELECT * FROM t"}


@pytest.mark.parametrize(
    ("parse", "spec", "pointer", "message"),
    [
        (
            parse_validation,
            {"strategy": None},
            "/strategy",
            "strategy is null; expected 'all_pass' or 'any_pass'",
        ),
        (
            parse_validation,
            {"stratgy": "x"},
            "/stratgy",
            "stratgy is not known; did you mean 'strategy'?",
        ),
        (parse_validation, {"topics": 5}, "/topics", 'topics is 5; expected a list, as ["a", "b"]'),
        (
            parse_validation,
            {"topics": []},
            "/topics",
            "topics: at least one topic filter is needed",
        ),
        (
            parse_validation,
            {"checks": [{"type": "json"}]},
            "/checks/0/schema",
            "checks[0].schema is required",
        ),
        (parse_validation, {"checks": [{}]}, "/checks/0", "checks[0].type is required"),
        (
            parse_validation,
            {"checks": [{"type": "xml"}]},
            "/checks/0",
            "checks[0].type is 'xml'; expected 'sql', 'json', 'avro', 'protobuf' or 'external_http'",
        ),
        (
            parse_transformation,
            {"payload_decoder": {"type": "avro"}},
            "/payload_decoder/schema",
            "payload_decoder.schema is required",
        ),
        (
            parse_rule,
            {"actions": [{"type": "stream"}]},
            "/actions/0/stream",
            "actions[0].stream is required",
        ),
        (
            parse_rule,
            {"actions": [{"type": "republish", "topic": "t", "retain": 7}]},
            "/actions/0/retain",
            'actions[0].retain is 7; expected true or false or a string; put it in quotes, as "text"',
        ),
    ],
)
def test_every_member_is_told_by_name(
    parse: Any, spec: dict[str, Any], pointer: str, message: str
) -> None:
    base: Any = {
        parse_validation: VALIDATION,
        parse_transformation: TRANSFORMATION,
        parse_rule: RULE,
    }[parse]
    with pytest.raises(Invalid) as caught:
        parse({**base, **spec})
    assert [(problem.pointer, problem.message) for problem in caught.value.problems] == [
        (pointer, message)
    ]


def test_what_is_missing_is_told_all_at_once() -> None:
    with pytest.raises(Invalid) as caught:
        parse_validation({"name": "v", "topics": "t"})
    assert str(caught.value) == (
        "the validation cannot be saved: failure_action is required; strategy is required; checks is required"
    )
