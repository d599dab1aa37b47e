"""Trying without saving: values come and go exactly, and nothing holds up the server or answers 500."""

from __future__ import annotations

from typing import NamedTuple

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from broker.core import jsontext
from broker.core.kinds import load
from broker.core.resources import resources
from tests.support.examples import examples
from tests.support.node import eventually
from tests.support.plain_http import NO_TLS
from tests.ui.api_node import TOKEN, EchoingShelf, Node, Running
from ui.api.examples import BODIES


class Trial(NamedTuple):
    """A verb that saves nothing, with the kind whose service has it."""

    path: str
    operation_id: str
    kind: str
    body: type[BaseModel]


VERBS = [
    Trial(f"{resource.path}{verb.path}", verb.id, kind, load(str(verb.body)))
    for resource in resources()
    if resource.tag == "Try"
    for _, dot, kind in [resource.service.partition(".")]
    for verb in resource.verbs
    if dot and "{" not in verb.path and not verb.call.startswith("prepare_")
]
EVERY_VERB = pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.path)


def rules_that(running: Running, do: str) -> EchoingShelf:
    """Have the verbs of rules do this."""
    shelf = running.node.shelves["rules"]
    assert isinstance(shelf, EchoingShelf)
    shelf.do = do
    return shelf


def first_member(verb: Trial) -> str:
    """As bodies name it."""
    name, field = next(iter(verb.body.model_fields.items()))
    return field.alias or name


@EVERY_VERB
def test_a_verb_hands_over_the_body_and_answers_what_comes_back(
    api: httpx.Client, verb: Trial
) -> None:
    body = jsontext.encode(BODIES[verb.operation_id])
    assert api.post(verb.path, content=body).content == b'{"echo":' + body + b"}"


def test_numbers_of_a_body_are_handed_over_as_they_were_written(api: httpx.Client) -> None:
    body = b'{"event":{"a":[1,1.0,123456789012345678901234567890,"\xc3\xa4"]}}'
    assert api.post("/rules:test", content=body).content == b'{"echo":' + body + b"}"


@pytest.mark.parametrize(
    "verb", [verb for verb in VERBS if verb.path in ("/rules:fields", "/rules:test-many")]
)
def test_a_list_longer_than_the_document_allows_is_refused(api: httpx.Client, verb: Trial) -> None:
    name, items = next(
        (name, items)
        for name, items in BODIES[verb.operation_id].items()
        if isinstance(items, list)
    )
    answer = api.post(verb.path, json={**BODIES[verb.operation_id], name: items * 101})
    assert answer.status_code == 422
    [problem] = answer.json()["errors"]
    assert problem["pointer"] == f"/{name}"
    assert problem["message"].endswith("expected at most 100 items")


@EVERY_VERB
def test_a_verb_refuses_members_that_it_does_not_have_and_names_the_nearest(
    api: httpx.Client, verb: Trial
) -> None:
    member = first_member(verb)
    answer = api.post(verb.path, json={f"{member}_": 1})
    assert (answer.status_code, answer.json()["code"]) == (422, "unknown_member")
    [problem] = answer.json()["errors"]
    assert problem["pointer"] == f"/{member}_"
    assert problem["suggestion"] == f"did you mean {member!r}?"


def test_unknown_members_are_found_below_known_ones(api: httpx.Client) -> None:
    message = {"topic": "t", "payload": {"encodin": "utf8", "data": ""}, "usrname": "u"}
    answer = api.post("/transforms:preview", json={"transformations": [], "message": message})
    found = {problem["pointer"]: problem["suggestion"] for problem in answer.json()["errors"]}
    assert found == {
        "/message/payload/encodin": "did you mean 'encoding'?",
        "/message/usrname": "did you mean 'username'?",
    }


def test_a_member_that_is_like_no_other_gets_the_list_of_members(api: httpx.Client) -> None:
    answer = api.post("/rules:test", json={"sql": 'SELECT * FROM "t"', "context": {"topic": "t"}})
    [problem] = answer.json()["errors"]
    assert problem["message"] == "expected one of event, from, jq, language, sql; got 'context'"
    assert problem.get("suggestion") is None


@EVERY_VERB
def test_a_verb_that_fails_in_a_way_nobody_foresaw_says_that_it_cannot_be_evaluated(
    api: httpx.Client, running: Running, verb: Trial
) -> None:
    shelf = running.node.shelves[verb.kind]
    assert isinstance(shelf, EchoingShelf)
    shelf.do = "fail"
    answer = api.post(verb.path, json=BODIES[verb.operation_id])
    assert (answer.status_code, answer.json()["code"]) == (422, "evaluation_failed")


def test_bytes_in_an_answer_are_base64_and_times_are_rfc_3339(
    api: httpx.Client, running: Running
) -> None:
    rules_that(running, "answer odd values")
    answer = api.post("/rules:test", json={})
    assert answer.json() == {
        "bytes": {"$base64": "/w=="},
        "list": [{"$base64": ""}],
        "time": "2026-01-01T00:00:00.000Z",
        "7": None,
    }


def test_what_does_not_compile_comes_with_line_and_column(
    api: httpx.Client, running: Running
) -> None:
    rules_that(running, "refuse")
    answer = api.post("/rules:test", json={})
    assert answer.status_code == 422
    assert answer.json()["errors"] == [
        {"pointer": "/sql", "line": 1, "column": 9, "message": "expected FROM"}
    ]


def test_an_answer_that_json_cannot_say_is_a_problem_and_no_failure(
    api: httpx.Client, running: Running
) -> None:
    rules_that(running, "answer half a surrogate")
    assert api.post("/rules:test", json={}).status_code == 422


def test_an_evaluation_without_end_is_ended_and_holds_up_nobody() -> None:
    impatient = Running(Node(verb_timeout_s=1.0))
    rules_that(impatient, "run for ever")
    try:
        with impatient.client() as api:
            answer = api.post("/rules:test", json={})
            assert (answer.status_code, answer.json()["code"]) == (422, "too_slow")
            for _ in range(4):
                # with the first more than there are threads: each one was given back
                assert api.post("/rules:test", json={}).json()["code"] == "too_slow"
            rules_that(impatient, "")
            # on a busy machine a second may be too short for it as well
            event = {"event": {"a": 1}}
            eventually(lambda: api.post("/rules:test", json=event).json() == {"echo": event})
    finally:
        impatient.stop()


@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    body=st.binary(max_size=60)
    | st.text(alphabet='{}[]":,$base64 \\u0a\ud7ff', max_size=40).map(str.encode)
)
def test_whatever_is_sent_the_answer_is_not_a_failure(running: Running, body: bytes) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    answer = httpx.post(
        f"{running.url}/api/v1/rules:test", content=body, headers=headers, verify=NO_TLS
    )
    assert answer.status_code in (200, 400, 422)
