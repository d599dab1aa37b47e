"""The command line on a broker that runs: settings in force, files as they are, exit codes, what people read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from broker.cli import exit_codes
from broker.cli.main import main
from tests.support.node import TOKEN, Node, running
from tests.support.processor import is_within

_SECRET = "not-to-be-shown-anywhere-0123456789"
_CONFIG = f"""
overload.enable = false
mqtt.max_packet_size = 2MB
store.max_backlog_bytes = 32MB
authentication = [{{ mechanism = jwt, enable = false, secret = "{_SECRET}" }}]
"""
_OTHERS = 1.6
AVRO = '{"type": "record", "name": "Device", "fields": [{"name": "t", "type": "double"}]}'
PROTO = 'syntax = "proto3";\nmessage Device { double t = 1; }\n'
JSON = '{"type": "object", "properties": {"t": {"type": "number"}}}'
RULE = """
name = warm
sql = "SELECT payload.t AS t FROM \\"t/#\\" WHERE payload.t > 20"
actions = [{ type = republish, topic = "out/x", payload = "${t}" }]
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("cli") / "data", config=_CONFIG) as node:
        yield node


@pytest.fixture(autouse=True)
def _here(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLUICE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLUICE_API_TOKEN", TOKEN)
    monkeypatch.setenv("SLUICE_DATA_DIR", str(node.data_dir))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that succeeds, or ends with the code that is given; what it printed."""

    def run(*words: str, code: int = 0) -> str:
        capsys.readouterr()
        assert main(words) == code
        shown = capsys.readouterr()
        return shown.out + shown.err

    return run


def test_config_show_is_what_the_broker_uses_with_sources_and_what_differs(
    node: Node, run: Callable[..., str]
) -> None:
    file = node.data_dir / "sluice.conf"
    file.write_text(
        _CONFIG.replace("= 2MB", "= 3MB").replace(_SECRET, "another-secret-0123456789-0123456789")
    )
    try:
        text = run("config", "show")
        found = {item["key"]: item for item in json.loads(run("config", "show", "--json"))["items"]}
    finally:
        file.write_text(_CONFIG)
    assert [found["mqtt.max_packet_size"][key] for key in ("value", "set_by")] == [
        2 * 1024**2,
        f"{file} line 3",
    ]
    assert found["mqtt.max_packet_size"]["in_files"] == {
        "value": 3 * 1024**2,
        "set_by": f"{file} line 3",
    }
    assert "in_files" not in found["store.max_backlog_bytes"]
    assert "in_files" in found["authentication.chain"]  # the secret is another
    assert found["mqtt.max_qos"]["set_by"] == "default" if "mqtt.max_qos" in found else True
    assert found["api.bind"]["set_by"] == "command line"
    assert _SECRET not in text + json.dumps(found)
    [line] = [line for line in text.splitlines() if line.startswith("mqtt.max_packet_size ")]
    assert line.split()[1] == "2MB"
    assert line.endswith(f"3MB ({file} line 3)")
    [line] = [line for line in text.splitlines() if line.startswith("alarms.history_age ")]
    assert line.split()[1] == "1d"


def test_config_show_without_a_broker_says_how_to_read_the_files(
    run: Callable[..., str], tmp_path: Path
) -> None:
    nowhere = ("--data-dir", str(tmp_path / "none"), "--url", "http://127.0.0.1:1")
    assert "Try: sluice config show --files" in run(
        "config", "show", *nowhere, code=exit_codes.NOT_REACHABLE
    )
    assert "default" in run("config", "show", "--files", *nowhere)


@pytest.mark.parametrize(
    ("file", "source", "kind"),
    [("d1.avsc", AVRO, "avro"), ("d2.proto", PROTO, "protobuf"), ("d3.json", JSON, "json")],
)
def test_the_source_of_a_schema_is_applied_as_it_is(
    node: Node, run: Callable[..., str], file: str, source: str, kind: str
) -> None:
    Path(file).write_text(source)
    name = Path(file).stem
    assert run("schemas", "apply", "-f", file) == f"schema {name} created\n"
    assert node.call("GET", f"/schemas/{name}")["type"] == kind
    assert run("schemas", "apply", "-f", file, "--name", f"{name}-b", "--json").startswith("{")
    shown = {key: node.call("GET", f"/schemas/{name}")[key] for key in ("name", "type", "source")}
    Path("shown.json").write_text(json.dumps([shown]))
    assert run("schemas", "apply", "-f", "shown.json") == f"schema {name} replaced\n"


def test_what_schemas_check_recommends_works(run: Callable[..., str]) -> None:
    Path("narrow.json").write_text(JSON)
    run("schemas", "apply", "-f", "narrow.json")
    validation = "name=v, topics=[v], failure_action=drop, strategy=all_pass, checks=[{type=avro, schema=narrow}]"
    Path("wide.avsc").write_text(AVRO)
    assert validation
    said = run("schemas", "check", "narrow", "-f", "wide.avsc", code=exit_codes.CHECK_SAID_NO)
    assert "Error: " in said
    Path("broken.json").write_text('{"type": 5}')
    assert "Error: " in run(
        "schemas", "check", "narrow", "-f", "broken.json", code=exit_codes.CHECK_SAID_NO
    )
    assert (
        run("schemas", "apply", "-f", "narrow.json", "--name", "narrow", "--force")
        == "schema narrow replaced\n"
    )


def test_checks_that_say_no_end_with_seven(run: Callable[..., str]) -> None:
    case = '\ntests = [{ name = cold, event = { topic = "t/a", payload = "{}" }, expect = { rows = [{ t = 1 }] } }]'
    Path("rule.conf").write_text(RULE + case)
    run("rules", "apply", "-f", "rule.conf", "--force")
    assert "1 failed" in run("rules", "test", "warm", code=exit_codes.CHECK_SAID_NO)
    assert "Error: " in run(
        "rules", "check", "--sql", 'SELECT nofun(1) FROM "a"', code=exit_codes.CHECK_SAID_NO
    )
    assert "Error: " in run("rules", "check", "--sql", "SELECT", code=exit_codes.CHECK_SAID_NO)
    run("rules", "rm", "warm", "--yes")


def test_access_check_answers_on_a_broker_without_rules(run: Callable[..., str]) -> None:
    assert run("access", "check", "c1", "publish", "a/b").startswith("allowed, by ")


def test_a_rule_is_shown_readably(run: Callable[..., str]) -> None:
    Path("rule.conf").write_text(RULE)
    run("rules", "apply", "-f", "rule.conf")
    shown = run("rules", "show", "warm")
    assert '{"' not in shown
    assert ["topic", "out/x"] in [line.split() for line in shown.splitlines()]
    assert ["matched", "0"] in [line.split() for line in shown.splitlines()]


@pytest.mark.parametrize("other", ["list", "ls"])
@pytest.mark.parametrize(
    "group",
    [
        "rules", "schemas", "validations", "transforms", "rewrites", "auto-subscriptions", "streams", "connectors",
        "actions", "sources", "clients", "sessions", "subscriptions", "retained", "groups", "users", "bans", "delayed",
        "listeners", "quarantine",
    ],
)  # fmt: skip
def test_every_group_has_the_same_verbs(run: Callable[..., str], group: str, other: str) -> None:
    assert run(group, other).strip() or group == "quarantine"


def test_other_words_for_show_and_rm(run: Callable[..., str]) -> None:
    Path("rule.conf").write_text(RULE)
    run("rules", "apply", "-f", "rule.conf")
    assert run("rules", "get", "warm") == run("rules", "show", "warm")
    assert run("rules", "delete", "warm", "--yes") == "rule warm removed\n"


def test_a_comment_in_the_file_of_the_api_takes_a_reload(
    node: Node, run: Callable[..., str]
) -> None:
    Path("rule.conf").write_text(RULE)
    run("rules", "apply", "-f", "rule.conf")
    file = node.data_dir / "api.hocon"
    file.write_text(f"# mine\n{file.read_text()}")
    Path("rule.conf").write_text(RULE.replace("> 20", "> 30"))
    assert "Try: sluice config reload" in run(
        "rules", "apply", "-f", "rule.conf", code=exit_codes.FAILED
    )
    run("config", "reload")
    assert run("rules", "apply", "-f", "rule.conf") == "rule warm replaced\n"
    run("rules", "rm", "warm", "--yes")


def test_the_version(run: Callable[..., str]) -> None:
    assert run("--version") == run("version")
    assert run("--version").startswith("sluice ")


def _completed(line: str, environ: dict[str, str]) -> tuple[list[str], float]:
    """What a shell is offered after a line, and the processor seconds that took."""
    return _timed([], environ | _completing(line))


def _completing(line: str) -> dict[str, str]:
    return {
        "_SLUICE_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
    }


def _timed(words: list[str], environ: dict[str, str]) -> tuple[list[str], float]:
    command = [sys.executable, "-m", "broker.cli.main", *words]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, env=environ, cwd=Path(__file__).parents[3], text=True
    )
    assert process.stdout is not None
    with process.stdout:
        text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return text.splitlines(), usage.ru_utime + usage.ru_stime


def test_help_and_completion_are_quick(node: Node, run: Callable[..., str], tmp_path: Path) -> None:
    """300 and 200 ms of a processor; the best of some tries, of which others that share its core spoil most."""
    Path("rule.conf").write_text(RULE)
    run("rules", "apply", "-f", "rule.conf")
    environ = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    environ["PYTHONPYCACHEPREFIX"] = str(tmp_path / "compiled")
    for _ in range(2):  # the first compiles modules
        offered, _ = _completed("sluice rules show ", environ)
        assert offered == ["warm"]
        assert _completed("sluice rules sh", environ)[0] == ["show"]
        assert "Error" not in "".join(_timed(["--help"], environ)[0])
    for most_s, words, asked in (
        (0.3, [], _completing("sluice rules show w")),
        (0.2, ["--help"], {}),
    ):
        assert any(is_within(_timed(words, environ | asked)[1], most_s * _OTHERS) for _ in range(4))


def test_repeated_refusals_are_one_line_of_the_log(node: Node, run: Callable[..., str]) -> None:
    check = '{ type = sql, sql = "SELECT * WHERE payload.t > 0" }'
    Path("gate.conf").write_text(
        f"name = repeated, topics = [repeated], strategy = all_pass, failure_action = drop, checks = [{check}]"
    )
    run("validations", "apply", "-f", "gate.conf")
    for number in range(50):
        node.call(
            "POST",
            "/messages:publish",
            {"topic": "repeated", "payload": str(number)},
            expect=(200, 422),
        )
    assert node.call("GET", "/validations/repeated")["metrics"]["failed"] == 50
    lines = [line for line in node.log.read_text().splitlines() if "validation=repeated" in line]
    assert len(lines) == 1
    times = [
        line.split()[1]
        for line in run("validations", "show", "repeated").splitlines()
        if "time " in line
    ]
    assert datetime.fromisoformat(times[0]) > datetime.now(UTC) - timedelta(hours=1)
    run("validations", "rm", "repeated", "--yes")


def test_next_steps_name_tools_that_are_installed(node: Node) -> None:
    for step in node.call("GET", "/status")["next_steps"]:
        assert shutil.which(step["command"].partition(" ")[0]), step


def test_a_broker_that_does_not_start_leaves_no_process(tmp_path: Path) -> None:
    node = Node(tmp_path / "data", config="no_section = 1")
    with pytest.raises(AssertionError, match="no_section"):
        node.start()
    assert node.process is not None
    assert node.process.poll() is not None
