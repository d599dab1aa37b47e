"""The page about bridges does what it says, and names what there is."""

from __future__ import annotations

import re
from pathlib import Path

from bridges.resource.options import ActionOptions
from tests.docs.session import ROOT, commands, run

PAGE = ROOT / "docs" / "how-to" / "bridges.md"


def test_rows_go_into_a_file_as_described(tmp_path: Path) -> None:
    start = commands(ROOT / "docs" / "tutorial.md", "1. Install and start")
    made, letters, counted, switched = run([*start, *commands(PAGE)], tmp_path)[-4:]
    assert "may be written to" in made
    assert "file:meters" in made
    assert "0 sent, 0 wait" in letters
    counts = dict(line.split() for line in counted.splitlines() if len(line.split()) == 2)
    assert (counts["matched"], counts["success"], counts["dropped"]) == ("1", "1", "0")
    assert "action meters: 0 rows are left" in switched


def test_every_setting_of_an_action_is_named() -> None:
    text = PAGE.read_text()
    named = set(re.findall(r"`([a-z_]+)`", text)) | set(re.findall(r"resource_opts\.([a-z_]+)", text))
    told_elsewhere = {"query_mode", "health_check_interval_jitter", "health_check_timeout"}
    assert set(ActionOptions.model_fields) - named <= told_elsewhere
