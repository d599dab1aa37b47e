"""What the page on MQTT says can be switched off can be."""

from __future__ import annotations

from pathlib import Path

from tests.docs.session import ROOT, commands, run


def test_what_is_switched_off_is_refused_in_every_version(tmp_path: Path) -> None:
    output = run(commands(ROOT / "docs" / "mqtt.md"), tmp_path)[-1]
    assert "QoS not supported" in output
    assert "disconnected" in output
    assert "identifier rejected" in output
    assert "refused" in output
    assert "Subscribed (mid: 1): 1" in output
    assert 'sluice_connections_by_version{version="5.0"}' in output
