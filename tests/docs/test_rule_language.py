"""Each example of the rule language's page gives the rows that stand below it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from rules.functions.library import standard
from rules.tester import test as try_rule
from tests.docs.session import ROOT, blocks

PAGE = blocks(ROOT / "docs" / "rule-language.md")
MESSAGE = json.loads(PAGE[0].text)


def _examples() -> Iterator[Any]:
    for block, answer in pairwise(PAGE):
        if block.info == "sql":
            yield pytest.param(block.text, answer.text, id=block.heading)


@pytest.mark.parametrize(("sql", "answer"), list(_examples()))
def test_example_gives_what_stands_below_it(sql: str, answer: str) -> None:
    found = try_rule({"sql": sql, "event": MESSAGE}, standard(), "node", lambda: 0)
    if answer.strip() == "error":
        assert found["outcome"] == "error"
    else:
        assert found.get("rows") == json.loads(answer), found


def test_page_has_examples() -> None:
    assert len(list(_examples())) >= 5
