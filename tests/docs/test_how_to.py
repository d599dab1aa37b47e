"""The how-tos do what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.docs.session import ROOT, Block, blocks, commands, run

HOW_TO = ROOT / "docs" / "how-to"


@pytest.mark.spark
@pytest.mark.heavy
@pytest.mark.timeout(500)
def test_refused_messages_are_quarantined_in_a_table_and_taken_again(tmp_path: Path) -> None:
    start = commands(ROOT / "docs" / "tutorial.md", "1. Install and start")
    *_, waiting, _table, rows, again = run([*start, *commands(HOW_TO / "quarantine-refused-messages.md")], tmp_path)
    assert "payload.temp" in waiting
    assert [row.split(" ")[:4] for row in rows.splitlines() if row] == [
        ["meter-7", "meters/attic", "meters", "payload.temp"],
        ["meter-7", "meters/attic", "meters", "payload"],
    ]
    counts = dict(line.split() for line in again.splitlines() if len(line.split()) == 2)
    assert (counts["read"], counts["published"], counts["failed"], counts["refused"]) == ("2", "1", "1", "1")


def test_a_schema_is_changed_and_taken_back(tmp_path: Path) -> None:
    start = commands(ROOT / "docs" / "tutorial.md", "1. Install and start")
    checked, changed, learnt, subjects = run([*start, *commands(HOW_TO / "change-a-schema.md")], tmp_path)[-4:]
    assert "temp was number and is string" in checked
    assert "touches    validation 'meters'" in checked
    assert "of 1 recent ones 1 would be refused that pass now" in checked
    assert "temp was number and is string" in changed
    assert "schema meter uses version 1" in changed
    assert '"temp":{"type":"number"}' in learnt
    assert '["meter"]' in subjects


def test_messages_are_transformed(tmp_path: Path) -> None:
    start = commands(ROOT / "docs" / "tutorial.md", "1. Install and start")
    *_, tried, wrong, counted, changed = run([*start, *commands(HOW_TO / "transform-messages.md")], tmp_path)
    assert tried.lstrip().startswith("C\n")
    assert "meters/attic" in tried
    assert '{"t":"21.5","id":7,"unit":"C"}' in tried
    assert "outcome: message" in tried
    counts = dict(line.split() for line in counted.splitlines() if len(line.split()) == 2)
    assert (counts["matched"], counts["succeeded"], counts["failed"]) == ("2", "1", "1")
    assert "variable 'payload.t' has no value" in counted
    assert 'meters/attic {"t":"21.5","unit":"C"}' in changed.splitlines()
    assert "line 1, column 20: no function 'uper'; did you mean 'upper'?" in wrong


def test_what_happens_to_a_message_is_shown(tmp_path: Path) -> None:
    start = commands(ROOT / "docs" / "tutorial.md", "1. Install and start")
    *_, stages, tried = run([*start, *commands(HOW_TO / "see-what-happens-to-a-message.md")], tmp_path)
    named = [line.split()[1] for line in stages.splitlines() if line][1:]
    assert named == ["meters", "site", "hot", "subscribers"]
    assert '"site":"berlin"' in tried
    assert "outcome: passed" in tried
    assert "outcome: drop" in tried


def test_client_attributes_page_has_settings_that_can_be_used(tmp_path: Path) -> None:
    texts = [block.text for block in blocks(HOW_TO / "client-attributes.md") if block.info == "hocon"]
    (tmp_path / "sluice.conf").write_text("\n".join(texts))
    assert "OK" in run([Block("sh", "sluice config check sluice.conf", "")], tmp_path)[-1]


@pytest.mark.spark
@pytest.mark.heavy
@pytest.mark.timeout(500)
def test_own_spark_reads_streams_and_runs_the_shipped_job(tmp_path: Path) -> None:
    output = run(commands(HOW_TO / "use-your-own-spark.md"), tmp_path)
    *_, job, batch, stream = output
    assert "table meters has 3 rows and 0 dead letters" in job
    assert "every record is accounted for, once" in job
    assert "|     2|meters/cellar|  meter-1|20.5|" in batch
    assert "3 rows in data/mine" in stream


def test_configuration_is_set_and_shown_as_described(tmp_path: Path) -> None:
    output = "\n".join(run(commands(HOW_TO / "configure.md"), tmp_path))
    assert "OK: data/sluice.conf; 3 objects" in output
    assert "store.max_backlog_bytes" in output
    assert "environment variable SLUICE_STORE__MAX_BACKLOG_BYTES" in output
    assert "is fixed by" in output


def test_backup_that_the_production_page_describes_can_be_started(tmp_path: Path) -> None:
    output = run(commands(HOW_TO / "run-in-production.md"), tmp_path)
    assert '"name":"meters"' in output[-1]


def test_rows_are_acted_on_as_described(tmp_path: Path) -> None:
    start = commands(ROOT / "docs" / "tutorial.md", "1. Install and start")
    *_, alarm, stopped, fire = run([*start, *commands(HOW_TO / "act-on-rows.md")], tmp_path)
    assert 'alarm/attic {"temp": 31.5, "by": "m7"}' in alarm
    shown = json.loads(alarm.strip().splitlines()[-1])
    stream, republish, bridge = shown["action_details"]
    assert [one["metrics"]["success"] for one in (stream, republish, republish["fallback_actions"][0])] == [2, 1, 1]
    assert (bridge["status"], bridge["metrics"]["discarded"]) == ("missing", 2)
    assert '"dropped_by_rule:too-hot":1' in stopped.replace(" ", "")
    assert 'fire/attic {"room":"attic","temp":66}' in fire


def test_rules_are_checked_against_schemas(tmp_path: Path) -> None:
    start = commands(ROOT / "docs" / "tutorial.md", "1. Install and start")
    page = HOW_TO / "check-rules-against-schemas.md"
    output = "\n".join(run([*start, *commands(page)], tmp_path))
    shown = " ".join(output.split())
    for block in blocks(page):
        if block.info == "text":
            for line in block.text.splitlines():
                assert " ".join(line.split()) in shown, output


@pytest.mark.spark
@pytest.mark.heavy
@pytest.mark.timeout(500)
def test_a_rule_runs_over_history_and_again_once_corrected(tmp_path: Path) -> None:
    tutorial = ROOT / "docs" / "tutorial.md"
    start = [*commands(tutorial, "1. Install and start"), *commands(tutorial, "2. Say what a message must look like")]
    *_, dry_run, replayed, statement = run([*start, *commands(HOW_TO / "run-a-rule-over-history.md")], tmp_path)
    assert "would replay [0, 4) of shard 0 by rule warm: 4 records, which are 2 rows and 0 dead letters" in dry_run
    assert "are 2 rows and 0 dead letters, 2 filtered" in replayed
    assert "4 records = 2 rows + 0 dead letters + 2 filtered" in replayed
    assert '"fahrenheit":76.1' in replayed
    assert "from_json(" in statement


def test_a_rule_is_changed_safely(tmp_path: Path) -> None:
    output = run(commands(HOW_TO / "change-a-rule-safely.md"), tmp_path)
    _, _, tried, explained, tested, compared, versions, locked, counted = output
    assert '{"f": 69.8' in tried
    assert "✗ WHERE payload.temp > 20" in explained
    assert "3 passed, 0 failed" in tested
    assert "expected 1 row, got no result" in tested
    assert "exit code 1" in tested
    assert "2 unchanged, 1 added, 0 lost, 0 changed" in compared
    assert "rule warm is version 1 again, as version 3" in versions
    assert locked.split() == ["200", "412"]
    assert "matched.rate.last5m" in counted


def test_it_is_said_who_may(tmp_path: Path) -> None:
    page = HOW_TO / "access.md"
    _, _, users, logins, _, tokens, _, checks, answers, bans = run(commands(page), tmp_path)
    assert "operator" not in users
    assert "pbkdf2_sha256" in users
    assert "taken" in logins
    assert "The connection was refused" in logins
    assert [line for line in tokens.splitlines() if line and not line.startswith(("certain", " "))] == [
        "taken",
        "Connection error: Not authorized",
        "denied, by authorization.no_match: no rule matches",
        "denied, by authentication (jwt: not_authorized; the token's claim 'sub' is not 'meter-9')",
    ]
    told = [line for line in checks.splitlines() if line.startswith(("allowed", "denied"))]
    assert told == [
        "allowed, by built_in: own",
        "denied, by authorization.no_match: no rule matches",
        "allowed, by built_in: read",
    ]
    assert [line.rpartition("RC:")[2].rstrip(")") for line in answers.splitlines() if "PUBACK" in line] == ["16", "135"]
    assert "sends too much" in bans
    assert "no longer banned" in bans
    texts = [block.text for block in blocks(page) if block.info == "hocon"]
    (tmp_path / "more.conf").write_text("\n".join(texts))
    assert "OK" in run([Block("sh", "sluice config check more.conf", "")], _empty(tmp_path))[-1]


def _empty(tmp_path: Path) -> Path:
    """A directory of its own for commands that come later."""
    again = tmp_path / "again"
    again.mkdir()
    (again / "more.conf").write_text((tmp_path / "more.conf").read_text())
    return again


def test_listeners_are_secured(tmp_path: Path) -> None:
    page = HOW_TO / "secure-listeners.md"
    _, checked, _, seen, renewed = run(commands(page), tmp_path)
    assert "OK" in checked
    said = sorted(line for line in seen.splitlines() if line.startswith("meters/"))
    assert said == ["meters/7 site:berlin", "meters/unknown site:none"]
    assert "the new one is shown" in renewed
    assert "mqtts 127.0.0.1:" in renewed
    texts = [block.text for block in blocks(page) if block.info == "hocon"]
    (tmp_path / "more.conf").write_text("\n".join(texts))
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "certs").symlink_to(tmp_path / "certs")
    told = run([Block("sh", "sluice config check ../more.conf", "")], tmp_path / "again")
    assert "OK" in told[-1]


def test_clients_sessions_and_retained_messages_are_seen_and_cleared(tmp_path: Path) -> None:
    start = commands(ROOT / "docs" / "tutorial.md", "1. Install and start")
    *_, shown, matched, ranked, purged, by_zone, retained = run([*start, *commands(HOW_TO / "sessions.md")], tmp_path)
    assert "line-7" in shown
    assert "plant/line-7/cmd" in shown
    assert [line.split()[:2] for line in matched.splitlines() if line.startswith("line-7")] == [
        ["line-7", "plant/#"],
        ["line-7", "plant/line-7/cmd"],
    ]
    assert "line-7,,False,default,True,1," in ranked
    assert [line.split()[1] for line in purged.splitlines() if line.startswith("sessions")] == ["0", "1"]
    [row] = [line.split() for line in by_zone.splitlines() if line.startswith("meter-9")]
    assert row[2:5] == ["no", "telemetry", "no"]
    assert by_zone.rstrip().splitlines()[-1] == "read"
    assert "plant/line-7/state" in retained
    assert "messages" in retained
