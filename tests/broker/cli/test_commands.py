"""The command line against a server that stands for the API: output, exit codes, every error sentence."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from broker.cli import exit_codes
from broker.cli.main import main
from broker.cli.output import print_columns
from tests.broker.cli.api_server import TOKEN, ApiServer, serving

RULE = {"name": "hot", "sql": 'SELECT 1 FROM "t/#"', "actions": [{"type": "console"}]}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with serving() as server:
        monkeypatch.setenv("SLUICE_URL", server.url)
        monkeypatch.setenv("SLUICE_API_TOKEN", TOKEN)
        yield server


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty directory, with nothing of Sluice in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SLUICE_")]:
        monkeypatch.delenv(name)


def test_objects_are_applied_listed_shown_and_removed(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rules.conf"
    file.write_text(
        '[{name = hot, sql = """SELECT 1\nFROM "t/#" """}, {name = cold, sql = x}, {name = third, sql = y}]'
    )
    assert main(["rules", "apply", "-f", str(file)]) == 0
    assert capsys.readouterr().out == "rule hot created\nrule cold created\nrule third created\n"
    assert main(["rule", "apply", "-f", str(file)]) == 0
    assert capsys.readouterr().out.startswith("rule hot replaced\n")
    assert main(["rules", "ls"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed[0].split()[:4] == ["name", "enabled", "version", "matched"]
    assert [line.split()[0] for line in listed[1:]] == ["hot", "cold", "third"]
    assert main(["rules", "show", "hot", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": "hot", "sql": 'SELECT 1\nFROM "t/#" '}
    assert main(["rules", "rm", "hot", "--yes"]) == 0
    assert "/rules/hot" not in server.objects


def test_a_list_as_json_holds_all_pages(
    server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.objects = {f"/streams/s{n}": {"name": f"s{n}"} for n in range(5)}
    assert main(["streams", "ls", "-o", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [item["name"] for item in answer["items"]] == ["s0", "s1", "s2", "s3", "s4"]
    assert answer["total"] == 5


def test_names_are_quoted_in_paths(server: ApiServer) -> None:
    assert main(["rules", "show", "a/b c?"]) == exit_codes.NOT_FOUND
    assert server.requests[-1][1] == "/rules/a%2Fb%20c%3F"


def test_what_is_missing_names_the_next_command(
    server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rules", "show", "nope"]) == exit_codes.NOT_FOUND
    assert capsys.readouterr().err == "Error: there is no rule 'nope'\nTry: sluice rules ls\n"


def test_problems_are_told_with_line_column_and_suggestion(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = {
        "title": "Invalid request", "detail": "rule 'hot' cannot be saved: ...", "status": 422,
        "errors": [
            {
                "pointer": "/sql", "line": 2, "column": 8,
                "message": "no function 'avgg'", "suggestion": "did you mean 'avg'?",
            },
            {"pointer": "/actions/0/stream", "message": "there is no stream 'x'"},
        ],
    }  # fmt: skip
    server.answers[("PUT", "/rules/hot")] = (422, problem)
    file = tmp_path / "rule.json"
    file.write_text(json.dumps(RULE))
    assert main(["rules", "apply", "-f", str(file)]) == exit_codes.FAILED
    assert capsys.readouterr().err == (
        "Error: rule 'hot': Invalid request\n"
        "  /sql line 2, column 8: no function 'avgg'; did you mean 'avg'?\n"
        "  /actions/0/stream: there is no stream 'x'\n"
    )
    assert main(["rules", "apply", "-f", str(file), "-o", "json"]) == exit_codes.FAILED
    assert json.loads(capsys.readouterr().err) == problem


@pytest.mark.parametrize(
    ("status", "exit_code"),
    [(403, 4), (404, 5), (409, 6), (422, 1), (500, 1), (503, 1)],
)
def test_statuses_have_exit_codes(server: ApiServer, status: int, exit_code: int) -> None:
    server.answers[("DELETE", "/streams/s")] = (status, {"detail": "because"})
    assert main(["streams", "rm", "s", "--yes"]) == exit_code


def test_a_wrong_token_is_not_allowed(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICE_API_TOKEN", "guess")
    assert main(["status"]) == exit_codes.NOT_ALLOWED
    told = capsys.readouterr().err
    assert f"the broker at {server.url} does not allow this: the token is wrong" in told
    assert "SLUICE_API_TOKEN" in told
    assert "guess" not in told


def test_nobody_there_is_told_with_what_to_start(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        assert main(["status", "--url", url]) == exit_codes.NOT_REACHABLE
    told = capsys.readouterr().err
    assert told.startswith(f"Error: the broker at {url} cannot be reached (")
    assert "Try: sluice serve" in told


def test_another_server_than_ours_is_told(
    server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers[("GET", "/status")] = (200, b"<html>hello</html>")
    assert main(["status"]) == exit_codes.NOT_REACHABLE
    assert "not as Sluice's management API does" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["http://[", "http://host:port"])
def test_what_is_no_url_is_a_mistake_of_use(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--url", url]) == exit_codes.USAGE
    assert "is not a URL" in capsys.readouterr().err


def test_the_running_node_is_found_by_its_directory(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLUICE_URL")
    monkeypatch.delenv("SLUICE_API_TOKEN")
    (tmp_path / "run").mkdir()
    node = {"pid": os.getpid(), "mqtt": "127.0.0.1:1", "api": server.url.removeprefix("http://")}
    (tmp_path / "run" / "node.json").write_text(json.dumps(node))
    (tmp_path / "api.token").write_text(f"{TOKEN}\n")
    assert main(["rules", "ls", "--data-dir", str(tmp_path)]) == 0


def test_the_token_of_a_directory_is_not_shown_to_another_address(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLUICE_API_TOKEN")
    (tmp_path / "api.token").write_text(TOKEN)
    assert main(["rules", "ls", "--data-dir", str(tmp_path)]) == exit_codes.NOT_ALLOWED
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "node.json").write_text(json.dumps({"pid": ended.pid, "api": server.url}))
    assert main(["rules", "ls", "--data-dir", str(tmp_path)]) == exit_codes.NOT_ALLOWED


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "line 1, column 2: expected '}'"),
        ("5", "expected"),
        ("[5]", "object 1 of"),
        ("[{name = a}, {}]", "object 2 of"),
        ("sql = x", "expected a name"),
        ("[]", "holds no objects"),
    ],
)
def test_files_that_hold_no_objects_are_refused_before_anything_is_sent(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, part: str
) -> None:
    file = tmp_path / "x.conf"
    file.write_text(text)
    assert main(["streams", "apply", "-f", str(file)]) == exit_codes.USAGE
    assert part in capsys.readouterr().err
    assert server.requests == []


def test_a_file_that_cannot_be_read_is_told(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["streams", "apply", "-f", str(tmp_path / "none")]) == exit_codes.USAGE
    assert "cannot be read (no such file or directory)" in capsys.readouterr().err


def test_a_dash_reads_standard_input(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sys.stdin", io.StringIO("name = meters, topics = ['meters/#']".replace("'", '"'))
    )
    assert main(["stream", "apply", "-f", "-"]) == 0
    assert server.objects == {"/streams/meters": {"name": "meters", "topics": ["meters/#"]}}


def test_removing_asks_and_elsewhere_needs_yes(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["rules", "rm", "hot"]) == exit_codes.USAGE
    assert "Try: sluice rules rm hot --yes" in capsys.readouterr().err
    assert server.requests == []


def test_names_from_clients_do_not_steer_the_terminal(
    server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.objects = {"/rules/x": {"name": "x\x1b[2J", "sql": "[bold]a[/bold]\nb"}}
    assert main(["rules", "ls"]) == 0
    listed = capsys.readouterr().out
    assert "\x1b" not in listed
    assert "x\\x1b[2J" in listed
    assert "[bold]a[/bold] b" in listed


STATUS: dict[str, Any] = {
    "node": "sluice@host", "version": "0.1.0", "started_at": "2026-01-01T00:00:00Z", "uptime_s": 3725.0,
    "listeners": [{"name": "default", "protocol": "mqtt", "address": "127.0.0.1:1883"}],
    "counters": {"received": 1200, "delivered": 900}, "rates": {"received": 12.34},
    "dropped": {"validation_failed": 100}, "lost_rows": {"expired": 7}, "connections": 5,
    "sessions": 6, "subscriptions": 7,
    "rules": [{"name": "hot", "state": "running", "matched": 10, "passed": 5, "no_result": 5, "failed": 0}],
    "streams": [{"name": "raw", "shards": [{"shard": 0, "first_offset": "5", "next_offset": "9007199254740999"}]}],
    "tables": [
        {"name": "readings", "stream": "raw", "format": "delta", "state": "running", "rows": 8, "dead_letters": 2},
    ],
    "refusals": [],
    "ledger": {"received": 1200, "accepted": 1100, "dropped": 100, "residual": 0, "lost_rows": 7},
    "next_steps": [{"label": "prove it", "command": "sluice audit readings"}],
}  # fmt: skip


def test_status_shows_ledger_rules_streams_and_tables(
    server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers[("GET", "/status")] = (200, STATUS)
    assert main(["status"]) == 0
    shown = capsys.readouterr().out
    assert "sluice@host, version 0.1.0, up 1 h 2 min 5 s" in shown
    ledger = "received 1,200 = accepted 1,100 + dropped 100 (validation_failed 100); 7 rows lost by actions (expired 7)"
    assert ledger in " ".join(shown.split())
    assert "9007199254740994" in shown
    assert "sluice audit readings  prove it" in shown
    assert main(["status", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == STATUS


def test_waiting_for_rows_shows_the_state_and_the_lag(
    server: ApiServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[dict[str, Any]] = [
        {
            "name": "readings",
            "state": "starting",
            "rows": None,
            "dead_letters": None,
            "lag_records": None,
        },
        {
            "name": "readings",
            "state": "held",
            "reason": "a new type",
            "rows": 3,
            "dead_letters": 1,
            "lag_records": 1200,
        },
        {
            "name": "readings",
            "state": "held",
            "reason": "a new type",
            "rows": 3,
            "dead_letters": 1,
            "lag_records": 1200,
        },
        {"name": "readings", "state": "running", "rows": 9, "dead_letters": 1, "lag_records": 0},
    ]
    monkeypatch.setattr(
        "broker.cli.lake.time.sleep", lambda _: server.answers.update(status(states.pop(0)))
    )
    server.answers.update(status(states.pop(0)))
    assert main(["lake", "tables", "wait", "readings", "--rows", "10"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "table readings is starting: 0 of 10 rows, lag unknown",
        "table readings is held (a new type): 4 of 10 rows, 1,200 records behind",
    ]


def status(table: dict[str, Any]) -> dict[tuple[str, str], tuple[int, Any]]:
    return {("GET", "/status"): (200, {"tables": [table]})}


def test_reordering_leaves_objects_of_files_first(
    server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    items = [
        {"name": name, "fixed_by": "a.hocon" if name == "filed" else None}
        for name in ("filed", "one", "two")
    ]
    server.answers[("GET", "/rules")] = (200, {"items": items, "next": None})
    server.answers[("POST", "/rules:reorder")] = (200, {"items": []})
    assert main(["rules", "reorder", "two"]) == 0
    assert "order: filed, two, one" in capsys.readouterr().out


def test_waiting_for_rows_ends_when_they_are_there(
    server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers[("GET", "/status")] = (200, STATUS)
    assert main(["lake", "tables", "wait", "readings", "--rows", "10"]) == 0
    assert capsys.readouterr().out == "table readings has 8 rows and 2 dead letters\n"
    assert (
        main(["lake", "tables", "wait", "readings", "--rows", "11", "--timeout", "0"])
        == exit_codes.TIMED_OUT
    )
    assert "has 10 of 11 rows after 0 s; it is running" in capsys.readouterr().err
    assert main(["lake", "tables", "wait", "other"]) == exit_codes.NOT_FOUND


@pytest.mark.parametrize(
    "arguments",
    [
        ["nope"],
        ["rules", "show"],
        ["rules", "ls", "-o", "xml"],
        ["serve", "--mqtt", "1883"],
        ["serve", "--api", "127.0.0.1:http"],
        ["serve", "--mqtt", "127.0.0.1:70000"],
        ["serve", "--set", "mqtt"],
    ],
)
def test_mistakes_of_use_exit_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == exit_codes.USAGE
    assert capsys.readouterr().err


def test_a_log_level_that_is_none_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICE_LOG", "loud")
    assert main(["serve"]) == exit_codes.USAGE
    assert "SLUICE_LOG is 'loud'; expected debug" in capsys.readouterr().err


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"version", "python"}


def test_the_doctor_looks_at_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--data-dir", str(tmp_path / "new"), "-o", "json"])
    findings = {finding["what"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert {
        "Python",
        "packages",
        "extra spark",
        "data directory",
        "disk",
        "open files",
        "port 1883",
    } <= set(findings)
    assert findings["Python"]["state"] == "ok"
    assert all(finding["advice"] for finding in findings.values() if finding["state"] != "ok")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("mode", "state"), [(0o755, "note"), (0o750, "note"), (0o700, "ok")])
def test_the_doctor_warns_of_a_directory_that_others_can_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: int, state: str
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(mode)
    main(["doctor", "--data-dir", str(tmp_path / "data"), "-o", "json"])
    [finding] = [
        one for one in json.loads(capsys.readouterr().out) if one["what"] == "data directory"
    ]
    assert finding["state"] == state
    if state == "note":
        assert finding["advice"] == f"chmod -R go= {tmp_path / 'data'}"


def test_help_lists_the_commands() -> None:
    asked = subprocess.run(
        [sys.executable, "-m", "broker.cli.main", "--help"],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    for command in (
        "serve",
        "demo",
        "status",
        "audit",
        "replay",
        "lake",
        "config",
        "doctor",
        "version",
        "rules",
    ):
        assert f"\n  {command} " in asked.stdout


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from broker.cli.main import main; main(['--help']); "
        "print(sorted({'pydantic', 'httpx', 'rich', 'uvloop', 'fastapi', 'pyarrow', 'sqlglot'} & set(sys.modules)))"
    )
    asked = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    assert asked.stdout.splitlines()[-1] == "[]"


def test_a_column_may_be_a_member_of_a_member(capsys: pytest.CaptureFixture[str]) -> None:
    columns = {"name": "name", "per second": "metrics/matched.rate"}
    print_columns([{"name": "hot", "metrics": {"matched.rate": 2.5}}, {"name": "cold"}], columns)
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["name", "per", "second"],
        ["hot", "2.5"],
        ["cold", "–"],
    ]


def _machine(name: str, cells: Sequence[int] = (), state: str = "running") -> dict[str, Any]:
    row = {"name": name, "state": state, "version": "1", "copies": [], "address": f"{name}:7946"}
    return {**row, "cells": list(cells), "home_cells": list(cells)}


@pytest.mark.parametrize(
    ("copies", "expected", "states"),
    [
        (1, 2, ["running"] * 3),  # all lack one alike
        (1, 1, ["running", "running", "forgotten"]),
        (2, 2, ["running"] * 3),
    ],
)
def test_status_names_cells_with_too_few_copies(
    server: ApiServer,
    capsys: pytest.CaptureFixture[str],
    copies: int,
    expected: int,
    states: list[str],
) -> None:
    machines = [_machine(name, state=state) for name, state in zip("abc", states, strict=True)]
    cells = [
        {"number": number, "state": "running", "machine": "a", "copies": copies, "clients": 0, "links": 1}
        for number in range(2)
    ]  # fmt: skip
    server.answers["GET", "/cluster/machines"] = 200, {"items": machines}
    server.answers["GET", "/cells"] = 200, {"items": cells}
    server.answers["GET", "/config:tree"] = 200, {"value": {"cluster": {"copies": 3}}}
    status = main(["cluster", "status"])
    shown = capsys.readouterr()
    if copies == expected:
        assert status == 0
        assert "all is in order" in shown.out
    else:
        assert status == exit_codes.CHECK_SAID_NO
        assert "cell 0 is followed by 1 machine; cell 1 is followed by 1 machine" in shown.err
