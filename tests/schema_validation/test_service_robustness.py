"""Whatever is sent to the calls that store nothing, they answer or raise ``Invalid``."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.core.errors import Invalid
from schema_validation.feature import SchemaValidationFeature
from tests.support.examples import examples
from tests.support.features import make_services
from transforms.feature import TransformsFeature

SERVICES = make_services()
SCHEMAS = SchemaValidationFeature(SERVICES)
TRANSFORMS = TransformsFeature(SERVICES)
CALLS = [
    SCHEMAS.schemas.check,
    SCHEMAS.schemas.decode,
    SCHEMAS.schemas.encode,
    SCHEMAS.schemas.validate,
    SCHEMAS.validations.test,
    TRANSFORMS.service.preview,
    TRANSFORMS.service.evaluate,
]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
WORDS = st.sampled_from(
    ["json", "avro", "protobuf", "int", "t/1", "drop", "all_pass", "base64", "payload.x", "1", "{}"]
)
ANY = JSON | WORDS
MESSAGE_MEMBERS = (
    "topic",
    "payload",
    "qos",
    "retain",
    "clientid",
    "client_attrs",
    "user_properties",
    "properties",
)
MESSAGE = st.fixed_dictionaries({}, optional=dict.fromkeys(MESSAGE_MEMBERS, ANY))
CHECK = st.fixed_dictionaries(
    {}, optional={"type": ANY, "schema": ANY, "sql": ANY, "message_type": ANY}
)
OBJECT = st.fixed_dictionaries(
    {},
    optional={
        "name": ANY,
        "topics": ANY | st.lists(WORDS, max_size=2),
        "strategy": ANY,
        "failure_action": ANY,
        "checks": ANY | st.lists(CHECK, max_size=2),
        "payload_decoder": ANY | CHECK,
        "operations": ANY | st.lists(st.fixed_dictionaries({"key": ANY, "value": ANY}), max_size=2),
    },
)
BODY = st.fixed_dictionaries(
    {},
    optional={
        "type": ANY,
        "source": ANY,
        "files": ANY,
        "message_type": ANY,
        "payload": ANY,
        "value": ANY,
        "expression": ANY,
        "bindings": ANY,
        "raw": ANY,
        "message": ANY | MESSAGE,
        "schemas": ANY | st.lists(OBJECT | ANY, max_size=2),
        "validations": ANY | st.lists(OBJECT | ANY, max_size=2),
        "transformations": ANY | st.lists(OBJECT | ANY, max_size=2),
        "check_references": ANY,
    },
)


@settings(max_examples=examples(150))
@given(BODY)
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__qualname__)
def test_calls_answer_or_refuse(call: Any, body: dict[str, Any]) -> None:
    with contextlib.suppress(Invalid):
        assert isinstance(call(body), dict)


@settings(max_examples=examples(150))
@given(OBJECT | ANY)
def test_creating_refuses_what_it_cannot_use(spec: Any) -> None:
    for service in (SCHEMAS.schemas, SCHEMAS.validations, TRANSFORMS.service):
        with pytest.raises(Invalid):
            service.create({**spec, "name": "_"} if isinstance(spec, dict) else spec)


@pytest.mark.parametrize(
    "body", [{"type": "json", "files": []}, {"type": "protobuf", "files": []}, {"type": "avro"}]
)
def test_a_schema_without_a_source_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="expected either source or files"):
        SCHEMAS.schemas.check(body)
