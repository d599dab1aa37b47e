"""What the language reference names as defects elsewhere is right here, one test for each."""

from __future__ import annotations

import pytest

from broker.core.errors import Invalid
from rules.rule import compile_statement
from rules.sql.values import UNDEFINED
from tests.rules.sql.evaluation import (
    CONTEXT,
    FAILED,
    FUNCTIONS,
    PAYLOAD,
    holds,
    result,
    row,
    value,
)


@pytest.mark.parametrize(
    ("condition", "want"),
    [
        ("payload.i NOT IN (1, 2)", True),
        ("NOT (payload.t AND payload.no)", True),
        ("NOT NOT payload.t", True),
        ("payload.t", True),
        ("NOT payload.i IN (5)", False),
    ],
)
def test_1_negations_and_bare_booleans_are_conditions(condition: str, want: bool) -> None:
    assert holds(condition) is want


def test_2_functions_that_look_at_the_message_work_everywhere() -> None:
    assert (
        holds("clientid() = 'c1' AND topic(1) = 't' AND qos() = 1 AND payload('o.k') = 'v'") is True
    )
    assert result(
        "FOREACH [1, 2] AS x DO x INCASE topic(2) = 'a' AND clientid() = 'c1' FROM \"t/#\""
    ) == [
        {"x": 1},
        {"x": 2},
    ]


def test_3_writing_into_the_payload_after_a_star_keeps_the_rest() -> None:
    assert row("*, 9 AS payload.i")["payload"] == {**PAYLOAD, "i": 9}
    rows = result('FOREACH [1] AS x DO *, 9 AS payload.i FROM "t/#"')
    assert rows[0]["payload"] == {**PAYLOAD, "i": 9}


def test_4_foreach_without_a_name_hides_nothing_of_the_payload() -> None:
    assert result('FOREACH payload.l DO payload.i AS i, item AS x FROM "t/#"') == [
        {"i": 5, "x": n} for n in (1, 2, 3)
    ]


def test_5_a_payload_that_was_rewritten_is_read_anew() -> None:
    got = row(
        """payload.i AS a, '{"i":2}' AS payload, payload.i AS b, 7 AS payload.x, payload.i AS c, payload.x AS d"""
    )
    assert (got["a"], got["b"], got["c"], got["d"]) == (5, 2, 2, 7)
    assert got["payload"] == {"i": 2, "x": 7}
    assert row("'no json' AS payload, 7 AS payload.x") == FAILED


def test_6_a_walked_payload_stands_in_the_row_once() -> None:
    rows = result('FOREACH payload FROM "t/#"', [{"a": 1}])
    assert rows[0]["payload"] == '[{"a": 1}]'
    assert rows[0]["item"] == {"a": 1}


def test_7_names_that_are_made_are_the_normalised_text() -> None:
    fields = (
        "-qos,   1+ 1, case when true then 2 end, not  (a = 1), {a:1}.a, a like 'x', payload.f*2"
    )
    assert list(result(f"SELECT {fields} FROM \"t/#\"")) == [
        "-qos", "1 + 1", "CASE WHEN true THEN 2 END", "NOT (a = 1)", "{a: 1}.a", "a LIKE 'x'", "payload.f * 2",
    ]  # fmt: skip


def test_8_values_keep_their_kind() -> None:
    assert value("str([97, 98])") == "[97,98]"
    assert value("str([])") == "[]"
    assert value("reverse('añ')") == "ña"
    assert value("abs(-2.5)") == 2.5
    assert value("mget(['j', 'k'], {j: {k: 7}})") == 7
    assert value("contains_topic([{topic: 't/a/b'}], topic)") is True


@pytest.mark.parametrize(
    "expression",
    [
        "uper(a)",
        "upper()",
        "upper(a, b)",
        "regex_match(a, '(')",
        "now_timestamp('hours')",
        "jq('{', a)",
        "a like 'x\\'",
    ],
)
def test_9_what_can_never_work_is_told_when_the_rule_is_saved(expression: str) -> None:
    with pytest.raises(Invalid) as caught:
        compile_statement(f"SELECT {expression} AS r FROM t", FUNCTIONS, CONTEXT)
    assert all(problem.line == 1 and problem.column for problem in caught.value.problems)


def test_10_the_text_may_be_written_as_elsewhere() -> None:
    got = result(
        "SELECT 'it''s' AS s, 1e3 AS n, _a AS _b, TRUE AS t /* c */ FROM \"t/#\"; -- the end"
    )
    assert got == {"s": "it's", "n": 1000.0, "_b": UNDEFINED, "t": True}


def test_11_jq_gives_the_list_of_its_outputs() -> None:
    assert result("FOREACH jq('[.i,.s]', payload) AS x DO x FROM \"t/#\"") == [{"x": [5, "b"]}]
    assert result("FOREACH jq('.i,.s', payload) AS x DO x FROM \"t/#\"") == [{"x": 5}, {"x": "b"}]


def test_12_a_selected_part_of_the_payload_hides_nothing_in_where() -> None:
    assert holds("payload.i = 5", fields="payload.s") is True
    assert holds("payload.l[1..2] = [1, 2]", fields="payload.s") is True
    assert holds("clientid = 'c1'", fields="'other' AS clientid") is False


def test_range_of_the_payload_itself() -> None:
    assert value("payload[1..2]", [1, 2, 3]) == [1, 2]
    assert value("payload[3]", [1, 2, 3]) == 3


def test_an_index_is_looked_up_in_the_row_first() -> None:
    assert row("1 AS idx, payload.l[idx] AS r") == {"idx": 1, "r": 1}
    assert row("payload.l[idx] AS r") == {"r": 2}


def test_sql_as_the_manual_prints_it() -> None:
    sql = "## all\nSELECT `payload`.`x` AS `a b`, ## the column\n clientid, '##' AS c\nFROM `t/#` ## the end"
    assert result(sql, '{"x": 1}') == {"a b": 1, "clientid": "c1", "c": "##"}
