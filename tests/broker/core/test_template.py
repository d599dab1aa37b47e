"""Templates: what a row may make of them."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from broker.core.template import MAX_RENDERED, Template, TemplateTooLong

LARGE = "x" * (1024 * 1024)


@pytest.mark.parametrize("render", ["render", "render_bytes"])
@pytest.mark.parametrize("value", [LARGE, [LARGE]], ids=["text", "made for each placeholder"])
def test_a_template_that_repeats_a_large_value_is_refused_before_it_fills_the_memory(render: str, value: Any) -> None:
    template = Template("${a} " * 10_000, lambda found: found if isinstance(found, str) else found[0] + "")
    tracemalloc.start()
    try:
        with pytest.raises(TemplateTooLong, match="longer than 16,777,216 bytes"):
            getattr(template, render)({"a": value})
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_a_text_up_to_the_bound_is_rendered() -> None:
    template = Template("${a}" * 15 + "end", str)
    assert len(template.render_bytes({"a": LARGE})) == len(template.render({"a": LARGE})) == 15 * len(LARGE) + 3
    assert (
        len(Template("${a}", str).render({"a": "x" * (MAX_RENDERED + 1)})) == MAX_RENDERED + 1
    )  # no larger than the row
