"""HOCON as files are written: values, places, substitutions, includes, bounds; compared with pyhocon and with JSON."""

from __future__ import annotations

import json
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.hocon import MAX_FILE_BYTES, parse_file, parse_text
from broker.config.hocon_reader import HoconError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("{}", {}),
        ("a = 1", {"a": 1}),
        ("a : 1, b = 2.5\nc = 1e3", {"a": 1, "b": 2.5, "c": 1000.0}),
        ("a.b.c = 1\na { b { d = 2 } }", {"a": {"b": {"c": 1, "d": 2}}}),
        ('"a.b" = 1\na."c/#" = 2', {"a.b": 1, "a": {"c/#": 2}}),
        ("a = true\nb = false\nc = null", {"a": True, "b": False, "c": None}),
        ("age = 7d\nname = 007\nsize = 64KB", {"age": "7d", "name": "007", "size": "64KB"}),
        ("bind = 127.0.0.1:1883 # loopback", {"bind": "127.0.0.1:1883"}),
        ("filter = t/+/x // one level", {"filter": "t/+/x"}),
        ("text = many words here  ", {"text": "many words here"}),
        ('a = "x" # not "this"', {"a": "x"}),
        (r'a = "caf\u00e9 \ud83d\ude00 \/ \t\\u0041"', {"a": "café 😀 / \t\\u0041"}),
        ('sql = """SELECT "a"\nFROM "t/#" """', {"sql": 'SELECT "a"\nFROM "t/#" '}),
        ('a = """x"""""', {"a": 'x""'}),
        ("a = [1, 2\n3,\n]", {"a": [1, 2, 3]}),
        ("a = [1] [2]", {"a": [1, 2]}),
        ("a += 1\na += 2", {"a": [1, 2]}),
        ("a { x = 1 }\na { y = 2 }", {"a": {"x": 1, "y": 2}}),
        ("a { x = 1 }\na = 2", {"a": 2}),
        ("base { x = 1, y { z = 2 } }\na = ${base} { y { w = 3 } }", None),
        ("include = 1", {"include": 1}),
    ],
)
def test_values_read_as_written(text: str, expected: dict[str, Any] | None) -> None:
    if expected is None:
        expected = {"base": {"x": 1, "y": {"z": 2}}, "a": {"x": 1, "y": {"z": 2, "w": 3}}}
    assert parse_text(text).values == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("port = 1883\nport = ${?PORT}", {"port": 1883}),
        ("port = 1883\nport = ${?MQTT_PORT}", {"port": "2883"}),
        ("a = ${?NOPE}", {}),
        ("a = [1, ${?NOPE}]", {"a": [1]}),
        ("a = x${MQTT_PORT}y", {"a": "x2883y"}),
        ("b { c = ${b.d}, d = 5 }", {"b": {"c": 5, "d": 5}}),
        ("a = ${later}\nlater = 2", {"a": 2, "later": 2}),
        ("l = [1]\nl = ${l} [2]", {"l": [1, 2]}),
        ("p = /bin\np = ${p}':'/usr", {"p": "/bin':'/usr"}),
        ("a = ${o} { y = 2 }\no { x = 1 }", {"a": {"x": 1, "y": 2}, "o": {"x": 1}}),
        ("a { b { x = 1 } }\na = ${?NOPE}\nc = ${a.b.x}", {"a": {"b": {"x": 1}}, "c": 1}),
        ("on = yes\nlabel = is ${on}", {"on": "yes", "label": "is yes"}),
    ],
)
def test_substitutions_look_in_the_file_then_in_the_environment(
    text: str, expected: dict[str, Any]
) -> None:
    assert parse_text(text, environ={"MQTT_PORT": "2883"}).values == expected


@pytest.mark.parametrize(
    ("text", "line", "column", "part"),
    [
        ("a = 1\nb = {\nc = 2\n", 4, 1, "expected '}' for the '{' of line 2"),
        ("mqtt {\n  max = 1\n  ]\n}", 3, 3, "expected a key, found ']'"),
        ('mqtt {\n  a = "unterminated\n b=2 }', 2, 7, "expected a closing quote"),
        ("a = [1, 2", 1, 10, "expected ']' for the '[' of line 1"),
        ("a", 1, 2, "expected '=', ':' or '{' after the key 'a'"),
        ("a =\n", 2, 1, "expected a value"),
        ("a = 1 b = 2", 1, 9, "put the text in quotes"),
        ("url = http://host", 1, 12, "in quotes"),
        ("t = a/#", 1, 7, "in quotes"),
        (r'a = "\q"', 1, 5, r"\q is not an escape"),
        (r'a = "\ud83d"', 1, 5, "surrogate"),
        ('a = """x', 1, 5, 'expected """'),
        ("a = ${b", 1, 8, "expected '}' at the end of the substitution"),
        (
            "a = 1\nb = ${nope.x}",
            2,
            5,
            "${nope.x} is neither a key of this file nor an environment variable",
        ),
        ("a = ${b}\nb = ${a}", 2, 5, "${a} is neither"),
        ("a = [1] {x = 1}", 1, 5, "followed by a value of another kind"),
        ("[1]", 1, 1, "not a list"),
        ("a = 1 }", 1, 7, "found '}'"),
        ("{ a = 1 } b", 1, 11, "expected the end of the file"),
        ("a {" * 70, 1, 3 * 65, "deeper than 64 levels"),
        (
            ".".join(["a"] * 40) + " { " + ".".join(["b"] * 40) + " = 1 }",
            1,
            None,
            "deeper than 64 levels",
        ),
        ('include url("http://x")', 1, 1, "not supported"),
        ('include "x"', 1, None, "cannot be included from here"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(
    text: str, line: int, column: int | None, part: str
) -> None:
    with pytest.raises(HoconError) as caught:
        parse_text(text, "f.conf")
    place = f"f.conf line {line}" + ("" if column is None else f", column {column}: ")
    assert str(caught.value).startswith(place)
    assert part in str(caught.value)


def test_each_key_has_its_place() -> None:
    document = parse_text("mqtt {\n  a = 1\n  b = 2\n}\nmqtt.b = 3\nl = [\n {x = 1}\n]\n", "f.conf")
    lines = {".".join(path): place.line for path, place in document.places.items()}
    assert lines == {"mqtt": 1, "mqtt.a": 2, "mqtt.b": 5, "l": 6, "l.0": 7, "l.0.x": 7}
    nearest = document.place(("mqtt", "a", "deeper"))
    assert nearest is not None
    assert nearest.line == 2
    assert document.place(("other",)) is None


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), _json, max_size=5), st.booleans(), st.sampled_from([None, 2]))
def test_every_json_object_reads_as_json_says(
    value: dict[str, Any], ascii_only: bool, indent: int | None
) -> None:
    assert parse_text(json.dumps(value, ensure_ascii=ascii_only, indent=indent)).values == value


@given(st.text(alphabet='ab.="{}[]$\\#/,:+? \n\t1e-', max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(HoconError):  # any other error fails the test
        parse_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "a = 1\nb { c = [1, 2, {d = x}] }",
        "a { x = 1 }\na { y = [1] }\na.z = 2",
        "base { x = 1 }\na = ${base} { y = 2 }",
        "l = [1]\nl = ${l} [2]",
        "a = 1\na = ${?NOT_SET_ANYWHERE}",
        'sql = """SELECT *\nFROM x"""\nb = some words',
    ],
)
def test_the_reference_implementation_agrees(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pyhocon import ConfigFactory

        expected = json.loads(json.dumps(ConfigFactory.parse_string(text)))
    assert parse_text(text).values == expected


def test_includes_take_relative_files(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "mqtt.conf").write_text('mqtt { a = 1, b = 1 }\ninclude "more.conf"')
    (tmp_path / "conf.d" / "more.conf").write_text("more = true")
    main = tmp_path / "sluice.conf"
    main.write_text(
        'include required(file("conf.d/mqtt.conf"))\nmqtt.b = 2\nin { include "conf.d/more.conf" }'
    )
    document = parse_file(main, {})
    assert document.values == {"mqtt": {"a": 1, "b": 2}, "more": True, "in": {"more": True}}
    assert document.places[("mqtt", "a")].file == str(tmp_path / "conf.d" / "mqtt.conf")


@pytest.mark.parametrize(
    ("directive", "part"),
    [
        ('include "/etc/passwd"', "relative name"),
        ('include "../outside.conf"', "relative name"),
        ('include "http://127.0.0.1/x"', "relative name"),
        ('include "file:///etc/passwd"', "relative name"),
        ('include "sluice.conf"', "includes itself"),
        ('include "missing.conf"', "no such file"),
        ("include file(x)", "name of a file in quotes"),
    ],
)
def test_includes_reach_nothing_else(tmp_path: Path, directive: str, part: str) -> None:
    main = tmp_path / "sluice.conf"
    main.write_text(f"a = 1\n{directive}\n")
    with pytest.raises(HoconError, match=part) as caught:
        parse_file(main, {})
    assert f"{main} line 2" in str(caught.value)


def test_files_too_large_or_not_text_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "big.conf"
    file.write_bytes(b" " * (MAX_FILE_BYTES + 1))
    with pytest.raises(HoconError, match="larger than 8 MB"):
        parse_file(file, {})
    file.write_bytes(b"a = 1\nb = \xff")
    with pytest.raises(HoconError, match="line 2 is not UTF-8 text"):
        parse_file(file, {})


def test_substitutions_may_not_nest_without_bound() -> None:
    with pytest.raises(HoconError, match="nest too deeply"):
        parse_text("\n".join(f"a{n} = ${{a{n + 1}}}" for n in range(5_000)) + "\na5000 = 1")


def test_substitutions_cannot_multiply_without_bound() -> None:
    lists = "a0 = [x, x, x, x]\n" + "\n".join(
        f"a{n} = [" + f"${{a{n - 1}}}," * 8 + "]" for n in range(1, 12)
    )
    texts = f"a0 = {'x' * 100}\n" + "\n".join(
        f"a{n} = ${{a{n - 1}}}${{a{n - 1}}}" for n in range(1, 40)
    )
    for text in (lists, texts):
        with pytest.raises(HoconError, match="more than 200000 values"):
            parse_text(text)
