"""The page about importing from EMQX does what it says."""

from __future__ import annotations

from pathlib import Path

from tests.docs.session import ROOT, commands, run

PAGE = ROOT / "docs" / "how-to" / "import-from-emqx.md"


def test_a_configuration_is_imported_as_described(tmp_path: Path) -> None:
    start = commands(ROOT / "docs" / "tutorial.md", "1. Install and start")
    *_, tried, imported = run([*start, *commands(PAGE)], tmp_path)
    assert "2 of 3 objects" not in tried
    assert "3 of 3 objects would be imported" in tried
    assert "mqtt.max_client_id_bytes = 512" in tried
    assert "3 of 3 objects imported" in imported
    assert "kafka:orders" in imported
