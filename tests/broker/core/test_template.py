"""Templates: what a row may make of them."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core import jsontext
from broker.core.template import MAX_RENDERED, Template, TemplateNotJson, TemplateTooLong
from rules.actions.text import template as row_template

LARGE = "x" * (1024 * 1024)


@pytest.mark.parametrize("render", ["render", "render_bytes"])
@pytest.mark.parametrize("value", [LARGE, [LARGE]], ids=["text", "made for each placeholder"])
def test_a_template_that_repeats_a_large_value_is_refused_before_it_fills_the_memory(
    render: str, value: Any
) -> None:
    template = Template(
        "${a} " * 10_000, lambda found: found if isinstance(found, str) else found[0] + ""
    )
    tracemalloc.start()
    try:
        with pytest.raises(TemplateTooLong, match="longer than 16,777,216 bytes"):
            getattr(template, render)({"a": value})
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_a_text_up_to_the_bound_is_rendered() -> None:
    template = Template("${a}" * 15 + "end", str)
    assert (
        len(template.render_bytes({"a": LARGE}))
        == len(template.render({"a": LARGE}))
        == 15 * len(LARGE) + 3
    )
    # no larger than the row
    assert len(Template("${a}", str).render({"a": "x" * (MAX_RENDERED + 1)})) == MAX_RENDERED + 1


# Templates that are JSON around their placeholders.

HOSTILE = 'a","admin":true,"x":"'
ROW: dict[str, Any] = {
    "id": HOSTILE, "lines": "a\n\t\\", "n": 21.5, "null": None, "yes": True, "l": [1, "a"], "m": {"k": HOSTILE},
    "json": '{"a": [1]}', "digits": "12", "no_json": "a b", "name": "k", "more": ', "z": 1', "é": "é", "bytes": b"\xff",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"by": "${id}"}', {"by": HOSTILE}),
        ('{"by": "${lines}", "at": "x-${n}-${yes}"}', {"by": "a\n\t\\", "at": "x-21.5-true"}),
        ('{"by": ${id}}', {"by": HOSTILE}),
        ('{"${id}": 1}', {HOSTILE: 1}),
        (
            '{"n": ${n}, "no": ${null}, "yes": ${yes}, "l": ${l}}',
            {"n": 21.5, "no": None, "yes": True, "l": [1, "a"]},
        ),
        (
            '{"none": ${none}, "deep": ${m.none}, "text": "${none}"}',
            {"none": None, "deep": None, "text": "undefined"},
        ),
        ('{"data": ${json}, "text": "${json}"}', {"data": {"a": [1]}, "text": '{"a": [1]}'}),
        (
            '{"d": ${digits}, "t": ${no_json}, "m": ${m}}',
            {"d": 12, "t": "a b", "m": {"k": HOSTILE}},
        ),
        ('{"m": "${m}"}', {"m": '{"k":"a\\",\\"admin\\":true,\\"x\\":\\""}'}),
        (' [${id}, "${id}"] ', [HOSTILE, HOSTILE]),
        ('"${id}"', HOSTILE),
        ("{${id}: 1}", {HOSTILE: 1}),
        ('{"ms": ${digits}000}', {"ms": 12000}),
        ('{"a": "\\"${id}\\""}', {"a": f'"{HOSTILE}"'}),
        ('{"a": 1${raw:more}}', {"a": 1, "z": 1}),
        (
            '{"text": "<${bytes}>", "value": ${bytes}}',
            {"text": '<{"$base64":"/w=="}>', "value": {"$base64": "/w=="}},
        ),
        ('{"all": ${.}, "price": "${$}${n}"}', {"all": {"n": 21.5}, "price": "$21.5"}),
    ],
)
def test_a_template_that_is_json_gives_json(text: str, value: Any) -> None:
    template, row = row_template(text), {"n": 21.5} if "${.}" in text else ROW
    assert jsontext.decode(template.render(row)) == value
    assert jsontext.decode(template.render_bytes(row)) == value


def test_json_on_each_line_stays_on_its_line() -> None:
    lines = row_template('{"index": {"_id": "${id}"}}\n{"v": ${none}}\n').render(ROW).splitlines()
    assert [jsontext.decode(line) for line in lines] == [{"index": {"_id": HOSTILE}}, {"v": None}]


@pytest.mark.parametrize(
    "text", ['{"ms": ${no_json}000}', "{${n}: 1}", '{"a": "${raw:lines}"}', '{"a": ${raw:no_json}}']
)
def test_a_result_that_is_not_json_fails(text: str) -> None:
    template = row_template(text)
    with pytest.raises(TemplateNotJson, match="expected JSON for this row, got "):
        template.render(ROW)
    with pytest.raises(TemplateNotJson):
        template.render_bytes(ROW)


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("${id}", HOSTILE),
        ("${raw:id}", HOSTILE),
        ("${raw:none} ${none}", "undefined undefined"),
        ("${.n}", "21.5"),
        ("at ${n}: {${l}}", 'at 21.5: {[1,"a"]}'),
        ('"${n}","${yes}"', '"21.5","true"'),
        ("[${n}] ${no_json}", "[21.5] a b"),
        ("x=${json}", 'x={"a": [1]}'),
        ("{${n}}", "{21.5}"),
        ('{"a": "${n}}', '{"a": "21.5}'),
        ('{"a": "\\${no_json}"}', '{"a": "\\a b"}'),
    ],
)
def test_a_template_that_is_not_json_gives_text(text: str, rendered: str) -> None:
    assert row_template(text).render(ROW) == rendered
    assert row_template(text).render_bytes(ROW) == rendered.encode()


def test_bytes_that_are_no_text_are_marked_where_text_is_needed() -> None:
    template = row_template("x=${bytes}")
    assert template.render(ROW) == 'x={"$base64":"/w=="}'
    assert template.render_bytes(ROW) == b"x=\xff"
    assert row_template("${bytes}").render(ROW) == '{"$base64":"/w=="}'


TEXTS = st.text('ab"\\\n{}[]:,é', max_size=8)


@given(st.recursive(TEXTS | st.none() | st.integers(), st.lists))
def test_whatever_the_value_is_the_members_are_those_of_the_template(value: Any) -> None:
    decoded = jsontext.decode(
        row_template('{"text": "<${v}>", "value": ${v}, "last": 1}').render_bytes({"v": value})
    )
    assert list(decoded) == ["text", "value", "last"]
    assert decoded["text"][0] + decoded["text"][-1] == "<>"
    assert decoded["value"] == value or jsontext.decode(value) == decoded["value"]
