"""Trying without saving: values come and go exactly, and nothing holds up the server or answers 500."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.plain_http import NO_TLS
from tests.ui.api_node import TOKEN, Node, Running
from ui.api.verbs import VERBS

EVERY_VERB = pytest.mark.parametrize("path", [verb.path for verb in VERBS])


@EVERY_VERB
def test_a_verb_hands_over_the_body_and_answers_what_comes_back(api: httpx.Client, path: str) -> None:
    body = b'{"a":[1,1.0,123456789012345678901234567890],"b":"\xc3\xa4"}'
    assert api.post(path, content=body).content == b'{"echo":' + body + b"}"


@EVERY_VERB
def test_a_verb_that_fails_in_a_way_nobody_foresaw_says_that_it_cannot_be_evaluated(
    api: httpx.Client, path: str
) -> None:
    answer = api.post(path, json={"do": "fail"})
    assert (answer.status_code, answer.json()["code"]) == (422, "evaluation_failed")


def test_bytes_in_an_answer_are_base64_and_times_are_rfc_3339(api: httpx.Client) -> None:
    answer = api.post("/rules:test", json={"do": "answer odd values"})
    assert answer.json() == {
        "bytes": {"$base64": "/w=="},
        "list": [{"$base64": ""}],
        "time": "2026-01-01T00:00:00Z",
        "7": None,
    }


def test_what_does_not_compile_comes_with_line_and_column(api: httpx.Client) -> None:
    answer = api.post("/rules:test", json={"do": "refuse"})
    assert answer.status_code == 422
    assert answer.json()["errors"] == [{"pointer": "/sql", "line": 1, "column": 9, "message": "expected FROM"}]


def test_an_answer_that_json_cannot_say_is_a_problem_and_no_failure(api: httpx.Client) -> None:
    assert api.post("/rules:test", json={"do": "answer half a surrogate"}).status_code == 422


def test_an_evaluation_without_end_is_ended_and_holds_up_nobody() -> None:
    endless = {"do": "run for ever"}
    impatient = Running(Node(verb_timeout_s=1.0))
    try:
        with impatient.client() as api:
            answer = api.post("/rules:test", json=endless)
            assert (answer.status_code, answer.json()["code"]) == (422, "too_slow")
            for _ in range(4):  # with the first more than there are threads: each one was given back
                assert api.post("/rules:test", json=endless).json()["code"] == "too_slow"
            assert api.post("/rules:test", json={"a": 1}).json() == {"echo": {"a": 1}}
    finally:
        impatient.stop()


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(body=st.binary(max_size=60) | st.text(alphabet='{}[]":,$base64 \\u0a\ud7ff', max_size=40).map(str.encode))
def test_whatever_is_sent_the_answer_is_not_a_failure(running: Running, body: bytes) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    answer = httpx.post(f"{running.url}/api/v1/rules:test", content=body, headers=headers, verify=NO_TLS)
    assert answer.status_code in (200, 400, 422)
