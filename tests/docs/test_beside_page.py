"""The page about standing beside another broker does what it says, and names what there is."""

from __future__ import annotations

import re
from pathlib import Path

from bridges.mqtt.settings import MqttActionSettings, MqttSettings, MqttSourceSettings
from tests.docs.session import ROOT, Block, blocks, commands, run
from tests.support.peers import mosquitto

PAGE = ROOT / "docs" / "how-to" / "stand-beside-another-broker.md"


def test_both_brokers_have_everything_once(tmp_path: Path) -> None:
    with mosquitto(tmp_path / "old") as old:
        (tmp_path / "reader").mkdir()
        output = run(commands(PAGE), tmp_path / "reader", {"11883": old.port})[-1]
    both = ["plant/oven from here", "plant/press from there"]
    shown = [line for line in output.splitlines() if line in {"here", "there"} or line.startswith("plant/")]
    assert shown == ["here", *both, "there", *both]


def test_rules_of_the_page_can_be_used(tmp_path: Path) -> None:
    texts = [block.text for block in blocks(PAGE) if block.info == "hocon"]
    (tmp_path / "sluice.conf").write_text("\n".join(texts))
    assert "OK" in run([Block("sh", "sluice config check sluice.conf", "")], tmp_path)[-1]


def test_settings_that_the_table_names_exist() -> None:
    table = PAGE.read_text().partition("## For readers of mosquitto.conf")[2].partition("\n## ")[0]
    told = {
        name
        for line in table.splitlines()
        for name in re.findall(r"`([a-z_]+) ?[=`]", line.split("|")[-2] if "|" in line else "")
    }
    known = {*MqttSettings.model_fields, *MqttActionSettings.model_fields, *MqttSourceSettings.model_fields}
    assert told - known - {"publish"} == set()
