"""What is said of wrong settings of connectors: which member, what it is, what was expected; never a secret."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from bridges.feature import BUILT_IN
from bridges.resource.registry import Registry
from bridges.resource.specs import ActionSpec, SourceSpec, checked_connector, checked_member
from broker.core.errors import Invalid, Problem

PLAIN = {"mechanism": "plain", "username": "u"}
HTTP = {"type": "http", "url": "http://h"}
OAUTH = {"mechanism": "oauth", "client_id": "c", "client_secret": "s3cret"}


def problems(make: Any, spec: dict[str, Any]) -> list[tuple[str, str]]:
    named = {"name": "x", **({} if make is checked_connector else {"connector": "c"}), **spec}
    with pytest.raises(Invalid) as caught:
        make(named, Registry(BUILT_IN))
    found: list[Problem] = list(caught.value.problems)
    return [(problem.pointer, problem.message) for problem in found]


@pytest.mark.parametrize(
    ("spec", "pointer", "message"),
    [
        (
            {"type": "kafka", "authentication": {**PLAIN, "password": 4711}},
            "/authentication/password",
            'authentication.password is ******; expected a string; put it in quotes, as "text"',
        ),
        (
            {"type": "kafka", "authentication": {**PLAIN, "password": ["s3cret"]}},
            "/authentication/password",
            'authentication.password is ******; expected a string; put it in quotes, as "text"',
        ),
        (
            {"type": "kafka", "authentication": {**PLAIN, "password": "s3cret", "user": "u"}},
            "/authentication/user",
            "authentication.user is not known; did you mean 'username'?",
        ),
        (
            {"type": "kafka", "authentication": PLAIN},
            "/authentication/password",
            "authentication.password is required",
        ),
        (
            {**HTTP, "authentication": {"mechanism": "bearer", "token": 4711}},
            "/authentication/token",
            'authentication.token is ******; expected a string; put it in quotes, as "text"',
        ),
        (
            {"type": "kafka", "bootstrap_hosts": ",".join(["h"] * 101)},
            "/bootstrap_hosts",
            "bootstrap_hosts: expected at most 100 addresses, got 101",
        ),
        (
            {"type": "kafka", "bootstrap_hosts": "k1:9092,u:s3cret@k2:9092"},
            "/bootstrap_hosts",
            (
                "bootstrap_hosts: expected 'host:port' without a user, got '******@k2:9092'. "
                "Try: 'username' and 'password'"
            ),
        ),
        (
            {
                "type": "postgresql",
                "database": "d",
                "username": "u",
                "server": "postgres://u:s3cret@db/d",
            },
            "/server",
            "server: expected 'host:port' without a user, got 'postgres://******@db/d'. Try: 'username' and 'password'",
        ),
        (
            {"type": "http", "url": "ftp://u:s3cret@h/?key=s3cret"},
            "/url",
            "url: 'ftp://******@h/' is not an address; write 'http://host:port' or 'https://host/path'",
        ),
        (
            {"type": "mqtt", "server": "tcp://u:s3cret@h"},
            "/server",
            "server: 'tcp://******@h' begins with tcp://, which is not known; write mqtt, mqtts, ws or wss",
        ),
        (
            {"type": "mqtt", "server": "wss://h?token=s3cret"},
            "/server",
            "server: 'h' is not an address; write 'host' or 'host:443'",
        ),
        (
            {**HTTP, "authentication": {**OAUTH, "endpoint_uri": "https://u:s3cret@h/token"}},
            "/authentication/endpoint_uri",
            (
                "authentication.endpoint_uri: expected http:// or https:// and a host without a user, got "
                "'https://******@h/token'"
            ),
        ),
        (
            {**HTTP, "headers": "X-Key: s3cret"},
            "/headers",
            "headers is ******; expected an object { ... }",
        ),
        (
            {**HTTP, "headers": {"X-Key": 4711}},
            "/headers/X-Key",
            'headers.X-Key is ******; expected a string; put it in quotes, as "text"',
        ),
        (
            {"type": "http_server", "authentication": {"mechanism": "token", "tokens": "s3cret"}},
            "/authentication/tokens",
            'authentication.tokens is ******; expected a list, as ["a", "b"]',
        ),
    ],
    ids=[
        "number",
        "list",
        "misspelt",
        "missing",
        "token",
        "addresses",
        "user of kafka",
        "user of postgresql",
        "user of http",
        "user of mqtt",
        "query without path",
        "user of oauth",
        "headers",
        "header",
        "tokens",
    ],
)
def test_what_is_wrong_with_a_connector_is_told_without_its_secrets(
    spec: dict[str, Any], pointer: str, message: str
) -> None:
    assert problems(checked_connector, spec) == [(pointer, message)]


@pytest.mark.parametrize(
    ("parameters", "pointer", "message"),
    [
        (
            {"value_encoding": "avro"},
            "/parameters/value_encoding",
            "value_encoding is 'avro'; expected 'text' or an object { ... }",
        ),
        (
            {"topic": "two words"},
            "/parameters/topic",
            "topic: 'two words' is not a valid Kafka topic; expected up to 249 letters, digits, '.', '_' and '-'",
        ),
        (
            {"partition": "first"},
            "/parameters/partition",
            "partition: expected a number or a template, got 'first'",
        ),
        (
            {"kafka_headers": "x=1"},
            "/parameters/kafka_headers",
            "kafka_headers: 'x=1' is not one placeholder, as '${headers}', for an object or a list",
        ),
        (
            {"cursor_topic": "a/b"},
            "/parameters/cursor_topic",
            "cursor_topic: 'a/b' is not a valid Kafka topic; expected up to 249 letters, digits, '.', '_' and '-'",
        ),
    ],
    ids=["encoding", "topic", "partition", "headers", "cursor topic"],
)
def test_what_no_row_can_mend_in_an_action_for_kafka_is_told_when_it_is_saved(
    parameters: dict[str, Any], pointer: str, message: str
) -> None:
    spec = {"type": "kafka", "parameters": {"topic": "t", **parameters}}
    assert problems(partial(checked_member, ActionSpec), spec) == [(pointer, message)]


def test_an_error_of_a_template_shows_no_more_than_its_placeholder() -> None:
    spec = {
        "type": "http",
        "parameters": {"headers": {"X-Key": "Bearer s3cret ${ a } s3cret" + "${" * 10_000}},
    }
    [(pointer, message)] = problems(partial(checked_member, ActionSpec), spec)
    assert pointer == "/parameters/headers/X-Key"
    assert message.startswith("'${ a }' is not a placeholder: '${a.b}' has letters, digits")
    assert "s3cret" not in message
    assert len(message) < 200


def test_a_source_reads_topics_that_kafka_can_have() -> None:
    spec = {"type": "kafka", "parameters": {"topics": ["good", "so/so"]}}
    assert problems(partial(checked_member, SourceSpec), spec) == [
        (
            "/parameters/topics",
            "topics: 'so/so' is not a valid Kafka topic; expected up to 249 letters, digits, '.', '_' and '-'",
        )
    ]
