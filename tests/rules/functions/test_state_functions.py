"""Identifiers, memory between messages, the environment."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rules.functions.library import standard
from rules.functions.state import Memory
from rules.sql import limits
from rules.sql.values import UNDEFINED, EvaluationError
from tests.support.calls import check, evaluate, fails, refused

PARTS = "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"


def test_identifiers() -> None:
    assert re.fullmatch(PARTS, evaluate("uuid_v4()"))
    assert re.fullmatch(PARTS.replace("-", "") + "|[0-9a-f]{32}", evaluate("uuid_v4_no_hyphen()"))
    assert evaluate("uuid_v4()") != evaluate("uuid_v4()")


def test_random_texts_and_numbers() -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-]{40}", evaluate("rand_str(40)"))
    assert {evaluate("rand_int(3)") for _ in range(100)} == {1, 2, 3}


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("rand_str(0)", "an integer from 1 to 10000"),
        ("rand_str(10001)", "an integer from 1 to 10000"),
        ("rand_int(0)", "an integer of at least 1"),
    ],
)
def test_random_bounds_are_checked_when_saved(expression: str, message: str) -> None:
    (problem,) = refused(expression)
    assert message in problem.message


def test_the_shared_store_is_one_for_all_rules_and_clients() -> None:
    functions = standard()
    assert evaluate("kv_store_put('k', 5)", functions, clientid="a") is True
    assert evaluate("kv_store_get('k')", functions, clientid="b") == 5
    assert evaluate("kv_store_get('q')", functions) is UNDEFINED
    assert evaluate("kv_store_get('q', 'd')", functions) == "d"
    assert evaluate("kv_store_del('k')", functions) is True
    assert evaluate("kv_store_del('k')", functions) is True
    assert evaluate("kv_store_get('k')", functions) is UNDEFINED


def test_keys_differ_by_type() -> None:
    functions = standard()
    evaluate("kv_store_put(1, 'integer')", functions)
    evaluate("kv_store_put('1', 'string')", functions)
    assert evaluate("kv_store_get(1)", functions) == "integer"
    assert evaluate("kv_store_get('1')", functions) == "string"


def test_a_client_has_a_store_of_its_own() -> None:
    functions = standard()
    assert evaluate("proc_dict_put('k', 1)", functions, clientid="a") is UNDEFINED
    assert evaluate("proc_dict_put('k', 2)", functions, clientid="a") == 1
    assert evaluate("proc_dict_get('k')", functions, clientid="a") == 2
    assert evaluate("proc_dict_get('k')", functions, clientid="b") is UNDEFINED
    assert evaluate("proc_dict_del('k')", functions, clientid="a") == 2
    assert evaluate("proc_dict_del('k')", functions, clientid="a") is UNDEFINED


def test_what_a_trial_writes_does_not_stay() -> None:
    functions = standard()
    evaluate("kv_store_put('k', 1)", functions)
    evaluate("proc_dict_put('k', 1)", functions, clientid="a")
    trial = functions.trial()
    assert evaluate("kv_store_put('k', 2)", trial) is True
    assert evaluate("kv_store_get('k')", trial) == 2
    assert evaluate("proc_dict_put('k', 2)", trial, clientid="a") == 1
    assert evaluate("kv_store_get('k')", functions) == 1
    assert evaluate("proc_dict_get('k')", functions, clientid="a") == 1


def test_two_nodes_share_nothing() -> None:
    one, other = standard(), standard()
    evaluate("kv_store_put('k', 1)", one)
    assert evaluate("kv_store_get('k')", other) is UNDEFINED


def test_the_shared_store_is_bounded_in_keys() -> None:
    memory = Memory()
    for number in range(limits.MAX_STORE_ENTRIES):
        memory.put_shared(number, 1)
    with pytest.raises(
        EvaluationError, match="holds 100000 keys already; delete some with kv_store_del"
    ):
        memory.put_shared("one more", 1)
    memory.put_shared(5, 2)  # a key that is there can be written


def test_the_stores_are_bounded_in_bytes() -> None:
    functions = standard()
    big = "x" * limits.MAX_TEXT
    for key in range(3):
        evaluate("kv_store_put(key, big)", functions, key=key, big=big)
        evaluate("proc_dict_put(key, big)", functions, key=key, big=big, clientid=str(key))
    for expression, remedy in (
        ("kv_store_put(9, big)", "kv_store_del"),
        ("proc_dict_put(9, big)", "proc_dict_del"),
    ):
        with pytest.raises(
            EvaluationError,
            match=f"more than {limits.MAX_STORE_BYTES} bytes; delete some with {remedy}",
        ):
            evaluate(expression, functions, big=big, clientid="z")
    evaluate("kv_store_put(0, big)", functions, big=big)  # in the place of what was there
    evaluate("kv_store_del(0)", functions)
    evaluate("kv_store_put(9, big)", functions, big=big)


def test_the_client_not_heard_of_for_longest_is_forgotten() -> None:
    memory = Memory()
    for number in range(limits.MAX_STORE_CLIENTS + 1):
        memory.put_private(number, "k", number)
    assert memory.get_private(0, "k") is UNDEFINED
    assert memory.get_private(1, "k") == 1


@pytest.mark.parametrize(
    ("variable", "want"), [("SLUICEVAR_A_TEST", "1"), ("EMQXVAR_A_TEST", "1"), ("A_TEST", "")]
)
def test_only_variables_with_the_prefix_are_read(
    variable: str, want: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rules.functions.state import _variable

    _variable.cache_clear()
    monkeypatch.setenv(variable, "1")
    check("getenv('A_TEST')", want)
    monkeypatch.delenv(variable)
    check("getenv('A_TEST')", want)  # as it was when first asked for
    _variable.cache_clear()


@pytest.mark.parametrize(
    ("expression", "columns", "message"),
    [
        ("getenv(5)", {}, "must be a string"),
        ("kv_store_put('k')", {}, "cannot take 1 argument"),
        ("kv_store_get()", {}, "cannot take 0 arguments"),
    ],
)
def test_failure(expression: str, columns: dict[str, Any], message: str) -> None:
    fails(expression, message, **columns)


def test_a_name_no_variable_can_have_is_unset() -> None:
    check("getenv(name)", "", name="a\0b")
    check("getenv('a=b')", "")
