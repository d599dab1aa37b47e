"""The tutorial, what goes on from it, and the README's first steps do what they say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.docs.session import ROOT, commands, run
from tests.support.postgres_server import PASSWORD, Postgres

pytestmark = [pytest.mark.spark, pytest.mark.timeout(500)]

TUTORIAL = ROOT / "docs" / "tutorial.md"
REPLAY = ROOT / "docs" / "how-to" / "replay-and-audit.md"
ONWARD = "8. And on to PostgreSQL, or Kafka"
PROVED = "every record is accounted for, once"


def test_tutorial_and_replay_lead_to_a_table_that_is_proved_complete(tmp_path: Path) -> None:
    tutorial = [block for block in commands(TUTORIAL) if block.heading != ONWARD]
    output = run([*tutorial, *commands(REPLAY)], tmp_path)
    printed = {needle: one for one, block in zip(output, tutorial, strict=False) for needle in block.text.splitlines()}

    def of(command: str) -> str:
        return next(text for line, text in printed.items() if command in line)

    assert "received PUBACK (Mid: 1, RC:153)" in of("mosquitto_pub -V 5")
    assert "payload.temp: 'hot' is not of type \"number\"" in of("mosquitto_pub -V 5")
    assert "line 1, column 8: no function 'uper'; did you mean 'upper'?" in of('"typo"')
    assert "table readings has 3 rows and 0 dead letters" in of("wait readings --rows 3")
    rows = re.findall(r"│ +([\d.]+) │ +([\d.]+) │ cellar +│ C +│ meter-1 +│ +(\d) │", of("select temp"))
    assert rows == [("19.5", "67.1", "0"), ("20.0", "68.0", "1"), ("20.5", "68.9", "2")]
    assert "table readings has 3 rows and 1 dead letters" in of("wait readings --rows 4")
    assert "(3, \"column 'unit' takes a text, the row has the number 5\")" in of("select _offset, _error")
    assert "4 records = 3 rows + 1 dead letters + 0 filtered" in of("sluice audit readings")
    assert PROVED in of("sluice audit readings")
    assert "would replay [0, 2) of shard 0: 2 records" in of("--from 0 --to 2 --dry-run")
    assert "are 2 rows and 0 dead letters" in of("--from 0 --to 2 --dry-run")

    audits, over_http, dry, dry_by_time, replays = output[len(tutorial) :]
    assert PROVED in audits
    assert json.loads(over_http)["ok"] is True
    assert "would replay [1, 3)" in dry
    assert "would replay [0, 4)" in dry_by_time
    assert replays.count("replayed [1, 3)") == 2
    assert PROVED in replays


def test_rows_go_on_to_postgresql(tmp_path: Path) -> None:
    before = [*commands(TUTORIAL, "1. Install and start"), *commands(TUTORIAL, "2. Say what a message must look like")]
    before += [*commands(TUTORIAL, "3. Change it on the way"), *commands(TUTORIAL, "4. Select what is kept")]
    with Postgres() as server:
        assert PASSWORD in TUTORIAL.read_text()
        made, sent = run([*before, *commands(TUTORIAL, ONWARD)], tmp_path, {"5432": server.port})[-2:]
        types = server.psql("select column_name, data_type from information_schema.columns where column_name = 'temp'")
    assert re.search(r"authenticate +ok", made)
    assert "20.5|meter-1" in sent
    assert types == "temp|double precision"


def test_first_steps_of_the_readme_lead_to_a_table(tmp_path: Path) -> None:
    output = run(commands(ROOT / "README.md", "First steps without the demo"), tmp_path)
    assert "table hot has 1 rows and 0 dead letters" in output[-1]
    assert PROVED in output[-1]
    assert (tmp_path / "data" / "lake" / "hot" / "_delta_log").is_dir()
