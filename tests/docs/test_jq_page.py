"""Each example of the page on jq gives the rows that stand below it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from rules.functions.library import standard
from rules.tester import test as try_rule
from tests.docs.session import ROOT, blocks

PAGE = blocks(ROOT / "docs" / "how-to" / "use-jq.md")
MESSAGE = json.loads(PAGE[0].text)
EXAMPLES = [(block.info, block.text, answer.text) for block, answer in pairwise(PAGE) if block.info in ("sql", "jq")]


@pytest.mark.parametrize(("language", "text", "answer"), EXAMPLES)
def test_example_of_the_jq_page_gives_what_stands_below_it(language: str, text: str, answer: str) -> None:
    body: dict[str, Any] = {"language": language, language: text, "event": MESSAGE}
    found = try_rule(body, standard(), "node", lambda: 0)
    assert found.get("rows") == json.loads(answer), found


def test_the_jq_page_has_examples() -> None:
    assert {language for language, _, _ in EXAMPLES} == {"sql", "jq"}
