"""Each example of the page on schemas answers what stands below it, and the limits are those of the code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from broker.core import jsontext
from broker.core.errors import Invalid
from broker.core.objects import MemorySection
from schema_validation.feature import SchemaValidationFeature
from schema_validation.serdes import avro, avro_schema, base, json_schema, proto_bundle, protobuf
from tests.docs.session import ROOT, blocks
from tests.support.features import make_services
from ui.api.wire import plain

PAGE = ROOT / "docs" / "schemas.md"


def _examples() -> Iterator[Any]:
    for block, answer in pairwise(blocks(PAGE)):
        verb = block.info.partition(" ")[2]
        if verb:
            yield pytest.param(verb, block.text, answer, id=f"{block.heading} {verb}")


@pytest.mark.parametrize(("verb", "body", "answer"), list(_examples()))
def test_example_answers_what_stands_below_it(verb: str, body: str, answer: Any) -> None:
    sections: dict[str, MemorySection] = {}
    feature = SchemaValidationFeature(make_services(sections))
    feature.start()
    call = getattr(feature.schemas, verb)
    if answer.info == "json":
        assert plain(call(jsontext.decode(body))) == json.loads(answer.text)
    else:
        with pytest.raises(Invalid) as caught:
            call(jsontext.decode(body))
        assert answer.text.strip() in str([problem.message for problem in caught.value.problems])


def test_the_page_has_examples() -> None:
    assert len(list(_examples())) >= 5


def test_the_limits_are_those_of_the_code() -> None:
    page = PAGE.read_text()
    table = page[page.index("## What is bounded") :]
    assert base.MAX_SOURCE_BYTES == 1 << 20
    assert proto_bundle.MAX_BUNDLE_BYTES == 10 << 20
    assert avro.MAX_MEMORY == 64 << 20
    for limit in (
        jsontext.MAX_DEPTH, json_schema.MAX_STEPS, avro.MAX_SMALL_VALUES, avro_schema.MAX_UNFOLDED,
        avro_schema.MAX_EMPTY, protobuf.MAX_VALUES, proto_bundle.MAX_FILES,
    ):  # fmt: skip
        assert f"{limit:,}" in table
    for name in (*json_schema.FORMATS, *(draft.removeprefix("draft ") for draft in json_schema.DRAFTS.values())):
        assert name in page
