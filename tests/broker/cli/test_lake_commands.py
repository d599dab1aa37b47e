"""Audit and replay from the command line; no Spark is started here."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from bridges.spark.columns.place import Place
from bridges.spark.tables.contract import Binding
from bridges.spark.tables.formats import open_or_create
from broker.cli import exit_codes
from broker.cli.features import COMMANDS
from broker.cli.main import main
from tests.broker.cli.api_server import TOKEN, ApiServer, serving


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """An API that knows the table ``readings``, which nobody has written yet, on an empty stream."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SLUICE_")]:
        monkeypatch.delenv(name)
    with serving() as server:
        monkeypatch.setenv("SLUICE_URL", server.url)
        monkeypatch.setenv("SLUICE_API_TOKEN", TOKEN)
        table = {
            "name": "readings",
            "stream": "raw",
            "format": "delta",
            "path": str(tmp_path / "readings"),
        }
        positions = {
            "stream": "raw", "kind": "topics", "epoch": "e", "log": 16, "ranges_url": "http://127.0.0.1:9",
            "ticket": "t", "expires_at": "2030-01-01T00:00:00Z",
            "shards": [{"shard": 0, "first_offset": "0", "next_offset": "7"}],
        }  # fmt: skip
        server.answers[("GET", "/lake/tables/readings")] = (200, table)
        server.answers[("POST", "/lake/tables:open")] = (200, {"tables": [table]})
        server.answers[("GET", "/streams/raw/positions")] = (200, positions)
        yield server


def test_a_table_that_covers_nothing_yet_passes(
    server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", "readings", "--local"]) == 0
    assert "7 more wait in the stream" in capsys.readouterr().out
    assert main(["audit", "readings", "--local", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_rows_nobody_accounts_for_fail_the_audit(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "readings")
    open_or_create("delta", Place(path), Binding("raw", "e"), ())
    rows = {"_shard": pa.array([0], pa.int32()), "_offset": pa.array([0], pa.int64())}
    write_deltalake(path, pa.table(rows), mode="append", schema_mode="merge")
    assert main(["audit", "readings", "--local"]) == exit_codes.CHECK_SAID_NO
    assert "PROBLEM" in capsys.readouterr().out


AUDIT = {
    "ok": True, "table": "readings", "stream": "raw", "version": 4, "problems": [], "key": [], "tables": [],
    "shards": [
        {"shard": 0, "first": 0, "next": 5, "rows": 3, "dead_letters": 1, "filtered": 1, "removed": 0, "superseded": 0,
         "lag": 2, "outside": 0, "compared": 2},
    ],
}  # fmt: skip


def test_an_audit_is_a_job_that_is_followed(
    server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    job = {
        "id": "j1",
        "state": "running",
        "progress": {"done": 0, "total": 5, "unit": "records"},
        "error": None,
    }
    job |= {"rate": None}
    server.answers[("POST", "/lake/tables/readings:audit")] = (202, job)
    server.answers[("GET", "/jobs/j1")] = (200, {**job, "state": "done", "result": AUDIT})
    for command in (["audit", "readings"], ["lake", "tables", "audit", "readings"]):
        assert main(command) == 0
        told = capsys.readouterr().out
        assert "5 records = 3 rows + 1 dead letter + 1 filtered; 2 more wait in the stream" in told
    for flag, depth in (("--values", "values"), ("--deep", "deep")):
        assert main(["audit", "readings", flag]) == 0
        assert ("POST", f"/lake/tables/readings:audit?depth={depth}", None) in server.requests
    assert "the values of 2 rows were compared; of 1 row no sum is known" in capsys.readouterr().out
    assert main(["audit", "readings", "--detach"]) == 0
    assert capsys.readouterr().out == "j1\n"
    found = {**AUDIT, "ok": False, "problems": ["shard 0: record 4 is in neither"]}
    server.answers[("GET", "/jobs/j1")] = (200, {**job, "state": "done", "result": found})
    assert main(["audit", "readings"]) == exit_codes.CHECK_SAID_NO
    assert "PROBLEM: shard 0: record 4 is in neither" in capsys.readouterr().out
    server.answers[("GET", "/jobs/j1")] = (
        200,
        {**job, "state": "failed", "error": "the audit failed: no disk"},
    )
    assert main(["audit", "readings"]) == exit_codes.UNREADABLE
    assert "the audit failed: no disk" in capsys.readouterr().err
    server.answers[("GET", "/jobs/j1")] = (200, {**job, "state": "cancelled", "result": None})
    assert main(["audit", "readings"]) == exit_codes.FAILED
    assert "the audit was cancelled" in capsys.readouterr().err


PLAN = {
    "table": "readings", "dry_run": True, "ranges": [{"shard": 0, "start": 0, "end": 5}], "records": 5,
    "rows_before": 4, "dead_letters_before": 1, "rule": "hot", "rows_after": None, "missing": [],
    "recreates": False, "fills": False,
}  # fmt: skip


def test_a_dry_run_prints_the_plan(server: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers[("POST", "/lake/tables/readings:replay")] = (200, PLAN)
    assert (
        main(["replay", "readings", "--from", "0", "--to", "5", "--rule", "hot", "--dry-run"]) == 0
    )
    assert capsys.readouterr().out == (
        "would replay [0, 5) of shard 0 by rule hot: 5 records, which are 4 rows and 1 dead letter of table readings "
        "now\n"
    )
    asked = {"from": "0", "to": "5", "rule": "hot"}
    assert server.requests[-1] == ("POST", "/lake/tables/readings:replay?dry_run=true", asked)


def test_a_replay_of_a_table_that_was_lost_says_which_records_are_missing(
    server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = {
        **PLAN,
        "rule": None,
        "recreates": True,
        "fills": True,
        "missing": [{"shard": 1, "start": 2, "end": 4}],
    }
    server.answers[("POST", "/lake/tables/readings:replay")] = (200, lost)
    missing = "; the stream no longer has [2, 4) of shard 1\n"
    assert main(["replay", "readings", "--dry-run"]) == 0
    said = f"would fill table readings again from [0, 5) of shard 0: 5 records{missing}"
    assert capsys.readouterr().out == said
    progress = {"done": 0, "total": 5, "unit": "records"}
    job = {"id": "j1", "state": "running", "progress": progress, "rate": None, "error": None}
    server.answers[("POST", "/lake/tables/readings:replay")] = (202, job)
    result = {**lost, "dry_run": False, "rows_after": 5, "dead_letters_after": 0, "version": 2}
    server.answers[("GET", "/jobs/j1")] = (200, {**job, "state": "done", "result": result})
    assert main(["replay", "readings"]) == 0
    filled = "filled table readings again from [0, 5) of shard 0: it has 5 rows and 0 dead letters (version 2)"
    assert filled + missing in capsys.readouterr().out


def test_a_replay_is_followed_to_its_end(
    server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = {"done": 0, "total": 5, "unit": "records"}
    job = {"id": "j1", "state": "running", "progress": progress, "rate": None, "error": None}
    server.answers[("POST", "/lake/tables/readings:replay")] = (202, job)
    result = {
        **PLAN,
        "dry_run": False,
        "rows_after": 3,
        "dead_letters_after": 0,
        "filtered_after": 2,
        "version": 9,
    }
    server.answers[("GET", "/jobs/j1")] = (200, {**job, "state": "done", "result": result})
    assert main(["replay", "readings"]) == 0
    assert "are 3 rows and 0 dead letters, 2 filtered (version 9)" in capsys.readouterr().out
    assert main(["replay", "readings", "--detach"]) == 0
    assert capsys.readouterr().out == "j1\n"
    server.answers[("GET", "/jobs/j1")] = (
        200,
        {**job, "state": "failed", "error": "the disk is full"},
    )
    assert main(["replay", "readings"]) == exit_codes.FAILED
    assert "the replay failed: the disk is full" in capsys.readouterr().err


def test_a_retype_a_cleaning_and_the_acceptance_of_a_gap_are_followed(
    server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    job = {
        "id": "j1",
        "state": "running",
        "progress": {"done": 0, "total": 5, "unit": "rows"},
        "error": None,
    }
    job |= {"rate": None}
    asked = {"column": "t", "type": "double"}
    counts = {
        "rows_before": 1,
        "dead_letters_before": 4,
        "rows_after": 4,
        "dead_letters_after": 1,
        "version": 9,
    }
    server.answers[("POST", "/lake/tables/readings:retype")] = (202, job)
    server.answers[("GET", "/jobs/j1")] = (
        200,
        {**job, "state": "done", "result": {"table": "t1", **asked, **counts}},
    )
    assert main(["lake", "tables", "retype", "readings", "t", "double"]) == 0
    assert capsys.readouterr().out == (
        "column t of table t1 is double: 1 row and 4 dead letters are 4 rows and 1 dead letter (version 9)\n"
    )
    server.answers[("POST", "/lake/tables/readings:clean")] = (202, job)
    cleaned = {"table": "t1", "dry_run": True, "files": 4, "dead_letter_files": 1}
    server.answers[("GET", "/jobs/j1")] = (200, {**job, "state": "done", "result": cleaned})
    assert main(["lake", "tables", "clean", "readings", "--dry-run"]) == 0
    assert capsys.readouterr().out == (
        "would remove 4 files of table t1 and 1 file of its dead letters that no version refers to\n"
    )
    server.answers[("POST", "/lake/tables/readings:accept-gap")] = (202, job)
    gap = {
        "table": "t1",
        "ranges": [{"shard": 0, "start": 5, "end": 9}],
        "records": 4,
        "version": 3,
    }
    server.answers[("GET", "/jobs/j1")] = (200, {**job, "state": "done", "result": gap})
    assert main(["lake", "tables", "accept-gap", "readings"]) == 0
    assert capsys.readouterr().out == "table t1 continues without 4 records: [5, 9) of shard 0\n"


def test_a_compaction_and_an_expiry_are_previewed_and_followed(
    server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    job = {
        "id": "j1",
        "state": "running",
        "progress": {"done": 0, "total": 5, "unit": "files"},
        "error": None,
    }
    job |= {"rate": None}
    small = {"table": "t1", "dry_run": True, "files": 1200, "bytes": 5000, "files_after": 2}
    server.answers[("POST", "/lake/tables/readings:compact")] = (200, small)
    assert main(["lake", "tables", "compact", "readings", "--dry-run"]) == 0
    assert (
        capsys.readouterr().out == "would join 1,200 small files of table t1, 5,000 bytes, to 2\n"
    )
    server.answers[("POST", "/lake/tables/readings:compact")] = (202, job)
    server.answers[("GET", "/jobs/j1")] = (
        200,
        {**job, "state": "done", "result": {**small, "dry_run": False}},
    )
    assert main(["lake", "tables", "compact", "readings"]) == 0
    assert capsys.readouterr().out == "joined 1,200 small files of table t1, 5,000 bytes, to 2\n"
    old = {"table": "t1", "dry_run": True, "snapshots": 3, "files": 9, "bytes": 10}
    server.answers[("POST", "/lake/tables/readings:expire")] = (200, old)
    assert main(["lake", "tables", "expire", "readings", "--older-than", "3d", "--dry-run"]) == 0
    assert capsys.readouterr().out == "would remove 3 snapshots and 9 files of table t1, 10 bytes\n"
    server.answers[("POST", "/lake/tables/readings:expire")] = (202, job)
    result = {**old, "dry_run": False, "snapshots": 0}
    server.answers[("GET", "/jobs/j1")] = (200, {**job, "state": "done", "result": result})
    assert main(["lake", "tables", "expire", "readings"]) == 0
    assert capsys.readouterr().out == "removed 9 files of table t1, 10 bytes\n"
    rows = {"table": "t1", "dry_run": True, "rows": 1200}
    server.answers[("POST", "/lake/tables/readings:retain")] = (200, rows)
    assert main(["lake", "tables", "retain", "readings", "--dry-run"]) == 0
    assert capsys.readouterr().out == "would remove 1,200 rows and dead letters of table t1\n"
    assert server.requests[-1] == ("POST", "/lake/tables/readings:retain?dry_run=true", {})
    server.answers[("POST", "/lake/tables/readings:retain")] = (202, job)
    server.answers[("GET", "/jobs/j1")] = (
        200,
        {**job, "state": "done", "result": {**rows, "dry_run": False}},
    )
    assert main(["lake", "tables", "retain", "readings", "--older-than", "1d"]) == 0
    assert capsys.readouterr().out == "removed 1,200 rows and dead letters of table t1\n"


SHADOW = {
    "table": "readings", "replay": "r", "ranges": [{"shard": 0, "start": 0, "end": 5}], "records": 5, "done": 5,
    "rows": 4, "dead_letters": 1, "filtered": 0, "is_complete": True,
}  # fmt: skip


def test_a_shadow_is_filled_compared_and_swapped(
    server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    job = {
        "id": "j1",
        "state": "running",
        "progress": {"done": 0, "total": 5, "unit": "records"},
        "error": None,
    }
    job |= {"rate": None}
    filled = "the shadow of table readings has 5 of 5 records ([0, 5) of shard 0): 4 rows and 1 dead letter\n"
    server.answers[("POST", "/lake/tables/readings:replay")] = (202, job)
    server.answers[("GET", "/jobs/j1")] = (200, {**job, "state": "done", "result": SHADOW})
    assert (
        main(
            [
                "replay",
                "readings",
                "--into",
                "shadow",
                "--record",
                "0/1",
                "--record",
                "0/2",
                "--rate",
                "9",
            ]
        )
        == 0
    )
    assert capsys.readouterr().out == filled
    wanted = {"records": ["0/1", "0/2"], "into": "shadow", "rate": 9}
    assert ("POST", "/lake/tables/readings:replay", wanted) in server.requests
    assert main(["replay", "readings", "--into", "shade"]) == exit_codes.USAGE
    capsys.readouterr()
    same = {
        "same": 4,
        "changed": 0,
        "only_table": 0,
        "only_shadow": 0,
        "columns": {},
        "samples": [],
    }
    compared = {
        "table": "readings",
        "records": 5,
        "rows": same,
        "dead_letters": {**same, "same": 1},
    }
    server.answers[("POST", "/lake/tables/readings:diff")] = (202, job)
    server.answers[("GET", "/jobs/j1")] = (200, {**job, "state": "done", "result": compared})
    assert main(["lake", "tables", "diff", "readings"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "5 records of table readings and its shadow"
    server.answers[("POST", "/lake/tables/readings:swap")] = (200, SHADOW)
    assert main(["lake", "tables", "swap", "readings", "--dry-run"]) == 0
    assert capsys.readouterr().out == f"would swap: {filled}"
    assert server.requests[-1] == ("POST", "/lake/tables/readings:swap?dry_run=true", None)
    server.answers[("POST", "/lake/tables/readings:swap")] = (202, job)
    server.answers[("GET", "/jobs/j1")] = (
        200,
        {**job, "state": "done", "result": {**SHADOW, "version": 7}},
    )
    assert main(["lake", "tables", "swap", "readings"]) == 0
    swapped = "table readings has 4 rows and 1 dead letter of [0, 5) of shard 0 from its shadow (version 7)\n"
    assert capsys.readouterr().out == swapped


def test_rows_and_versions_of_a_table_are_shown(
    server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {"columns": ["a"], "rows": [{"a": 5}], "version": 1}
    server.answers[("GET", "/lake/tables/readings/preview")] = (200, rows)
    assert main(["lake", "tables", "preview", "readings", "--dead-letters", "--member", "m"]) == 0
    assert capsys.readouterr().out.split() == ["a", "5"]
    assert "/preview?limit=20&dead_letters=true&member=m" in server.requests[-1][1]
    version = {"version": 1, "at": "2026-01-01T00:00:00Z", "operation": "batch", "ranges": []}
    history = {"versions": [version], "rows": 5, "files": 1, "bytes": 700}
    server.answers[("GET", "/lake/tables/readings/history")] = (200, history)
    assert main(["lake", "tables", "history", "readings"]) == 0
    shown = capsys.readouterr()
    assert "batch" in shown.out
    assert "5 rows in 1 file of 700 bytes" in shown.err
    assert server.requests[-1][1] == "/lake/tables/readings/history?limit=20"


def test_an_audit_of_a_table_that_cannot_be_read_has_its_own_exit_code(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "readings"
    open_or_create("delta", Place(str(path)), Binding("raw", "e"), ())
    [log] = path.glob("_delta_log/*.json")
    log.write_bytes(b"garbage")
    assert main(["audit", "readings", "--local"]) == exit_codes.UNREADABLE
    assert f"{path}: the log of the Delta table cannot be read: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["audit", "other"], ["replay", "other", "--from", "0", "--to", "1"]]
)
def test_a_table_that_is_not_there_is_not_found(
    server: ApiServer, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(arguments) == exit_codes.NOT_FOUND
    assert "Try: sluice lake tables ls" in capsys.readouterr().err


def test_an_error_of_the_stream_is_one_sentence(
    server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers[("GET", "/streams/raw/positions")] = (
        404,
        {"detail": "there is no stream 'raw'"},
    )
    assert main(["audit", "readings", "--local"]) == exit_codes.FAILED
    told = capsys.readouterr().err
    assert told.startswith("Error: ")
    assert "raw" in told


def test_without_its_extra_a_command_says_what_to_install(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(COMMANDS, "audit", ("package_that_is_missing.audit:audit_table", "spark"))
    assert main(["audit", "readings", "--local"]) == exit_codes.FAILED
    assert capsys.readouterr().err == (
        "Error: 'sluice audit' needs the package 'package_that_is_missing', which is not installed\n"
        "Try: pip install 'sluicemq[spark]'\n"
    )


def test_the_job_takes_its_own_options(
    server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):  # argparse, whose words these are
        main(["lake", "run", "--max-rows", "many"])
    assert "argument --max-rows: invalid int value: 'many'" in capsys.readouterr().err
