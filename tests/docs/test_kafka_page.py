"""The page about Kafka does what it says, and names what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bridges.kafka.settings import KafkaActionSettings, KafkaSettings, KafkaSourceSettings, PublishSettings
from tests.docs.session import ROOT, Block, blocks, commands, run
from tests.support.kafka_server import Kafka

PAGE = ROOT / "docs" / "how-to" / "kafka.md"


def test_a_row_goes_to_kafka_and_comes_back(tmp_path: Path) -> None:
    with Kafka(tmp_path / "kafka") as kafka:
        (tmp_path / "reader").mkdir()
        output = run(commands(PAGE), tmp_path / "reader", {"9092": kafka.brokers[0].port})[-1]
    assert 'from-kafka/meter-7 {"clientid":"meter-7","temp":41}' in output.splitlines()
    counts = dict(line.split() for line in output.splitlines() if len(line.split()) == 2)
    assert (counts["matched"], counts["success"], counts["failed"]) == ("1", "1", "0")


@pytest.mark.parametrize("heading", ["Exactly once", "Log in"])
def test_settings_of_the_page_can_be_used(tmp_path: Path, heading: str) -> None:
    [text] = [block.text for block in blocks(PAGE) if block.info == "hocon" and block.heading == heading]
    (tmp_path / "sluice.conf").write_text(text.replace("/etc/ssl/kafka-ca.pem", ""))
    assert "OK" in run([Block("sh", "sluice config check sluice.conf", "")], tmp_path)[-1]


def test_every_setting_is_named_or_plain() -> None:
    named = set(re.findall(r"[a-z_]{3,}", PAGE.read_text()))
    told_in_the_reference = {
        "metadata_max_age",
        "new_topic_partitions",
        "new_topic_replication_factor",
        "new_topic_config",
        "key_encoding",
        "max_wait_time",
        "max_batch_bytes",
        "max_poll_records",
        "commit_interval",
        "binary_headers",
    }
    models = (KafkaSettings, KafkaActionSettings, KafkaSourceSettings, PublishSettings)
    every = {name for model in models for name in model.model_fields}
    assert every - named - told_in_the_reference == set()
