"""The pages about HTTP do what they say."""

from __future__ import annotations

import json
from pathlib import Path

from bridges.http.settings import HttpActionSettings, HttpSettings
from bridges.http_server.settings import HttpServerSettings, HttpServerSourceSettings
from tests.docs.session import ROOT, commands, run

CALL = ROOT / "docs" / "how-to" / "call-http-services.md"
RECEIVE = ROOT / "docs" / "how-to" / "receive-over-http.md"
START = commands(ROOT / "docs" / "tutorial.md", "1. Install and start")


def test_rows_go_to_a_service_as_described(tmp_path: Path) -> None:
    made, one, many = run([*START, *commands(CALL)], tmp_path)[-3:]
    assert "is 127.0.0.1" in made
    assert 'POST /v1/devices/meter%2F7/alerts?temp=41 {"device": "meter/7", "temp": 41}' in one
    rows = [row for line in many.splitlines() if line.startswith("POST") for row in json.loads(line.split(" ", 2)[2])]
    assert rows == [{"clientid": "meter-8", "n": number} for number in (1, 2, 3)]


def test_what_is_posted_becomes_messages_as_described(tmp_path: Path) -> None:
    posted, received, many, hooks, secured, twice = run([*START, *commands(RECEIVE)], tmp_path)[-6:]
    assert '{"accepted":1,"refused":[],"refused_count":0}' in posted
    assert 'meters/attic {"temp": 41}' in received
    answer = json.loads(many.strip().splitlines()[-1])
    assert (answer["accepted"], answer["refused_count"], answer["refused"][0]["index"]) == (2, 1, 1)
    assert '{"accepted":1,' in hooks
    assert "does not fit the body" in hooks
    assert '{"accepted":1,' in secured
    answers = [json.loads(line) for line in twice.splitlines() if line.startswith("{")]
    assert [(answer["accepted"], answer.get("duplicate", False)) for answer in answers] == [(1, False), (1, True)]


def test_settings_are_named() -> None:
    call, receive = CALL.read_text(), RECEIVE.read_text()
    told_in_help = {"connect_timeout", "max_inactive", "max_answer_size", "ssl"}
    fields = {*HttpSettings.model_fields, *HttpActionSettings.model_fields}
    assert {name for name in fields if name not in call} <= told_in_help
    fields = {*HttpServerSettings.model_fields, *HttpServerSourceSettings.model_fields} - {"schema_name"}
    assert {name for name in fields if name not in receive} <= {"retain"}
