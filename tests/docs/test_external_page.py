"""The how-to on payloads that another process codes does what it says."""

from __future__ import annotations

from pathlib import Path

from tests.docs.session import ROOT, commands, run

PAGE = ROOT / "docs" / "how-to" / "code-payloads-elsewhere.md"


def test_frames_are_decoded_by_a_server(tmp_path: Path) -> None:
    start = commands(ROOT / "docs" / "tutorial.md", "1. Install and start")
    *_, made, used = run([*start, *commands(PAGE)], tmp_path)
    assert '"Authorization":"******"' in made
    assert "eyJ0ZW1wIjogMjEuNX0=" in made, 'the base64 of {"temp": 21.5}'
    assert "a frame has 2 bytes, not 8" in used
    assert '{"temp": 2492.9}' in used.splitlines()
