"""The pages on topics and listeners do what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.session import ROOT, Block, blocks, commands, run

HOW_TO = ROOT / "docs" / "how-to"
START = commands(ROOT / "docs" / "tutorial.md", "1. Install and start")


def _run(page: str, directory: Path) -> list[str]:
    found = commands(HOW_TO / page)
    return run([*START, *found], directory)[-len(found) :]


def test_sys_topics_come_to_mosquittos_client(tmp_path: Path) -> None:
    [told] = _run("sys-topics.md", tmp_path)
    assert "$SYS/broker/version sluice version " in told
    assert "$SYS/broker/clients/connected 1" in told
    assert "$SYS/broker/load/connections/1min " in told


def test_topics_are_rewritten_and_clients_subscribed(tmp_path: Path) -> None:
    rewritten, subscribed = _run("topic-rewrite.md", tmp_path)
    assert "meters/7/temp  (by meters)" in rewritten
    assert "clients/anna/#  (by mine)" in rewritten
    assert "meters/7/temp 21" in rewritten
    assert "to/${clientid}" in subscribed
    assert "to/c1 start" in subscribed


def test_a_message_is_published_later(tmp_path: Path) -> None:
    sent, removed = _run("delayed-publish.md", tmp_path)
    assert "doors/7 close" in sent
    assert "doors/8" in sent
    assert "close" in removed
    assert "removed" in removed


def test_listeners_and_settings_change_while_the_broker_runs(tmp_path: Path) -> None:
    listeners, reloaded, refused = _run("listeners.md", tmp_path)
    assert "listener tcp:plant removed" in listeners
    assert "5000" in listeners
    assert "in force: mqtt.max_packet_size" in reloaded
    assert "in force: rewrite 'old' added" in reloaded
    assert "needs a restart: mqtt.max_cached_plans" in reloaded
    assert "mqtt.max_packet_size: 'many' is not a size" in refused


@pytest.mark.parametrize("page", ["sys-topics.md", "topic-rewrite.md"])
def test_the_settings_shown_can_be_used(tmp_path: Path, page: str) -> None:
    texts = [block.text for block in blocks(HOW_TO / page) if block.info == "hocon"]
    (tmp_path / "sluice.conf").write_text("\n".join(texts))
    assert "OK" in run([Block("sh", "sluice config check sluice.conf", "")], tmp_path)[-1]
