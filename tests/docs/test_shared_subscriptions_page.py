"""The page on shared subscriptions does what it says."""

from __future__ import annotations

from pathlib import Path

from tests.docs.session import ROOT, Block, blocks, commands, run

PAGE = ROOT / "docs" / "how-to" / "shared-subscriptions.md"


def test_work_waits_for_workers_and_subscriptions_begin_in_the_past(tmp_path: Path) -> None:
    start = commands(ROOT / "docs" / "tutorial.md", "1. Install and start")
    waiting, taken, kept, past = run([*start, *commands(PAGE)], tmp_path)[-4:]
    shown = dict(line.split(maxsplit=1) for line in waiting.splitlines() if len(line.split()) >= 2)
    assert (shown["waiting"], shown["members"], shown["connected"]) == ("3", "1", "0")
    assert [line for line in taken.splitlines() if line.startswith("job")] == ["job 1", "job 2", "job 3"]
    assert "$share/audit/jobs/#" in kept
    assert "job 4" in kept.splitlines()
    assert [line for line in past.splitlines() if line.startswith("job")] == ["job 5", "job 6", "job 7"]


def test_the_settings_on_the_page_can_be_used(tmp_path: Path) -> None:
    texts = [block.text for block in blocks(PAGE) if block.info == "hocon"]
    (tmp_path / "sluice.conf").write_text("\n".join(texts))
    assert "OK" in run([Block("sh", "sluice config check sluice.conf", "")], tmp_path)[-1]
