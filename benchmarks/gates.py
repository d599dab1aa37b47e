"""Microseconds a message for the two gates: checks by schemas of each kind and a transformation, of 128 B telemetry.

python -m benchmarks.gates

Each figure is the best of many rounds, with what is wanted of it; the exit status is 1 where one is missed. Payloads
are new for each call, so that nothing is decoded once and used again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, cast

from broker.core.client import Client
from broker.core.clock import SystemClock
from broker.core.events import Events
from broker.core.feature import MessagingPort, MonitoringPort, NodePort, Services, StoragePort
from broker.core.message import Message
from broker.core.objects import MemorySection
from broker.observe.metrics import Metrics
from schema_validation.feature import SchemaValidationFeature
from transforms.feature import TransformsFeature
from transforms.variform.compiler import compile_expression

PAYLOAD = (
    b'{"device":"meter-0042","ts":1700000000123,"temperature":21.5,"humidity":48.25,'
    b'"voltage":229.9,"state":"ok","seq":12345,"fw":"1.4"}'
)
BAD_PAYLOAD = PAYLOAD.replace(b"21.5", b'"hot"')
SCHEMA = {
    "type": "object",
    "required": ["device", "ts", "temperature"],
    "properties": {
        "device": {"type": "string", "maxLength": 64},
        "ts": {"type": "integer", "minimum": 0},
        "temperature": {"type": "number", "minimum": -60, "maximum": 120},
        "humidity": {"type": "number"},
        "voltage": {"type": "number"},
        "state": {"enum": ["ok", "low", "fault"]},
        "seq": {"type": "integer"},
    },
}
VALUE: dict[str, Any] = json.loads(PAYLOAD)
AVRO = {
    "type": "record",
    "name": "meter",
    "fields": [
        {"name": "device", "type": "string"},
        {"name": "ts", "type": "long"},
        {"name": "temperature", "type": "double"},
        {"name": "humidity", "type": ["null", "double"]},
        {"name": "voltage", "type": "double"},
        {
            "name": "state",
            "type": {"type": "enum", "name": "state", "symbols": ["ok", "low", "fault"]},
        },
        {"name": "seq", "type": "int"},
        {"name": "fw", "type": "string"},
    ],
}
PROTOBUF = """
syntax = "proto3";
message Meter {
    string device = 1; int64 ts = 2; double temperature = 3; optional double humidity = 4; double voltage = 5;
    State state = 6; int32 seq = 7; string fw = 8;
    enum State { ok = 0; low = 1; fault = 2; }
}
"""
TRANSFORMATION = {
    "name": "site",
    "topics": ["meters/#"],
    "failure_action": "drop",
    "payload_decoder": {"type": "json"},
    "payload_encoder": {"type": "json"},
    "operations": [
        {"key": "payload.site", "value": "nth(2, topic_split(topic))"},
        {"key": "payload.state", "value": "upper(payload.state)"},
        {"key": "user_property.device", "value": "payload.device"},
    ],
}
VARIFORM = "upper(trim(concat(clientid, '-x')))"
CHECKS: Mapping[str, Mapping[str, Any]] = {
    "json": {"type": "json", "schema": "json"},
    "avro": {"type": "avro", "schema": "avro"},
    "protobuf": {"type": "protobuf", "schema": "protobuf", "message_type": "Meter"},
}
SOURCES: Mapping[str, Any] = {"json": SCHEMA, "avro": AVRO, "protobuf": PROTOBUF}
TOPIC = "meters/berlin/42"
MESSAGES, ROUNDS = 500, 150
NOISE_US = 0.25
"""Two measurements of the same work differ by so much."""

Call = Callable[[Any], Any]


class _NoPlans:
    def invalidate(self) -> None:
        """There is no cache here."""


class _Unused:
    """In place of what these features do not use."""

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(name)


def _services() -> Services:
    return Services(
        NodePort("bench", SystemClock()),
        MessagingPort(Events(), _NoPlans(), _Unused(), lambda _name, _value: None),
        StoragePort(lambda path: MemorySection(), _Unused()),
        MonitoringPort(Metrics()),
    )


def _validating(kind: str, others: int = 0) -> tuple[Call, bytes]:
    """A gate with one check of a kind, and a payload that passes it; ``others`` more validations on other topics."""
    feature = SchemaValidationFeature(_services())
    feature.start()
    feature.schemas.create({"name": kind, "type": kind, "source": SOURCES[kind]})
    for number in range(others + 1):
        feature.validations.create(
            {
                "name": f"v{number}",
                "topics": ["meters/#" if number == others else f"other/{number}/#"],
                "strategy": "all_pass",
                "failure_action": "drop",
                "checks": [CHECKS[kind]],
            }
        )
    call = cast("Call", feature.gates[-1].plan(TOPIC))
    serde = feature.schemas.registry.serde(kind)
    payload = PAYLOAD if kind == "json" else serde.encode(VALUE, CHECKS[kind].get("message_type"))
    assert isinstance(call(_message(payload)), Message)
    return call, payload


def _transforming() -> Call:
    feature = TransformsFeature(_services())
    feature.start()
    feature.service.create(TRANSFORMATION)
    return cast("Call", feature.gates[0].plan(TOPIC))


def _message(payload: bytes) -> Message:
    return Message(TOPIC, payload, 0, False, _CLIENT, 1)


def _from_v5(message: Message) -> Message:
    """The message, from a client that gets the reason of a refusal."""
    return Message(TOPIC, message.payload, 1, False, _CLIENT_5, 1)


_CLIENT, _CLIENT_5 = Client("c1"), Client("c1", protocol_version=5)


def _spent_us(call: Call, made: Callable[[], Any]) -> float:
    """A round, in µs a call; each message is new, so that its payload is decoded each time."""
    arguments = [made() for _ in range(MESSAGES)]
    start = time.perf_counter()
    for argument in arguments:
        call(argument)
    return (time.perf_counter() - start) / MESSAGES * 1e6


def _best(cases: Mapping[str, tuple[Call, bytes | dict[str, Any]]]) -> dict[str, float]:
    """The best round of each case, which is given a payload or bindings.

    The cases take turns, so that what else the machine does meets them alike.
    """
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(ROUNDS):
        for name, (call, given) in cases.items():
            made = partial(_message, given) if isinstance(given, bytes) else given.copy
            best[name] = min(best[name], _spent_us(call, made))
    return best


def _figures() -> Iterator[tuple[str, float, float | None]]:
    """What, µs, and the most that is wanted."""
    json_check, _ = _validating("json")
    transform = _transforming()
    best = _best(
        {
            "decode": (lambda message: message.json(), PAYLOAD),
            "json": (json_check, PAYLOAD),
            "avro": _validating("avro"),
            "protobuf": _validating("protobuf"),
            "among others": _validating("json", others=50),
            "transform": (transform, PAYLOAD),
            "variform": (compile_expression(VARIFORM).evaluate, {"clientid": "meter-0042"}),
            "both": (lambda message: transform(json_check(message)), PAYLOAD),
            "refused": (json_check, BAD_PAYLOAD),
            "explained": (lambda message: json_check(_from_v5(message)), BAD_PAYLOAD),
        }
    )
    yield "JSON, decode only", best["decode"], None
    yield "JSON Schema check, beyond the decode", best["json"] - best["decode"], 1.5
    yield "Avro, decode and check", best["avro"], 5.0
    yield "Protobuf, decode and check", best["protobuf"], 8.0
    yield "transformation of three operations", best["transform"], 6.0
    yield "variform, three nested functions", best["variform"], 1.0
    yield (
        "50 validations on other topics, beyond one here",
        best["among others"] - best["json"],
        NOISE_US,
    )
    yield "JSON Schema check and transformation", best["both"], None
    yield "refusal by a JSON Schema, one of many", best["refused"], round(best["both"], 2)
    yield "refusal by a JSON Schema, with its reason", best["explained"], None


def main() -> int:
    """Print the figures; 1 where one is more than wanted."""
    missed = 0
    print(f"payload: {len(PAYLOAD)} B of JSON")
    for what, found_us, wanted_us in _figures():
        target = "" if wanted_us is None else f"   wanted: at most {wanted_us:g} µs"
        is_missed = wanted_us is not None and found_us > wanted_us
        missed += is_missed
        print(f"{what:<50}{found_us:7.2f} µs{target}{', missed' if is_missed else ''}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
