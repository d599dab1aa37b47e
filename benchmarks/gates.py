"""Microseconds a message for the two gates: a JSON-Schema validation and a transformation of 128 B of JSON.

python -m benchmarks.gates
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from broker.core.client import Client
from broker.core.clock import SystemClock
from broker.core.events import Events
from broker.core.feature import Services
from broker.core.message import Message
from broker.core.objects import MemorySection
from broker.core.schema import NoSchemas
from broker.core.stage import Refusal
from broker.observe.metrics import Metrics
from schema_validation.feature import SchemaValidationFeature
from transforms.feature import TransformsFeature

PAYLOAD = (
    b'{"device":"meter-0042","ts":1700000000123,"temperature":21.5,"humidity":48.25,'
    b'"voltage":229.9,"state":"ok","seq":12345,"fw":"1.4"}'
)
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
TRANSFORMATION = {
    "name": "site",
    "topics": ["meters/#"],
    "failure_action": "drop",
    "payload_decoder": {"type": "json"},
    "payload_encoder": {"type": "json"},
    "operations": [
        {"key": "payload.site", "value": "nth(2, topic_split(topic))"},
        {"key": "user_property.device", "value": "payload.device"},
    ],
}
MESSAGES, ROUNDS = 500, 60


class _NoPlans:
    def invalidate(self) -> None:
        """There is no cache here."""


class _Unused:
    """In place of what these features do not use."""

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(name)


def _gates() -> tuple[Callable[[Message], Message | Refusal], Callable[[Message], Message | Refusal]]:
    services = Services(
        "bench", SystemClock(), Events(), _NoPlans(), _Unused(), _Unused(), NoSchemas(), lambda path: MemorySection(),
        Metrics(),
    )  # fmt: skip
    validation, transformation = SchemaValidationFeature(services), TransformsFeature(services)
    validation.start()
    transformation.start()
    validation.schemas.create({"name": "meter", "type": "json", "source": SCHEMA})
    validation.validations.create(
        {
            "name": "meters",
            "topics": ["meters/#"],
            "strategy": "all_pass",
            "failure_action": "drop",
            "checks": [{"type": "json", "schema": "meter"}],
        }
    )
    transformation.service.create(TRANSFORMATION)
    topic = "meters/berlin/42"
    validate, transform = validation.gates[-1].plan(topic), transformation.gates[0].plan(topic)
    assert validate is not None
    assert transform is not None
    return validate, transform


def _measured(call: Callable[[Message], Any]) -> float:
    """Best round, in µs a message; each message is new, so that its payload is decoded each time."""
    client = Client("c1")

    def fresh() -> Message:
        return Message("meters/berlin/42", PAYLOAD, 0, False, client, 1)

    def spent() -> float:
        messages = [fresh() for _ in range(MESSAGES)]
        start = time.perf_counter()
        for message in messages:
            call(message)
        return (time.perf_counter() - start) / MESSAGES * 1e6

    return min(spent() for _ in range(ROUNDS))


def main() -> None:
    """Print the figures."""
    validate, transform = _gates()

    def both(message: Message) -> Message | Refusal:
        passed = validate(message)
        return passed if isinstance(passed, Refusal) else transform(passed)

    refused = Message("meters/berlin/42", PAYLOAD.replace(b"21.5", b'"hot"'), 0, False, Client("c1"), 1)
    print(f"payload             {len(PAYLOAD)} B")
    print(f"decode only         {_measured(lambda message: message.json()):6.2f} µs")
    print(f"validation          {_measured(validate):6.2f} µs")
    print(f"transformation      {_measured(transform):6.2f} µs")
    print(f"both                {_measured(both):6.2f} µs")
    print(f"refusal             {validate(refused)}")


if __name__ == "__main__":
    main()
