"""Sparkplug B: payloads, names learnt from births, properties and data sets zipped."""

from __future__ import annotations

import json
import queue
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from broker.core.client import Client
from broker.core.errors import Invalid, NotFound
from broker.core.message import Message
from broker.core.ordered import name_problem
from broker.core.schema import SPARKPLUG_B, SchemaLookup, Serde
from rules.functions.library import standard
from rules.functions.registry import Functions
from rules.functions.sparkplug import (
    BirthMetric,
    Births,
    SparkplugTap,
    source_of,
    sparkplug_functions,
)
from rules.sql import limits
from rules.sql.values import EvaluationError
from schema_validation.registry import Registry
from schema_validation.serdes.protobuf import sparkplug_serde
from tests.support.calls import evaluate
from tests.support.node import running

NODE, DEVICE = "spBv1.0/plant/{}/edge1", "spBv1.0/plant/{}/edge1/pump"


class BuiltIn(SchemaLookup):
    """A lookup that knows the built-in schema only."""

    def serde(self, name: str) -> Serde:
        if name != SPARKPLUG_B:
            raise NotFound("schema", name)
        return sparkplug_serde()


class Setting:
    """The functions and the tap over one memory of aliases."""

    def __init__(self) -> None:
        self.births = Births()
        self.functions: Functions = standard()
        for function in sparkplug_functions(BuiltIn, self.births):
            self.functions.add(function)
        self.tap = SparkplugTap(self.births, BuiltIn)

    def publish(self, topic: str, payload: bytes) -> None:
        call = self.tap.plan(topic)
        if call is not None:
            call(Message(topic, payload, 0, False, Client("c1"), 0))

    def decode(self, topic: str, payload: bytes) -> Any:
        return evaluate("spb_decode(payload)", self.functions, topic=topic, payload=payload)


@pytest.fixture
def setting() -> Setting:
    return Setting()


def encoded(*metrics: dict[str, Any], **more: Any) -> bytes:
    return sparkplug_serde().encode(
        {"timestamp": 1, "seq": 0, "metrics": list(metrics), **more}, "Payload"
    )


BIRTH = encoded(
    {"name": "temp", "alias": 1, "datatype": 9}, {"name": "rpm", "alias": 2, "datatype": 3}
)
DATA = encoded({"alias": 1, "float_value": 21.5}, {"alias": 9, "int_value": 5})


def test_a_payload_becomes_a_map(setting: Setting) -> None:
    payload = encoded({"name": "blob", "bytes_value": b"\xff\x00", "datatype": 17})
    assert setting.decode(NODE.format("NDATA"), payload) == {
        "timestamp": 1,
        "seq": 0,
        "metrics": [{"name": "blob", "datatype": 17, "bytes_value": "/wA="}],
    }


def test_encode_is_the_reverse_of_decode(setting: Setting) -> None:
    payload = encoded(
        {"name": "blob", "bytes_value": b"\xff\x00"}, {"name": "t", "double_value": 1.5}
    )
    value = evaluate(
        "spb_encode(spb_decode(payload))", setting.functions, topic="t", payload=payload
    )
    assert (value.encode() if isinstance(value, str) else value) == payload


def test_the_older_variants_keep_bytes(setting: Setting) -> None:
    payload = encoded(
        {"name": "blob", "bytes_value": b"\xff"}, {"name": "text", "bytes_value": b"abc"}
    )
    decoded = evaluate("sparkplug_decode(payload)", setting.functions, payload=payload)
    assert [metric["bytes_value"] for metric in decoded["metrics"]] == [b"\xff", "abc"]
    value = evaluate("sparkplug_encode(d)", setting.functions, d=decoded)
    assert (value.encode() if isinstance(value, str) else value) == payload


def test_a_metric_alone_is_coded_by_its_type(setting: Setting) -> None:
    value = evaluate(
        "spb_decode(spb_encode(map('{\"name\":\"a\",\"int_value\":1}'), 'Payload.Metric'), 'Payload.Metric')",
        setting.functions,
    )
    assert value == {"name": "a", "int_value": 1}


@pytest.mark.parametrize(
    ("birth", "data"),
    [
        (NODE.format("NBIRTH"), NODE.format("NDATA")),
        (DEVICE.format("DBIRTH"), DEVICE.format("DDATA")),
        (NODE.format("NBIRTH"), DEVICE.format("DDATA")),
        (NODE.format("NBIRTH"), NODE.format("NCMD")),
    ],
)
def test_births_tell_the_names_of_what_follows(setting: Setting, birth: str, data: str) -> None:
    setting.publish(birth, BIRTH)
    names = [metric.get("name") for metric in setting.decode(data, DATA)["metrics"]]
    assert names == ["temp", None]


def test_a_birth_that_a_rule_decodes_tells_them_too(setting: Setting) -> None:
    setting.decode(NODE.format("NBIRTH"), BIRTH)
    assert setting.decode(NODE.format("NDATA"), DATA)["metrics"][0]["name"] == "temp"


def test_a_new_birth_takes_the_place_of_the_one_before(setting: Setting) -> None:
    setting.publish(NODE.format("NBIRTH"), BIRTH)
    setting.publish(NODE.format("NBIRTH"), encoded({"name": "pressure", "alias": 1}))
    metrics = setting.decode(NODE.format("NDATA"), encoded({"alias": 1}, {"alias": 2}))["metrics"]
    assert [metric.get("name") for metric in metrics] == ["pressure", None]


@pytest.mark.parametrize(
    "topic",
    ["spBv1.0/plant/NDATA/edge2", "spBv1.0/other/NDATA/edge1", "t/1", "spBv1.0/plant/NDATA"],
)
def test_other_senders_have_names_of_their_own(setting: Setting, topic: str) -> None:
    setting.publish(NODE.format("NBIRTH"), BIRTH)
    assert "name" not in setting.decode(topic, DATA)["metrics"][0]


def test_a_name_in_the_message_stays(setting: Setting) -> None:
    setting.publish(NODE.format("NBIRTH"), BIRTH)
    assert (
        setting.decode(NODE.format("NDATA"), encoded({"name": "x", "alias": 1}))["metrics"][0][
            "name"
        ]
        == "x"
    )


@pytest.mark.parametrize(
    ("datatype", "field", "encoded_value", "value"),
    [
        (1, "int_value", 0xFF, -1),
        (1, "int_value", 0xFFFFFF80, -128),
        (1, "int_value", 127, 127),
        (1, "int_value", 300, 300),
        (2, "int_value", 0xFFFF, -1),
        (2, "int_value", 0xFFFF8000, -32768),
        (2, "int_value", 200, 200),
        (3, "int_value", 0xFFFFFFFB, -5),
        (3, "int_value", 0x80000000, -(2**31)),
        (3, "long_value", 2**64 - 5, -5),
        (4, "long_value", 2**64 - 5, -5),
        (4, "long_value", 0xFFFFFFFB, 0xFFFFFFFB),
        (4, "long_value", 2**63, -(2**63)),
        (5, "int_value", 0xFF, 0xFF),
        (7, "int_value", 0xFFFFFFFB, 0xFFFFFFFB),
        (8, "long_value", 2**64 - 5, 2**64 - 5),
        (13, "long_value", 2**64 - 5, 2**64 - 5),
    ],
)
@pytest.mark.parametrize("decoder", ["spb", "sparkplug"])
def test_signed_integers_are_themselves_wherever_they_are(
    setting: Setting, decoder: str, datatype: int, field: str, encoded_value: int, value: int
) -> None:
    typed = {"type": datatype, field: encoded_value}
    properties = {"keys": ["a", "b", "c"], "values": [
        typed, {"propertyset_value": {"keys": ["d"], "values": [typed]}},
        {"propertysets_value": {"propertyset": [{"keys": ["e"], "values": [typed]}]}},
    ]}  # fmt: skip
    metric = {"name": "m", "datatype": datatype, field: encoded_value}
    data = {"columns": ["a", "b"], "types": [12, datatype], "rows": [
        {"elements": [{"string_value": "x"}, {field: encoded_value}]},
    ]}  # fmt: skip
    template = {
        "metrics": [metric | {"properties": properties}],
        "parameters": [{"name": "p"} | typed],
    }
    payload = encoded(
        metric, {"name": "d", "dataset_value": data}, {"name": "t", "template_value": template}
    )
    decoded = evaluate(f"{decoder}_decode(payload)", setting.functions, topic="t", payload=payload)
    text = json.dumps(decoded)
    assert text.count(f'"{field}": {value}') == text.count(field) == 7
    again = evaluate(f"{decoder}_encode(d)", setting.functions, d=decoded)
    assert (
        json.dumps(evaluate(f"{decoder}_decode(p)", setting.functions, topic="t", p=again)) == text
    )


@pytest.mark.parametrize(
    "topic", [NODE.format("NDATA"), DEVICE.format("DDATA"), DEVICE.format("DBIRTH")]
)
def test_the_definition_of_a_template_tells_the_types_of_its_parameters_and_members(
    setting: Setting, topic: str
) -> None:
    inner = {"metrics": [{"name": "x", "datatype": 3}], "is_definition": True}
    outer = {
        "metrics": [{"name": "in", "datatype": 19, "template_value": {"template_ref": "inner"}}],
        "parameters": [{"name": "p", "type": 2}, {"name": "q"}],
        "is_definition": True,
    }
    definitions = (
        {"name": "inner", "template_value": inner},
        {"name": "outer", "template_value": outer},
    )
    setting.publish(NODE.format("NBIRTH"), encoded(*definitions))
    changed = {"template_ref": "inner", "metrics": [{"name": "x", "int_value": 2**32 - 3}]}
    instance = {
        "template_ref": "outer",
        "metrics": [{"name": "in", "template_value": changed}],
        "parameters": [{"name": "p", "int_value": 0xFFFE}, {"name": "q", "int_value": 0xFFFE}],
    }
    [metric] = setting.decode(topic, encoded({"name": "i", "template_value": instance}))["metrics"]
    template = metric["template_value"]
    assert template["parameters"] == [
        {"name": "p", "type": 2, "int_value": -2},
        {"name": "q", "int_value": 0xFFFE},
    ]
    assert template["metrics"][0]["template_value"]["metrics"] == [
        {"name": "x", "datatype": 3, "int_value": -3}
    ]


@pytest.mark.parametrize("data", [{"alias": 1}, {"name": "temp"}])
@pytest.mark.parametrize(("birth", "topic"), [("NBIRTH", "NDATA"), ("DBIRTH", "DDATA")])
def test_births_tell_the_datatypes_of_what_follows(
    setting: Setting, birth: str, topic: str, data: dict[str, Any]
) -> None:
    template = {"metrics": [{"name": "x", "datatype": 3, "int_value": 1}]}
    announced = encoded(
        {"name": "temp", "alias": 1, "datatype": 2}, {"name": "t", "template_value": template}
    )
    of_device = NODE if birth == "NBIRTH" else DEVICE
    setting.publish(of_device.format(birth), announced)
    changed = {"name": "t", "template_value": {"metrics": [{"name": "x", "int_value": 2**32 - 3}]}}
    metric, template_metric = setting.decode(
        of_device.format(topic), encoded(data | {"int_value": 2**32 - 7}, changed)
    )["metrics"]
    assert (metric["name"], metric["datatype"], metric["int_value"]) == ("temp", 2, -7)
    assert template_metric["template_value"]["metrics"] == [
        {"name": "x", "int_value": -3, "datatype": 3}
    ]


def test_the_metrics_of_a_birth_are_bounded(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rules.functions.sparkplug.MAX_SPARKPLUG_ALIASES", 2)
    template = {"metrics": [{"name": name, "datatype": 3} for name in "abc"]}
    setting.publish(
        NODE.format("NBIRTH"), encoded({"name": "t", "template_value": template}, {"name": "u"})
    )
    birth = setting.births.metric(("plant", "edge1", ""), {"name": "t"})
    assert birth is not None
    assert list(birth.members) == ["a"]
    assert setting.births.metric(("plant", "edge1", ""), {"name": "u"}) is None


def test_a_birth_that_is_no_payload_teaches_nothing(setting: Setting) -> None:
    setting.publish(NODE.format("NBIRTH"), b"rubbish")
    assert len(setting.births) == 0


def test_only_births_are_looked_at(setting: Setting) -> None:
    assert setting.tap.plan(NODE.format("NDATA")) is None
    assert setting.tap.plan("meters/1") is None
    assert setting.tap.plan("spBv1.0/STATE/host") is None
    assert source_of("spBv1.0/g/DBIRTH/e/d") == ("DBIRTH", ("g", "e", "d"))
    assert source_of("spBv1.0x/g/DBIRTH/e/d") is None


def test_the_senders_known_are_bounded() -> None:
    births = Births()
    for number in range(limits.MAX_SPARKPLUG_NODES + 1):
        births.learn(("g", str(number), ""), {"metrics": [{"name": "a", "alias": 1}]})
    assert len(births) == limits.MAX_SPARKPLUG_NODES
    assert births.metric(("g", "0", ""), {"alias": 1}) is None
    assert births.metric(("g", "1", ""), {"alias": 1}) == BirthMetric("a", None, {}, {})


def test_a_trial_teaches_nothing(setting: Setting) -> None:
    setting.functions.when_tried(lambda: sparkplug_functions(BuiltIn, setting.births.copy()))
    evaluate(
        "spb_decode(payload)", setting.functions.trial(), topic=NODE.format("NBIRTH"), payload=BIRTH
    )
    assert len(setting.births) == 0


def test_the_schema_is_built_in_under_a_name_no_user_can_take() -> None:
    registry = Registry(lambda name: None, lambda: ())
    assert registry.serde(SPARKPLUG_B) is sparkplug_serde()
    assert name_problem(SPARKPLUG_B) is not None


def test_a_broker_learns_from_births_that_no_rule_reads(tmp_path: Path) -> None:
    sql = 'SELECT spb_decode(payload) AS d FROM "spBv1.0/+/NDATA/#"'
    action = {"type": "republish", "topic": "names", "payload": "${d.metrics}"}
    with running(tmp_path / "data") as node:
        node.call("POST", "/rules", {"name": "spb", "sql": sql, "actions": [action]})
        heard: queue.Queue[Any] = queue.Queue()
        client = paho.Client(CallbackAPIVersion.VERSION2)

        def connected(*_: Any) -> None:
            client.subscribe("names", 1)

        def subscribed(*_: Any) -> None:
            client.publish(NODE.format("NBIRTH"), BIRTH, 1)
            client.publish(NODE.format("NDATA"), DATA, 1)

        client.on_connect, client.on_subscribe = connected, subscribed
        client.on_message = lambda _client, _data, message: heard.put(message.payload)
        client.connect(*node.mqtt)
        client.loop_start()
        try:
            first, second = json.loads(heard.get(timeout=60))
        finally:
            client.loop_stop()
    assert (first["name"], first["float_value"]) == ("temp", 21.5)
    assert "name" not in second


def test_properties_and_data_sets_are_zipped(setting: Setting) -> None:
    inner = {"keys": ["q"], "values": [{"type": 3, "int_value": 192}]}
    payload = encoded(
        {
            "name": "a",
            "properties": {
                "keys": ["unit", "more", "list"],
                "values": [
                    {"type": 12, "string_value": "C"},
                    {"propertyset_value": inner},
                    {"propertysets_value": {"propertyset": [inner, inner]}},
                ],
            },
        },
        {
            "name": "d",
            "dataset_value": {
                "num_of_columns": 2,
                "columns": ["x", "y"],
                "types": [3, 12],
                "rows": [{"elements": [{"int_value": 1}, {"string_value": "p"}]}],
            },
        },
        {
            "name": "t",
            "template_value": {"metrics": [{"name": "n", "properties": inner}], "parameters": []},
        },
    )
    value = evaluate(
        "spb_zip_kvs(spb_decode(payload))", setting.functions, topic="t", payload=payload
    )
    first, second, third = value["metrics"]
    quality = {"q": {"type": 3, "int_value": 192}}
    assert first["properties"] == {
        "unit": {"type": 12, "string_value": "C"},
        "more": {"propertyset_value": quality},
        "list": {"propertysets_value": [quality, quality]},
    }
    assert second["dataset_value"]["rows"] == [{"x": {"int_value": 1}, "y": {"string_value": "p"}}]
    assert third["template_value"]["metrics"][0]["properties"] == quality


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("spb_decode(payload)", "payload: 117 bytes are announced, 5 left"),
        (
            "spb_decode(map_new())",
            "argument 1 must be encoded data, not a map; it is decoded already",
        ),
        ("spb_decode(payload, 'Nothing')", "has no message type 'Nothing'"),
        ("spb_encode(5)", "must be a map"),
        ('spb_encode(map(\'{"metrics":[{"bytes_value":"!"}]}\'))', "a bytes_value is not base64"),
        ("spb_encode(map('{\"colour\":1}'))", "payload.colour"),
        ("sparkplug_decode(payload)", "payload: 117 bytes are announced, 5 left"),
        ("spb_zip_kvs(map(m))", "a property set has 1 keys and 0 values"),
        ("spb_zip_kvs(map(k))", "needs an array of strings as keys"),
        ("spb_zip_kvs(map(r))", "the rows of a data set must be an array of maps"),
    ],
)
def test_failure(setting: Setting, expression: str, message: str) -> None:
    columns = {
        "payload": "rubbish",
        "m": '{"metrics":[{"properties":{"keys":["a"],"values":[]}}]}',
        "k": '{"metrics":[{"properties":{"keys":[1],"values":[1]}}]}',
        "r": '{"metrics":[{"dataset_value":{"columns":["a"],"rows":[1]}}]}',
    }
    with pytest.raises((EvaluationError, Invalid)) as caught:
        evaluate(expression, setting.functions, topic="t", **columns)
    assert message in str(caught.value)
