"""What a trial tells is what the gate does, for random chains of transformations and random messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.core.client import Client
from broker.core.json_values import message_to_wire
from broker.core.message import Message
from broker.core.stage import Refusal
from schema_validation.feature import SchemaValidationFeature
from tests.support.examples import examples
from tests.support.features import make_services, through
from transforms.feature import TransformsFeature

CODECS = st.sampled_from([{"type": "none"}, {"type": "json"}, {"type": "avro", "schema": "record"}])
OPERATIONS = st.sampled_from(
    [
        ("payload.i", "payload.i"),
        ("payload.i", "5"),
        ("payload.s", "topic"),
        ("payload.deep.x", "qos"),
        ("payload", "payload.in"),
        ("payload", "json_encode(payload)"),
        ("payload", "payload"),
        ("payload", "json_decode('{\"i\": 7}')"),
        ("payload", "concat([payload, '!'])"),
        ("topic", "payload.i"),
        ("topic", "'t/new'"),
        ("topic", "'bad/#'"),
        ("qos", "'2'"),
        ("qos", "'7'"),
        ("retain", "true"),
        ("user_property.x", "coalesce(payload.i, 'd')"),
        ("user_property.x", "user_property.y"),
        ("content_type", "'c'"),
        ("payload.in.x", "payload.in"),
        ("payload.i", "split('', ',')"),
    ]
)
TRANSFORMATIONS = st.fixed_dictionaries(
    {
        "topics": st.sampled_from([["t/#"], ["t/new"], ["#"]]),
        "failure_action": st.sampled_from(["drop", "disconnect", "ignore", "ignore"]),
        "mode": st.sampled_from(["enforce", "enforce", "shadow"]),
        "payload_decoder": CODECS,
        "payload_encoder": CODECS,
        "operations": st.lists(OPERATIONS, max_size=3).map(
            lambda found: [{"key": key, "value": value} for key, value in found]
        ),
    }
)
PAYLOADS = st.sampled_from(
    [
        b'{"i": 1}',
        b'{ "i" : 1.0, "in": {"x": [1]} }',
        b'{"in": null}',
        b"\x02",
        b"text",
        b'"text"',
        b"",
        b"\xff",
        b"[1]",
    ]
)


@pytest.fixture(scope="module")
def feature() -> TransformsFeature:
    services = make_services()
    schemas = SchemaValidationFeature(services)
    schemas.start()
    record = {"type": "record", "name": "r", "fields": [{"name": "i", "type": "int"}]}
    schemas.schemas.create({"name": "record", "type": "avro", "source": json.dumps(record)})
    feature = TransformsFeature(services)
    feature.start()
    return feature


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(TRANSFORMATIONS, min_size=1, max_size=4), PAYLOADS)
def test_a_trial_tells_what_the_gate_does(
    feature: TransformsFeature, chain: list[dict[str, Any]], payload: bytes
) -> None:
    for name in [item["name"] for item in feature.service.list()]:
        feature.service.delete(name)
    specs = [{"name": f"n{at}", **spec} for at, spec in enumerate(chain)]
    for spec in specs:
        feature.service.create(spec)
    sent = Message("t/1", payload, 0, False, Client("c1"), 1, {"User-Property": [("y", "1")]})
    got = through(feature.gates[0], sent)
    wire = {**message_to_wire(sent), "clientid": "c1"}
    wire = {
        key: wire[key]
        for key in ("topic", "payload", "qos", "retain", "clientid", "user_properties")
    }
    told = feature.service.preview({"transformations": specs, "message": wire})
    failed = [item["name"] for item in feature.service.list() if item["metrics"]["failed"]]
    assert sorted(set(told["failed"])) == failed
    if isinstance(got, Refusal):
        assert told["outcome"] == ("disconnect" if got.disconnect else "drop")
        assert told["failed"][-1] == got.name
    else:
        assert told["outcome"] == "message"
        assert told["message"] == message_to_wire(got)
