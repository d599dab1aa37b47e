"""Payloads and schemas made to stall, blow up or end a broker: each is refused in one sentence.

Nobody else notices: a client beside them measures how long its own messages take all the while, and the broker's memory
is looked at in the end.
"""

from __future__ import annotations

import gzip
import json
import os
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.clients import Client
from tests.support.node import Node, eventually, running
from tests.support.processor import Stopwatch, is_within

WORST_LATENCY_S = 1.5
"""Longest that a message of another client may take, on a machine that does other things as well."""
MOST_MEMORY = 400 * 1024 * 1024
"""Most that the broker's memory may have grown at its peak."""
REFUSED = 0x99
"""Payload format invalid."""


class Bystander:
    """A client that publishes to itself and keeps the longest time that a message took.

    What it and the broker waited for a processor is left out of account.
    """

    def __init__(self, node: Node) -> None:
        self._pids = os.getpid(), node.pid
        self._client = Client(node, "bystander")
        self._client.subscribe("bystander", 1)
        self._is_over = threading.Event()
        self.worst_s, self.seen = 0.0, 0
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="bystander", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._is_over.wait(0.01):
                watch = Stopwatch(*self._pids)
                self._client.publish("bystander", str(self.seen))
                assert self._client.take().payload == str(self.seen).encode()
                self.worst_s = max(self.worst_s, watch.elapsed_s())
                self.seen += 1
        except Exception as error:  # noqa: BLE001 # told by check(), on the test's own thread
            self.error = error

    def check(self) -> None:
        """Nothing it sent was late or lost since the last check."""
        assert self.error is None, repr(self.error)
        worst_s, self.worst_s = self.worst_s, 0.0
        assert is_within(worst_s, WORST_LATENCY_S), (
            f"a message of another client took {worst_s:.2f} s"
        )

    def close(self) -> None:
        self._is_over.set()
        self._thread.join(20)
        self._client.close()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker in one process throughout; its log has no traceback, its memory is bounded."""
    with running(
        tmp_path_factory.mktemp("hostile") / "node", config="lake.run_spark = false\n"
    ) as node:
        assert node.process is not None
        process = node.process.pid
        before = _peak_bytes(process)
        yield node
        assert node.process.poll() is None
        assert node.process.pid == process
        assert _peak_bytes(process) - before < MOST_MEMORY
        log = node.log.read_text()
        assert "Traceback" not in log, log


def _peak_bytes(process: int) -> int:
    """The most memory that a process had so far."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


@pytest.fixture(scope="module")
def client(node: Node) -> Iterator[Client]:
    with Client(node, "hostile") as client:
        client.subscribe("hostile/#", 1)
        yield client


@pytest.fixture(scope="module")
def bystander(node: Node) -> Iterator[Bystander]:
    made = Bystander(node)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _nobody_else_notices(bystander: Bystander) -> Iterator[None]:
    bystander.check()
    yield
    bystander.check()


# -- payloads --


@dataclass(frozen=True)
class Hostile:
    """A payload under a schema. ``says`` stands in the reason it is refused with; it is delivered where that is ""."""

    kind: str
    source: Any
    payload: bytes
    says: str
    message_type: str | None = None


def _json(payload: bytes, says: str, **schema: Any) -> Hostile:
    return Hostile("json", schema, payload, says)


def _avro(source: Any, payload: bytes, says: str) -> Hostile:
    return Hostile("avro", source, payload, says)


def _proto(payload: bytes, says: str) -> Hostile:
    fields = "".join(f"int32 f{i} = {i + 1};" for i in range(200))
    source = (
        'syntax = "proto3"; message M { string s = 1; M m = 2; int64 n = 3; repeated Wide w = 4;'
        f" repeated int32 l = 5; }} message Wide {{ {fields} }}"
    )
    return Hostile("protobuf", source, payload, says, "M")


def _nested_json(levels: int, inner: Any) -> bytes:
    for level in range(levels):
        inner = {"a": inner, "k": ("plus", "minus")[level % 2]}
    return json.dumps(inner).encode()


def _nested_proto(levels: int) -> bytes:
    data = b""
    for _ in range(levels):
        size, left = bytearray(), len(data)
        while left > 127:
            size.append(left & 127 | 128)
            left >>= 7
        data = b"\x12" + bytes([*size, left]) + data
    return data


LIST = {"type": "record", "name": "node", "fields": [{"name": "next", "type": ["null", "node"]}]}
EXPRESSION = [
    {"type": "object", "required": ["a"], "properties": {"k": {"const": kind}, "a": {"$ref": "#"}}}
    for kind in ("plus", "minus")
]
TWO_TO_THE_40 = b"\x80\x80\x80\x80\x80\x40"

PAYLOADS = {
    # JSON that is none
    "JSON of 10,000 levels": _json(b"[" * 10_000 + b"]" * 10_000, "nests deeper than 128 levels"),
    "objects of 10,000 levels": _json(b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "nests deeper than 128 levels"),
    "an array that only opens": _json(b"[" * 1_000_000, "more than 100000 arrays and objects"),
    "NaN": _json(b'{"a": NaN}', "not JSON"),
    "Infinity": _json(b'{"a": -Infinity}', "not JSON"),
    "1e400": _json(b'{"a": 1e400}', "out of range"),
    "a lone surrogate": _json(b'{"a": "\\ud800"}', "not JSON"),
    "a byte order mark": _json(b"\xef\xbb\xbf{}", "not JSON"),
    "bytes that are not UTF-8": _json(b'{"a": "\xff\xfe"}', "not JSON"),
    "an integer of 5,000 digits": _json(b"1" * 5_000, "not JSON"),
    "an integer of a million digits": _json(b"1" * 1_000_000, "not JSON"),
    "bytes after the value": _json(b"{} {}", "not JSON"),
    "a comma too many": _json(b"[1,]", "not JSON"),
    "nothing": _json(b"", "empty text is not JSON"),
    # JSON that is right
    "an integer of 4,000 digits": _json(b"1" * 4_000, "", type="integer", minimum=10**30),
    "a key twice, of which the last counts": _json(b'{"a": "x", "a": 1}', "", properties={"a": {"type": "integer"}}),
    "a schema that is itself": _json(b"1", "", **{"$ref": "#"}),
    # JSON that takes long
    "a pattern that backtracks": _json(json.dumps("a" * 900_000 + "!").encode(), "payload", pattern="^(a+)+$"),
    "many texts for such a pattern": _json(
        json.dumps(["a" * 40 + "!"] * 20_000).encode(), "payload[0]", items={"pattern": "^(a|aa)+$"}
    ),
    "a pattern with look-around": _json(json.dumps("a" * 900_000 + "!").encode(), "at most", pattern="(?=a)(a+)+$"),
    "a pattern that refers back": _json(
        json.dumps(["a" * 40 + "!"] * 20_000).encode(), "at most", items={"not": {"pattern": r"(a|aa)+\1$"}}
    ),
    "objects that must differ": _json(
        json.dumps([{"k": number} for number in range(60_000)] + [{"k": 1}]).encode(), "unique", uniqueItems=True
    ),
    "300,000 wrong items": _json(json.dumps([1] * 300_000).encode(), "payload[0]", items={"type": "string"}),
    "300,000 items wrong either way": _json(
        json.dumps([1] * 300_000).encode(), "too large",
        anyOf=[{"items": {"type": "string"}}, {"items": {"type": "null"}}],
    ),
    "30,000 members too many": _json(
        json.dumps(dict.fromkeys(map(str, range(30_000)), 1)).encode(), "payload", additionalProperties=False
    ),
    "alternatives at every level": _json(_nested_json(100, "x"), "too deep", oneOf=[{"type": "integer"}, *EXPRESSION]),
    "a large enumeration": _json(
        json.dumps([{"a": 9_999}] * 70_000).encode(), "at most", items={"enum": [{"a": n} for n in range(10_000)]}
    ),
    # Avro
    "a list of 900,000 nodes": _avro(LIST, b"\x02" * 900_000 + b"\x00", "nests too deep"),
    "2^40 items": _avro({"type": "array", "items": "int"}, TWO_TO_THE_40, "1,099,511,627,776 items are announced"),
    "2^40 pairs": _avro({"type": "map", "values": "null"}, TWO_TO_THE_40, "1,099,511,627,776 items are announced"),
    "a text of 2^40 bytes": _avro("string", TWO_TO_THE_40 + b"abc", "3 left"),
    "bytes of a negative length": _avro("bytes", b"\x01abc", "-1 bytes"),
    "a number that does not end": _avro("long", b"\xff" * 100_000, "more than 10 bytes"),
    "Avro with bytes left over": _avro("int", b"\x02\x00\x00", "2 bytes are left over"),
    "a union without such a branch": _avro(["null", "int"], b"\x63", "no branch"),
    "a million small records": _avro(
        {"type": "array", "items": {"type": "record", "name": "r", "fields": [{"name": "b", "type": "boolean"}]}},
        b"\x80\x89\x7a" + b"\x01" * 1_000_000, "more than 50000 values",
    ),
    # Protobuf
    "messages of 200 levels": _proto(_nested_proto(200), "nest deeper than 100 levels"),
    "messages of 10,000 levels": _proto(_nested_proto(10_000), "nest deeper than 100 levels"),
    "groups of 300,000 levels": _proto(b"\xfb\x01" * 300_000, "nest deeper than 100 levels"),
    "a number cut short": _proto(b"\x18\xff\xff", "payload.n: expected a number, got the end of the data"),
    "a number of 11 bytes": _proto(b"\x18" + b"\xff" * 11, "payload.n: byte 1: expected a number of at most 10 bytes"),
    "a text of 4 GiB": _proto(b"\x0a\xff\xff\xff\xff\x0fabc", "payload.s: 4,294,967,295 bytes are announced, 3 left"),
    "a packed list of 4 GiB": _proto(b"\x2a\xff\xff\xff\xff\x0f\x01", "4,294,967,295 bytes are announced"),
    "a text that is not UTF-8": _proto(b"\x0a\x02\xff\xfe", "payload.s: expected text, got bytes"),
    "half a million wide messages": _proto(b"\x22\x00" * 500_000, "at most 500000 values"),
}  # fmt: skip


@pytest.mark.parametrize("name", PAYLOADS)
def test_a_hostile_payload_is_refused_in_one_sentence(
    node: Node, client: Client, name: str
) -> None:
    case = PAYLOADS[name]
    source = case.source if case.kind == "protobuf" else json.dumps(case.source)
    node.call("POST", "/schemas", {"name": "hostile", "type": case.kind, "source": source})
    check = {"type": case.kind, "schema": "hostile"} | (
        {"message_type": case.message_type} if case.message_type else {}
    )
    node.call("POST", "/validations", {
        "name": "hostile", "topics": ["hostile/#"], "strategy": "all_pass", "failure_action": "drop", "checks": [check],
    })  # fmt: skip
    try:
        reason, properties = client.publish("hostile/t", case.payload)
        if case.says:
            _is_refusal(reason, properties, case)
        else:
            assert not reason.is_failure, properties
            assert client.take().payload == case.payload
    finally:
        node.call("DELETE", "/validations/hostile")
        node.call("DELETE", "/schemas/hostile?permanent=true")


def _is_refusal(reason: Any, properties: Any, case: Hostile) -> None:
    assert reason.value == REFUSED, (reason, properties)
    assert case.says in properties.ReasonString
    assert "\n" not in properties.ReasonString
    assert len(properties.ReasonString) < 600


def test_exact_integers_pass_a_transformation(node: Node, client: Client) -> None:
    node.call("POST", "/transforms", {
        "name": "exact", "topics": ["hostile/#"], "failure_action": "drop", "payload_decoder": {"type": "json"},
        "payload_encoder": {"type": "json"}, "operations": [{"key": "payload.seen", "value": "topic"}],
    })  # fmt: skip
    try:
        digits = "7" * 4_000
        reason, _ = client.publish("hostile/t", f'{{"n":{digits},"m":-9223372036854775809}}')
        assert not reason.is_failure
        assert (
            client.take().payload
            == f'{{"n":{digits},"m":-9223372036854775809,"seen":"hostile/t"}}'.encode()
        )
    finally:
        node.call("DELETE", "/transforms/exact")


def test_a_transformation_refuses_what_its_decoder_cannot_read(node: Node, client: Client) -> None:
    node.call("POST", "/schemas", {"name": "list", "type": "avro", "source": json.dumps(LIST)})
    node.call("POST", "/transforms", {
        "name": "deep", "topics": ["hostile/#"], "failure_action": "drop", "operations": [],
        "payload_decoder": {"type": "avro", "schema": "list"}, "payload_encoder": {"type": "json"},
    })  # fmt: skip
    try:
        reason, properties = client.publish("hostile/t", b"\x02" * 900_000 + b"\x00")
        assert reason.value == REFUSED
        assert "nests too deep" in properties.ReasonString
    finally:
        node.call("DELETE", "/transforms/deep")
        node.call("DELETE", "/schemas/list")


# -- schemas --


def _chain(links: int, link: Callable[[dict[str, str]], dict[str, Any]]) -> str:
    defs: dict[str, Any] = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(links)}
    return json.dumps({"$ref": "#/$defs/d0", "$defs": {**defs, f"d{links}": {"type": "integer"}}})


def _unfolding_avro() -> str:
    fields = [{"name": f"l{i}", "type": {"type": "record", "name": f"r{i}", "fields": [
        {"name": side, "type": "int" if i == 0 else f"r{i - 1}"} for side in "ab"]}} for i in range(25)]  # fmt: skip
    return json.dumps({"type": "record", "name": "top", "fields": fields})


_NESTED_PROTO = (
    "".join(f"message A{i} {{ optional int32 x = 1;" for i in range(1_000)) + "}" * 1_000
)
_DEEP_AVRO = '{"type":"array","items":' * 10_000 + '"int"' + "}" * 10_000
_DEEP_JSON = '{"not":' * 10_000 + "{}" + "}" * 10_000

SCHEMAS: dict[str, tuple[str, Any, str]] = {
    "definitions that double": ("json", _chain(40, lambda next_one: {"allOf": [next_one, next_one]}), "unfold"),
    "15,000 references in a row": ("json", _chain(15_000, lambda next_one: {**next_one}), "unfold"),
    "a schema of 10,000 levels": ("json", _DEEP_JSON, "128 levels"),
    "a schema of 1.5 MiB": ("json", json.dumps({"description": "x" * 1536 * 1024}), "at most 1048576 bytes"),
    "a reference to a server": ("json", '{"$ref": "http://192.0.2.1/x.json"}', "nothing is fetched"),
    "a reference to a file": ("json", '{"$ref": "file:///etc/passwd"}', "nothing is fetched"),
    "a reference to nothing": ("json", '{"$ref": "#/$defs/no"}', "/$defs/no"),
    "a meta-schema elsewhere": ("json", '{"$schema": "http://192.0.2.1/meta"}', "unknown draft"),
    "a pattern that is none": ("json", '{"pattern": "("}', "schema.pattern"),
    "a pattern that is huge when compiled": ("json", json.dumps({"pattern": r"(\w{1,500}){1,500}"}), "pattern"),
    "many such patterns": (
        "json", json.dumps({"properties": {f"p{i}": {"pattern": rf"^(\p{{L}}{{1,{20 + i % 20}}})+{i}$"}
                                   for i in range(800)}}),
        "longer than",
    ),
    "records that double": ("avro", _unfolding_avro(), "unfolds to more than"),
    "an Avro schema of 10,000 levels": ("avro", _DEEP_AVRO, "128 levels"),
    "messages of 1,000 levels": ("protobuf", _NESTED_PROTO, "at most 32 levels"),
    "a text of 1.5 MiB": ("protobuf", "/" * 1536 * 1024, "at most 1048576 bytes"),
    "a comment that does not end": ("protobuf", "/*" * 400_000, "unexpected character"),
    "a text that does not end": ("protobuf", '"' + "\\" * 900_000, "unexpected character"),
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_hostile_schema_is_refused_in_one_sentence(node: Node, name: str) -> None:
    kind, source, says = SCHEMAS[name]
    watch, began_s = Stopwatch(node.pid), time.monotonic()
    problem = node.call(
        "POST", "/schemas", {"name": "bomb", "type": kind, "source": source}, expect=422
    )
    elapsed_s = watch.elapsed_s()
    assert elapsed_s < 10
    waited_s = time.monotonic() - began_s - elapsed_s
    # a broker that waits for processors spends its 5 s on that
    assert says in problem["detail"] or (waited_s > 1 and "longer than" in problem["detail"])
    assert "\n" not in problem["detail"]
    assert len(problem["detail"]) < 1000
    node.call("GET", "/schemas/bomb", expect=404)


def test_an_archive_that_unpacks_to_a_gigabyte_is_refused(node: Node) -> None:
    packed = gzip.compress(bytes(512 * 1024 * 1024), compresslevel=1)
    with node.client() as http:
        answer = http.post(
            "/schemas:bundle",
            files={
                "name": (None, "bomb"),
                "root_proto_file": (None, "a.proto"),
                "bundle": ("b.tgz", packed),
            },
        )
    assert answer.status_code == 422
    assert "at most 10485760 bytes" in answer.json()["detail"]


@pytest.mark.parametrize("verb", ["decode", "validate"])
def test_the_calls_that_try_a_schema_are_not_stalled_either(node: Node, verb: str) -> None:
    def tried(body: dict[str, Any]) -> float:
        watch = Stopwatch(node.pid)
        node.call("POST", f"/schemas:{verb}", body, expect=(200, 422))
        return watch.elapsed_s()

    for name in (
        "alternatives at every level",
        "300,000 items wrong either way",
        "a list of 900,000 nodes",
    ):
        case = PAYLOADS[name]
        payload = {"encoding": "base64", "data": b64encode(case.payload).decode()}
        body = {"type": case.kind, "source": json.dumps(case.source), "payload": payload}
        # Again while it is 503: what was tried before may still have all the threads.
        assert eventually(partial(tried, body)) < 5
